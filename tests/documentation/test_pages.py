"""README and docs: links lead somewhere, commands are taken by the parsers, code runs or says why not."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT, anchors, blocks, commands

from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.commands import OF_A_CHECKOUT, command_names
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.federation.offers.work_limits import WORK_LIMITS

NOT_RUN = re.compile(r"<!-- not run: .{10,} -->")
RUN_HERE = {"README.md", "docs/guarantees.md", "docs/kernel.md"}  # test_kernel_page.py
# From top to bottom, by test_tutorials.py.
RUN_SLOWLY = {
    "docs/own-data.md",
    "docs/tutorials/meta-learning.md",
    "docs/tutorials/privacy.md",
    "docs/tutorials/federations.md",
    "docs/how-to/hospitals.md",  # federation/test_hospitals_page.py
}
CODE = [block for page in PAGES for block in blocks(page) if block.language == "python"]


@pytest.fixture(scope="module")
def from_code():
    return _module("from_code")


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_can_be_read_in_three_minutes():
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(prose.split()) < 400


def test_every_link_leads_to_a_file_and_a_heading():
    known, wrong = {}, []
    for page in PAGES:
        text = page.read_text()
        for block in blocks(page):
            text = text.replace(block.text, "") if block.language is not None and block.text else text
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            file = (page.parent / target).resolve() if target else page
            if not file.exists():
                wrong.append(f"{page.name}: {target}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in known.setdefault(file, anchors(file)):
                wrong.append(f"{page.name}: {target}#{anchor}: there is no such heading")
    assert not wrong


def test_every_page_is_in_the_navigation():
    named = set()
    for block in blocks(ROOT / "docs/index.md"):
        if block.language == "{toctree}":
            named |= {line for line in block.text.splitlines() if line and not line.startswith(":")}
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs") and page.name != "index.md":
            name = str(page.relative_to(ROOT / "docs").with_suffix(""))
            assert any(Path(name).match(each) for each in named), f"docs/index.md does not list {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_taken_by_its_parser(page, from_code):
    text = page.read_text()
    shown = [block.text for block in blocks(page) if block.language in (None, "sh", "bash")]
    shown += re.findall(r"`((?:python scripts/|dpfedmeta )[a-z][^`]*)`", text)
    for command, words in commands("\n".join(shown)):
        if command in ("bench", "gpu") or "--help" in words or command.startswith("--"):
            continue
        if command == "audit" and words and not words[0].startswith("-"):
            del words[0]  # a run, which this command takes by itself
        assert command in {*command_names(), *OF_A_CHECKOUT}, f"{page.name}: {command}"
        if command == "federate":
            command = f"federate {words.pop(0)}"
        made = from_code.parsers(command.split()[0])[command]
        takes = getattr(made, "settings", False) or command in ("check-task", "audit", "encode")
        try:
            options, rest = made.parse_known_args(words) if takes else (made.parse_args(words), [])
            given = settings_from(rest)
            if getattr(made, "settings", False) and not getattr(options, "config", None):
                resolve(
                    options.algo if options.algo and not options.algo.isupper() else "dp-agr",
                    "strokes",
                    None,
                    {
                        name: value
                        for name, value in given.items()
                        if not value.startswith(("mine:", "mynet:", "package"))
                    },
                    keep_both=command == "account",
                )
        except Exception as error:
            raise AssertionError(f"{page.name}: {command} {' '.join(words)}: {error}") from error


@pytest.mark.parametrize("block", CODE, ids=lambda block: block.where)
def test_code_is_run_or_says_why_not_and_names_what_there_is(block):
    name = str(block.page.relative_to(ROOT))
    assert name in RUN_HERE | RUN_SLOWLY or NOT_RUN.search(block.before), f"{block.where}: run by no test"
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpfedmeta"):
            for each in node.names:
                assert hasattr(importlib.import_module(node.module), each.name), f"{block.where}: {each.name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dp":
            assert hasattr(importlib.import_module("dpfedmeta"), node.attr), f"{block.where}: dp.{node.attr}"


def is_code(text):
    """Whether a block is Python that a reader would type."""
    try:
        found = ast.parse(text).body
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in found)


def test_no_code_stands_in_a_block_that_no_test_looks_at():
    """Indented, it says no language, and a name that is gone stays in it."""
    every = [block for page in PAGES for block in blocks(page)]
    assert [block.where for block in every if block.language != "python" and is_code(block.text)] == []
    assert is_code("from dpfedmeta.privacy import PrivacyPlan\n\nplan = PrivacyPlan()")
    assert not is_code("dpfedmeta train --algo dp-agr")


def test_the_code_of_the_page_about_guarantees_runs(capsys):
    (block,) = [each for each in CODE if each.page.name == "guarantees.md"]
    exec(compile(block.text, block.where, "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert shown[0].startswith("(client, public) 1.4")


def test_the_code_of_readme_runs(tmp_path, monkeypatch, capsys):
    (block,) = [each for each in CODE if each.page.name == "README.md"]
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    tiny = {
        "model.width": 4, "meta.steps": 1, "run.workers": 1, "evaluation.every": 3, "evaluation.validation_episodes": 2,
        "evaluation.episodes": 2, "server.noise_multiplier": 1.0, "run.dir": str(tmp_path), "run.name": "readme",
    }  # fmt: skip
    text, changed = re.subn(
        r"epsilon=1.5, rounds=\d+, cohort=\d+\)", f"{tiny!r}, rounds=3, cohort=6, clients=2000)", block.text
    )
    assert changed == 1
    exec(compile(text, block.where, "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert "completed after" in shown
    assert "tensor([" in shown
    assert (tmp_path / "readme/summary.json").exists()


def test_the_reference_has_every_command_and_every_setting(from_code):
    for command in command_names():
        text = from_code.options_text(command)
        for action in (action for made in from_code.parsers(command).values() for action in made._actions):
            assert all(
                f"`{name}" in text or name in ("-h", "--help") or f" {name}" in text for name in action.option_strings
            )
    reference = (ROOT / "docs/reference/commands.md").read_text()
    assert re.findall(r"```\{options\} (\S+)", reference) == re.findall(r"^## (\S+)$", reference, re.MULTILINE)
    assert set(re.findall(r"```\{options\} (\S+)", reference)) == set(command_names())
    settings = from_code.settings_text()
    for name, _, _ in setting_fields():
        if "." in name:
            assert re.search(rf"^- \*\*`{re.escape(name)}`\*\* \(.+; default .+\): \S", settings, re.MULTILINE), name


def test_the_table_of_a_federation_has_every_setting_and_every_limit(from_code):
    table = from_code.kept_settings_text()
    for name, _, _ in setting_fields():
        assert re.search(rf"^\| `{re.escape(name)}` \| `\w+` \| .+ \| .+ \|$", table, re.MULTILINE), name
    assert all(limit.what in table for limit in WORK_LIMITS)
    assert "```{kept-settings}" in (ROOT / "docs/reference/federation-settings.md").read_text()


def test_every_word_of_the_glossary_is_an_entry_of_the_index(from_code):
    words = from_code.glossary_words("| word | meaning |\n|---|---|\n| Message, update | what | a |\n| N | b | |\n")
    assert words == ["message", "update", "n"]
    found = from_code.glossary_words((ROOT / "docs/reference/glossary.md").read_text())
    assert {"support set", "clip bound", "sensitivity", "adjacency", "ledger", "cohort"} <= set(found)
    assert len(found) == len(set(found))


def test_links_out_of_the_folder_become_pages_or_paths(from_code):
    page = ROOT / "docs/tutorials/any.md"
    text = "[a](../../SECURITY.md#reporting) [b](../../examples/own_clip_policy.py) [c](../guarantees.md#x)"
    assert from_code.rewritten(page, text) == (
        "[a](../project/security.md#reporting) b (`examples/own_clip_policy.py`) [c](../guarantees.md#x)"
    )
    with pytest.raises(FileNotFoundError, match=r"nothing\.py"):
        from_code.rewritten(page, "[a](../../nothing.py)")


def test_a_built_site_is_refused_for_what_is_missing_or_loaded_from_elsewhere(tmp_path):
    check = _module("check_site")
    (tmp_path / "a.html").write_text('<h1 id="here">x</h1><a href="b.html#there">y</a><a href="#here">z</a>')
    (tmp_path / "b.html").write_text('<p id="there"><img src="c.png"><script src="https://example.org/x.js"></script>')
    (tmp_path / "c.png").write_bytes(b"")
    (tmp_path / "s.css").write_text("p { color: red }")
    assert list(check.problems(tmp_path)) == ["b.html: loads https://example.org/x.js"]
    (tmp_path / "b.html").write_text('<img src="d.png">')
    (tmp_path / "s.css").write_text("@import url(https://example.org/font.css)")
    assert list(check.problems(tmp_path)) == [
        "a.html: b.html#there: there is no such anchor",
        "b.html: d.png: there is no such file",
        "s.css: loads from elsewhere",
    ]
    assert list(check.problems(tmp_path / "empty")) == [f"{tmp_path / 'empty'}: no pages"]
