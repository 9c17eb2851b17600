"""What came of the runs of a sweep: one row for each setting, seeds pooled."""

from __future__ import annotations

from dpfedmeta.report.pooling import Measured
from dpfedmeta.tracking.run_directory import RunDirectory


def final_validation(run: RunDirectory) -> Measured | None:
    """The last accuracy on public validation classes; the same number that W&B's metric ends with."""
    points = [row["validation_accuracy"] for row in run.rounds() if "validation_accuracy" in row]
    return Measured.of(points[-1]) if points else None
