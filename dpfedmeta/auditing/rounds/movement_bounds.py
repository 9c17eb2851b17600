"""Bounds on epsilon from what a client moves and how large the noise is, both seen under the same randomness.

Each rests on the form of the noise: normal, and independent of what a client sends. Where it is not normal there is no
bound.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm, shapiro

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_down
from dpfedmeta.auditing.trade_off_function import epsilon_of_counts, least_probability
from dpfedmeta.core.random.random_sources import FloatArray

# Of the bound that is shown, and of the one that refutes.
MISS, REFUTING_MISS = 0.05, 1e-4
# Movements are the same if they agree to this share of the largest.
_SAME = 1e-6
# So many runs move alike before their movement is taken for one that does not depend on the noise.
_FEWEST_ALIKE = 8
# Noise that would be as improbable if it were normal gets no bound (Shapiro and Wilk).
_NOT_NORMAL = 0.02
_MOST_TESTED = 5000
# Two sizes of noise that differ by less are one.
_LEAST_RATIO = 1e-6
# Below this share of the movement there is no noise.
_NOTHING = 1e-9
# Of an accountant's cohort: its client is drawn with a probability in steps of one in so many.
_POPULATION = 10**6

# Deviations by which a client moves the noise; more are taken for so many.
_LARGEST_MU = 1e3

# (share of the runs in which a client moves something, by how many deviations, delta) -> epsilon.
_Law = Callable[[float, float, float], float]
Kind = Literal["movement", "rounds", "constant", "size"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Finding of runs with the same random numbers.

    Attributes:
        runs: Runs that judge, in each world.
        moved: How far the client moves a release along what shows it best, in units of the release.
        noise: Deviation of the noise along it, and the bounds of its 95% interval; None where nothing moves.
        epsilon: Bound on epsilon at 95%, if the noise is normal; inf: no epsilon holds. None: not known, since the
            noise is not normal or the random numbers cannot be set.
        refuting: The same at 99.99%.
        without_form: Bound at 95% from the same runs that rests on no form.
        finding: In words, what shows the client.
    """

    runs: int
    moved: float
    noise: tuple[float, float, float] | None
    epsilon: float | None
    refuting: float | None
    without_form: float
    finding: str

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.epsilon is None:
            return "no bound"
        return "no epsilon holds" if math.isinf(self.epsilon) else f"epsilon >= {rounded_down(self.epsilon)} at 95%"

    def __str__(self) -> str:
        form = " if the noise is normal" if self.epsilon and math.isfinite(self.epsilon) else ""
        return f"{self.bound}{form}: {self.finding} ({self.runs} runs)"


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRuns:
    """Runs of two worlds with the same random numbers.

    Attributes:
        parts: (Round, name) of each part of all releases.
        sizes: How many numbers each has.
        without: [runs, parts], each part along its direction, without the client's update.
        moved: [runs, parts], by how much the update moves that.
        energies: [2, runs // 2, parts], half the mean squared difference of two runs, with the update and without.
        constant: The most runs in which a number moves that is the same in all runs without the update.
        where: Which number, in words.
        keeps_state: True if the function returned a state.
    """

    parts: Sequence[tuple[int, str]]
    sizes: npt.NDArray[np.int64]
    without: FloatArray
    moved: FloatArray
    energies: FloatArray
    constant: int
    where: str
    keeps_state: bool

    @property
    def rounds(self) -> int:
        """Of a run."""
        return 1 + max(round_ for round_, _ in self.parts)

    def every_second(self, first: int) -> "PairedRuns":
        """Half of the runs."""
        return replace(self, without=self.without[first::2], moved=self.moved[first::2])


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What shows a client most.

    Attributes:
        kind: "movement": a sum of parts moves. "rounds": so does each round, independently of the others. "constant": a
            number moves that has no randomness. "size": the noise is larger or smaller.
        parts: Which parts.
        weights: Of each of them in the sum.
        moved: How far each moves where the client takes part.
        score: Bound that chose it.
        sums: The sum in the runs that chose it, without the update.
    """

    kind: Kind
    parts: Sequence[int]
    weights: FloatArray
    moved: FloatArray
    score: float
    sums: FloatArray


def no_movement(runs: int, finding: str) -> Comparison:
    """A finding without a number."""
    return Comparison(runs=runs, moved=0.0, noise=None, epsilon=None, refuting=None, without_form=0.0, finding=finding)


def all_evidence(runs: PairedRuns, delta: float) -> Iterator[Evidence]:
    """Everything that shows the client in these runs, with its bound at 95%."""
    none = np.zeros(0)
    if runs.constant:
        share = least_probability(runs.constant, len(runs.moved), MISS)
        if share > delta:
            yield Evidence(kind="constant", parts=(), weights=none, moved=none, score=math.inf, sums=none)
    for part in range(len(runs.parts)):
        if runs.moved[:, part].any() and (score := _by_size(runs, part, delta, MISS)) > 0:
            yield Evidence(kind="size", parts=(part,), weights=none, moved=none, score=score, sums=none)
    # Some find weights, others judge them.
    fit, judge = runs.every_second(0), runs.every_second(1)
    looks = [list(range(len(runs.parts)))]
    looks += [[p for p, (round_, _) in enumerate(runs.parts) if round_ == each] for each in range(runs.rounds)]
    for parts in looks if runs.rounds > 1 else looks[:1]:
        for moved in _alike(runs, parts):
            for weights in _weights(fit.without[:, parts], moved):
                choice = Evidence(kind="movement", parts=parts, weights=weights, moved=moved, score=0.0, sums=none)
                yield _scored(choice, judge, delta)
    # Where it is in each round, the sum over all shows it.
    if not runs.keeps_state and not runs.moved.all() and (same := _same_each_round(runs)) is not None:
        yield _scored(
            Evidence(kind="rounds", parts=(), weights=same[1], moved=same[0], score=0.0, sums=none), runs, delta
        )


def judged(choice: Evidence, runs: PairedRuns, delta: float, other: str) -> Comparison:
    """The bounds of a choice that other runs made.

    Args:
        choice: What is looked at.
        runs: Runs that did not choose it.
        delta: Of the promise.
        other: The world without the client's update, for a sentence.
    """
    if choice.kind in {"constant", "size"}:
        if choice.kind == "constant":
            bounds = [
                math.inf if runs.constant and least_probability(runs.constant, len(runs.moved), miss) > delta else 0.0
                for miss in (MISS, REFUTING_MISS)
            ]
            words = f"{runs.where or 'a number'} has no randomness, and is another where the client {other}"
        else:
            bounds = [_by_size(runs, choice.parts[0], delta, miss) for miss in (MISS, REFUTING_MISS)]
            round_, name = runs.parts[choice.parts[0]]
            words = f"the noise of {name!r} in round {round_} has another size where the client {other}"
        return Comparison(
            runs=len(runs.moved), moved=0.0, noise=None, epsilon=bounds[0], refuting=bounds[1], without_form=0.0,
            finding=words,
        )  # fmt: skip
    sums, moved = _projected(choice, runs)
    deviation, count = float(np.std(sums, ddof=1)), len(sums) - 1
    moves = abs(float(choice.weights @ choice.moved))
    normal = deviation <= _NOTHING * moves or _looks_normal(np.concatenate([choice.sums, sums]))
    ends = [deviation * math.sqrt(count / float(chi2.ppf(miss, count))) for miss in (1 - MISS / 2, MISS / 2)]
    unit = float(np.linalg.norm(choice.weights)) or 1.0
    noise = (deviation / unit, ends[0] / unit, ends[1] / unit)
    what = (
        f"beside one that {other}, a client moves a release by {moves / unit:.3g}; the noise along it has deviation "
        f"{noise[0]:.3g} ({noise[1]:.3g} to {noise[2]:.3g})"
    )
    if not normal:
        return replace(
            no_movement(len(runs.moved), f"the noise is not normal; {what}"),
            moved=moves / unit, noise=noise, without_form=_without_form(sums, moved, delta),
        )  # fmt: skip
    law = partial(_of_rounds, runs.rounds) if choice.kind == "rounds" else _of_one
    epsilon, refuting = (_by_movement(choice, runs, delta, miss, law) for miss in (MISS, REFUTING_MISS))
    return Comparison(
        runs=len(runs.moved), moved=moves / unit, noise=noise, epsilon=epsilon, refuting=refuting,
        without_form=_without_form(sums, moved, delta), finding=what,
    )  # fmt: skip


def _scored(choice: Evidence, runs: PairedRuns, delta: float) -> Evidence:
    score = _by_movement(
        choice, runs, delta, MISS, partial(_about_rounds, runs.rounds) if choice.kind == "rounds" else _of_one
    )
    return replace(choice, score=score, sums=_projected(choice, runs)[0])


def _projected(choice: Evidence, runs: PairedRuns) -> tuple[FloatArray, FloatArray]:
    """(Weighted sum of each run, or of each round, without the update; by how much the update moves it)."""
    if choice.kind == "movement":
        return runs.without[:, choice.parts] @ choice.weights, runs.moved[:, choice.parts] @ choice.weights
    names = len(choice.weights)
    return tuple(
        each.reshape(len(each), -1, names).reshape(-1, names) @ choice.weights for each in (runs.without, runs.moved)
    )  # type: ignore[return-value]


def _by_movement(choice: Evidence, runs: PairedRuns, delta: float, miss: float, law: _Law) -> float:
    """A bound by a sum that the client moves by a known amount in a share of the runs, beside normal noise.

    Half of `miss` is that of the share (Clopper and Pearson), half that of the noise's deviation (chi-square).
    """
    sums, _ = _projected(choice, runs)
    moves = abs(float(choice.weights @ choice.moved))
    movements = runs.moved[:, choice.parts] if choice.kind == "movement" else runs.moved.reshape(-1, len(choice.moved))
    alike = _close(movements, choice.moved)
    share = least_probability(int(alike.sum()), len(alike), miss / 2)
    deviation = float(np.std(sums, ddof=1))
    if not moves or share <= delta:
        return 0.0
    if deviation <= _NOTHING * moves:
        return math.inf
    count = len(sums) - 1
    mu = moves / (deviation * math.sqrt(count / float(chi2.ppf(miss / 2, count))))
    return law(share, min(mu, _LARGEST_MU), delta)


def _of_one(share: float, mu: float, delta: float) -> float:
    """Epsilon at least, where a client moves normal noise by mu deviations in a share of the runs."""
    more = -math.log(share)
    return smallest_epsilon(lambda epsilon: share * float(gaussian_delta(epsilon + more, mu)), delta)


def _about_rounds(rounds: int, share: float, mu: float, delta: float) -> float:
    """`_of_rounds` by its central limit, in less time."""
    return gaussian_epsilon(share * math.sqrt(rounds * math.expm1(min(mu, 5.0) ** 2)), delta)


def _of_rounds(rounds: int, share: float, mu: float, delta: float) -> float:
    """Epsilon of independent rounds, each with the client in a share of its cohorts."""
    cohort = math.floor(share * _POPULATION)
    if cohort < 1:
        return 0.0
    plan = PrivacyPlan(clients=_POPULATION, cohort=cohort, rounds=rounds, noise_multiplier=1 / mu, client_delta=delta)
    return sampled_epsilon(plan.phases, "add-remove", delta)


def _by_size(runs: PairedRuns, part: int, delta: float, miss: float) -> float:
    """A bound by the size of the noise, where the client takes part in every run: normal noise of two deviations.

    The ratio's interval is that of a ratio of means over pairs of runs. Numbers of an array that are not independent
    count as fewer.
    """
    if not runs.moved[:, part].all() or runs.energies.shape[1] < _FEWEST_ALIKE:
        return 0.0
    with_, without = runs.energies[:, :, part]
    means = float(with_.mean()), float(without.mean())
    if not all(means):
        return 0.0
    log_ratio = math.log(means[0] / means[1])
    error = float(np.std(with_ / means[0] - without / means[1], ddof=1)) / math.sqrt(len(with_))
    least = abs(log_ratio) - float(norm.isf(miss / 2)) * error
    if least <= _LEAST_RATIO:
        return 0.0
    spread = max(float(np.var(without / means[1])), 2.0 / runs.sizes[part])
    return _of_two_sizes(math.exp(least), max(int(2.0 / spread), 1), delta)


def _of_two_sizes(ratio: float, count: int, delta: float) -> float:
    """Epsilon of `count` normal numbers whose variance is `ratio` times as large in one world."""

    def lost(epsilon: float) -> float:
        edge = 2 * (epsilon + count / 2 * math.log(ratio)) / (1 - 1 / ratio)
        return float(chi2.sf(edge / ratio, count) - np.exp(epsilon + chi2.logsf(edge, count)))

    return smallest_epsilon(lost, delta)


def _looks_normal(sums: FloatArray) -> bool:
    """True if these numbers may be normal."""
    few = sums[np.linspace(0, len(sums) - 1, min(len(sums), _MOST_TESTED)).astype(int)]
    return float(shapiro(few).pvalue) >= _NOT_NORMAL


def _without_form(sums: FloatArray, moved: FloatArray, delta: float) -> float:
    """A bound by counts: half of the runs with the update, the other half without it."""
    variance = float(np.var(sums)) or 1.0
    size = float(np.max(np.abs(moved))) or 1.0
    ratios = (sums - sums.mean()) * size / variance
    there = (sums + moved - sums.mean()) * size / variance
    return epsilon_of_counts(there[::2] - size**2 / variance / 2, ratios[1::2] - size**2 / variance / 2, delta, MISS)


def _alike(runs: PairedRuns, parts: Sequence[int]) -> Iterator[FloatArray]:
    """Movements of these parts, not 0, that come again in several runs."""
    moved = runs.moved[:, parts]
    scale = float(np.abs(moved).max())
    if not scale:
        return
    keys = Counter(tuple(each) for each in np.round(moved / (scale * _SAME * 10)).astype(np.int64).tolist())
    for key, count in keys.most_common(4):
        if count >= _FEWEST_ALIKE and any(key):
            found = np.array(key, dtype=float) * scale * _SAME * 10
            yield moved[np.argmin(np.abs(moved - found).max(axis=1))]


def _close(movements: FloatArray, to: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of the rows are this movement."""
    found: npt.NDArray[np.bool_] = np.abs(movements - to).max(axis=1) <= 10 * _SAME * np.abs(to).max()
    return found


