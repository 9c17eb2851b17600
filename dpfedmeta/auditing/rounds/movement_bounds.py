"""Bounds on epsilon from what a client moves and how large the noise is, both seen under the same randomness.

Most rest on the form of the noise: normal, and independent of what a client sends. Where it is not normal there is no
such bound. Counts of what occurs with the client and without it rest on nothing, and show less.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, shapiro
from scipy.stats import t as student

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_down
from dpfedmeta.auditing.trade_off_function import epsilon_of_counts, least_probability, most_probability
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
# The most runs that look whether something is the same in all: enough to refute 8.8.
_MOST_ALIKE = 80_000
# Below this share of the movement there is no noise.
_NOTHING = 1e-9
# Of an accountant's cohort: its client is drawn with a probability in steps of one in so many.
_POPULATION = 10**6

# Deviations by which a client moves the noise; more are taken for so many.
_LARGEST_MU = 1e3

# (share of the runs in which a client moves something, by how many deviations, delta) -> epsilon.
_Law = Callable[[float, float, float], float]
# (runs, delta, miss) -> epsilon.
_Bound = Callable[["PairedRuns", float, float], float]
Kind = Literal["movement", "rounds", "constant", "size", "form"]


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


@dataclass(frozen=True, kw_only=True)
class ConstantNumber:
    """A number of a release that is the same in all runs without the client's update.

    Attributes:
        part: Round and name of its array.
        place: In that array.
        runs: How many with the update have another value.
        usual: Its value without the update.
        value: The last other value.
        steady: True if there was one other value alone.
        follows: True if another update gives another value again, always the same: no output of few values, such as a
            coin's or a threshold's, does that.
    """

    part: tuple[int, str]
    place: int
    runs: int
    usual: float
    value: float
    steady: bool
    follows: bool = False

    @property
    def where(self) -> str:
        """Which one, in words."""
        return f"number {self.place} of {self.part[1]!r} in round {self.part[0]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRuns:
    """Runs of two worlds with the same random numbers.

    Attributes:
        count: How many in each. Those of a rare form have no numbers below.
        parts: (Round, name) of each part of all releases.
        without: [runs, parts], each part along its direction, without the client's update.
        moved: [runs, parts], by how much the update moves that.
        checked: [runs, parts], by how much it moves each part along another direction.
        sizes: [2, runs, parts], how far each part is from its mean, with the update and without.
        constant: The number without randomness that moves most often; None: there is none.
        keeps_state: True if the function returned a state.
        form: Names, shapes or an exception, by round, of those that tell most.
        with_form: How many runs with the update have that form.
        without_form: How many without it.
    """

    count: int
    parts: Sequence[tuple[int, str]]
    without: FloatArray
    moved: FloatArray
    checked: FloatArray
    sizes: FloatArray
    constant: ConstantNumber | None
    keeps_state: bool
    form: Sequence[str]
    with_form: int
    without_form: int

    @property
    def rounds(self) -> int:
        """Of a run."""
        return 1 + max(round_ for round_, _ in self.parts)

    def every_second(self, first: int) -> "PairedRuns":
        """Half of the runs."""
        return replace(self, without=self.without[first::2], moved=self.moved[first::2], checked=self.checked[first::2])

    def movements(self, parts: Sequence[int]) -> FloatArray:
        """[runs, 2 parts]: what must be the same for two movements to be the same."""
        return np.concatenate([self.moved[:, parts], self.checked[:, parts]], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What shows a client most.

    Attributes:
        kind: "movement": a sum of parts moves. "rounds": so does each round, independently of the others. "constant": a
            number moves that has no randomness. "size": the noise is larger or smaller. "form": names, shapes or an
            exception are others.
        parts: Which parts.
        weights: Of each of them in the sum.
        moved: How far each moves where the client takes part, along both directions.
        score: Bound that chose it.
        sums: The sum in the runs that chose it, without the update.
    """

    kind: Kind
    parts: Sequence[int]
    weights: FloatArray
    moved: FloatArray
    score: float
    sums: FloatArray


def no_bound(runs: int, finding: str) -> Comparison:
    """A finding without a number."""
    return Comparison(runs=runs, moved=0.0, noise=None, epsilon=None, refuting=None, without_form=0.0, finding=finding)


