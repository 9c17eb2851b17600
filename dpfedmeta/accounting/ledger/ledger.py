"""The privacy ledger: one charge a line, on disk before the release is used.

The first line states the run and its plan's constants; every further line is one round, or says to how many rounds in
all the plan was extended when it was done, or what was published when the run came to an end. What was spent is
computed from the numbers of the rounds' own lines, never from the plan. A round that is done again after a crash, and
may come out otherwise, has a line for each attempt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.charges import Charge, Closing, planned_charge
from dpfedmeta.accounting.ledger.hash_chain import HashChain, heads_of, read_chain
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import four_cells, guarantees, stated
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.release_costs import cost_named
from dpfedmeta.core.errors import DAMAGED_JSON, InputError, RefusedPlan

_EXTENSION, _CLOSED = "extended_to", "closed"
# Stands in a row where a round released nothing.
ABORTED = "aborted"
Lines = tuple[Charge | Closing | None, ...]


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Which run a ledger belongs to; public.

    Attributes:
        run: Random name, the same in every copy of the run directory.
        config: Its config.yaml, whole.
        secure: Whether noise and cohorts come from the operating system (--secure-rng).
        candidate: Of a private sweep, by the hash of its price and its list; empty: of none.
        described: What whoever ran it said of its data (training.results.facts); empty: nothing.
    """

    run: str = ""
    config: str = ""
    secure: bool = False
    candidate: str = ""
    described: Mapping[str, Any] = field(default_factory=dict)


def opening_line(plan: PrivacyPlan, identity: RunIdentity | None = None) -> dict[str, Any]:
    """The first line: the run, and the plan's constants."""
    named = asdict(identity or RunIdentity())
    unsaid = [key for key in ("candidate", "described") if not named[key]]
    return {"plan": constants(plan), "identity": {key: named[key] for key in named if key not in unsaid}}


@dataclass(frozen=True, kw_only=True)
class LedgerContent:
    """A ledger as it was read.

    Attributes:
        plan: The plan's constants, with the rounds that it was extended to.
        identity: Whose ledger it is.
        charges: Its rounds.
        heads: Hash of every line.
        lines: What each line holds: a charge, or what was published; None: another one.
    """

    plan: PrivacyPlan
    identity: RunIdentity
    charges: tuple[Charge, ...]
    heads: tuple[str, ...] = field(repr=False)
    lines: Lines = field(default=(), repr=False)

    @property
    def closing(self) -> Closing | None:
        """The line that it ends with, if that closes it; None: the run goes on, or was stopped."""
        last = self.lines[-1]
        return last if isinstance(last, Closing) else None

    def until(self, head: object) -> LedgerContent:
        """Return what it held when its last line had this hash; itself if it never had."""
        if head not in self.heads[:-1]:
            return self
        end = self.heads.index(str(head)) + 1
        lines = self.lines[:end]
        return replace(self, charges=_charges(lines), heads=self.heads[:end], lines=lines)


class Ledger:
    """Append-only file. `charge` returns only after the line is flushed to disk.

    Attributes:
        charges: The charges.
    """

    def __init__(self, path: Path, plan: PrivacyPlan, identity: RunIdentity | None = None) -> None:
        """Start a new ledger; an existing file is an error, spent budget is never overwritten."""
        self._chain = HashChain.start(path, opening_line(plan, identity))
        self.charges: list[Charge] = []
        self._phases: list[Phase] = []
        self._closing: Closing | None = None
        self._heads: list[str] = []

    @classmethod
    def resume(cls, path: Path, content: LedgerContent, size: int) -> Ledger:
        """Continue a ledger after its whole lines, which are `size` bytes long."""
        ledger = cls.__new__(cls)
        ledger._chain = HashChain(path, content.heads[-1], lines=len(content.heads), size=size)
        ledger.charges = list(content.charges)
        ledger._phases = []
        ledger._closing = content.closing
        lines = zip(content.heads, content.lines, strict=True)
        ledger._heads = [head for head, line in lines if isinstance(line, Charge)]
        return ledger

    @property
    def rounds(self) -> int:
        """Number of charges, further attempts included."""
        return len(self.charges)

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self._chain.head

    @property
    def lines(self) -> int:
        """Number of lines of the ledger."""
        return self._chain.lines

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The charges so far as phases of equal rounds; each is looked at once, however often this is asked."""
        known = sum(phase.rounds for phase in self._phases)
        for more in phases_of(self.charges[known:]):
            last = self._phases.pop() if self._phases else replace(more, rounds=0)
            if replace(last, rounds=more.rounds) == more:
                self._phases.append(replace(more, rounds=last.rounds + more.rounds))
            else:
                self._phases += [last, more]
        return tuple(self._phases)

    def attempts(self, round_: int) -> list[Charge]:
        """The charges of one round."""
        return [charge for charge in self.charges if charge.round == round_]

    def head_of(self, round_: int, attempt: int) -> str:
        """Return the hash of the line of a charge, whatever came after it."""
        pairs = zip(self.charges, self._heads, strict=True)
        return next(head for charge, head in pairs if (charge.round, charge.attempt) == (round_, attempt))

    def extend(self, rounds: int) -> None:
        """Write that the plan has `rounds` rounds in all from here on; what was spent is what the charges add up to."""
        self._chain.append({_EXTENSION: rounds})
        self._closing = None

    def charge(self, charge: Charge) -> None:
        """Write one round's charge; call it before the release is used (privacy rule 6)."""
        self._chain.append(charge.as_json())
        self.charges.append(charge)
        self._heads.append(self._chain.head)
        self._closing = None

    def close(self, closing: Closing) -> None:
        """Write what was published, unless the ledger ends with it already."""
        if closing != self._closing:
            self._chain.append({_CLOSED: closing.as_json()})
            self._closing = closing


