"""Ledger of one client about its own records, by which it can decline a round whatever the server promised."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates, epsilon_of_discrete
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.guarantee import UnitName
from dpfedmeta.accounting.ledger.hash_chain import continue_or_start, read_chain
from dpfedmeta.accounting.participation_cost import CLIENT, Spending
from dpfedmeta.accounting.relations.relations import RELATIONS, Relation
from dpfedmeta.accounting.rounded import asked
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.fresh_seeds import attempt_bytes

# A budget that was computed from the same numbers is met exactly; adding squares may differ in the last digits.
_ROUNDING = 1.0 + 1e-9
_MOST_FURTHER = 10_000
# Name of the file, for errors; and key of a line that is no participation, as `budget` is (OlderCopy).
CLIENTS_LEDGER, OLDER = "client's ledger", "older"
# (run, (round, what a further attempt adds)).
_Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class RecordBudget:
    """Budget that a client allows one of its records, or all of them together, to spend towards the server.

    Attributes:
        epsilon: None: the server is trusted, and participations alone are counted.
        delta: Delta of epsilon.
        participations: R, the most participations in all runs together; None: no limit of its own.
        unit: What mu is counted for: a record, or the client as a whole.
        relation: How a record differs, for which epsilon is the limit; None: as the first participation counts it, rows
            where its plan has such (record_layer.default_relation).
    """

    epsilon: float | None
    delta: float
    participations: int | None = None
    unit: UnitName = "record"
    relation: Relation | None = None

    def header(self) -> dict[str, Any]:
        """Return the budget for the ledger; what is usual is left out."""
        usual = {"participations": None, "unit": "record", "relation": None}
        return {key: value for key, value in asdict(self).items() if key not in usual or value != usual[key]}


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of a run besides its participations, counted once, with the first of them.

    Attributes:
        rare: Taken off delta: the probability that what the run counts with does not hold.
        coordinates: Coordinates with discrete noise, which costs more than the Gaussian one of mu
            (discrete_gaussian_cost).
    """

    rare: float = 0.0
    coordinates: tuple[Coordinates, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for a ledger line; an infinite number is null."""
        known = [[each.count, each.variance, _finite(each.blended)] for each in self.coordinates]
        return ({"rare": self.rare} if self.rare else {}) | ({"discrete": known} if known else {})

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> RunCost:
        """The inverse."""
        rows = [(count, variance, _or_infinite(blended)) for count, variance, blended in line.get("discrete", ())]
        found = tuple(Coordinates(count=float(n), variance=float(v), blended=b) for n, v, b in rows)
        return cls(rare=float(line.get("rare", 0.0)), coordinates=found)


NO_COST = RunCost()


@dataclass(frozen=True, kw_only=True)
class OlderCopy:
    """Line of a client's ledger for ever: here an older copy of it was taken, so lines were missing.

    Attributes:
        missing: Number of these lines; None: it is not known.
        restored: Whether all of them were written again, behind this one.
        after: Participations that the older copy counted.
    """

    missing: int | None
    restored: bool
    after: int

    @property
    def words(self) -> str:
        """For a statement and a log."""
        many = "an unknown number of lines" if self.missing is None else counted_words(self.missing, "line")
        cost = "charged is counted again" if self.restored else "spent is in no number here"
        return f"an older copy was taken after participation {self.after:,}: it lacked {many}, and what they {cost}"


def open_own_ledger(path: Path) -> tuple[ClientLedger, RecordBudget]:
    """SECRET: a client's ledger with the limit that it has now, for its owner to read; nothing is written.

    Raises:
        InputError: It is missing, damaged, or no client's ledger.
    """
    bodies, _ = read_chain(path, CLIENTS_LEDGER, torn=True)
    if not _is_ledger(bodies[0]):
        raise InputError(f"{path}: is no client's ledger")
    budget = RecordBudget(**[body["budget"] for body in bodies if "budget" in body][-1])
    return ClientLedger(path, budget), budget


class ClientLedger:
    """Ledger of one client's participations, on its own disk before it answers.

    Guarantee:
        (record, server), for every relation that holds in all participations: after each of them, sqrt(sum of mu^2)-GDP
        with the relation's mu of each, with what discrete noise costs more and rare events take off delta in all runs
        together. For the relation that is counted it is never more than the budget: a participation that would exceed
        it, or in which that relation does not hold, is declined.

    Attributes:
        former_limits: Limits that others replaced, in words, each with the participations that were counted by then.
        older_copies: Where lines were missing.
    """

    def __init__(self, path: Path, budget: RecordBudget, *, change: bool = False) -> None:
        """Open the client's ledger, or start one.

        Args:
            path: Its file.
            budget: What it may spend in all.
            change: Whether this budget replaces another one of the same unit, from now on; what was spent stays.

        Raises:
            InputError: It was edited or truncated, or has another budget, or past participations state nothing for the
                relation of this one.
        """
        self._chain, lines = continue_or_start(path, {"budget": budget.header()}, CLIENTS_LEDGER, _is_ledger)
        stated = [line["budget"] for line in lines if "budget" in line]
        by_then = list(accumulate(map(int, map(_is_participation, lines))))
        ends = [count for count, line in zip(by_then, lines, strict=True) if "budget" in line][1:]
        olds = [(line[OLDER], count) for count, line in zip(by_then, lines, strict=True) if OLDER in line]
        lines = [line for line in lines if _is_participation(line)]
        try:
            self._mus = [_mus(line) for line in lines]
            # Of each charge; copies that went on apart may both hold one of the same attempt.
            self._runs = [line.get("run", "") for line in lines]
            self._first = next((line.get("relation") for line in lines), None)
            self._cost = reduce(_together, map(RunCost.from_json, lines), NO_COST)
            self._costs = {
                line.get("run", ""): found for line in lines if (found := RunCost.from_json(line)) != NO_COST
            }
            self._rounds: dict[_Key, str] = {
                (line.get("run", ""), (line["round"], *line.get("again", ()))): line.get("question", "")
                for line in lines
            }
            self._plans = Counter(line["plan"] for line in lines if "plan" in line)
            self._fresh: dict[_Key, str] = {
                (line.get("run", ""), (line["round"], *line.get("again", ()))): line.get("fresh", "") for line in lines
            }
            self.older_copies = [OlderCopy(**said, after=count) for said, count in olds]
        except DAMAGED_JSON as error:
            raise InputError(f"{path}: a line of this client's ledger lacks its mu or its round") from error
        if change and budget.unit == "record" and budget.relation is None:
            budget = replace(budget, relation=stated[-1].get("relation"))
        self._budget = budget
        if stated[-1] != budget.header():
            _check_change(path, stated[-1], budget, change, self._shared())
            _check_no_higher(path, stated[-1], budget, self.older_copies)
            self._chain.append({"budget": budget.header()})
            ends.append(len(lines))
        self.former_limits = [(_limit_words(each), end) for each, end in zip(stated, ends, strict=False)]

    @property
    def budget(self) -> RecordBudget:
        """What it may spend in all; under `change` with what it kept of the limit before."""
        return self._budget

    @property
    def relation(self) -> Relation | None:
        """Relation that is counted; None: the first participation will say it, or the unit is a client."""
        return None if self._budget.unit == "client" else self._budget.relation or self._first

    @property
    def epsilon(self) -> float:
        """Spent so far, for the relation that is counted."""
        return self._epsilon(self._squared((), None), self._cost)

    @property
    def epsilons(self) -> dict[Relation, float]:
        """Spent so far, for every relation that holds in all participations; empty before the first one."""
        found = ((each, math.fsum(mus[each] ** 2 for mus in self._mus)) for each in RELATIONS if each in self._shared())
        return {each: self._epsilon(squared, self._cost) for each, squared in found}

    def _shared(self) -> set[str]:
        """Names for which all participations state a mu."""
        return set.intersection(*(set(mus) for mus in self._mus)) if self._mus else set()

    def _squared(self, layers: Sequence[Spending], relation: Relation | None) -> float:
        """Sum of mu^2 of all participations and of these; inf where one of them states nothing for what is counted."""
        name = CLIENT if self._budget.unit == "client" else self.relation or relation
        mus = [*self._mus, *(layer.mus for layer in layers)]
        return math.fsum(each.get(name or "", math.inf) ** 2 for each in mus)

    @property
    def head(self) -> str:
        """Hash of its last line."""
        return self._chain.head

    @property
    def participations(self) -> int:
        """Number of participations in all runs."""
        return len(self._mus)

    def accepts(self, layer: Spending, *, run: str = "", cost: RunCost = NO_COST) -> bool:
        """Return whether one more participation under this layer stays within the budget."""
        return self.further([layer], run=run, cost=cost) == 1

    def further(self, layers: Sequence[Spending], *, run: str = "", cost: RunCost = NO_COST) -> int:
        """Count how many of these participations, in this order, stay within the budget. An epsilon of NaN never does.

        Args:
            layers: Cost of each participation.
            run: Run that they belong to.
            cost: Cost of that run besides.
        """
        cap = self._budget.participations
        most = len(layers) if cap is None else min(len(layers), cap - self.participations)
        low, high = 0, max(most, 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fit(layers[:middle], run, cost) else (low, middle - 1)
        return low

    def _fit(self, layers: Sequence[Spending], run: str, cost: RunCost) -> bool:
        limit = self._budget.epsilon
        return limit is None or self.after(layers, run=run, cost=cost) <= limit * _ROUNDING

    def after(self, layers: Sequence[Spending], *, run: str = "", cost: RunCost = NO_COST) -> float:
        """Epsilon that this ledger would count after these participations: what its limit is compared with."""
        squared = self._squared(layers, layers[0].relation if layers else None)
        return self._epsilon(squared, _together(self._cost, self._due(run, cost)))

    def _due(self, run: str, cost: RunCost) -> RunCost:
        """Return the part of the run's cost that is not charged yet; it is counted once."""
        return NO_COST if run in self._costs else cost

    def holds(self, round_: int, again: tuple[int, ...] = ()) -> bool:
        """Return whether this attempt at the round is charged already: the client then repeats its answer."""
        return ("", (round_, *again)) in self._rounds

    def participations_in(self, plan: str) -> int:
        """Number of participations in all runs of one plan, further attempts at a round too."""
        return self._plans[plan]

    def question(self, run: str, key: tuple[int, ...]) -> str | None:
        """Return the digest of the question that this attempt at a run's round was charged for; None: it never was."""
        return self._rounds.get((run, key))

    def stream(self, run: str, key: tuple[int, ...]) -> bytes:
        """Return the key of the noise of an attempt at a run's round, besides the client's secret key.

        It is b"" where the attempt was charged without fresh bytes.

        Raises:
            LookupError: It is not charged, so nothing may be drawn for it.
        """
        return attempt_bytes(self._fresh[run, key], self._rounds[run, key])

    def keys(self, run: str) -> list[tuple[int, ...]]:
        """The attempts at rounds of a run that were charged, as they came."""
        return [key for of, key in self._rounds if of == run]

    def charged(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(run, attempt at a round, digest of what was asked) of each participation, as they came."""
        return ((run, key, asked) for (run, key), asked in self._rounds.items())

    def charge(
        self,
        round_: int,
        layer: Spending,
        again: tuple[int, ...] = (),
        *,
        run: str = "",
        question: str = "",
        fresh: str = "",
        plan: str = "",
        cost: RunCost = NO_COST,
    ) -> None:
        """Write one participation; call it before the records are touched.

        Args:
            round_: Number of the round.
            layer: What the participation does to a record.
            again: Which further attempt at the round it is; () for the first.
            run: Which run, where a client takes part in several.
            question: Digest of what was asked, so that the same noise never answers another question.
            fresh: Bytes of the operating system for this attempt alone (fresh_seeds.draw_fresh).
            plan: Digest of the plan, which other runs may have too.
            cost: Of the run, besides.

        Raises:
            ValueError: It would exceed the budget.
        """
        if any(map(math.isnan, layer.mus.values())):
            raise ValueError(f"round {round_}: its cost for a record is NaN, so it has no guarantee")
        if not self.accepts(layer, run=run, cost=cost):
            raise ValueError(f"round {round_} would exceed this client's record budget of {self._budget}")
        due, counted = self._due(run, cost), self.relation or layer.relation
        beside = {"again": list(again), "run": run, "question": question, "fresh": fresh, "plan": plan}
        # A server that is trusted sees the exact message, and JSON has no infinity.
        line = {"round": round_, "mu": {name: _finite(mu) for name, mu in layer.mus.items()}}
        line |= {} if self._budget.unit == "client" else {"relation": counted}
        self._chain.append(line | {name: value for name, value in beside.items() if value} | due.as_json())
        self._rounds[run, (round_, *again)] = question
        self._fresh[run, (round_, *again)] = fresh
        if plan:
            self._plans[plan] += 1
        self._mus.append(dict(layer.mus))
        self._runs.append(run)
        self._first = self._first or counted
        self._cost = _together(self._cost, due)
        if due != NO_COST:
            self._costs[run] = due

    def spent_by_run(self) -> dict[str, tuple[int, float]]:
        """(Participations, epsilon for the relation that is counted) of each run by itself, in their order."""
        return {run: (count, self._of_run(run)) for run, count in Counter(self._runs).items()}

    def _of_run(self, run: str) -> float:
        name = CLIENT if self._budget.unit == "client" else self.relation
        mus = [mus for of, mus in zip(self._runs, self._mus, strict=True) if of == run]
        return self._epsilon(math.fsum(mu.get(name or "", math.inf) ** 2 for mu in mus), self._costs.get(run, NO_COST))

    def like_last(self) -> int | None:
        """Count how many further participations like the last one are within the budget; None: no limit that counts.

        Those that a plan's own cap or the cost of a further run would stop are not looked at.
        """
        if not self._mus or (self._budget.epsilon is None and self._budget.participations is None):
            return None
        last = Spending(mus=self._mus[-1], relation=self.relation or "zero-out")
        return self.further([last] * _MOST_FURTHER, run=next(reversed(self._rounds))[0])

    def _epsilon(self, squared: float, cost: RunCost) -> float:
        delta, mu = self._budget.delta - cost.rare, math.sqrt(squared)
        if not delta > 0:
            return math.inf

        def at(delta: float) -> float:
            return gaussian_epsilon(mu, delta)

        return epsilon_of_discrete(at, delta, at(delta), cost.coordinates) if cost.coordinates else at(delta)


def is_own_ledger(path: Path) -> bool:
    """Return whether a file begins as a client's ledger does."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline())
    except (OSError, *DAMAGED_JSON):
        return False
    return isinstance(first, dict) and {"version", "budget"} <= first.keys()


def _is_participation(line: Mapping[str, Any]) -> bool:
    return "budget" not in line and OLDER not in line


def _is_ledger(first: Mapping[str, Any]) -> bool:
    return first.keys() == {"version", "budget"} and isinstance(first["budget"], dict)


def _check_change(path: Path, stated: Mapping[str, Any], budget: RecordBudget, change: bool, shared: set[str]) -> None:
    """Refuse another budget, unless it may be changed: a mu of a record is none of a client.

    `shared`: what all participations so far state a mu for; empty: there is none.
    """
    unit = stated.get("unit", "record")
    if unit != budget.unit:
        raise InputError(
            f"{path}: counts what a {unit} spends, and what a {budget.unit} spent is not known from that; give --unit "
            f"{unit}"
        )
    if change and budget.relation is not None and shared and budget.relation not in shared:
        raise InputError(
            f"{path}: not all past participations state what a record spent by the relation {budget.relation}; give "
            f"--relation {next((each for each in RELATIONS if each in shared), 'zero-out')}"
        )
    if not change:
        raise InputError(
            f"{path}: has the limit {_limit_words(stated)}; give the same one, or set another from now on by "
            "--change-limit (in Python change_limit=True); what was spent stays counted"
        )


def _check_no_higher(path: Path, stated: Mapping[str, Any], budget: RecordBudget, older: Sequence[OlderCopy]) -> None:
    """Refuse a limit that allows more, where what was spent is not known to the end."""
    before = RecordBudget(**stated)
    parts = [(name, getattr(before, name), getattr(budget, name)) for name in ("epsilon", "delta", "participations")]
    higher = [name for name, was, now in parts if _or_infinite(now) > _or_infinite(was)]
    higher += ["relation"] if budget.relation != before.relation else []
    unknown = next((each for each in older if not each.restored), None)
    if unknown is not None and higher:
        raise InputError(
            f"{path}: {unknown.words}; so its limit is never raised: give no other --{higher[0]} than that of "
            f"{_limit_words(stated)}, or a lower one"
        )


def _limit_words(stated: Mapping[str, Any]) -> str:
    found = [(name, stated[name]) for name in ("epsilon", "delta", "participations", "relation") if name in stated]
    return ", ".join(
        f"{name} {value if isinstance(value, str) else 'none' if value is None else asked(value)}"
        for name, value in found
    )


def _together(one: RunCost, other: RunCost) -> RunCost:
    """Coordinates with noise of one law are counted together."""
    counts: dict[tuple[float, float], float] = {}
    for each in (*one.coordinates, *other.coordinates):
        law = (each.variance, each.blended)
        counts[law] = counts.get(law, 0.0) + each.count
    found = (Coordinates(count=count, variance=law[0], blended=law[1]) for law, count in counts.items())
    return RunCost(rare=one.rare + other.rare, coordinates=tuple(found))


def _mus(line: dict[str, Any]) -> dict[str, float]:
    return {name: _or_infinite(mu) for name, mu in line["mu"].items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or_infinite(value: Any) -> float:
    return math.inf if value is None else float(value)
