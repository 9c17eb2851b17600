"""Notebooks: what is committed is what the sources say, and they run."""

import importlib.util
import json

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
    names = {}
    (printed, value) = WRITE.shown("x = 3\nprint('a')\nx + 1", names, "here")
    assert (printed["text"], value["data"]["text/plain"], names["x"]) == ("a\n", "4", 3)
    (printed,) = WRITE.shown("for n in range(100):\n    print(n)", names, "here")
    assert printed["text"].splitlines()[19:21] == ["19", "..."]
    with pytest.raises(ZeroDivisionError):
        WRITE.shown("1 / 0", names, "here")


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITE.sources())
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = WRITE.notebook(name)
    held = json.loads((FOLDER / f"{name}.ipynb").read_text())
    for now, then in zip(made["cells"], held["cells"], strict=True):
        kinds = [[output["output_type"] for output in cell.get("outputs", ())] for cell in (now, then)]
        assert kinds[0] == kinds[1], now["source"]
