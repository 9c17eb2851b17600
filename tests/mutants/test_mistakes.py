"""The catalogue fits the code as it is, and rules make mistakes of it."""

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])


def compiles(mutant):
    """Alone what stands between two empty lines and the next two around the change; the whole file takes 2 ms."""
    from mistakes import ROOT, changed

    before, whole = (ROOT / "dpfedmeta" / mutant.file).read_text(), changed(mutant)
    start = before.index(mutant.old)
    first, last = before.rfind("\n\n\n", 0, start), whole.find("\n\n\n", start + len(mutant.new))
    try:
        return compile(whole[max(first, 0) : last if last > 0 else len(whole)], mutant.file, "exec")
    except SyntaxError:  # of a text that holds empty lines, half of it
        return compile(whole, mutant.file, "exec")


def test_every_mistake_that_is_written_down_can_be_planted():
    from mistakes import ROOT, catalogue

    for mutant in catalogue():
        assert compiles(mutant)
        for test in mutant.tests:
            # It may be one of a class.
            file, _, function = test.partition("::")
            assert f"def {function.rpartition('::')[2]}" in (ROOT / file).read_text(), (mutant.name, test)


SOURCE = '''"""A file."""
@dataclass
class Form:
    low: float
    high: float
    name: str = ""

def digest(form: Form, low: float, high: float, *, salt: bytes = b""):
    """Words."""
    if not low < high or low is None:
        raise ValueError(f"{low} < 1")
    with lock:
        form.kept = sorted(x for x in form.all if x)
    return add([form.low, max(low, high)], salt=salt) if low + 1 > 0 else digest(form, low, high, salt=salt)
'''


@pytest.fixture
def rules(beside, tmp_path, monkeypatch):
    import rules

    (tmp_path / "file.py").write_text(SOURCE)
    monkeypatch.setattr(rules, "PACKAGE", tmp_path)
    rules.known.cache_clear()
    yield rules
    rules.known.cache_clear()


def test_rules_make_each_kind_of_mistake_where_it_can_be_made(rules):
    made = {(change.kind, SOURCE.replace(change.old, change.new)) for change in rules.changes("file.py")}
    for kind, old, new in (
        ("guard left out", SOURCE[SOURCE.index("if not") : SOURCE.index("    with")], "pass\n"),
        ("comparison", "not low < high", "not (low <= high)"),
        ("condition left out", "not low < high or low is None", "(low is None)"),
        ("not", "not low < high", "(low < high)"),
        (
            "and/or",
            "not low < high or low is None",
            "((not low < high) and low is None)".replace("((", "(").replace(") and", " and"),
        ),
        ("constant", "low + 1", "low + (0)"),
        ("term left out", "low + 1", "low"),
        ("arithmetic", "low + 1", "(low - 1)"),
        ("with left out", "with lock:", "if True:"),
        ("statement left out", "form.kept = sorted(x for x in form.all if x)", "pass"),
        ("not sorted", "sorted(x for x in form.all if x)", "list((x for x in form.all if x))"),
        ("filter left out", "(x for x in form.all if x)", "(x for x in form.all)"),
        ("ingredient left out", "[form.low, max(low, high)]", "([max(low, high)])"),
        ("neighbour", "form.low", "form.high"),
        ("min/max", "max(", "min("),
        ("keyword left out", "digest(form, low, high, salt=salt)", "digest(form, low, high)"),
        ("arguments swapped", "digest(form, low, high, salt", "digest(low, form, high, salt"),
    ):
        assert SOURCE.count(old) == 1, old
        assert (kind, SOURCE.replace(old, new)) in made, kind


def test_the_sample_is_the_same_for_the_same_seed_and_is_other_code(rules):
    found = rules.chosen(["file"], 12, 1)
    assert found == rules.chosen(["file"], 12, 1) != rules.chosen(["file"], 12, 2)
    for change in found:
        compile(SOURCE.replace(change.old, change.new), "file.py", "exec")
        assert change.within or "digest" in change.new


