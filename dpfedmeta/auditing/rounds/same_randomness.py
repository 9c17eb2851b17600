"""Comparison of somebody's rounds under the same random numbers, where one client sends an update and where not.

The noise is the same in both, so their difference is what the client moves, exactly. The size of the noise follows
from runs with other random numbers. Some hundred runs bound epsilon, where an attack that sees releases alone needs
millions; the bound rests on the form of the noise, which is tested (`movement_bounds`). To give both worlds one random
state is also how Cebere et al. 2026 look at other people's programs (https://arxiv.org/abs/2602.17454).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfedmeta.auditing.rounds.any_framework import seeded_everywhere
from dpfedmeta.auditing.rounds.movement_bounds import (
    Comparison,
    Evidence,
    PairedRuns,
    all_evidence,
    judged,
    no_movement,
)
from dpfedmeta.auditing.rounds.rounds_attack import AuditedRounds, World
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import FloatArray

# Runs that choose a world, parts of a release and their weights. Others judge.
FIRST = 48
# Of them, those that say in which direction a client moves a release.
_FIRST_LOOK = 6

Releases = list[dict[str, FloatArray]]


@dataclass(frozen=True, kw_only=True)
class _Neighbours:
    """Worlds that are compared: the canary's update in the one; zeros in its place, or no client, in the other."""

    world: World
    absent: bool

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

    def compare(self, runs: int) -> Comparison:
        """Choose by some runs what shows most, and judge it by `runs` others.

        Raises:
            InputError: A release is no arrays of numbers, or not finite.
        """
        first, second = np.random.SeedSequence(self.seed).spawn(2)
        if not self._repeats(first.spawn(1)[0]):
            return no_movement(runs, "the function draws from a source that neither its generator nor a seed reaches")
        seeds = first.spawn(FIRST)
        best: tuple[_Neighbours, dict[str, FloatArray], Evidence] | None = None
        for neighbours in self._neighbours():
            directions = self._directions(neighbours, seeds[:_FIRST_LOOK])
            found = directions if isinstance(directions, str) else self._pairs(neighbours, directions, seeds)
            if isinstance(directions, str) or isinstance(found, str):
                return replace(no_movement(runs, str(found)), epsilon=math.inf, refuting=math.inf)
            for choice in all_evidence(found, self.trial.delta):
                if best is None or choice.score > best[2].score:
                    best = neighbours, directions, choice
        if best is None:
            return replace(no_movement(runs, "no release moves"), epsilon=0.0, refuting=0.0)
        neighbours, directions, choice = best
        again = self._pairs(neighbours, directions, second.spawn(runs))
        if isinstance(again, str):
            return replace(no_movement(runs, again), epsilon=math.inf, refuting=math.inf)
        return judged(choice, again, self.trial.delta, neighbours.words())

    def _neighbours(self) -> Iterator[_Neighbours]:
        for world in self.trial.worlds():
            yield _Neighbours(world=world, absent=False)
            if world.pattern == 1 and world.length == 1.0 and world.place == 0:
                yield _Neighbours(world=world, absent=True)

    def _repeats(self, seed: np.random.SeedSequence) -> bool:
        """True if the same seed gives the same releases."""
        world = next(iter(self.trial.worlds()))
        one, other = (self._releases(world, True, False, seed)[0] for _ in range(2))
        return all(
            first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
            for first, second in zip(one, other, strict=True)
        )

    def _releases(self, world: World, there: bool, sends: bool, seed: np.random.SeedSequence) -> tuple[Releases, bool]:
        """(Release of each round, whether the function keeps a state)."""
        state, kept, found = None, False, []
        generator = np.random.default_rng(seed)
        with seeded_everywhere(int(seed.generate_state(1)[0])):
            for round_ in range(self.trial.rounds):
                updates = self.trial.updates(world, there, sends and round_ % world.pattern == 0)
                state, released = self.trial.function(state, updates, generator)
                kept = kept or state is not None
                found.append(_numbers(released))
        return found, kept

    def _pair(self, neighbours: _Neighbours, seed: np.random.SeedSequence) -> tuple[Releases, Releases, bool] | str:
        """Releases of both worlds; or, in words, what else tells them apart."""
        found: list[tuple[Releases, bool] | str] = []
        for there, sends in ((True, True), (not neighbours.absent, False)):
            try:
                found.append(self._releases(neighbours.world, there, sends, seed))
            except InputError:
                raise
            except Exception as error:
                found.append(raised(error))
        one, other = found
        if isinstance(one, str) and isinstance(other, str):
            raise InputError(f"audit_rounds: with the client's update and without it, the function raised {one}")
        if isinstance(one, str) or isinstance(other, str):
            said, where = (one, "sends its update") if isinstance(one, str) else (other, neighbours.words())
            return f"only where the client {where}, the function raised {said}"
        for round_, (mine, theirs) in enumerate(zip(one[0], other[0], strict=True)):
            if {name: value.shape for name, value in mine.items()} != {n: value.shape for n, value in theirs.items()}:
                return f"round {round_} releases other names or shapes where the client {neighbours.words()}"
        return one[0], other[0], one[1] or other[1]

    def _directions(
        self, neighbours: _Neighbours, seeds: Sequence[np.random.SeedSequence]
    ) -> dict[str, FloatArray] | str:
        """Unit arrays along which the client moves a release most, by name; zeros where it does not move."""
        most: dict[str, tuple[float, FloatArray]] = {}
        for seed in seeds:
            pair = self._pair(neighbours, seed)
            if isinstance(pair, str):
                return pair
            for mine, theirs in zip(*pair[:2], strict=True):
                for name in mine:
                    moved = mine[name] - theirs[name]
                    length = float(np.linalg.norm(moved))
                    if name not in most or length > most[name][0]:
                        most[name] = length, moved / length if length else moved
        return {name: direction for name, (_, direction) in most.items()}

    def _pairs(
        self, neighbours: _Neighbours, directions: Mapping[str, FloatArray], seeds: Sequence[np.random.SeedSequence]
    ) -> PairedRuns | str:
        """Runs of both worlds, each part of a release along its direction."""
        gathered = _Gathered()
        for seed in seeds:
            pair = self._pair(neighbours, seed)
            if isinstance(pair, str):
                return pair
            gathered.add(*pair, directions)
        return gathered.runs()