def _weights(without: FloatArray, moved: FloatArray) -> Iterator[FloatArray]:
    """Weights of parts: each for itself, and with their covariance where so many runs show it."""
    variances = without.var(axis=0)
    floor = (_NOTHING * np.abs(moved).max()) ** 2
    yield moved / np.maximum(variances, max(floor, 1e-9 * variances.max()))
    if 1 < len(moved) <= len(without) // 3:
        scales = np.sqrt(np.maximum(variances, max(floor, 1e-300)))
        correlation = np.cov(without / scales, rowvar=False) + 1e-12 * np.eye(len(moved))
        yield np.linalg.solve(correlation, moved / scales) / scales


def _same_each_round(runs: PairedRuns) -> tuple[FloatArray, FloatArray] | None:
    """(Movement, weights) of a round, where each round moves by the same or not at all; None: they differ."""
    names = [name for round_, name in runs.parts if round_ == 0]
    if runs.rounds * len(names) != len(runs.parts):
        return None
    moved = runs.moved.reshape(-1, len(names))
    there = moved[np.abs(moved).max(axis=1) > 0]
    if len(there) < _FEWEST_ALIKE or not _close(there, there[0]).all():
        return None
    return there[0], next(_weights(runs.without.reshape(-1, len(names)), there[0]))
