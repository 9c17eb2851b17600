"""Code of the user's own is told apart by what runs, wherever its import statements lead."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.plugins.user_code import own_sources, own_words, unseen
from dpfedmeta.core.provenance import environment_of
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.user_modules import own_modules

FILES = {
    "outer.py": "import inner_one\nfrom pack import first\nimport bare.under.leaf\n"
    "def late():\n    import inner_two\nfrom dpfedmeta import Settings\n",
    "inner_one.py": "import numpy\nimport json\nVALUE = 1\n",
    "inner_two.py": "VALUE = 2\n",
    "pack/__init__.py": "from . import second\n",
    "pack/first.py": "from .deep.third import VALUE\n",
    "pack/second.py": "VALUE = 4\n",
    "pack/deep/__init__.py": "",
    "pack/deep/third.py": "VALUE = 5\n",
    "bare/under/leaf.py": "VALUE = 7\n",
    "aside.py": "VALUE = 6\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("outer", "inner_one", "inner_two", "pack", "bare")
    ]:
        del sys.modules[name]


@pytest.mark.parametrize("imported", [False, True])
def test_what_modules_import_counts_as_far_as_it_is_nobody_elses(folder, imported):
    if imported:
        __import__("outer")
    found = own_sources(["outer"])
    assert {*found} == {
        *("outer", "inner_one", "inner_two", "numpy"),
        "bare.under.leaf",
        *("pack", "pack.first", "pack.second", "pack.deep", "pack.deep.third"),
    }
    assert unseen(found) == []
    # Only numbers tell an installed package.
    assert found["numpy"].count(".") == 2


@pytest.mark.parametrize("name", [name for name in FILES if name != "aside.py"])
def test_any_of_these_files_changes_the_digest(folder, name):
    before, words = own_sources(["outer"]), own_words(["outer"])
    (folder / name).write_text(FILES[name] + "\n# edited\n")
    after = own_sources(["outer"])
    assert after != before
    assert words != own_words(["outer"])
    assert environment_of(torch.device("cpu"), None, after) != environment_of(torch.device("cpu"), None, before)


def test_what_is_not_imported_changes_nothing(folder):
    before = own_sources(["outer"])
    (folder / "aside.py").write_text("VALUE = 7\n")
    assert own_sources(["outer"]) == before


@pytest.mark.parametrize(
    "text",
    [
        "exec('VALUE = 1')",
        "import importlib\nother = importlib.import_module('aside')",
        "other = __import__('as' + 'ide')",
        "from importlib import import_module\nother = import_module('aside')",
        "import runpy\nrunpy.run_path('aside.py')",
        "this is no Python",
    ],
)
def test_code_that_no_file_names_is_never_the_same_again(folder, text):
    (folder / "inner_two.py").write_text(text)
    found = own_sources(["outer"])
    assert unseen(found) == ["inner_two"]
    (folder / "inner_two.py").write_text(text + "  # edited")
    assert own_sources(["outer"]) != found
    assert environment_of(torch.device("cpu"), None, found) is None


def test_a_module_without_a_file_is_never_the_same_again(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert own_sources(["__main__"]) == {"__main__": "unseen"}
    assert own_sources(["nowhere_at_all"]) == {"nowhere_at_all": "unseen"}


def test_a_network_may_be_put_in_evaluation_mode(folder):
    (folder / "inner_two.py").write_text("def still(network):\n    return network.eval()\n")
    assert unseen(own_sources(["outer"])) == []


def test_this_package_and_pythons_library_are_told_elsewhere():
    assert own_sources(["dpfedmeta.privacy.clip_policies.constant_policy", "json", "collections.abc"]) == {}
    assert environment_of(torch.device("cpu"), 3, {}) == environment_of(torch.device("cpu"), 3)


class Thing:
    def __init__(self, *parts):
        self.parts, self.rule = parts, resolve


SEAMS = ("server.noise", "server.optimizer", "clip.policy", "meta.method", "record.release", "aggregation.mode")


@pytest.mark.parametrize("seam", [*SEAMS, "model.name"])
def test_every_seam_and_every_object_is_looked_at(seam):
    settings, (task, _) = resolve("dp-agr", "strokes", None, {seam: "somewhere.else:Thing"}), load_task("strokes")
    assert own_modules(settings, task) == ["somewhere.else"]
    assert own_modules(resolve("dp-agr", "strokes", None, {}), task) == []
    assert own_modules(settings, task, Thing(), None) == ["dpfedmeta.config.load", "somewhere.else", __name__]
    other = replace(task, source=SimpleNamespace(reader="reader.of_mine:Reader"))
    assert own_modules(settings, other) == ["reader.of_mine", "somewhere.else"]


def test_what_a_class_inherits_from_is_looked_at_wherever_it_stands():
    base = type("Base", (), {"__module__": "mine.base"})
    kind = type("Kind", (base,), {"__module__": "mine.kind"})
    settings, (task, _) = resolve("dp-agr", "strokes", None, {}), load_task("strokes")
    assert own_modules(settings, task, kind()) == ["mine.base", "mine.kind"]
    assert own_modules(settings, task, SimpleNamespace(part=kind())) == ["mine.base", "mine.kind", "types"]
