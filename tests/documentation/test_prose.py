"""Pages, --help and descriptions of settings: short sentences, measured by docs/check_prose.py."""

import importlib.util

import pytest
from pages import PAGES, ROOT

from dpfedmeta.cli.commands import command_names


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROSE = _module("check_prose")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_short_sentences_or_is_on_the_list_of_those_to_rewrite(name):
    faults = list(PROSE.faults((ROOT / name).read_text()))
    if name in PROSE.LEFT:
        assert faults, f"{name} fits: take it from LEFT in docs/check_prose.py"
    else:
        assert not faults


@pytest.mark.parametrize("command", command_names())
def test_the_help_of_a_command_has_short_sentences(command):
    assert list(PROSE.faults(_module("from_code").options_text(command))) == []


def test_descriptions_of_settings_are_short_sentences():
    assert list(PROSE.faults(_module("from_code").settings_text())) == []


def test_who_keeps_a_setting_is_said_in_short_sentences():
    assert list(PROSE.faults(_module("from_code").kept_settings_text())) == []


def test_the_list_names_pages_that_there_are():
    assert set(PROSE.LEFT) <= set(NAMES)
    assert PROSE.pages() == PAGES


def test_only_prose_is_measured():
    words = " ".join(["word"] * 60)
    page = f"# {words}\n\nOne [link](a.md) and `{words}`. Two.\n\n```sh\n{words}\n```\n"
    page += f"\n| a |\n|---|\n| {words} |\n\n    {words}\n"
    assert PROSE.measured(page) == (4, 2.5)
    assert list(PROSE.faults(page)) == []


def test_a_long_sentence_is_found_wherever_prose_stands():
    assert PROSE.measured(f"- {'word ' * 38}end\n") == (39, 39)
    assert PROSE.measured(f"> {'word; ' * 20}end: {'word ' * 20}. No.\n") == (41, 21)
    assert len(list(PROSE.faults(f"{'word ' * 39}. A. B.\n"))) == 1  # the sentence
    assert len(list(PROSE.faults(f"{'word ' * 26}.\n"))) == 1  # the paragraph
    assert PROSE.sentences("As in e.g. Opacus et al. `dp` works. 1.5 is epsilon! Is it?") == [
        "As in e.g Opacus et al `dp` works.", "1.5 is epsilon!", "Is it?",
    ]  # fmt: skip
