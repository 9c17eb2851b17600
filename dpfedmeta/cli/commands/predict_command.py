"""Predictions of a personal model for the records of a table, found by the names of its columns."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, check_output, parser, print_json
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_checks import check_outside_runs

SUMMARY = "predictions of a personal model for the records of a table"


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Predict the class, or the number, of each record of a CSV file by a client's own model. Columns are found by "
        "their names and standardised by the model's own constants; nothing leaves the machine.",
        settings=False,
        program="dpfedmeta predict",
    )
    made.add_argument("model", type=Path, help="file of PersonalModel.save, such as HOME/personal.safetensors")
    made.add_argument("records", type=Path, help="CSV file with the columns of the model's task; others are refused")
    made.add_argument("--out", type=Path, metavar="FILE.csv", help="write them there, for this user alone; else print")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, predict, tell."""
    options = options_of().parse_args(words)
    check_output("--out", options.out, (".csv",))
    if options.out is not None:
        check_outside_runs("--out", options.out)
    for path in (options.model, options.records):
        if not path.exists():
            raise InputError(f"{path}: not there")
    from dpfedmeta.data.columns import other_units
    from dpfedmeta.training.personal.personal_model import load_personal
    from dpfedmeta.training.personal.user_inputs import read_named

    model = load_personal(options.model)
    if model.form.records != "vectors":
        raise InputError(f"{options.model}: takes {model.form.records}, and this command tables; see dp.load_personal")
    held = read_named(options.records)
    rows = [dict(row) for row in _rows(model, held)]
    # For the owner of the records; standard output holds predictions alone.
    raw = model.form.tensor(held).double().numpy() * (model.form.deviation or 1.0) + (model.form.mean or 0.0)
    for line in other_units(model.form.columns, raw, model.form.mean, model.form.deviation):
        print(f"{options.records}: {line}", file=sys.stderr)
    judged = _judged(rows, held.get("target" if model.targets else "class", []), numbers=model.targets is not None)
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
        console.print(f"{options.out}: {len(rows):,} predictions", highlight=False, soft_wrap=True, markup=False)
    if judged:
        console.print(judged, highlight=False, soft_wrap=True, markup=False)
    return DONE


def _rows(model: Any, held: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Prediction of each record, with the probability of each class."""
    predicted = model.predict(held).tolist()
    if model.targets is not None:
        return [{"record": place, "predicted": number} for place, number in enumerate(predicted, start=1)]
    names = model.class_names or [str(place) for place in range(model.network.ways)]
    shares = model.probabilities(held).tolist()
    return [
        {"record": place, "predicted": names[label], **_shares(names, own)}
        for place, (label, own) in enumerate(zip(predicted, shares, strict=True), start=1)
    ]


def _shares(names: Sequence[str], own: Sequence[float]) -> dict[str, float]:
    return {f"p({name})": round(share, 4) for name, share in zip(names, own, strict=True)}


def _judged(rows: Sequence[Mapping[str, Any]], known: Sequence[str], *, numbers: bool) -> str:
    """Count right predictions, where the table says what is right."""
    if not known:
        return ""
    if numbers:
        try:
            error = sum(abs(row["predicted"] - float(due)) for row, due in zip(rows, known, strict=True)) / len(rows)
        except ValueError:
            return ""
        return f"mean absolute error {error:.4g} over {len(rows):,} records"
    right = sum(row["predicted"] == due.strip() for row, due in zip(rows, known, strict=True))
    return f"{right:,} of {len(rows):,} are of the class that the table says"
