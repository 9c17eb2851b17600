"""Comparison of somebody's rounds under the same random numbers, where one client sends an update and where not.

The noise is the same in both, so their difference is what the client moves, exactly. The size of the noise follows
from runs with other random numbers. Some hundred runs bound epsilon, where an attack that sees releases alone needs
millions; the bound rests on the form of the noise, which is tested (`movement_bounds`). To give both worlds one random
state is also how Cebere et al. 2026 look at other people's programs (https://arxiv.org/abs/2602.17454).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.auditing.rounds.any_framework import seeded_everywhere
from dpfedmeta.auditing.rounds.movement_bounds import (
    REFUTING_MISS,
    Comparison,
    ConstantNumber,
    Evidence,
    PairedRuns,
    all_evidence,
    judged,
    no_bound,
    runs_that_refute,
    told_always,
)
from dpfedmeta.auditing.rounds.rounds_attack import AuditedRounds, World
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import FloatArray

# Runs that choose a world, parts of a release and their weights. Others judge.
FIRST = 48
# Of them, those that say in which direction a client moves a release; and runs that look whether a number follows it.
_FIRST_LOOK, _PROBES = 16, 16


@dataclass(frozen=True, kw_only=True)
class _Neighbours:
    """Worlds that are compared: the canary's update in the one; zeros in its place, or no client, in the other.

    Attributes:
        world: What clients send.
        absent: True if no client is in its place.
        turned: True if its update has another direction.
    """

    world: World
    absent: bool
    turned: bool = False

    def words(self) -> str:
        """The second one, for a sentence."""
        return "is not there" if self.absent else "sends zeros"


@dataclass(frozen=True, kw_only=True, eq=False)
class SameRandomness:
    """Rounds that are compared.

    Attributes:
        trial: The function, and what clients send.
        seed: Of all runs.
    """

    trial: AuditedRounds
    seed: int

    def compare(self, runs: int, promised: float) -> Comparison:
        """Choose by some runs what shows most, and judge it by `runs` others.

        What told the worlds apart in all runs, such as a count of clients, is looked at until it refutes the promise or
        fails once.

        Args:
            runs: That judge, in each world.
            promised: Epsilon.

        Raises:
            InputError: A release is no arrays of numbers, or not finite.
        """
        first, second, third = np.random.SeedSequence(self.seed).spawn(3)
        if not self._repeats(first.spawn(1)[0]):
            return no_bound(runs, "the function draws from a source that neither its generator nor a seed reaches")
        seeds = first.spawn(FIRST)
        best: tuple[_Neighbours, _Look, Evidence] | None = None
        signs = list[_Sign]()
        for neighbours in self._neighbours():
            look = _Look.of(self._pairs(neighbours, seeds[:_FIRST_LOOK]))
            found = self._looked(neighbours, look, seeds)
            signs.extend(_Sign.all_of(neighbours, found))
            for evidence in all_evidence(found, self.trial.delta):
                if evidence.score > (best[2].score if best else 0.0):
                    best = neighbours, look, evidence
        if best is None:
            return replace(no_bound(runs, "nothing shows the client"), epsilon=0.0, refuting=0.0)
        neighbours, look, evidence = best
        again = self._looked(neighbours, look, second.spawn(runs))
        most = judged(evidence, again, self.trial.delta, neighbours.words())
        if most.refuting is not None and most.refuting > promised:
            return most
        for sign, seed in zip(signs, third.spawn(len(signs)), strict=True):
            count = runs_that_refute(promised, self.trial.delta, REFUTING_MISS / len(signs))
            if self._always(sign, count, seed):
                return told_always(count, self.trial.delta, str(sign))
        return most

    def _always(self, sign: _Sign, count: int, seed: np.random.SeedSequence) -> bool:
        """True if a sign told the two worlds apart in each of so many new runs of them."""
        rounds = self.trial.rounds if sign.number is None else sign.number.part[0] + 1
        generator = np.random.default_rng(seed)
        with seeded_everywhere(int(seed.generate_state(1)[0])):
            return all(
                sign.seen(self._released(sign.neighbours, sends, generator, rounds)) is sends
                for _ in range(count)
                for sends in (True, False)
            )

    def _looked(self, neighbours: _Neighbours, look: _Look, seeds: Sequence[np.random.SeedSequence]) -> PairedRuns:
        """Numbers of pairs of runs; where one has no randomness, also whether it follows the client's update."""
        found = look.runs(self._pairs(neighbours, seeds))
        if found.constant is None or not found.constant.steady:
            return found
        turned = look.runs(self._pairs(replace(neighbours, turned=True), seeds[:_PROBES])).constant
        follows = (
            turned is not None
            and turned.steady
            and (turned.where, turned.usual) == (found.constant.where, found.constant.usual)
            and turned.value != found.constant.value
        )
        return replace(found, constant=replace(found.constant, follows=follows))

    def _neighbours(self) -> Iterator[_Neighbours]:
        for world in self.trial.worlds():
            yield _Neighbours(world=world, absent=False)
            first = world.pattern == 1 and world.length == 1.0 and world.place == 0
            if first and self.trial.relation == "add-remove":
                yield _Neighbours(world=world, absent=True)

    def _repeats(self, seed: np.random.SeedSequence) -> bool:
        """True if the same seed gives the same releases."""
        silent = _Neighbours(world=next(iter(self.trial.worlds())), absent=False)
        one, other = (self._run(silent, False, seed) for _ in range(2))
        return one.form == other.form and all(
            np.array_equal(first[name], second[name])
            for first, second in zip(one.released, other.released, strict=True)
            for name in first
        )

    def _pairs(self, neighbours: _Neighbours, seeds: Sequence[np.random.SeedSequence]) -> Iterator[tuple[_Run, _Run]]:
        """Runs with the client's update and without it.

        Raises:
            InputError: The function raises in both worlds, with every seed.
        """
        failures = 0
        for seed in seeds:
            one, other = (self._run(neighbours, sends, seed) for sends in (True, False))
            failures += not (one.released or other.released)
            yield one, other
        if failures == len(seeds):
            raise InputError(f"audit_rounds: with the client's update and without it, the function {one.form[0]}")

    def _run(self, neighbours: _Neighbours, sends: bool, seed: np.random.SeedSequence) -> _Run:
        with seeded_everywhere(int(seed.generate_state(1)[0])):
            return self._released(neighbours, sends, np.random.default_rng(seed), self.trial.rounds)

    def _released(self, neighbours: _Neighbours, sends: bool, generator: np.random.Generator, rounds: int) -> _Run:
        state, kept, found, form = None, False, list[dict[str, FloatArray]](), list[str]()
        world = neighbours.world
        for round_ in range(rounds):
            updates = self.trial.updates(
                world, sends or not neighbours.absent, sends and round_ % world.pattern == 0, neighbours.turned
            )
            try:
                state, released = self.trial.function(state, updates, generator)
            except InputError:
                raise
            except Exception as error:
                return _Run(released=(), form=(f"raised {raised(error)}",), kept=kept)
            kept = kept or state is not None
            found.append(_numbers(released))
            form.append(", ".join(f"{name!r} {value.shape}" for name, value in found[-1].items()))
        return _Run(released=tuple(found), form=tuple(form), kept=kept)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """Releases of a run.

    Attributes:
        released: By round; none where the function raised.
        form: Names and shapes of each, or what was raised, in words.
        kept: True if the function keeps a state.
    """

    released: tuple[dict[str, FloatArray], ...]
    form: tuple[str, ...]
    kept: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sign:
    """Sign that was seen in all runs with the client's update and in none without it, or the other way round.

    Attributes:
        neighbours: Where.
        number: A number of a release that has another value than without the update; None: it is a form.
        form: Names and shapes of the releases, or what was raised.
        with_update: Whether runs with the update have the form.
    """

    neighbours: _Neighbours
    number: ConstantNumber | None = None
    form: tuple[str, ...] = ()
    with_update: bool = True

    @classmethod
    def all_of(cls, neighbours: _Neighbours, runs: PairedRuns) -> Iterator[_Sign]:
        """Of these runs."""
        if abs(runs.with_form - runs.without_form) == runs.count:
            yield cls(neighbours=neighbours, form=tuple(runs.form), with_update=runs.with_form > 0)
        if runs.constant is not None and runs.constant.runs == len(runs.moved) == runs.count:
            yield cls(neighbours=neighbours, number=runs.constant)

    def seen(self, run: _Run) -> bool | None:
        """True if a run looks like one with the update; None: like neither."""
        if self.number is None:
            return (run.form == self.form) == self.with_update
        round_, name = self.number.part
        values = run.released[round_].get(name) if len(run.released) > round_ else None
        if values is None or values.size <= self.number.place:
            return None
        return bool(values.flat[self.number.place] != self.number.usual)

    def __str__(self) -> str:
        without = f"one that {self.neighbours.words()}"
        if self.number is not None:
            return f"{self.number.where} is always the same beside {without}, and always another where a client sends"
        worlds = ("a client", without) if self.with_update else (without, "a client")
        return f"all runs of {worlds[0]} and none of {worlds[1]}: {'; '.join(dict.fromkeys(self.form))}"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """How releases become a few numbers: fixed by the first runs, used on all.

    Attributes:
        form: The most frequent form of a release; runs of another one have no numbers.
        parts: (Round, name) of each array.
        directions: Unit arrays along which the client moves a release most, by name.
        centres: Mean of each part without the client's update.
        squares: Mean squared distance of each part from its mean.
        checks: Arrays of random signs: movements along both are the same where they are the same as a whole.
    """

    form: tuple[str, ...]
    parts: tuple[tuple[int, str], ...]
    directions: Mapping[str, FloatArray]
    centres: Mapping[tuple[int, str], FloatArray]
    squares: Mapping[tuple[int, str], float]
    checks: Mapping[str, FloatArray]

    @classmethod
    def of(cls, pairs: Iterable[tuple[_Run, _Run]]) -> _Look:
        """From some pairs of runs."""
        runs = list(pairs)
        form = Counter(run.form for pair in runs for run in pair if run.released).most_common(1)[0][0]
        same = [pair for pair in runs if pair[0].form == pair[1].form == form]
        sound = [other for _, other in runs if other.form == form] or [one for one, _ in runs if one.form == form]
        parts = tuple((round_, name) for round_, released in enumerate(sound[0].released) for name in released)
        longest: dict[str, tuple[float, FloatArray]] = {}
        for round_, name in parts:
            for one, other in same:
                moved = one.released[round_][name] - other.released[round_][name]
                length = float(np.linalg.norm(moved))
                if name not in longest or length > longest[name][0]:
                    longest[name] = length, moved / length if length else moved
        shapes = {name: sound[0].released[round_][name].shape for round_, name in parts}
        drawn = np.random.default_rng(0)
        centres = {(r, n): np.mean([run.released[r][n] for run in sound], axis=0) for r, n in parts}
        return cls(
            form=form,
            parts=parts,
            directions={n: longest[n][1] if n in longest else np.zeros(shape) for n, shape in shapes.items()},
            centres=centres,
            squares={
                (r, n): float(np.mean([np.sum((run.released[r][n] - centres[r, n]) ** 2) for run in sound]))
                for r, n in parts
            },
            checks={name: drawn.choice([-1.0, 1.0], shape) for name, shape in shapes.items()},
        )

    def size(self, run: _Run, part: tuple[int, str]) -> float:
        """Cube root of a part's squared distance from its mean: nearly normal where the noise is."""
        distance = run.released[part[0]][part[1]] - self.centres[part]
        return float(np.cbrt(np.sum(distance**2) / self.squares[part])) if self.squares[part] else 0.0

    def runs(self, pairs: Iterable[tuple[_Run, _Run]]) -> PairedRuns:
        """Numbers of pairs of runs, kept without the releases themselves."""
        forms = Counter[tuple[bool, tuple[str, ...]]]()
        without, moved, checked, sizes = ([] for _ in range(4))
        changed: dict[tuple[int, str], _Changes] = {}
        count, kept = 0, False
        for one, other in pairs:
            count, kept = count + 1, kept or one.kept or other.kept
            forms.update([(True, one.form), (False, other.form)])
            if one.form != self.form or other.form != self.form:
                continue
            both = [(one.released[r][n], other.released[r][n], n) for r, n in self.parts]
            without.append([float(np.vdot(self.directions[n], b)) for _, b, n in both])
            moved.append([float(np.vdot(self.directions[n], a - b)) for a, b, n in both])
            checked.append([float(np.vdot(self.checks[n], a - b)) for a, b, n in both])
            sizes.append([[self.size(run, part) for part in self.parts] for run in (one, other)])
            for part, (a, b, _) in zip(self.parts, both, strict=True):
                changed.setdefault(part, _Changes.of(b)).add(a, b)
        constants = [each for part, changes in changed.items() if (each := changes.constant(*part)) is not None]
        form, with_form, without_form = _telling(forms)
        size = len(self.parts)
        return PairedRuns(
            count=count, parts=self.parts, without=np.array(without).reshape(-1, size),
            moved=np.array(moved).reshape(-1, size), checked=np.array(checked).reshape(-1, size),
            sizes=np.array(sizes).reshape(-1, 2, size).swapaxes(0, 1), keeps_state=kept, form=form,
            constant=max(constants, key=lambda each: each.runs, default=None), with_form=with_form,
            without_form=without_form,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Changes:
    """What became of the numbers of an array, over runs.

    Attributes:
        start: Their values in the first run without the client's update.
        there: In how many runs with it each is another one.
        silent: In how many without it.
        last: The other value.
        varied: True where there were several.
    """

    start: FloatArray
    there: FloatArray
    silent: FloatArray
    last: FloatArray
    varied: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, start: FloatArray) -> _Changes:
        """Of no run."""
        there, silent = np.zeros(start.shape), np.zeros(start.shape)
        return cls(start=start, there=there, silent=silent, last=start.copy(), varied=np.zeros(start.shape, dtype=bool))

    def add(self, one: FloatArray, other: FloatArray) -> None:
        """A run with the client's update and one without."""
        moved = one != self.start
        np.logical_or(self.varied, moved & (self.there > 0) & (one != self.last), out=self.varied)
        np.add(self.there, moved, out=self.there)
        np.add(self.silent, other != self.start, out=self.silent)
        np.copyto(self.last, one, where=moved)

    def constant(self, round_: int, name: str) -> ConstantNumber | None:
        """The number that is the same in all runs without the update, and another one in most with it."""
        counts = np.where(self.silent == 0, self.there, 0.0).ravel()
        if not counts.size or not counts.max():
            return None
        place = int(counts.argmax())
        return ConstantNumber(
            part=(round_, name), place=place, runs=int(counts[place]),
            usual=float(self.start.flat[place]), value=float(self.last.flat[place]),
            steady=not self.varied.flat[place],
        )  # fmt: skip


def _telling(forms: Counter[tuple[bool, tuple[str, ...]]]) -> tuple[tuple[str, ...], int, int]:
    """(Form that tells most, how many runs with the client's update have it, how many without)."""
    seen = {form: (forms[True, form], forms[False, form]) for _, form in forms}
    form, counts = max(seen.items(), key=lambda each: abs(each[1][0] - each[1][1]))
    return form, *counts


def _numbers(released: Any) -> dict[str, FloatArray]:
    """Arrays of a release, in an order of their names."""
    if not isinstance(released, Mapping):
        raise InputError(f"audit_rounds: the function released {type(released).__name__}, expected arrays by name")
    found = {}
    for name in sorted(released, key=str):
        try:
            # A copy: a function may go on writing into what it released.
            value = np.array(released[name], dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(f"audit_rounds: the function released {name!r}, which is no array of numbers") from error
        if not np.isfinite(value).all():
            raise InputError(f"audit_rounds: the function released a number in {name!r} that is not finite")
        found[str(name)] = value
    return found
