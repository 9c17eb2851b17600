"""The pictures of a run's report, for those who show them elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from dpfedmeta.core.files.run_directory import RunDirectory


def draw_pictures(run: RunDirectory) -> Sequence[Path]:
    """Write the report, and give the pictures beside it.

    Guarantee:
        As `write_report`: of released quantities only.

    Raises:
        InputError: There can be no report of this run; says why.
    """
    from dpfedmeta.reporting.html.page import write_report  # brings matplotlib

    page = write_report(run)
    return sorted(page.parent.glob("*.png"))
