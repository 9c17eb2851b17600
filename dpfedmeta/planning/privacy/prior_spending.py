"""Charges of other ledgers to the same clients, read from the folders in `privacy.spent_before`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from dpfedmeta.config.settings import Settings, clients_made_by
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import ANALYSIS, LEDGER, SUMMARY

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.events import Earlier
    from dpfedmeta.accounting.ledger.ledger import LedgerContent


def earlier_releases(settings: Settings) -> tuple[Earlier, ...]:
    """Return the charges of the ledgers in these folders, which count in every cell of the plan.

    Guarantee:
        Every line of each ledger counts, whether its release was ever looked at.

    Raises:
        InputError: A folder holds no whole ledger of an analysis, its analysis is not finished, it is a simulation and
            the training is none, or it is given twice.
    """
    if not settings.privacy.spent_before:
        return ()
    from dpfedmeta.accounting.events.events import Earlier
    from dpfedmeta.accounting.ledger.ledger import phases_of

    found: dict[str, str] = {}
    earlier = []
    for name in settings.privacy.spent_before:
        content = _content(name)
        _check_real(name, content, settings)
        _check_same_population(name, content, settings)
        if content.identity.run in found:
            raise InputError(
                f"privacy.spent_before = {name}: the same ledger as {found[content.identity.run]}; name it once"
            )
        found[content.identity.run] = name
        phases = phases_of(content.charges)
        earlier.append(Earlier(run=content.identity.run, head=content.heads[-1], phases=phases))
    return tuple(earlier)


def check_still_there(settings: Settings, earlier: tuple[Earlier, ...]) -> list[str]:
    """Compare what a plan counts as spent before with the ledgers that it was read from; remarks.

    Raises:
        InputError: A ledger that is there states something else than was counted.
    """
    from dpfedmeta.accounting.ledger.ledger import phases_of, read_content

    names = settings.privacy.spent_before
    if len(names) != len(earlier):
        raise InputError(
            f"privacy.spent_before: names {len(names)} ledgers, but the ledger's first line counts {len(earlier)}"
        )
    remarks = []
    for name, counted in zip(names, earlier, strict=True):
        path = Path(name, LEDGER)
        if not path.exists():
            remarks.append(f"spent before: {name} is not here; it is counted as the ledger's first line states")
            continue
        content = read_content(path, torn=True)
        if content.identity.run != counted.run or counted.head not in content.heads:
            raise InputError(f"{path}: is not the ledger that privacy.spent_before counted, or it was edited since")
        then = content.until(counted.head).charges
        if phases_of(then) != counted.phases:
            raise InputError(f"{path}: has other charges than those that privacy.spent_before counted")
        more = len(content.charges) - len(then)
        remarks.append(
            f"spent before: {name} agrees"
            + (f"; its {more} later charges are not counted in this run" if more > 0 else "")
        )
    return remarks


def _content(name: str) -> LedgerContent:
    from dpfedmeta.accounting.ledger.ledger import check_rounds, read_content

    path = Path(name, LEDGER)
    if not path.exists():
        raise InputError(
            f"privacy.spent_before = {name}: there is no {LEDGER} in it; expected the folder of an analysis (dpfedmeta "
            "analyse)"
        )
    content = read_content(path)
    if not content.identity.config.startswith(ANALYSIS):
        raise InputError(
            f"privacy.spent_before = {name}: is the ledger of a training run; only analyses (dpfedmeta analyse) can be "
            "counted here"
        )
    check_rounds(content.plan, content.charges, content.lines)
    # One that was charged and stopped may be charged again when it goes on.
    if len(content.charges) < content.plan.rounds or not Path(name, SUMMARY).exists():
        raise InputError(
            f"privacy.spent_before = {name}: the analysis is not finished, so it may still be charged; finish it with "
            f"dpfedmeta analyse --resume {quote(name)}"
        )
    return content


def _check_same_population(name: str, content: LedgerContent, settings: Settings) -> None:
    """Refuse an analysis of other clients: its charges would be counted for people whom it never asked.

    Public constants are compared: how many clients there are, and the data set with all that makes clients of it.

    Raises:
        InputError: It is one; says what differs, and both values.
    """
    asked = content.plan.clients
    if asked != settings.population.clients:
        raise InputError(
            f"privacy.spent_before = {name}: asked {asked:,} clients, but population.clients = "
            f"{settings.population.clients:,}; name only analyses of the same clients"
        )
    config = content.identity.config.partition("\n---\n")[2]
    if not config:
        return  # of a file of names, whose lines may be the same people
    from dpfedmeta.config.load import resolve_text

    of = resolve_text(config, f"{Path(name, LEDGER)}, line 1: identity.config")
    theirs, ours = ({"dataset": each.dataset, **clients_made_by(each)} for each in (of, settings))
    for what, value in theirs.items():
        if value != ours[what]:
            raise InputError(
                f"privacy.spent_before = {name}: asked clients with {what} = {value}, but this run has {what} = "
                f"{ours[what]}; name only analyses of the same clients"
            )


def _check_real(name: str, content: LedgerContent, settings: Settings) -> None:
    """Refuse a simulation in what is none: whoever knows its noise seed saw its answers without noise.

    Raises:
        InputError: It is one.
    """
    from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml

    try:
        seed = read_yaml(content.identity.config.partition("\n---\n")[0])["analysis"]["noise_seed"]
    except (LookupError, TypeError, ValueError, *YAML_ERRORS) as error:
        raise InputError(
            f"{Path(name, LEDGER)}, line 1: identity.config: does not say how the analysis was made"
        ) from error
    if seed is not None and settings.run.noise_seed is None:
        raise InputError(
            f"privacy.spent_before = {name}: is a simulation (its noise seed was chosen), so it guarantees "
            "nothing; repeat it without --noise-seed, or give --run.noise_seed where the training is a simulation too"
        )