def read(path: Path) -> tuple[PrivacyPlan, tuple[Charge, ...]]:
    """Read and check a ledger.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    content = read_content(path)
    return content.plan, content.charges


def read_content(path: Path, *, torn: bool = False) -> LedgerContent:
    """Read and check a ledger; with `torn`, a last line that was not finished is left out.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    bodies, _ = read_chain(path, "ledger", torn=torn)
    try:
        plan, lines = _read_lines(plan_of(bodies[0]["plan"]), bodies[1:])
        return LedgerContent(
            plan=plan,
            identity=RunIdentity(**bodies[0]["identity"]),
            charges=_charges(lines),
            heads=tuple(heads_of(bodies)),
            lines=lines,
        )
    except DAMAGED_JSON as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a ledger ({reason})") from error


def _read_lines(plan: PrivacyPlan, bodies: Sequence[Mapping[str, Any]]) -> tuple[PrivacyPlan, Lines]:
    """(the plan as it was extended, what each line holds)."""
    lines: list[Charge | Closing | None] = [None]
    done = 0
    if plan.ends:
        raise ValueError("its first line holds an extended plan")
    for body in bodies:
        if _CLOSED in body:
            closing = Closing.from_json(body[_CLOSED])
            if len(body) > 1 or not 0 <= closing.rounds <= done:
                raise ValueError(f"closed after {closing.rounds} rounds of {done}")
            lines.append(closing)
        elif _EXTENSION in body:
            rounds = body[_EXTENSION]
            if type(rounds) is not int or len(body) > 1 or done != plan.rounds:
                raise ValueError(f"extended to {rounds} rounds after {done} of {plan.rounds}")
            plan = plan.extended(rounds)
            lines.append(None)
        else:
            lines.append(charge := Charge.from_json(body))
            done += not charge.attempt
    return plan, tuple(lines)


def _charges(lines: Lines) -> tuple[Charge, ...]:
    return tuple(line for line in lines if isinstance(line, Charge))


def held_releases(ledger: Path, content: LedgerContent) -> dict[int, str]:
    """Digest of the last release before each round, as charges and closing lines hold it.

    What is held of rounds that were done anew later is left out.

    Raises:
        InputError: Two lines hold another release for the same charges.
    """
    held: dict[int, str] = {}
    latest = 0
    for line in content.lines:
        if line is None:
            continue
        round_ = line.round if isinstance(line, Charge) else line.rounds
        if round_ < latest:
            held = {known: digest for known, digest in held.items() if known <= round_}
        if line.release and held.setdefault(round_, line.release) != line.release:
            raise InputError(
                f"{ledger}: holds two releases before round {round_} that were charged once ({held[round_]} and "
                f"{line.release}), which no epsilon covers, or it was edited"
            )
        latest = round_
    return held


def released_before(ledger: Path, content: LedgerContent) -> dict[int, str]:
    """Digests of releases that the ledger holds, by their rounds; one that was aborted has none.

    Raises:
        InputError: As `held_releases` says.
    """
    held = held_releases(ledger, content)
    return {round_ - 1: release for round_, release in held.items() if release != held.get(round_ - 1)}


def head(path: Path) -> str:
    """Hash of the last line of a ledger."""
    return read_chain(path, "ledger")[1]


