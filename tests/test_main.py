"""The entry point: `dpfedmeta`, `python -m dpfedmeta` and scripts/ name the same commands."""

import configparser
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dpfedmeta.__main__ import main
from dpfedmeta.cli import checkout, commands
from dpfedmeta.cli.commands import command_names
from dpfedmeta.core.version import __version__

ROOT = Path(__file__).parents[1]
OTHERS = {"bench", "checkout", "decompose", "gpu", "gpu_data"}


def test_all_commands_are_listed_and_explain_themselves(dpfedmeta):
    overview = dpfedmeta("--help").out
    for name in command_names():
        assert f"\n  {name} " in overview
        assert dpfedmeta(name, "--help").out.startswith(f"usage: dpfedmeta {name} ")
    assert dpfedmeta(code=2).out == overview
    assert dpfedmeta("--version").out == f"dpfedmeta {__version__}\n"


def test_a_command_that_nobody_planned_for_is_one_file(tmp_path, monkeypatch, dpfedmeta):
    (tmp_path / "say_hello_command.py").write_text(
        'SUMMARY = "greets"\n\n\ndef main(words, console):\n    console.print("hello", *words)\n    return 0\n'
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert "\n  say-hello   greets\n" in dpfedmeta("--help").out
    assert "hello you" in dpfedmeta("say-hello", "you").out


def test_a_mistyped_command_names_the_nearest(dpfedmeta):
    refused = dpfedmeta("evalate", "runs/x", code=2)
    assert refused.out == ""
    assert "evalate: no such command; did you mean evaluate?" in refused.error


def test_every_command_has_a_script_and_every_script_a_command():
    names = {name.replace("-", "_") for name in command_names()}
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} == names | OTHERS
    assert names <= {path.stem.removesuffix("_command") for path in (ROOT / "dpfedmeta/cli/commands").glob("*.py")}
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", encoding="utf-8")
    name, _, target = parsed["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = target.partition(":")
    assert (name, getattr(import_module(module), function)) == ("dpfedmeta", main)


@pytest.fixture
def script(monkeypatch):
    """Run a script as the user's shell does, in this process."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        monkeypatch.syspath_prepend(ROOT / "scripts")
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        return end.value.code

    return run


def test_a_script_is_its_command(script, capsys):
    assert script("check_task", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: dpfedmeta check-task ")


def test_bench_is_found_from_any_directory(script, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path or ".").resolve() != ROOT])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    assert script("bench", "--help") == 0
    assert "--peers" in capsys.readouterr().out


def test_a_script_without_the_package_says_what_to_type(script, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "checkout", raising=False)
    said = script("train", "--help")
    assert said.startswith("error: dpfedmeta is not installed for this Python; type: ")
    assert f"-m pip install -c {ROOT / 'constraints.txt'} -e {ROOT}" in said
    monkeypatch.delitem(sys.modules, "checkout")


def test_a_checkout_that_was_never_installed_says_what_to_type(monkeypatch, capsys):
    import dpfedmeta
    from dpfedmeta.core import dependencies as installed

    monkeypatch.setattr(installed, "find_spec", lambda name: None if name in ("torch", "rich") else object())
    with pytest.raises(SystemExit) as end:
        main(["train", "--algo", "maml"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert "it lacks torch, rich; type: " in said
    assert f"-m pip install -c {ROOT / 'constraints.txt'} -e {ROOT}" in said
    assert "TORCH=cpu" in said

    def absent(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    with monkeypatch.context() as patch:
        patch.setattr(dpfedmeta, "import_module", absent)
        with pytest.raises(ModuleNotFoundError, match="not installed for this Python: it lacks torch; type"):
            dpfedmeta.train  # noqa: B018


def test_what_is_said_to_be_needed_is_what_is_installed():
    from configparser import ConfigParser
    from importlib.metadata import packages_distributions

    from dpfedmeta.core.dependencies import _NEEDED

    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    due = {line.split()[0].lower() for line in setup["options"]["install_requires"].strip().splitlines()}
    known = packages_distributions()
    assert {known[name][0].lower() for name in _NEEDED} == due


def test_what_only_a_checkout_has_says_so_elsewhere(script, monkeypatch, capsys, dpfedmeta, tmp_path):
    assert script("decompose", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: dpfedmeta decompose ")
    assert "--sample" in dpfedmeta("decompose", "--help").out
    monkeypatch.setattr(checkout, "_ROOT", tmp_path)
    for words in (["decompose"], ["account", "--compare-paper"], ["federate", "demo"]):
        refused = dpfedmeta(*words, code=2)
        assert " ".join(["dpfedmeta", *words]) in refused.error
        assert "is part of the repository and not of the installed package" in refused.error


def test_another_package_of_the_name_is_not_taken_for_the_checkouts(monkeypatch, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert Path(checkout.checkout_module("benchmarks.decompose", "decompose").__file__).is_relative_to(ROOT)