def told_always(runs: int, delta: float, finding: str) -> Comparison:
    """The finding that something told the two worlds apart in so many runs of each, none excepted."""
    return replace(
        no_bound(runs, finding), epsilon=math.inf, refuting=math.inf,
        without_form=_by_counts(runs, 0, runs, delta, MISS),
    )  # fmt: skip


def runs_that_refute(epsilon: float, delta: float, miss: float) -> int:
    """Runs of each world after which something that always tells them apart refutes a promise; not above the most."""
    runs = math.ceil(math.exp(min(epsilon, math.log(_MOST_ALIKE))))
    while runs < _MOST_ALIKE and _by_counts(runs, 0, runs, delta, miss) <= epsilon:
        runs = math.ceil(1.1 * runs)
    return min(runs, _MOST_ALIKE)


def all_evidence(runs: PairedRuns, delta: float) -> Iterator[Evidence]:
    """Everything that shows the client in these runs, with its bound at 95%."""
    plain = Evidence(kind="form", parts=(), weights=np.zeros(0), moved=np.zeros(0), score=0.0, sums=np.zeros(0))
    yield replace(plain, kind="form", score=_by_form(runs, delta, MISS))
    yield replace(plain, kind="constant", score=_by_constant(runs, delta, MISS))
    if len(runs.moved) < _FEWEST_ALIKE:
        return
    each_round = [[p for p, (round_, _) in enumerate(runs.parts) if round_ == each] for each in range(runs.rounds)]
    everything = list(range(len(runs.parts)))
    for parts in [everything, *([part] for part in everything)]:
        if (score := _by_size(runs, parts, delta, MISS)) > 0:
            yield replace(plain, kind="size", parts=parts, score=score, sums=runs.sizes[1][:, parts].sum(axis=1))
    # Some find weights, others judge them.
    fit, judge = runs.every_second(0), runs.every_second(1)
    for parts in [everything, *each_round] if runs.rounds > 1 else [everything]:
        for moved in _alike(runs, parts):
            for weights in _weights(fit.without[:, parts], moved[: len(parts)]):
                yield _scored(replace(plain, kind="movement", parts=parts, weights=weights, moved=moved), judge, delta)
    # Where it is in each round, the sum over all shows it.
    if not runs.keeps_state and not runs.moved.all() and (same := _same_each_round(runs)) is not None:
        yield _scored(replace(plain, kind="rounds", weights=same[1], moved=same[0]), runs, delta)


def judged(choice: Evidence, runs: PairedRuns, delta: float, other: str) -> Comparison:
    """The bounds of a choice that other runs made.

    Args:
        choice: What is looked at.
        runs: Runs that did not choose it.
        delta: Of the promise.
        other: The world without the client's update, for a sentence.
    """
    if choice.kind == "form":
        with_, without = runs.with_form, runs.without_form
        what = "; ".join(dict.fromkeys(runs.form))
        return _counted(
            choice, runs, delta, _by_form, f"{with_} runs of a client and {without} of one that {other}: {what}"
        )
    if choice.kind == "constant":
        what = "a number" if runs.constant is None else runs.constant.where
        follows = runs.constant is not None and runs.constant.follows
        how = "has no randomness" if follows else "is the same in all runs"
        return _counted(
            choice, runs, delta, _by_constant, f"{what} {how} where a client {other}, and moves where it sends"
        )
    if choice.kind == "size":
        return _sized(choice, runs, delta, other)
    sums, moved = _projected(choice, runs)
    deviation, count = float(np.std(sums, ddof=1)), len(sums) - 1
    moves = abs(float(choice.weights @ choice.moved[: len(choice.weights)]))
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
            no_bound(runs.count, f"the noise is not normal; {what}"),
            moved=moves / unit, noise=noise, without_form=_without_form(choice, sums, moved, delta),
        )  # fmt: skip
    law = partial(_of_rounds, runs.rounds) if choice.kind == "rounds" else _of_one
    epsilon, refuting = (_by_movement(choice, runs, delta, miss, law) for miss in (MISS, REFUTING_MISS))
    return Comparison(
        runs=runs.count, moved=moves / unit, noise=noise, epsilon=epsilon, refuting=refuting,
        without_form=_without_form(choice, sums, moved, delta), finding=what,
    )  # fmt: skip


