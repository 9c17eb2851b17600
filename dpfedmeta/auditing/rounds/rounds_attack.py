"""Attack on somebody's rounds by a canary client: worlds with and without it, what is looked at, and the best test.

A *world* is a canary's length, its place among the clients, the rounds in which it sends, and what the others send.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpfedmeta.auditing.trade_off_function import ThresholdTest, least_probability, most_probability
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import FloatArray

Update = Mapping[str, FloatArray]
# (state, update of each client, generator) -> (next state, release: arrays by name); the first state is None.
Rounds = Callable[[Any, Mapping[int, Update], np.random.Generator], tuple[Any, Mapping[str, Any]]]
# The world without the canary: it is not there, or its place stays and what it sends counts as nothing.
ClientRelation = Literal["add-remove", "zero-out"]

# Lengths of a canary, in shares of the longest: far above any bound, as long as others' updates, below all of them.
_LENGTHS = (1.0, 1e-2, 1e-4)
# Lengths of others' updates, the least and the most; each differs from the next, so that one client moves their median.
_OTHERS = (1e-3, 0.25)
# In which rounds the canary sends: always; or in turns, so that noise which is used again is seen.
_PATTERNS = (1, 2)
_THRESHOLDS = 40
# To choose from all worlds, each is tried on this share of the runs, and not fewer; then the best ones on more.
_FIRST, _SECOND, _FEWEST, _BEST = 0.1, 0.4, 40, 3


@dataclass(frozen=True, kw_only=True)
class World:
    """Updates that clients send.

    Attributes:
        length: Of the canary's update, in shares of the longest.
        place: The canary's number.
        pattern: 1: it sends in every round; 2: in every second one.
        ordinary: Whether the others send updates of several lengths; otherwise zeros.
    """

    length: float
    place: int
    pattern: int
    ordinary: bool


@dataclass(frozen=True, kw_only=True)
class WorldTest:
    """Chosen attack: it names the world of a run by one number that it sees.

    Attributes:
        world: What clients send.
        part: Which of the numbers.
        sign: 1 or -1: where the canary's numbers are taken off what is released, as a step of descent does.
        same: Value that the number is compared with; None: the number itself counts.
        test: Threshold of it.
    """

    world: World
    part: int
    sign: int
    same: float | None
    test: ThresholdTest

    def seen(self, scores: FloatArray) -> FloatArray:
        """The number that is tested, of each run."""
        found = scores[:, self.part]
        return self.sign * (found if self.same is None else (found == self.same).astype(float))


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditedRounds:
    """A function and what it is run on.

    Attributes:
        function: One round.
        like: Zeros in the form of an update.
        clients: How many there are.
        rounds: Of a run.
        length: Of the longest canary.
        delta: Of the promise.
        miss: One less the confidence of the first bound.
        relation: Of the promise.
    """

    function: Rounds
    like: Update
    clients: int
    rounds: int
    length: float
    delta: float
    miss: float
    relation: ClientRelation

    def worlds(self) -> Iterator[World]:
        """Each length of a canary at each place among others' updates; and the longest among zeros, by patterns."""
        places = list(dict.fromkeys((0, self.clients // 2, self.clients - 1)))
        for pattern in _PATTERNS[: self.rounds]:
            yield World(length=_LENGTHS[0], place=0, pattern=pattern, ordinary=False)
        for number, length in enumerate(_LENGTHS):
            for place in places[number:] + places[:number]:
                yield World(length=length, place=place, pattern=1, ordinary=True)

    def choose(self, runs: int, generator: np.random.Generator) -> WorldTest:
        """The attack with the largest bound; it is used on other runs than those that chose it.

        Args:
            runs: How many runs an audit of one world takes; choosing takes little more.
            generator: Of the audit.
        """
        few = max(_FEWEST, round(_FIRST * runs))
        ranked = sorted((self._best(world, few, generator) for world in self.worlds()), key=lambda found: -found[0])
        more = max(_FEWEST, round(_SECOND * runs))
        again = [self._best(attack.world, more, generator) for _, attack in ranked[:_BEST]]
        return max(again, key=lambda found: found[0])[1]

    def _best(self, world: World, runs: int, generator: np.random.Generator) -> tuple[float, WorldTest]:
        """(Bound, attack) of one world."""
        one, other = self.scores(world, runs, generator)
        bounds = _Bounds.of(len(one), len(other), self.delta, self.miss)
        found = []
        for attack in self._looks(world, one, other):
            mine, theirs = attack.seen(one), attack.seen(other)
            best, test = bounds.best(mine, theirs)
            found.append((best, replace(attack, test=test)))
        return max(found, key=lambda each: each[0])

    def _looks(self, world: World, one: FloatArray, other: FloatArray) -> Iterator[WorldTest]:
        """Everything that can be looked at: each number, in both directions, and whether a release is a known one.

        A release without randomness comes again. Where it does in one world and not in the other, no threshold of a
        number need see it.
        """
        plain = WorldTest(world=world, part=0, sign=1, same=None, test=ThresholdTest(value=0.0, inside=True))
        numbers = one.shape[1] - 1 - len(self.like)
        for part in range(numbers):
            for sign in (1, -1):
                yield replace(plain, part=part, sign=sign)
        for part in range(numbers, one.shape[1]):
            for values in (one, other):
                most, counts = np.unique(values[:, part], return_counts=True)
                for sign in (1, -1):
                    yield replace(plain, part=part, sign=sign, same=float(most[np.argmax(counts)]))

    def scores(self, world: World, runs: int, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """(Numbers of runs with the canary, of runs without), half each.

        They are the part of all arrays, and of each, along the canary; its sum; its squares; and a number that stands
        for exactly this release.
        """
        drawn = generator.spawn(runs)
        halves = (drawn[: runs // 2], drawn[runs // 2 :])
        one, other = (
            np.array([self._score(own, world, there) for own in half])
            for there, half in zip((True, False), halves, strict=True)
        )
        return one, other

    @cached_property
    def _signs(self) -> Update:
        """Signs in turns: noise that is one number for several coordinates falls out."""
        return {name: np.resize([1.0, -1.0], v.shape) for name, v in self.like.items()}

    @cached_property
    def _turned(self) -> Update:
        """The same signs, each number of another length: another direction, in no number the same."""
        return {name: value * np.resize([0.9, 1.1, 0.8, 1.2, 0.7], value.shape) for name, value in self._signs.items()}

    @cached_property
    def _others(self) -> Sequence[Update]:
        """Updates of the others, always the same: of directions that have nothing to do with each other."""
        drawn = np.random.default_rng(0)
        found = []
        for length in np.geomspace(*_OTHERS, self.clients) * self.length:
            update = {name: drawn.standard_normal(value.shape) for name, value in self.like.items()}
            norm = math.sqrt(sum(float(np.sum(value**2)) for value in update.values()))
            found.append({name: value * (length / norm) for name, value in update.items()})
        return found

    def updates(self, world: World, there: bool, sends: bool, turned: bool = False) -> dict[int, Update]:
        """Updates of a round; new arrays each time, since a function may write into them."""
        scale = world.length * self.length / math.sqrt(sum(value.size for value in self.like.values()))
        updates: dict[int, Update] = {}
        for client in range(self.clients):
            if client != world.place:
                updates[client] = (
                    {name: value.copy() for name, value in self._others[client].items()}
                    if world.ordinary
                    else {name: np.zeros(value.shape) for name, value in self.like.items()}
                )
            elif there or self.relation == "zero-out":
                own = self._turned if turned else self._signs
                updates[client] = {name: value * (scale if there and sends else 0.0) for name, value in own.items()}
        return updates

    def _score(self, generator: np.random.Generator, world: World, there: bool) -> FloatArray:
        names = list(self.like)
        state, score = None, np.zeros(2 + 3 * len(names))
        exact = [hashlib.sha256() for _ in range(1 + len(names))]
        for round_ in range(self.rounds):
            sends = round_ % world.pattern == 0
            state, released = self.function(state, self.updates(world, there, sends), generator)
            arrays = [self._seen(released, name) for name in names]
            parts = [np.sum(self._signs[name] * value) for name, value in zip(names, arrays, strict=True)]
            squares = [np.sum(value**2) for value in arrays]
            # The sums see what is one number for all coordinates, such as how many clients there are; the squares, how
            # much noise there is.
            seen = np.array([sum(parts), *parts, *map(np.sum, arrays), sum(squares), *squares])
            score += seen if sends else -seen
            for value, own in zip(arrays, exact[1:], strict=True):
                for each in (exact[0], own):
                    each.update(value.tobytes())
        # 48 bits are a floating-point number exactly.
        return np.concatenate([score, [float(int.from_bytes(each.digest()[:6], "big")) for each in exact]])

    def _seen(self, released: Mapping[str, Any], name: str) -> FloatArray:
        """Return a release as numbers; one without a score would pass as a release that shows nothing.

        Raises:
            InputError: It lacks the array, or has another form or numbers that are not finite.
        """
        if not isinstance(released, Mapping) or name not in released:
            raise InputError(f"audit_rounds: the function released no array {name!r}, which like names")
        found, due = np.asarray(released[name], dtype=float), self.like[name].shape
        if found.shape != due:
            raise InputError(f"audit_rounds: the function released {name!r} of shape {found.shape}, like has {due}")
        if not np.isfinite(found).all():
            raise InputError(f"audit_rounds: the function released a number in {name!r} that is not finite")
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bounds:
    """Bounds on epsilon by counts beyond a threshold, computed once for samples of one size.

    Attributes:
        inside: log of the least probability, less delta, by how many of the first sample are beyond; by row.
        outside: The same of the second sample.
    """

    inside: FloatArray
    outside: FloatArray

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, one: int, other: int, delta: float, miss: float) -> "_Bounds":
        """For samples of these sizes."""
        return cls(inside=_table(one, other, delta, miss), outside=_table(other, one, delta, miss))

    def best(self, one: FloatArray, other: FloatArray) -> tuple[float, ThresholdTest]:
        """The largest bound of a grid of thresholds, and its test."""
        values = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0.02, 0.98, _THRESHOLDS)))
        ones, others = np.sort(one), np.sort(other)
        above = [len(each) - np.searchsorted(each, values, side="right") for each in (ones, others)]
        below = [np.searchsorted(each, values, side="left") for each in (ones, others)]
        inside = self.inside[above[0], above[1]]
        outside = self.outside[below[1], below[0]]
        place, turned = int(np.argmax(inside)), int(np.argmax(outside))
        if inside[place] >= outside[turned]:
            return float(inside[place]), ThresholdTest(value=float(values[place]), inside=True)
        return float(outside[turned]), ThresholdTest(value=-float(values[turned]), inside=False)


def _table(one: int, other: int, delta: float, miss: float) -> npt.NDArray[np.float64]:
    """Bounds [beyond of the first, beyond of the second], as `ThresholdTest.epsilon` computes each."""
    least = np.array([least_probability(count, one, miss / 2) for count in range(one + 1)])
    most = np.array([most_probability(count, other, miss / 2) for count in range(other + 1)])
    more = np.maximum(least - delta, 0.0)
    with np.errstate(divide="ignore"):
        found: npt.NDArray[np.float64] = np.maximum(np.log(more)[:, None] - np.log(most)[None, :], 0.0)
    return found
