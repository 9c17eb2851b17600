"""Notebooks: what is committed is what the sources say, and they run."""

import ast
import importlib.util
import json

import matplotlib.pyplot as plt
import pytest
from pages import ROOT

FOLDER = ROOT / "docs/notebooks"


def _module():
    spec = importlib.util.spec_from_file_location("write_notebooks", FOLDER / "write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITE = _module()


@pytest.mark.parametrize("name", WRITE.sources())
def test_a_committed_notebook_has_the_cells_of_its_source_and_small_outputs(name):
    path = FOLDER / f"{name}.ipynb"
    held = json.loads(path.read_text())
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in held["cells"]] == list(
        WRITE.cells((FOLDER / f"{name}.py").read_text())
    )
    assert len({cell["id"] for cell in held["cells"]}) == len(held["cells"])
    assert any("image/png" in output.get("data", {}) for cell in held["cells"] for output in cell.get("outputs", ()))
    assert path.stat().st_size < 200_000


def test_a_cell_shows_what_it_printed_its_last_value_and_its_figure():
    plt.close("all")  # those of other tests
    names = {}
    (printed, value) = WRITE.shown("x = 3\nprint('a')\nx + 1", names, "here")
    assert (printed["text"], value["data"]["text/plain"], names["x"]) == ("a\n", "4", 3)
    (printed,) = WRITE.shown("for n in range(100):\n    print(n)", names, "here")
    assert printed["text"].splitlines()[19:21] == ["19", "..."]
    with pytest.raises(ZeroDivisionError):
        WRITE.shown("1 / 0", names, "here")


# Attributes that are epsilons, and names of what is made of them.
_EPSILONS = {"epsilon", "client_public", "client_server", "record_public", "record_server"}


def _to_the_nearest(source):
    """What a program prints of an epsilon by a format of its own, which may round below it."""
    tree, made = ast.parse(source), set()

    def of_epsilons(node):
        return any(
            (isinstance(each, ast.Attribute) and each.attr in _EPSILONS)
            or (isinstance(each, ast.Name) and each.id in made)
            for each in ast.walk(node)
        )

    for _ in range(3):  # a name may be made of a name
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None) if isinstance(node, ast.Assign) else getattr(node, "iter", None)
            if value is not None and of_epsilons(value):
                made |= {each.id for at in targets for each in ast.walk(at) if isinstance(each, ast.Name)}
    formats = [node for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec]
    return [
        ast.unparse(node.value)
        for node in formats
        if ast.unparse(node.format_spec).rstrip("'\"")[-1] in "fge%" and of_epsilons(node.value)
    ]


def test_no_notebook_and_no_example_prints_an_epsilon_below_itself():
    assert _to_the_nearest("spent = run.of('client').epsilon\nprint(f'{name:14} {spent:.3f} {run.accuracy:.2f}')") == [
        "spent"
    ]
    paths = [FOLDER / f"{name}.py" for name in WRITE.sources()] + sorted(ROOT.glob("examples/**/*.py"))
    found = {path.name: _to_the_nearest(path.read_text()) for path in paths}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITE.sources())
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = WRITE.notebook(name)
    held = json.loads((FOLDER / f"{name}.ipynb").read_text())
    for now, then in zip(made["cells"], held["cells"], strict=True):
        kinds = [[output["output_type"] for output in cell.get("outputs", ())] for cell in (now, then)]
        assert kinds[0] == kinds[1], now["source"]
