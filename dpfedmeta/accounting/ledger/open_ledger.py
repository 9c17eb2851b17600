"""Opening of a run's ledger, however its last process ended: checked against the plan and against this machine."""

import re
from dataclasses import dataclass

from dpfedmeta.accounting.ledger.ledger import Ledger, LedgerContent, check_rounds, read_content
from dpfedmeta.accounting.ledger.ledger_register import Lineage, check_lineage
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.files.atomic_files import whole_lines
from dpfedmeta.core.files.run_directory import RELEASES, RunDirectory
from dpfedmeta.core.random.random_sources import SecretSource

_TEMPORARY = re.compile(r"\..+\.\d+")


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedLedger:
    """A ledger that a process goes on with.

    Attributes:
        ledger: To charge.
        content: Content that was read.
        remarks: What was mended, a line each.
        reproducible: Whether a round can be done again identically.
        restorable: Whether a line that is lost comes out again as it was.
    """

    ledger: Ledger
    content: LedgerContent
    remarks: tuple[str, ...]
    reproducible: bool
    restorable: bool


def open_ledger(
    run: RunDirectory, plan: PrivacyPlan, source: SecretSource, environment: str | None, lineage: Lineage | None
) -> OpenedLedger:
    """Read and check the ledger of a run that is started or resumed.

    Args:
        run: The run.
        plan: Its plan.
        source: Secret randomness of the server.
        environment: Digest of what could change a release; None: nothing is done again identically.
        lineage: This machine's register of the ledger, or None.

    Guarantee:
        A charge that is on disk stays. Only a last line that was never finished, hence never used, is left out.

    Raises:
        InputError: Lines that were charged are missing or edited; says which.
        RefusedPlan: The ledger is of another plan.
    """
    _remove_temporaries(run)
    size, torn = whole_lines(run.ledger)
    content = read_content(run.ledger, torn=True)
    if content.plan != plan:
        raise RefusedPlan(
            f"{run.path}: its settings give another plan here than the ledger states; resume it with the package "
            "versions that started it (summary.json or constraints.txt), or start a new run"
        )
    check_rounds(plan, content.charges, content.lines)
    reproducible = source.reproducible and environment is not None
    # A line that is lost took its fresh bytes along: what it charged cannot come out again.
    restorable = reproducible and not source.needs_fresh
    if lineage is not None:
        check_lineage(run, content, lineage, mended=bool(torn) and restorable)
    remarks = ["the ledger's last line was never finished, so its release was never used: dropped"] if torn else []
    return OpenedLedger(
        ledger=Ledger.resume(run.ledger, content, size),
        content=content,
        remarks=tuple(remarks),
        reproducible=reproducible,
        restorable=restorable,
    )


def _remove_temporaries(run: RunDirectory) -> None:
    """Remove the temporary files that a killed process left unfinished."""
    for folder in (run.path, run.path / "checkpoint", run.path / RELEASES, run.secret):
        for path in folder.iterdir() if folder.is_dir() else ():
            if _TEMPORARY.fullmatch(path.name) and path.is_file():
                path.unlink()