def spent(plan: PrivacyPlan, charges: Sequence[Charge], lines: Lines = ()) -> tuple[Guarantee, ...]:
    """The four cells that the charges add up to, from their own numbers; `lines` as for `check_rounds`.

    Raises:
        RefusedPlan: A charge differs from what the header planned for its round, or rounds are missing or repeated
            without being a further attempt (it may have had the same cohort): that is another mechanism, and it is
            never accounted for approximately.

    Guarantee:
        Every attempt counts: a further attempt has a cohort and noise of its own, so it composes like one more round;
        with correlated noise it adds the most that one release can move (events.toeplitz_noise_cost).
    """
    check_rounds(plan, charges, lines)
    return stated(phases_of(charges), Terms.of(plan))


def check_rounds(plan: PrivacyPlan, charges: Sequence[Charge], lines: Lines = ()) -> None:
    """Check that the charges are rounds of the plan, each with all its attempts in order.

    Args:
        plan: The plan.
        charges: The charges.
        lines: What each line of their file holds, for errors; empty: they are the lines after the first.

    Raises:
        RefusedPlan: They are not; see `spent`.
    """
    done: Counter[int] = Counter()
    for number, charge in enumerate(charges, start=1):
        # An attempt follows the attempts before it; a first attempt follows all first attempts before it.
        due = charge.round if charge.attempt else len(done)
        if charge.round != due or charge.attempt != done[charge.round]:
            attempt = f", attempt {charge.attempt}, where attempt {done[due]} is due"
            words = attempt if charge.attempt else f", where round {due} is due"
            raise RefusedPlan(f"line {_line_of(number, lines)} of the ledger is round {charge.round}{words}")
        done[charge.round] += 1
        if charge.round >= plan.rounds or not _is_planned(plan, charge):
            where = f"line {_line_of(number, lines)}: round {charge.round}"
            raise RefusedPlan(f"{where} of the ledger is not the mechanism of the plan: {charge}")


def _line_of(charge: int, lines: Lines) -> int:
    places = [place for place, line in enumerate(lines, start=1) if isinstance(line, Charge)]
    return places[charge - 1] if places else charge + 1


def _is_planned(plan: PrivacyPlan, charge: Charge) -> bool:
    return replace(charge, attempt=0, inputs="", fresh="", release="") == planned_charge(plan, charge.round)


def phases_of(charges: Sequence[Charge]) -> tuple[Phase, ...]:
    """The charges as phases of equal rounds."""
    grouped = groupby(charges, key=lambda charge: (charge.event, _apart(charge)))
    return tuple(Phase(event=event, rounds=len(list(group)), again=again) for (event, again), group in grouped)


def _apart(charge: Charge) -> bool:
    """Return whether the charge is a further attempt that does not compose like one more round."""
    return charge.attempt > 0 and cost_named(charge.event.cost).joint


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent in each cell; the guard fails closed (privacy rule 7).

    Attributes:
        limits: Epsilon for each of the four cells, in the order of `guarantees`.
    """

    limits: tuple[float, ...]

    @classmethod
    def of(cls, planned: tuple[Guarantee, ...]) -> Budget:
        """Allow what was promised before round 0."""
        return cls(limits=tuple(guarantee.epsilon for guarantee in planned))

    def affordable_rounds(self, plan: PrivacyPlan) -> int:
        """The most rounds of the plan that stay within every limit (epsilon grows with rounds)."""
        if self.allows(guarantees(plan)):
            return plan.rounds
        low, high = 0, plan.rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.allows(guarantees(plan, rounds=middle)) else (low, middle)
        return low

    def further_rounds(self, plan: PrivacyPlan, charges: Sequence[Charge], first: int) -> int:
        """Count how many rounds of the plan, from round `first` on, may still be charged after `charges`."""
        known = {charge.round for charge in charges}

        def allowed(more: int) -> bool:
            further = [replace(planned_charge(plan, first + n), attempt=int(first + n in known)) for n in range(more)]
            return self.allows_charges(plan, [*charges, *further])

        low, high = 0, plan.rounds - first
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if allowed(middle) else (low, middle - 1)
        return low

    def allows_charges(self, plan: PrivacyPlan, charges: Sequence[Charge]) -> bool:
        """Return whether what these charges of the plan add up to is allowed."""
        return self.allows(four_cells(phases_of(charges), Terms.of(plan)))

    def allows(self, after: tuple[Guarantee, ...]) -> bool:
        """Return whether every cell stays within its limit. NaN is never allowed."""
        return all(
            guarantee.epsilon <= limit and not math.isnan(guarantee.epsilon)
            for guarantee, limit in zip(after, self.limits, strict=True)
        )
