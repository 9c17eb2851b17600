"""The privacy ledger: one event a line, on disk before the release is used.

The first line states the run and its plan's constants; every further line is one round. What was spent is computed from
the numbers of the rounds' own lines, never from the plan. A round that is done again after a crash, and may come out
otherwise, has a line for each attempt.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dpfedmeta.accounting.cells import Terms, four_cells, guarantees, stated
from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.accounting.phase import SamplerName, Stretch
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.ledger.charges import RoundEvent, planned_event
from dpfedmeta.ledger.hash_chain import HashChain, heads_of, read_chain
from dpfedmeta.ledger.versions import VERSION, plan_of

_EVENT = TypeAdapter(RoundEvent)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which run a ledger belongs to; public.

    Attributes:
        run: Random name, the same in every copy of the run directory.
        config: Its config.yaml, whole.
        secure: Whether noise and cohorts come from the operating system (--secure-rng).
    """

    run: str = ""
    config: str = ""
    secure: bool = False


def opening_line(plan: PrivacyPlan, identity: Identity | None = None) -> dict[str, Any]:
    """The first line: the run, and the plan's constants."""
    return {"version": VERSION, "plan": asdict(plan), "identity": asdict(identity or Identity())}


@dataclass(frozen=True, kw_only=True)
class LedgerContent:
    """A ledger as it was read.

    Attributes:
        plan: The plan's constants.
        identity: Whose ledger it is.
        events: Its rounds.
        heads: Hash of every line.
        version: Of its form.
    """

    plan: PrivacyPlan
    identity: Identity
    events: tuple[RoundEvent, ...]
    heads: tuple[str, ...] = field(repr=False)
    version: int = VERSION


class Ledger:
    """Append-only file. `charge` returns only after the line is flushed to disk."""

    def __init__(self, path: Path, plan: PrivacyPlan, identity: Identity | None = None) -> None:
        """Start a new ledger; an existing file is an error, spent budget is never overwritten."""
        self._chain = HashChain.start(path, opening_line(plan, identity))
        self.events: list[RoundEvent] = []
        self._stretches: list[Stretch] = []

    @classmethod
    def resume(cls, path: Path, content: LedgerContent, size: int) -> Ledger:
        """Continue a ledger after its whole lines, which are `size` bytes long."""
        ledger = cls.__new__(cls)
        ledger._chain = HashChain(path, content.heads[-1], lines=len(content.heads), size=size)
        ledger.events = list(content.events)
        ledger._stretches = []
        return ledger

    @property
    def rounds(self) -> int:
        """How many charges it holds."""
        return len(self.events)

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self._chain.head

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self._chain.lines

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The charges so far as stretches of equal rounds; each is looked at once, however often this is asked."""
        known = sum(stretch.rounds for stretch in self._stretches)
        for more in stretches_of(self.events[known:]):
            last = self._stretches.pop() if self._stretches else replace(more, rounds=0)
            if replace(last, rounds=more.rounds) == more:
                self._stretches.append(replace(more, rounds=last.rounds + more.rounds))
            else:
                self._stretches += [last, more]
        return tuple(self._stretches)

    def attempts(self, round_: int) -> list[RoundEvent]:
        """The charges of one round."""
        return [event for event in self.events if event.round == round_]

    def charge(self, event: RoundEvent) -> None:
        """Write one round's event; call it before the release is used (privacy rule 6)."""
        self._chain.append(asdict(event))
        self.events.append(event)


def read(path: Path) -> tuple[PrivacyPlan, tuple[RoundEvent, ...]]:
    """Read and check a ledger.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    content = read_content(path)
    return content.plan, content.events


def read_content(path: Path, *, torn: bool = False) -> LedgerContent:
    """Read and check a ledger; with `torn`, a last line that was not finished is left out.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    bodies, _ = read_chain(path, "ledger", torn=torn)
    try:
        return LedgerContent(
            plan=plan_of(bodies[0]["plan"], bodies[0]["version"]),
            identity=Identity(**bodies[0]["identity"]),
            events=tuple(_EVENT.validate_json(json.dumps(body)) for body in bodies[1:]),
            heads=tuple(heads_of(bodies)),
            version=bodies[0]["version"],
        )
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a ledger of version {VERSION} ({reason})") from error


