"""Run a notebook's source and write it with what it showed.

    python docs/notebooks/write.py quickstart   # quickstart.py -> quickstart.ipynb; without a name: all

A source is Python with cells (`# %%`, `# %% [markdown]`), as Jupytext and editors read it. The cells run in one
namespace from top to bottom, in this process; what is shown is what Jupyter shows: what was printed, the last
expression, figures.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Lines of a cell's output that are kept: the table of a plan, not every round of a long run.
_MOST_LINES = 40


def cells(source: str) -> Iterator[tuple[str, str]]:
    """('markdown' or 'code', text) of each cell."""
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            yield "markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()
        else:
            yield "code", body.strip()


def shown(text: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Run one cell.

    Args:
        text: Its code.
        names: The notebook's namespace, which it changes.
        where: For a traceback.

    Returns:
        What it showed, as outputs of a notebook.
    """
    from matplotlib import pyplot

    tree, last = ast.parse(text), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        value = eval(compile(last, where, "eval"), names) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        if len(lines) > _MOST_LINES:
            lines = [*lines[: _MOST_LINES // 2], "...", *lines[-_MOST_LINES // 2 :]]
        outputs.append({"output_type": "stream", "name": "stdout", "text": "\n".join(lines) + "\n"})
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=72)
        outputs.append(_display(image=picture.getvalue()))
    pyplot.close("all")
    if value is not None:
        outputs.append(_display(text=repr(value)))
    return outputs


def _display(*, image: bytes | None = None, text: str = "<picture>") -> dict[str, Any]:
    data: dict[str, str] = {"text/plain": text}
    if image is not None:
        data["image/png"] = base64.b64encode(image).decode()
    return {"output_type": "display_data", "data": data, "metadata": {}}


def notebook(name: str) -> dict[str, Any]:
    """The notebook of a source beside this file, run here; runs go into the working directory."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells((HERE / f"{name}.py").read_text(encoding="utf-8"))):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"{name}-{number}", "metadata": {}, "source": text}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": shown(text, names, f"{name}.py, cell {number}")}
        made.append(cell)
    return {
        "cells": made,
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def sources() -> list[str]:
    """Names of the notebooks."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem != "write")


def main() -> None:
    """Write those that are named, or all."""
    import matplotlib

    matplotlib.use("Agg")
    for name in sys.argv[1:] or sources():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            made = notebook(name)
        (HERE / f"{name}.ipynb").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}.ipynb: {len(made['cells'])} cells")


if __name__ == "__main__":
    main()