def _scored(choice: Evidence, runs: PairedRuns, delta: float) -> Evidence:
    law = partial(_about_rounds, runs.rounds) if choice.kind == "rounds" else _of_one
    return replace(choice, score=_by_movement(choice, runs, delta, MISS, law), sums=_projected(choice, runs)[0])


def _projected(choice: Evidence, runs: PairedRuns) -> tuple[FloatArray, FloatArray]:
    """(Weighted sum of each run, or of each round, without the update; by how much the update moves it)."""
    if choice.kind == "movement":
        return runs.without[:, choice.parts] @ choice.weights, runs.moved[:, choice.parts] @ choice.weights
    names = len(choice.weights)
    return runs.without.reshape(-1, names) @ choice.weights, runs.moved.reshape(-1, names) @ choice.weights


def _by_movement(choice: Evidence, runs: PairedRuns, delta: float, miss: float, law: _Law) -> float:
    """A bound by a sum that the client moves by a known amount in a share of the runs, beside normal noise.

    Half of `miss` is that of the share (Clopper and Pearson), half that of the noise's deviation (chi-square).
    """
    sums, _ = _projected(choice, runs)
    moves = abs(float(choice.weights @ choice.moved[: len(choice.weights)]))
    alike = _close(_movements(choice, runs), choice.moved)
    share = least_probability(int(alike.sum()), len(alike), miss / 2)
    deviation = float(np.std(sums, ddof=1))
    if not moves or share <= delta:
        return 0.0
    if deviation <= _NOTHING * moves:
        # Kinds of noise that cancel; a part without any is a constant, which has a bound of its own.
        parts = runs.without[:, choice.parts] if choice.kind == "movement" else runs.without
        return math.inf if np.ptp(parts, axis=0).all() else 0.0
    if not alike.all() and _repeats(sums):
        # Rounded releases move by a step or not at all, as the noise has it, and not as a cohort has it.
        return 0.0
    count = len(sums) - 1
    mu = moves / (deviation * math.sqrt(count / float(chi2.ppf(miss / 2, count))))
    return law(share, min(mu, _LARGEST_MU), delta)


def _movements(choice: Evidence, runs: PairedRuns) -> FloatArray:
    """Movements of the chosen parts in each run, or in each round."""
    if choice.kind == "movement":
        return runs.movements(choice.parts)
    names = len(choice.weights)
    return np.concatenate([runs.moved.reshape(-1, names), runs.checked.reshape(-1, names)], axis=1)


def _repeats(sums: FloatArray) -> bool:
    """True if numbers come again, which those of continuous noise do not."""
    return len(np.unique(sums)) < len(sums)


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


def _by_form(runs: PairedRuns, delta: float, miss: float) -> float:
    """A bound by how often names, shapes or an exception occur in either world."""
    return _by_counts(runs.with_form, runs.without_form, runs.count, delta, miss)


def _by_constant(runs: PairedRuns, delta: float, miss: float) -> float:
    """A bound by a number that moves and has no randomness; inf where it follows the update."""
    if runs.constant is None:
        return 0.0
    if runs.constant.follows and least_probability(runs.constant.runs, len(runs.moved), miss) > delta:
        return math.inf
    return _by_counts(runs.constant.runs, 0, len(runs.moved), delta, miss)


def _by_counts(one: int, other: int, runs: int, delta: float, miss: float) -> float:
    """A bound by an event in `one` of the runs of one world and in `other` of those of the other (Clopper, Pearson)."""
    found = 0.0
    for more, less in ((one, other), (runs - one, runs - other), (other, one), (runs - other, runs - one)):
        least = least_probability(more, runs, miss / 8) - delta
        found = max(found, math.log(least / most_probability(less, runs, miss / 8)) if least > 0 else 0.0)
    return found


