"""Every `dpfedmeta account ...` that a page shows, and that needs no run of the reader's, gives an answer."""

import io
import re

import pytest
from pages import PAGES, ROOT, blocks, commands
from rich.console import Console

from dpfedmeta.cli.commands.account_command import main

# Of a run, or of a register, that a reader has.
_OF_A_RUN = {"--run", "--verify", "--statement", "--realised", "--population", "--population.register"}
# What stands by itself; any other command without an algorithm is a name in a sentence (`dpfedmeta account --explain`).
_WHOLE = {"--algo", "--cross-check", "--compare-paper", "--compare-presets"}


def _shown():
    found = {}
    for page in PAGES:
        text = [block.text for block in blocks(page) if block.language in (None, "sh", "bash")]
        text += re.findall(r"`((?:python scripts/|dpfedmeta )[a-z][^`]*)`", page.read_text())
        for command, words in commands("\n".join(text)):
            if command == "account" and not _OF_A_RUN & set(words) and "--help" not in words and _WHOLE & set(words):
                found.setdefault(" ".join(words), (str(page.relative_to(ROOT)), words))
    return list(found.values())


def test_there_are_such_commands_on_the_pages():
    assert len(_shown()) >= 12


@pytest.mark.slow
@pytest.mark.pictures
@pytest.mark.parametrize(("page", "words"), _shown(), ids=lambda each: each if isinstance(each, str) else None)
def test_it_answers(page, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    assert main(words, Console(file=said, width=200)) == 0, f"{page}: {words}"
    assert re.search(r"\d", said.getvalue())
    drawn = [words[place + 1] for place, word in enumerate(words) if word == "--plot"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)
