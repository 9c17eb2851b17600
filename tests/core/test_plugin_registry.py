"""Members of a seam: found by their name, with settings of their own, and refused where they break a protocol."""

import ast
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_names
from dpfedmeta.core.plugins import plugin_registry as members
from tests.parsed import PACKAGE, modules, nodes_of

POLICIES = "dpfedmeta.privacy.clip_policies"


@dataclass(frozen=True, kw_only=True)
class Taking:
    """A member with settings of its own."""

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
        half_life: float = 3.0
        floor: float = 0.1


@pytest.mark.parametrize(
    ("folder", "some"),
    [
        (POLICIES, {"constant", "none", "quantile", "window", "window-literal"}),
        ("dpfedmeta.learning.algorithms", {"maml", "fomaml", "anil", "reptile", "fedavg"}),
        ("dpfedmeta.learning.releases", {"steps", "micro-episodes"}),
        ("dpfedmeta.privacy.noises", {"independent"}),
        ("dpfedmeta.learning.server_optimizers", {"adam", "sgd", "muon"}),
    ],
)
def test_every_file_of_a_folder_is_a_member_and_names_one(folder, some):
    found = plugin_names.names(folder)
    assert found == sorted(found)
    assert some <= {*found}
    assert not {"", "init", "--init--"} & {*found}
    for name in found:
        assert members.find("a.setting", name, folder) is sys.modules[plugin_names.module_of(name, folder)].MEMBER


def test_names_are_known_before_anything_is_imported(monkeypatch):
    monkeypatch.setattr(
        members,
        "import_module",
        lambda name: sys.modules[name] if name == POLICIES else pytest.fail(f"imported {name}"),
    )
    assert "window" in plugin_names.names(POLICIES)


def test_a_member_of_the_users_own_is_found_by_its_module():
    assert members.find("clip.policy", f"{__name__}:Taking", POLICIES) is Taking


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("windw", "clip.policy = windw: unknown; did you mean window"),
        ("WINDOW-LITERAL", "clip.policy = WINDOW-LITERAL: unknown"),
        ("xyz", "known are constant, median, none, .*, window-literal, window-products, or package.module:name"),
        # The name of a file is not the name of a member.
        ("window_literal", "unknown"),
        ("", "unknown"),
        ("no.such.module:Thing", "cannot be imported: there is no module no in .*put that directory on PYTHONPATH"),
        (
            "dpfedmeta.core.plugins.plugin_registry:Nothing",
            r"dpfedmeta.core.plugins.plugin_registry \(.*plugin_registry.py\) has no Nothing",
        ),
        ("dpfedmeta.core.plugins.plugin_registry:", "names nothing in the module; give "),
        (":Thing", "clip.policy = :Thing: cannot be imported"),
        ("..:Thing", r"clip.policy = \.\.:Thing: "),
    ],
)
def test_a_name_that_stands_for_nothing_says_what_does(name, words):
    with pytest.raises(InputError, match=words):
        members.find("clip.policy", name, POLICIES)


