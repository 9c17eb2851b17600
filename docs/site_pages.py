"""Sphinx's half of from_code.py.

    ```{options} train
    ```

stands for the options of a command, `{settings}` for every setting, `{kept-settings}` for who keeps them.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from from_code import (
    glossary_words,
    kept_settings_text,
    notebook_text,
    options_text,
    rewritten,
    root_file,
    settings_text,
)
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dpfedmeta.cli.commands import command_names


class Options(SphinxDirective):
    """The options of one command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """As nodes of the page."""
        command = self.arguments[0]
        if command not in command_names():
            raise self.error(f"no command {command}")
        return self.parse_text_to_nodes(options_text(command))


class AllSettings(SphinxDirective):
    """Every setting."""

    def run(self) -> list[nodes.Node]:
        """As nodes of the page, with headings."""
        return self.parse_text_to_nodes(settings_text(), allow_section_headings=True)


class KeptSettings(SphinxDirective):
    """Who keeps each setting among real clients."""

    def run(self) -> list[nodes.Node]:
        """As nodes of the page."""
        return self.parse_text_to_nodes(kept_settings_text())


class Notebook(SphinxDirective):
    """A notebook beside the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """As nodes of the page, with headings."""
        path = Path(self.env.doc2path(self.env.docname)).parent / self.arguments[0]
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(notebook_text(path), allow_section_headings=True)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    if path.suffix == ".md":
        source[0] = rewritten(path, root_file(source[0]))
    if path.name == "glossary.md":  # its words are entries of the index, which the search looks into first
        source[0] += "".join(f"\n```{{index}} ! {word}\n```\n" for word in glossary_words(source[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("options", Options)
    app.add_directive("settings", AllSettings)
    app.add_directive("kept-settings", KeptSettings)
    app.add_directive("notebook", Notebook)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