def head(path: Path) -> str:
    """Hash of the last line of a ledger."""
    return read_chain(path, "ledger")[1]


def spent(plan: PrivacyPlan, events: Sequence[RoundEvent]) -> tuple[Guarantee, ...]:
    """The four cells that the events add up to, from their own numbers.

    Raises:
        RefusedPlan: An event differs from what the header planned for its round, or rounds are missing or repeated
            without being a further attempt (it may have had the same cohort): that is another mechanism, and it is
            never accounted for approximately.

    Guarantee:
        Every attempt counts: a further attempt has a cohort and noise of its own, so it composes like one more round.
    """
    check_rounds(plan, events)
    return stated(stretches_of(events), Terms.of(plan))


def check_rounds(plan: PrivacyPlan, events: Sequence[RoundEvent]) -> None:
    """Whether the events are rounds of the plan, each with all its attempts in order.

    Raises:
        RefusedPlan: They are not; see `spent`.
    """
    charged: Counter[int] = Counter()
    for line, event in enumerate(events, start=2):
        # An attempt follows the attempts before it; a first attempt follows all first attempts before it.
        due = event.round if event.attempt else len(charged)
        if event.round != due or event.attempt != charged[event.round]:
            raise RefusedPlan(
                f"line {line} of the ledger is round {event.round}"
                + (
                    f", attempt {event.attempt}, where attempt {charged[due]}"
                    if event.attempt
                    else f", where round {due}"
                )
                + " is due"
            )
        charged[event.round] += 1
        if event.round >= plan.rounds or not _is_planned(plan, event):
            raise RefusedPlan(
                f"line {line}: round {event.round} of the ledger is not the mechanism of the plan: {event}"
            )


def _is_planned(plan: PrivacyPlan, event: RoundEvent) -> bool:
    return replace(event, attempt=0, inputs="") == planned_event(plan, event.round)


def stretches_of(events: Sequence[RoundEvent]) -> tuple[Stretch, ...]:
    """The events as stretches of equal rounds."""
    return tuple(_stretch(constants, len(list(group))) for constants, group in groupby(events, key=_constants))


_Constants = tuple[SamplerName, int, float, float, float | None, float, float]


def _constants(event: RoundEvent) -> _Constants:
    own, surplus = event.message_noise, event.surplus_probability
    return event.sampler, event.clients, event.cohort, event.rate, event.noise_multiplier, surplus, own


def _stretch(constants: _Constants, rounds: int) -> Stretch:
    sampler, clients, cohort, rate, noise, surplus, own = constants
    return Stretch(
        rounds=rounds,
        sampler=sampler,
        clients=clients,
        cohort=cohort,
        rate=rate,
        largest_cohort=None,
        surplus_probability=surplus,
        total_noise=None,
        effective_noise=noise,
        message_noise=own,
    )


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

    def further_rounds(self, plan: PrivacyPlan, events: Sequence[RoundEvent], first: int) -> int:
        """How many rounds of the plan, from round `first` on, may still be charged after `events`."""

        def allowed(more: int) -> bool:
            further = [planned_event(plan, round_) for round_ in range(first, first + more)]
            return self.allows(four_cells(stretches_of([*events, *further]), Terms.of(plan)))

        low, high = 0, plan.rounds - first
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if allowed(middle) else (low, middle - 1)
        return low

    def allows(self, after: tuple[Guarantee, ...]) -> bool:
        """Whether no cell would exceed its limit. NaN is never allowed."""
        return all(
            guarantee.epsilon <= limit and not math.isnan(guarantee.epsilon)
            for guarantee, limit in zip(after, self.limits, strict=True)
        )