def _by_size(runs: PairedRuns, parts: Sequence[int], delta: float, miss: float) -> float:
    """A bound by how far these parts are from their means: one number of a run, nearly normal in both worlds.

    Half of `miss` is that of the mean difference (Student), half that of the larger deviation (chi-square).
    """
    one, other = (each[:, parts].sum(axis=1) for each in runs.sizes)
    count, deviation = len(one) - 1, max(float(np.std(each, ddof=1)) for each in (one, other))
    error = float(np.std(one - other, ddof=1)) / math.sqrt(len(one))
    least = abs(float(np.mean(one - other))) - float(student.isf(miss / 4, count)) * error
    if least <= 0 or not np.ptp(runs.sizes[:, :, parts], axis=1).all():
        return 0.0
    return gaussian_epsilon(least / (deviation * math.sqrt(count / float(chi2.ppf(miss / 4, count)))), delta)


def _counted(choice: Evidence, runs: PairedRuns, delta: float, bound: _Bound, finding: str) -> Comparison:
    """A finding whose bound is one of counts."""
    epsilon, refuting = (bound(runs, delta, miss) for miss in (MISS, REFUTING_MISS))
    return Comparison(
        runs=runs.count, moved=0.0, noise=None, epsilon=epsilon, refuting=refuting, finding=finding,
        without_form=epsilon if choice.kind == "form" or math.isfinite(epsilon) else 0.0,
    )  # fmt: skip


def _sized(choice: Evidence, runs: PairedRuns, delta: float, other: str) -> Comparison:
    """A finding that the noise has another size."""
    names = ", ".join(dict.fromkeys(f"{runs.parts[part][1]!r}" for part in choice.parts))
    rounds = sorted({runs.parts[part][0] for part in choice.parts})
    what = f"the noise of {names} in round {', '.join(map(str, rounds))} has another size where a client {other}"
    one, without = (each[:, choice.parts].sum(axis=1) for each in runs.sizes)
    if not (_looks_normal(one) and _looks_normal(np.concatenate([choice.sums, without]))):
        return no_bound(runs.count, f"{what}, and does not look normal")
    epsilon, refuting = (_by_size(runs, choice.parts, delta, miss) for miss in (MISS, REFUTING_MISS))
    return replace(no_bound(runs.count, what), epsilon=epsilon, refuting=refuting)


def _looks_normal(sums: FloatArray) -> bool:
    """True if these numbers may be normal."""
    few = sums[np.linspace(0, len(sums) - 1, min(len(sums), _MOST_TESTED)).astype(int)]
    return float(shapiro(few).pvalue) >= _NOT_NORMAL


def _without_form(choice: Evidence, sums: FloatArray, moved: FloatArray, delta: float) -> float:
    """A bound by counts: half of the runs with the update, the other half without it; in units of other runs."""
    variance = float(np.var(choice.sums)) or 1.0
    size = abs(float(choice.weights @ choice.moved[: len(choice.weights)])) or 1.0
    sign = math.copysign(1.0, float(choice.weights @ choice.moved[: len(choice.weights)]))
    one, other = (
        (sign * (each - choice.sums.mean()) - size / 2) * size / variance for each in ((sums + moved)[::2], sums[1::2])
    )
    return epsilon_of_counts(one, other, delta, MISS)


def _alike(runs: PairedRuns, parts: Sequence[int]) -> Iterator[FloatArray]:
    """Movements of these parts, not 0, that come again in several runs."""
    moved = runs.movements(parts)
    step = float(np.abs(moved).max()) * _SAME * 10
    if not step:
        return
    keys = Counter(tuple(each) for each in np.round(moved / step).astype(np.int64).tolist())
    for key, count in keys.most_common(4):
        if count >= _FEWEST_ALIKE and any(key[: len(parts)]):
            yield moved[np.argmin(np.abs(moved - np.array(key) * step).max(axis=1))]


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
    names = sum(round_ == 0 for round_, _ in runs.parts)
    if runs.rounds * names != len(runs.parts):
        return None
    moved = np.concatenate([runs.moved.reshape(-1, names), runs.checked.reshape(-1, names)], axis=1)
    there = moved[np.abs(moved).max(axis=1) > 0]
    if len(there) < _FEWEST_ALIKE or not there[0][:names].any() or not _close(there, there[0]).all():
        return None
    return there[0], next(_weights(runs.without.reshape(-1, names), there[0][:names]))