def test_functions_of_an_imported_module_get_the_code_of_the_mistake(beside, tmp_path, monkeypatch):
    from machine import exchange_code, functions_by_file

    source = (
        "import functools\nclass Box:\n    n = 1\n    @property\n    def m(self):\n        return self.n + 1\n"
        "    @m.setter\n    def m(self, value):\n        self.n = value + 1\n"
        "@functools.cache\ndef f(x):\n    return [x + 1][0]\n"
    )
    before, after = tmp_path / "before.py", tmp_path / "planted_box.py"
    for path in (before, after):
        path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    import planted_box  # type: ignore[import-not-found]

    after.write_text("\n\n" + source.replace("+ 1", "+ 5"))
    exchange_code(before, after, functions_by_file(after.parent)[str(after)])
    box = planted_box.Box()
    assert (planted_box.f(1), box.m) == (6, 6)
    box.m = 2
    assert box.n == 7


@pytest.mark.parametrize(
    ("old", "new", "lines", "within"),
    [
        ("    if not low < high", "    if low < high", (11, 11), True),
        ("low is None:\n        raise", "low is None:\n        assert", (12, 12), True),
        ("    with lock:\n        form.kept = ", "    if True:\n        form.kept = ", (13, 13), True),
        ("name: str = \"\"", "name: str = \"a\"", (6, 6), False),
        ("salt: bytes = b\"\"", "salt: bytes = b\"a\"", (8, 8), False),
        ("    low: float\n", "", (4, 4), False),
    ],
)  # fmt: skip
def test_a_written_mistake_is_found_at_its_lines_and_in_its_function(
    rules, tmp_path, monkeypatch, old, new, lines, within
):
    import mistakes

    (tmp_path / "dpfedmeta").mkdir()
    source = "import abc\n" + SOURCE
    for name in ("file.py", "dpfedmeta/file.py"):
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(mistakes, "ROOT", tmp_path)
    mutant = mistakes.Mutant(name="m", file="file.py", old=old, new=new, tests=())
    change = rules.as_change(mutant)
    assert (change.within, change.lines if within else lines) == (within, lines)


def test_tests_are_those_of_the_name_and_of_its_parameters(beside):
    from machine import is_of

    for name in ("tests/a/test_b.py", "tests/a/test_b.py::test_c", "tests/a/test_b.py::test_c[1]"):
        assert is_of("tests/a/test_b.py::test_c[1]", name)
    for name in ("tests/a/test_b.py::test", "tests/a/test_b", "tests/a/test_b.py::test_c[2]"):
        assert not is_of("tests/a/test_b.py::test_c[1]", name)


def test_tests_that_reach_what_a_condition_opens_run_first(beside, rules, tmp_path, monkeypatch):
    import machine

    (tmp_path / "file.py").write_text(SOURCE)
    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    monkeypatch.setattr(machine, "tests_of", lambda file: ("tests/test_file.py",))
    line = SOURCE[: SOURCE.index("    if not low < high")].count("\n") + 1
    tests = {"tests/test_file.py::passes": 0.1, "tests/test_other.py::refused": 3.0, "tests/test_file.py::more": 2.0}
    reached = {str(line): [0, 1, 2], str(line + 1): [1]}
    (tmp_path / "lines.json").write_text(json.dumps({"tests": list(tests.items()), "lines": {"file.py": reached}}))
    change = rules.Change(kind="guard", file="file.py", lines=(line, line), within=True, old="", new="")
    order = ["tests/test_other.py::refused", "tests/test_file.py::passes", "tests/test_file.py::more"]
    found = machine.Reached([tmp_path / "lines.json"])
    assert found.tests(change, 8.0) == order
    # One that is named runs, and first, even where the map does not know it yet.
    assert found.tests(change, 8.0, ["tests/test_new.py::seen"]) == ["tests/test_new.py::seen", *order]
    assert found.tests(change, 8.0, [order[2]]) == [order[2], *order[:2]]
