"""Predictions of a personal model for the records of a table, found by the names of its columns."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, parser, print_json, print_line
from dpfedmeta.cli.outputs import PREDICTIONS, check_output
from dpfedmeta.core.dependencies import check_dependencies
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_checks import check_outside_runs

SUMMARY = "predictions of a personal model for the records of a table"


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Predict the class, or the number, of each record of a table by a client's own model. Columns are found by "
        "their names and standardised by the model's own constants; nothing leaves the machine.",
        settings=False,
        program="dpfedmeta predict",
    )
    made.add_argument("model", type=Path, help="file of PersonalModel.save, such as HOME/personal.safetensors")
    made.add_argument(
        "records", type=Path, help="CSV or Parquet file with the columns of the model's task; others are refused"
    )
    made.add_argument("--out", type=Path, metavar="FILE.csv", help="write them there, for this user alone; else print")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, predict, tell."""
    options = options_of().parse_args(words)
    check_output("--out", options.out, PREDICTIONS, words)
    if options.out is not None:
        check_outside_runs("--out", options.out)
    for path in (options.model, options.records):
        if not path.exists():
            raise InputError(f"{path}: not there")
    from dpfedmeta.training.personal.user_inputs import columns_of

    model = _loaded(options.model)
    if model.form.records != "vectors":
        raise InputError(f"{options.model}: takes {model.form.records}, and this command tables; see dp.load_personal")
    _, held = columns_of(options.records)
    rows = [dict(row) for row in _rows(model, options.records)]
    predicted, said = [row["predicted"] for row in rows], held.get("target" if model.targets else "class", [])
    compare = _off if model.targets else _right
    judged = compare(predicted, [text.strip() for text in said], model) if said else ""
    if options.json:
        print_json({"predictions": rows, **({"judged": judged} if judged else {})})
        return DONE
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if options.out is None:
        console.print(text.getvalue(), end="", highlight=False, soft_wrap=True, markup=False)
    else:
        try:
            replace_file(options.out, text.getvalue().encode(), SECRET)
        except OSError as error:
            raise InputError(f"--out {options.out}: cannot be written ({error.strerror})") from error
        print_line(console, f"{options.out}: {len(rows):,} predictions")
    if judged:
        print_line(console, judged)
    return DONE


def _loaded(path: Path) -> Any:
    """Without PyTorch where the model needs none."""
    from dpfedmeta.training.personal.solved_model import load_solved_model

    solved = load_solved_model(path)
    if solved is not None:
        return solved
    check_dependencies()
    from dpfedmeta.training.personal.personal_model import load_personal

    return load_personal(path)


def _rows(model: Any, records: Path) -> list[dict[str, Any]]:
    """Prediction of each record, with the probability of each class."""
    predicted = model.predict(records).tolist()
    if model.targets is not None:
        return [{"record": place, "predicted": number} for place, number in enumerate(predicted, start=1)]
    names = _names(model)
    shares = model.probabilities(records).tolist()
    return [
        {"record": place, "predicted": names[label], **_shares(names, own)}
        for place, (label, own) in enumerate(zip(predicted, shares, strict=True), start=1)
    ]


def _names(model: Any) -> Sequence[str]:
    return model.class_names or [str(place) for place in range(model.network.ways)]


def _shares(names: Sequence[str], own: Sequence[float]) -> dict[str, float]:
    return {f"p({name})": round(share, 4) for name, share in zip(names, own, strict=True)}


def _off(predicted: Sequence[float], said: Sequence[str], model: Any) -> str:
    """Mean distance of predictions from the numbers that the table says, in words."""
    from dpfedmeta.data.missing import number_of

    numbers = [number_of(text) for text in said]
    if odd := [place for place, number in enumerate(numbers) if number is None or not isfinite(number)]:
        first = f"record {odd[0] + 1}: {said[odd[0]]!r}"
        return f"not compared with column target: {len(odd):,} of {len(said):,} are no numbers ({first})"
    due = [number for number in numbers if number is not None]
    error = sum(abs(own - number) for own, number in zip(predicted, due, strict=True)) / len(due)
    told = f"mean absolute error {error:.4g} over {len(due):,} records"
    if beyond := model.targets.outside(due):
        place = beyond[0]
        first = f"record {place + 1}: {due[place]:g}"
        told += (
            f"; {len(beyond):,} targets are outside the public range, {model.targets.words} ({first}): another unit?"
        )
    return told


def _right(predicted: Sequence[str], said: Sequence[str], model: Any) -> str:
    """Number of predictions that are the class that the table says, in words."""
    right = sum(own == due for own, due in zip(predicted, said, strict=True))
    told = f"{right:,} of {len(said):,} are of the class that the table says"
    known = {*_names(model)}
    if odd := [place for place, due in enumerate(said) if due not in known]:
        told += f"; {len(odd):,} have a class that the model does not know (record {odd[0] + 1}: {said[odd[0]]!r})"
    return told
