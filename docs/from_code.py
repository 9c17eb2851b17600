"""What the site takes from the code when it is built: options, settings, and links that leave the folder."""

from __future__ import annotations

import argparse
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfedmeta.cli.commands import command_module
from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.round_settings import ScheduleSettings
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.federation.offers.kept_settings import SETTINGS, TakenSetting
from dpfedmeta.federation.offers.work_limits import MOST_BANDS, MOST_FITTED, WORK_LIMITS

ROOT = Path(__file__).parents[1]
KEEPERS = {
    "client": "the client keeps it itself, whatever the server does",
    "server": "the server's word: the cells towards the public count on it, as on the noise that the server adds",
    "public": "no promise counts on it",
    "unsent": "for the server's machine alone: no offer states it",
    "nobody": "refused, since nobody keeps it among real clients",
}
# Files of the repository that are pages of the site.
_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
}
_INCLUDE = re.compile(r"```\{include\} \.\./\.\./(?P<file>[A-Z]+\.md)\n```\s*")
_LINK = re.compile(r"\[(?P<text>[^\]\n]*(?:\n[^\]\n]+)?)\]\((?P<target>(?:\.\./)+[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def parsers(command: str) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command by how it is called: one, or one for each of its parts."""
    module = command_module(command)
    if hasattr(module, "parsers_of"):
        return {f"{command} {part}": made for part, made in module.parsers_of().items()}
    return {command: module.options_of()}


def options_text(command: str) -> str:
    """The options of a command as Markdown, from its parsers."""
    found = parsers(command)
    return "\n\n".join(
        f"**{name}.** {_listed(made)}" if len(found) > 1 else _listed(made) for name, made in found.items()
    )


def _listed(made: argparse.ArgumentParser) -> str:
    lines = [_escaped(made.description or ""), ""]
    for action in made._actions:
        if not isinstance(action, argparse._HelpAction):
            lines += [f"- {_shown(action)}: {_escaped(_meaning(action, made))}"]
    takes = getattr(made, "settings", False)
    lines += ["", "It takes every [setting](settings.md) too." if takes else ""]
    return "\n".join(lines)


def _shown(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.nargs == 0:
        return f"`{name}`"
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    many = " ..." if action.nargs in ("+", "*") or isinstance(action.nargs, int) else ""
    return f"`{name}{f' {value}' if action.option_strings else ''}{many}`"


def _meaning(action: argparse.Action, made: argparse.ArgumentParser) -> str:
    words = (action.help or "").replace("%%", "%") % {"default": action.default, "prog": made.prog}
    plain = isinstance(action.default, str | int | float) and not isinstance(action.default, bool)
    return words + (f" (default: {action.default})" if plain and "default" not in words else "")


def settings_text() -> str:
    """Every setting as Markdown, a heading for each section."""
    short = {target: form for form, target in SHORT_FORMS.items()}
    lines: list[str] = []
    section = None
    for name, annotation, default in setting_fields():
        if "." not in name:
            continue
        if name.partition(".")[0] != section:
            section = name.partition(".")[0]
            about = typing.get_type_hints(Settings)[section].__doc__ or ""
            lines += ["", f"## {section}", "", _escaped(about), ""]
        form = f", short `--{short[name]}`" if name in short else ""
        lines.append(
            f"- **`{name}`** ({_values(annotation)}; default {_default(default)}{form}): {_described(annotation)}"
        )
    lines += ["", "## Entries of server.schedule", "", _escaped(ScheduleSettings.__doc__ or ""), ""]
    for name, annotation in typing.get_type_hints(ScheduleSettings, include_extras=True).items():
        lines.append(f"- **`{name}`** ({_values(annotation)}): {_described(annotation)}")
    return "\n".join(lines)


def kept_settings_text() -> str:
    """Who keeps what is proved of each setting among real clients, as Markdown tables, and the limits of several."""
    lines = ["| | |", "|---|---|"] + [f"| `{keeper}` | {_escaped(words)} |" for keeper, words in KEEPERS.items()]
    lines += ["", "| setting | kept by | values | how, or why |", "|---|---|---|---|"]
    lines += [f"| `{name}` | `{row.keeper}` | {_taken(row)} | {_escaped(row.why)} |" for name, row in SETTINGS.items()]
    lines += ["", "| settings together | what they come to | at most |", "|---|---|---|"]
    lines += [f"| {_escaped(limit.settings)} | {limit.what} | {limit.most:,} |" for limit in WORK_LIMITS]
    lines += [
        f"| server.rounds, correlated noise | rounds that it is fitted to | {MOST_FITTED:,} |",
        f"| server.rounds, banded noise | rounds times bands | {MOST_BANDS:,} |",
    ]
    return "\n".join(lines)


def _taken(row: TakenSetting) -> str:
    """Values of one setting that a federation takes."""
    named = ["none" if value in (None, (), {}, "") else f"`{value}`" for value in row.only or ()]
    most = [] if row.most is None else [f"at most {row.most:,}"]
    return "; ".join([*([", ".join(named)] if named else []), *most]) or "any"


def notebook_text(path: Path) -> str:
    """A notebook as Markdown: its words, its code, and what that showed, pictures within the page."""
    lines: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            lines += ["".join(cell["source"]), ""]
            continue
        lines += ["```python", "".join(cell["source"]), "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                lines += [f'<img alt="drawn by the lines above" src="data:image/png;base64,{data["image/png"]}">', ""]
            else:
                lines += ["```text", "".join(output.get("text") or data["text/plain"]).rstrip(), "```", ""]
    return "\n".join(lines)


def _described(annotation: Any) -> str:
    found = [m.description for m in annotation.__metadata__ if getattr(m, "description", None)]
    return _escaped(found[0]) if found else ""


def _default(value: Any) -> str:
    return "`null`" if value is None else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _values(annotation: Any) -> str:
    """The values that it takes, in words."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _values(annotation.__origin__)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_values(each) for each in typing.get_args(annotation)))
    if origin is typing.Literal:
        return " ".join(f"`{each}`" for each in typing.get_args(annotation))
    if origin is not None:
        return "list"
    words = {int: "whole number", float: "number", str: "text", bool: "`true` `false`", type(None): "`null`"}
    return words.get(annotation, "table")


def _escaped(text: str) -> str:
    """So that Markdown shows it as it is."""
    return re.sub(r"([\\*_<>|\[\]$`])", r"\\\1", " ".join(text.split()))


def glossary_words(text: str) -> list[str]:
    """What the first column of the glossary's tables explains, in small letters."""
    cells = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    return [word for cell in cells if cell != "word" for word in cell.lower().split(", ")]


def links(page: Path, text: str, root: Path = ROOT) -> Iterator[tuple[re.Match[str], Path, str | None]]:
    """Links of a page that leave its folder upwards: (where, what they name, the page of the site that shows it)."""
    for found in _LINK.finditer(text):
        target = (page.parent / found["target"]).resolve()
        if target.is_relative_to(root / "docs"):
            continue
        yield found, target, _PAGES.get(str(target.relative_to(root)))


def rewritten(page: Path, text: str) -> str:
    """Links to files of the repository as the site can show them: a page, or the path in the repository.

    Raises:
        FileNotFoundError: There is no such file.
    """
    for found, target, shown in reversed(list(links(page, text))):
        if not target.exists():
            raise FileNotFoundError(f"{page}: {found['target']}: there is no such file")
        up = "../" * (len(page.relative_to(ROOT / "docs").parts) - 1)
        path = target.relative_to(ROOT)
        instead = f"[{found['text']}]({up}{shown}{found['anchor'] or ''})" if shown else f"{found['text']} (`{path}`)"
        text = text[: found.start()] + instead + text[found.end() :]
    return text


def root_file(text: str) -> str:
    """A page of docs/project/ with the file of the root that it includes in its place; its links begin in the root."""
    found = _INCLUDE.fullmatch(text)
    if found is None:
        return text
    page = ROOT / "docs/project/page.md"
    inside = re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", r"](../../\1)", (ROOT / found["file"]).read_text(encoding="utf-8"))
    return re.sub(r"\]\(\.\./\.\./docs/", "](../", rewritten(page, inside))
