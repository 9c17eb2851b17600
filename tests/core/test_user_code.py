"""Code of the user's own: found where the user is, named with its line where it fails, never in place of other code."""

import sys

import pytest

from dpfedmeta.accounting.events.noise_cost import restored
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.core.plugins.user_code import own_object, raised
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory that Python does not look into by itself."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = {*sys.modules}
    yield folder
    for name in {*sys.modules} - before:
        del sys.modules[name]


def spec_of(name):
    return NetworkSpec(name=name, channels=1, image_size=8, ways=3, width=4, norm="none")


def test_a_module_of_the_current_directory_is_found_by_every_seam(here):
    (here / "own_things.py").write_text(
        "from torch import nn\n"
        "from dataclasses import dataclass\n"
        "def network(**given): return nn.Sequential(nn.Flatten(), nn.Linear(64, given['ways']))\n"
        "class Policy: pass\n"
        "@dataclass(frozen=True)\nclass Noise:\n    scale: float\n"
    )
    assert build_network(spec_of("own_things:network"))[1].out_features == 3
    found = members.find("clip.policy", "own_things:Policy", "dpfedmeta.privacy.clip_policies")
    assert found.__module__ == "own_things"
    assert restored({"kind": "own_things:Noise", "scale": 2.0}).scale == 2.0
    # Worker processes look where this one does.
    assert sys.path[-1] == str(here)
    assert sys.path.count(str(here)) == 1


def test_no_file_of_the_current_directory_hides_a_module_of_somebody_else(here):
    (here / "colorsys.py").write_text("rgb_to_hsv = 'planted'")
    sys.modules.pop("colorsys", None)
    assert callable(own_object("a.setting", "colorsys:rgb_to_hsv"))


def test_no_code_is_taken_from_a_run_directory(here):
    (here / "ledger.jsonl").write_text("")
    (here / "planted.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match=r"no module planted in .*a run directory, which is not searched for code"):
        own_object("model.name", "planted:network")
    assert "planted" not in sys.modules


def test_from_elsewhere_it_says_where_to_go(here):
    with pytest.raises(InputError) as caught:
        own_object("model.name", "no_such_file:network")
    assert f"no module no_such_file in {here} (the current directory)" in str(caught.value)
    assert "call the command from the directory that holds it" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import not_there\n", r"ModuleNotFoundError: No module named 'not_there', at .*broken\.py, line 1"),
        ("\n\nx = {}['size']\n", r"KeyError: 'size', at .*broken\.py, line 3"),
        ("def f(:\n", r"SyntaxError: .*broken\.py, line 1"),
        ("raise SystemExit(3)\n", r"SystemExit: 3, at .*broken\.py, line 1"),
        ("def netwrok(**given): pass\n", r"broken \(.*broken\.py\) has no network; did you mean netwrok"),
        (
            "def network(**given):\n    import torch\n    return torch.nn.Linear('a', 3)\n",
            r"at .*broken\.py, line 3\)$",
        ),
        ("def network(**given):\n    raise SystemExit(3)\n", r"the factory failed \(SystemExit: 3, at .*line 2\)$"),
    ],
)
def test_what_fails_is_named_with_its_line(here, text, words):
    (here / "broken.py").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        build_network(spec_of("broken:network"))
    assert "\n" not in str(caught.value)


def test_an_error_without_a_line_of_the_users_own_is_itself_alone():
    with pytest.raises(ZeroDivisionError) as caught:
        eval("1 / 0")
    caught.value.__traceback__ = None
    assert raised(caught.value) == "ZeroDivisionError: division by zero"
    assert raised(KeyError()) == "KeyError"


def test_a_noise_is_looked_for_only_by_a_full_name(here):
    (here / "laplace.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match="'laplace' is not known here"):
        restored({"kind": "laplace", "scale": 1.0})