@pytest.mark.parametrize(
    ("text", "words"),
    [("def broken(:", "SyntaxError: "), ("1 / 0", "ZeroDivisionError: "), ("import no_such_thing", "cannot be import")],
)
def test_a_module_that_fails_while_it_is_imported_is_no_traceback(tmp_path, monkeypatch, text, words):
    (tmp_path / "failing_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=rf"^clip\.policy = failing_module:Mine: .*{words}"):
        members.find("clip.policy", "failing_module:Mine", POLICIES)


def test_a_setting_is_one_of_the_members_or_a_name_of_the_users_own():
    checked = TypeAdapter(Annotated[str, members.one_of(POLICIES)])
    for name in ("window", "not.imported.here:Policy"):
        assert checked.validate_python(name) == name
    with pytest.raises(ValidationError, match=r"unknown; did you mean quantile\?; known are constant, "):
        checked.validate_python("quantil")


def test_settings_of_a_members_own_are_filled_in_and_checked():
    assert members.own_settings("clip", "taking", Taking, {}) == {"own": Taking.Settings()}
    (own,) = members.own_settings("clip", "taking", Taking, {"half_life": 5}).values()
    assert (own.half_life, own.floor) == (5.0, 0.1)
    assert members.own_settings("clip", "plain", object, {}) == {}


@pytest.mark.parametrize(
    ("member", "given", "words"),
    [
        (Taking, {"half_live": 5}, r"^clip\.own\.half_live: mine takes no such setting; did you mean half_life"),
        (Taking, {"floor": "low"}, r"^clip\.own\.floor.*low.*\(mine\)"),
        (object, {"half_life": 5}, r"^clip\.own\.half_life: mine takes no settings of its own; drop it"),
    ],
)
def test_settings_that_a_member_does_not_take_are_named(member, given, words):
    with pytest.raises(InputError, match=words):
        members.own_settings("clip", "mine", member, given)


@pytest.mark.parametrize("member", [Taking, Taking()])
def test_a_member_that_lacks_a_part_of_its_protocol_is_refused_by_name(member):
    members.check_protocol("clip.policy", "mine", member, "Settings")
    with pytest.raises(InputError, match=r"^clip\.policy = mine: Taking has no initial; it needs Settings, initial, n"):
        members.check_protocol("clip.policy", "mine", member, "Settings", "initial", "next_bound")


# Functions that find a member of somebody's own, and how often each checks what it found and what that made.
CHECKED = {
    "accounting/events/sampling.py sampling_of": 2, "accounting/release_costs/__init__.py cost_named": 1,
    "data/sources/__init__.py published_reader": 1, "learning/meta/target_kind.py targets_of": 2,
    "planning/client_spec.py algorithm_of": 2, "planning/client_spec.py method_of": 2,
    "planning/privacy/aggregation.py aggregation_of": 1, "planning/run_plan.py rule_of": 1,
    "planning/run_plan.py solver_of": 1,
    "privacy/clip_policies/policy_checks.py named_policy": 1, "privacy/mechanisms.py mechanism_of": 1,
    "training/trackers/__init__.py trackers_of": 1,
}  # fmt: skip
# Of ours alone, by name; and one that looks again at what was checked.
OF_OURS = {
    "analytics/analysis_request.py made": 0, "data/encoders/encoding.py _member": 0,
    "planning/client_spec.py check_protocol": 0,
}  # fmt: skip


def test_whoever_finds_a_member_checks_that_it_is_one():
    found = {}
    for path in (path for path in modules() if "find" in path.read_text()):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                called = [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]
                if "find(archive" in ast.unparse(node) or node.name == "find_any":
                    continue  # a file to download
                if {"members.find", "find"} & {*called}:
                    checks = [name.removeprefix("members.") for name in called]
                    found[f"{path.relative_to(PACKAGE)} {node.name}"] = sum(
                        checks.count(name) for name in ("check_protocol", "issubclass", "callable")
                    )
    assert found == CHECKED | OF_OURS


def test_a_list_of_members_names_the_one_that_is_unknown():
    checked = TypeAdapter(Annotated[tuple[str, ...], members.one_of_each(POLICIES)])
    for names in ((), ("window",), ("window", "not.imported.here:Policy", "quantile")):
        assert checked.validate_python(names) == names
    with pytest.raises(ValidationError, match=r"quantil is unknown; did you mean quantile\?; known are constant, "):
        checked.validate_python(("window", "quantil", "median"))


class Outer:
    class Inner:
        """A class in another one."""


def made_in_a_function():
    class Local:
        """Nobody can import it."""

    return Local


def test_a_class_is_found_again_by_its_own_module_alone():
    assert members.name_of("clip.policy", Taking) == f"{__name__}:Taking"
    in_main = type("Mine", (), {"__module__": "__main__"})
    for member in (Taking(), made_in_a_function(), Outer.Inner, in_main, int, len, "Taking", None, lambda: None):
        with pytest.raises(InputError, match=r"^clip\.policy = .*: pass a class from a module of its own"):
            members.name_of("clip.policy", member)


def takes_two(one, two, *, own=None):
    """A function of two arguments and a setting."""


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ((1, 2), {}, None),
        ((1, 2), {"own": 3}, None),
        ((1,), {}, r"is given 1 arguments \(missing a required argument: 'two'\)"),
        ((1, 2, 3), {}, r"is given 3 arguments \(too many positional arguments\)"),
        ((1, 2), {"other": 3}, r"is given 2 arguments and other, its Settings \("),
    ],
)
def test_a_function_takes_what_it_will_be_given_or_is_refused_by_name(given, named, words):
    if words is None:
        members.planned("clip.policy", "mine", takes_two, *given, **named)
        return
    with pytest.raises(InputError, match=rf"^clip\.policy = mine: its takes_two\(one, two, \*, own=None\) {words}"):
        members.planned("clip.policy", "mine", takes_two, *given, **named)


