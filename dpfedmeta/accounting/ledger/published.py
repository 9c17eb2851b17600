"""Comparison of a run's published files with the digests in its ledger; the verifiers of all kinds of run call this.

A charge holds the digest of the last release before it, and a closing line that of the last release and of every file
of weights. A checkpoint states the line after which it was saved. Whoever holds all files can write a whole chain anew:
what it holds is bound only to the hash of its last line, wherever a copy of that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.charges import Charge, Closing
from dpfedmeta.accounting.ledger.ledger import ABORTED, LedgerContent, held_releases
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import OVER, RunDirectory, safetensors_header
from dpfedmeta.core.pydantic_errors import counted_words

_CHECKPOINTS = "round-*.safetensors"
_ALWAYS = (
    "that the noise was drawn as it is charged (only the keys in secret/ could show it)",
    "that nobody wrote the ledger and all files anew (compare the hash of its last line with a copy kept elsewhere)",
)


def published(run: RunDirectory) -> dict[str, str]:
    """SHA-256 of each file of weights that whoever loads or archives the run gets, by its name."""
    found = sorted(run.weights.parent.glob("*.safetensors"))
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in found}


def saved_at(run: RunDirectory) -> dict[str, tuple[int, str]]:
    """(Lines of the ledger, hash of the last of them) that each checkpoint states; to be read before the ledger is.

    One that cannot be read is left out: nobody can load or go on from it.
    """
    found = {}
    for path in sorted(run.weights.parent.glob(_CHECKPOINTS)):
        try:
            with path.open("rb") as file:
                state = json.loads(safetensors_header(file)["__metadata__"]["state"])
            found[path.name] = int(state["lines"]), str(state["head"])
        except (OSError, *DAMAGED_JSON):
            continue
    return found


def check_weights(
    run: RunDirectory, content: LedgerContent, saved: Mapping[str, tuple[int, str]], *, stage: str
) -> list[str]:
    """Compare files of weights with the lines that they belong to; remarks.

    Args:
        run: The run.
        content: Its ledger.
        saved: As `saved_at` gave it before the ledger was read.
        stage: How the run ended (training.results.snapshot.Stage).

    Raises:
        InputError: They are others than were published, or of a ledger with more lines.
    """
    for name, (lines, head) in saved.items():
        if not (0 < lines <= len(content.heads) and content.heads[lines - 1] == head):
            raise InputError(
                f"{run.weights.with_name(name)}: was saved after line {lines} of a ledger, which {run.ledger} does not "
                "have: lines at its end are lost, or the checkpoint is of another run"
            )
    remarks = [_compared(folder, names) for folder, names in earlier_weights(run, content)]
    closing = content.closing
    if closing is None:
        if stage in OVER and holds_digests(content):
            raise InputError(f"{run.ledger}: has no closing line, but the run has ended: lines at its end are lost")
    elif stage != "running":
        remarks.append(_compared(run.weights.parent, closing.weights, whole=True))
    return remarks


def earlier_weights(run: RunDirectory, content: LedgerContent) -> list[tuple[Path, dict[str, str]]]:
    """(Folder, what closing lines name) of the weights that were set aside when the run was extended."""
    name, closings = run.weights.name, [line for line in content.lines if isinstance(line, Closing)]
    named = {each.rounds: each.weights[name] for each in closings if name in each.weights}
    return [(run.after(end), {name: named[end]}) for end in content.plan.ends if end in named]


def _compared(folder: Path, named: Mapping[str, str], *, whole: bool = False) -> str:
    found = sorted(path for path in folder.glob("*.safetensors") if whole or path.name in named)
    for path in found:
        digest = sha256(path.read_bytes()).hexdigest()
        if named.get(path.name) != digest:
            raise InputError(
                f"{path}: is not what was published: SHA-256 {digest}, but the ledger's closing line names "
                f"{named.get(path.name, 'no such file')}; restore it from a backup"
            )
    return f"{folder.name}/: {len(found)} of {len(named)} files of weights are those that the closing line names"


def holds_digests(content: LedgerContent) -> bool:
    """Return whether any line holds a digest of what was published: none does before the first release."""
    return any(line is not None and (isinstance(line, Closing) or line.release) for line in content.lines)


def check_releases(ledger: Path, content: LedgerContent, released: Sequence[str], where: str) -> int:
    """Compare releases with those that the ledger holds.

    Args:
        ledger: Its path.
        content: The ledger.
        released: Digest of the release of each round from the first; ABORTED: it released nothing.
        where: Where these are, for errors.

    Returns:
        The number of rounds that the ledger holds a release of.

    Raises:
        InputError: One of them is another one.
    """
    held, last, rounds = held_releases(ledger, content), "", 0
    for round_, release in enumerate(released):
        last = last if release == ABORTED else release
        due = held.get(round_ + 1)
        if due is not None and due != last:
            raise InputError(
                f"{where}: the release of round {round_} has the digest {last or 'none'}, but {ledger} holds {due}: it "
                "is not the one that was released, or the ledger is of another run"
            )
        rounds += due is not None
    return rounds


def not_verified(content: LedgerContent, what: str, *others: str) -> str:
    """Say what no comparison with this ledger shows.

    Args:
        content: The ledger.
        what: What its closing line would hold.
        others: What else is not compared.
    """
    early = max((charge.round for charge in content.charges if charge.round and not charge.release), default=0)
    unbound = [f"releases before round {early} (the ledger holds no digests of them)"] if early else []
    if content.closing is None:
        why = "it was stopped, or goes on"
        unbound.append(f"{what} ({why}, so the ledger does not end with a closing line)")
    return f"not verified: {'; '.join([*unbound, *others, *_ALWAYS])}"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Spending that a ledger proves.

    Attributes:
        plan: The plan in its first line.
        charges: Its charges.
        guarantees: What they cost, from their own numbers; of a run that was chosen, what holds with the choice.
        remarks: What was checked, a line each.
        simulation: What is said where somebody chose the noise seed; None: nobody did.
        unverified: What no comparison with the ledger shows.
    """

    plan: PrivacyPlan
    charges: tuple[Charge, ...]
    guarantees: tuple[Guarantee, ...]
    remarks: tuple[str, ...]
    simulation: str | None
    unverified: str

    @property
    def rounds(self) -> int:
        """Rounds that were charged, each once however often it was done again."""
        return len({charge.round for charge in self.charges})

    def to_state(self) -> tuple[Guarantee, ...]:
        """The cells to state of it: what was spent; where it may still go on, what all its rounds may spend."""
        return self.guarantees if self.rounds == self.plan.rounds else guarantees(self.plan)


def chain_remark(charges: Sequence[Charge]) -> str:
    """How many rounds were charged, and how often again."""
    again = sum(bool(charge.attempt) for charge in charges)
    count = counted_words(len(charges) - again, "round")
    return f"{count}{f', {again} of them repeated and charged again' if again else ''}, hash chain intact"