class _Gathered:
    """Numbers of pairs of runs, kept without the releases themselves."""

    def __init__(self) -> None:
        self.without: list[list[float]] = []
        self.moved: list[list[float]] = []
        self.energies: list[list[list[float]]] = []
        self.first: Releases = []
        self.last: tuple[Releases, Releases] | None = None
        self.changed: list[dict[str, tuple[FloatArray, FloatArray]]] = []
        self.parts: list[tuple[int, str]] = []
        self.kept = False

    def add(self, one: Releases, other: Releases, kept: bool, directions: Mapping[str, FloatArray]) -> None:
        """One pair."""
        if not self.first:
            self.first = other
            self.parts = [(round_, name) for round_, released in enumerate(other) for name in released]
            self.changed = [{n: (np.zeros(v.shape), np.zeros(v.shape)) for n, v in each.items()} for each in other]
        self.kept = self.kept or kept
        along = [float(np.vdot(directions[name], other[round_][name])) for round_, name in self.parts]
        self.without.append(along)
        self.moved.append([float(np.vdot(directions[n], one[r][n] - other[r][n])) for r, n in self.parts])
        for round_, name in self.parts:
            for count, each in zip(self.changed[round_][name], (one, other), strict=True):
                count += each[round_][name] != self.first[round_][name]
        if self.last is None:
            self.last = one, other
            return
        self.energies.append(
            [
                [float(np.mean((now[r][n] - before[r][n]) ** 2)) / 2 if now[r][n].size else 0.0 for r, n in self.parts]
                for now, before in zip((one, other), self.last, strict=True)
            ]
        )
        self.last = None

    def runs(self) -> PairedRuns:
        """All of them."""
        best, where = 0, ""
        for round_, name in self.parts:
            there, without = self.changed[round_][name]
            constant = np.where(without == 0, there, 0.0)
            if constant.size and constant.max() > best:
                best, where = int(constant.max()), f"a number in {name!r} of round {round_}"
        return PairedRuns(
            parts=self.parts,
            sizes=np.array([self.first[round_][name].size for round_, name in self.parts]),
            without=np.array(self.without),
            moved=np.array(self.moved),
            energies=np.array(self.energies).reshape(-1, 2, len(self.parts)).swapaxes(0, 1),
            constant=best,
            where=where,
            keeps_state=self.kept,
        )


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