def test_what_a_member_of_ones_own_raises_while_it_is_planned_is_said_in_a_line():
    def failing():
        raise TypeError("missing factor")

    with pytest.raises(
        InputError, match=r"clip.policy = mine:Own: its failing failed \(TypeError: missing factor, at .*"
    ):
        members.planned("clip.policy", "mine:Own", failing)
    with pytest.raises(TypeError):
        members.planned("clip.policy", "window", failing)


def test_names_are_files_with_the_folders_ending_and_modules_are_found_by_them(tmp_path, monkeypatch):
    folder = tmp_path / "own_seam"
    folder.mkdir()
    (folder / "__init__.py").write_text("SUFFIX = '_rule'\n")
    for name in ("b_two_rule", "a_rule", "helpers", "rule_of_thumb"):
        (folder / f"{name}.py").write_text("MEMBER = __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin_names.names("own_seam") == ["a", "b-two"]
    assert plugin_names.module_of("b-two", "own_seam") == "own_seam.b_two_rule"
    assert members.find("a.setting", "b-two", "own_seam") == "own_seam.b_two_rule"
    (folder / "__init__.py").write_text("")
    monkeypatch.delattr(sys.modules["own_seam"], "SUFFIX")
    assert plugin_names.names("own_seam") == ["a-rule", "b-two-rule", "helpers", "rule-of-thumb"]


SEAMS = [
    *(POLICIES, "dpfedmeta.learning.algorithms", "dpfedmeta.learning.releases", "dpfedmeta.learning.targets"),
    *("dpfedmeta.privacy.noises", "dpfedmeta.privacy.samplers", "dpfedmeta.simulation.aggregations"),
    *("dpfedmeta.learning.server_optimizers", "dpfedmeta.training.trackers"),
]


@pytest.mark.parametrize("folder", SEAMS)
def test_what_overrides_nothing_of_the_member_that_it_inherits_from_is_refused(folder, monkeypatch):
    here, kinds = sys.modules[__name__], [members.find("a.b", name, folder) for name in plugin_names.names(folder)]
    for kind in [each for each in kinds if isinstance(each, type)]:
        part = next(name for name in dir(kind) if len(name) > 3 and not name.startswith("_"))
        monkeypatch.setattr(here, "Own", type("Own", (kind,), {part + "d": 1, "_kept": 2}), raising=False)
        words = f"Own: its {part}d overrides nothing of {kind.__name__}, so nothing would call it; did you mean {part}"
        with pytest.raises(InputError, match=words):
            members.find("a.b", f"{__name__}:Own", folder)
        for body in ({part: 1, "further": 2}, {"_kept": 2}, {}):
            monkeypatch.setattr(here, "Own", type("Own", (kind,), body))
            assert members.find("a.b", f"{__name__}:Own", folder) is here.Own
