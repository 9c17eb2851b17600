"""Audit of rounds that somebody else wrote: a lower bound on epsilon by a canary client, and a badge of it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args
from xml.sax.saxutils import escape

import numpy as np

from dpfedmeta.accounting.rounded import asked, rounded_down
from dpfedmeta.auditing.audit_request import MOST_RUNS, check_audit_seed, fresh_seed
from dpfedmeta.auditing.estimators.many_runs import SECOND_MISS, SECOND_SAMPLE
from dpfedmeta.auditing.rounds.any_framework import as_numpy_rounds, shape_of
from dpfedmeta.auditing.rounds.movement_bounds import Comparison
from dpfedmeta.auditing.rounds.rounds_attack import AuditedRounds, ClientRelation, Rounds, Update
from dpfedmeta.auditing.rounds.same_randomness import SameRandomness
from dpfedmeta.auditing.trade_off_function import ThresholdTest, most_epsilon
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.rounds.promise import PromisedCell

_MISS = 0.05
# Runs that judge the comparison, as a share of all; and the fewest.
_SHARE, _FEWEST = 5, 400
# Squares of a canary's numbers are neither 0 nor too large for 32 bits.
_SHORTEST, _LONGEST = 1e-9, 1e12
# The second sample is tested here, in shares of its size; it ends where a test is above the promise.
_LOOKS = (0.25, 1.0)
_LETTER, _PADDING, _HEIGHT = 6.3, 8, 20
_GREY, _RED = "#4c566a", "#b3261e"


@dataclass(frozen=True, kw_only=True)
class RoundsVerdict:
    """Finding of an audit of somebody's rounds.

    Attributes:
        promised: What was promised about a client towards the public.
        audited: Lower bound on epsilon, at 95%, that rests on nothing.
        confirmed: The bound from a second sample, at 99.9%, by the test that the first one chose, from a quarter of it
            where that refutes the promise; None: the first bound is within the promise, or `compared` refutes it.
        runs: Runs of the first sample; 0: none was needed, since `compared` refutes the promise.
        seed: Seed of the audit, from the operating system unless one was given.
        relation: Under which the promise was judged.
        rounds: Of each run; nothing is known of later ones.
        calls: How often the function was called, in all.
        compared: What the same random numbers show, with the client's update and without; None: not asked for.
    """

    promised: PromisedCell
    relation: ClientRelation
    rounds: int
    calls: int
    audited: float
    confirmed: float | None
    runs: int
    seed: int
    compared: Comparison | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON; a bound of inf is null."""
        return {
            "promised": asdict(self.promised),
            "relation": self.relation,
            "compared": None if self.compared is None else _finite(asdict(self.compared)),
            **_finite({"audited": self.audited, "confirmed": self.confirmed}),
            "refuted": self.refuted,
            "rounds": self.rounds,
            "runs": self.runs,
            "calls": self.calls,
            "seed": self.seed,
        }

    @property
    def refuted(self) -> bool:
        """True if the promise does not hold; of a program that keeps it, with probability 0.001 at most.

        Of one whose promise is above 8.8, if it tosses no coin that 80,000 runs need not show.
        """
        return self._by_comparison or (self.confirmed is not None and self.confirmed > self.promised.epsilon)

    @property
    def _by_comparison(self) -> bool:
        refuting = None if self.compared is None else self.compared.refuting
        return refuting is not None and refuting > self.promised.epsilon

    def __str__(self) -> str:
        epsilon, delta = asked(self.promised.epsilon), asked(self.promised.delta)
        promised = f"(client, public) epsilon {epsilon} at delta {delta}, {self.relation},"
        seen = f"{self.rounds} round(s) a run, {self.calls:,} calls"
        if self._by_comparison:
            return f"refuted: {promised} does not hold; {self.compared}; {seen}"
        if self.refuted:
            bound = rounded_down(self.confirmed)
            return f"refuted: {promised} does not hold; epsilon is at least {bound}, at 99.9%; {seen}"
        same = "" if self.compared is None else f". With the same random numbers: {self.compared}"
        return (
            f"no violation of {promised} found; lower bound {rounded_down(self.audited)} at 95%, {self.runs} runs, "
            f"which show at most {rounded_down(_most_shown(self.runs, self.promised.delta))}{same}; {seen}"
        )


def audit_rounds(
    function: Rounds,
    *,
    promise: PromisedCell,
    like: Update,
    clients: int = 10,
    rounds: int = 8,
    runs: int = 2000,
    length: float = 100.0,
    relation: ClientRelation = "add-remove",
    same_randomness: bool = True,
    seed: int | None = None,
) -> RoundsVerdict:
    """Attack rounds that somebody wrote with one client, whose update may or may not be there.

    The client is tried at three places and with three lengths, among others who send updates of several lengths, and
    among others who send zeros. First both worlds get the same random numbers (`compared`): what the client moves is
    then exact, and a gross violation is found in seconds at any epsilon. There a client that sends zeros is taken for
    one that is not there. Where that refutes nothing, releases alone are attacked. What tells most is tested on further
    runs: a part of a release, how much noise there is in it, or that it is a release without randomness.

    Args:
        function: One round: from its state, the update of each client by number, and a generator for cohort and noise,
            to the next state and what is released. It is called with made-up updates.
        promise: What all rounds together shall keep, about a client towards the public.
        like: Names and shapes of an update. Tensors of torch: the function gets tensors and a `torch.Generator`; arrays
            of JAX: arrays and a key of `jax.random`.
        clients: All clients.
        rounds: Rounds of a run. What a function does in later ones is not seen.
        runs: Runs of the first sample.
        length: L2 norm of the longest canary's update, far above any clip bound; a hundredth of it is an ordinary
            update. From 1e-9 to 1e12.
        relation: add-remove: in the other world the client is not there, so a number without noise that says who is
            there, such as a count, breaks any promise. zero-out: its place stays and its update counts as nothing, for
            promises whose list of clients is public.
        same_randomness: False: attack releases alone. Then what so many runs cannot refute is refused.
        seed: Of the audit; None: from the operating system.

    Returns:
        The verdict. That no violation is found proves nothing.

    Raises:
        InputError: A number is out of range, the promise is not about a client, or what is released has not the form of
            an update or holds a number that is not finite. So many runs could not show a violation, and nothing else is
            asked for.
    """
    if not callable(function) or not isinstance(like, Mapping) or not like:
        raise InputError("audit_rounds: expected a function, and like: a mapping from names to arrays")
    for name, value, least in (("clients", clients, 2), ("rounds", rounds, 1), ("runs", runs, 100)):
        if type(value) is not int or not least <= value <= MOST_RUNS:
            raise InputError(
                f"audit_rounds: {name} = {value!r}, expected a whole number of at least {least}, at most {MOST_RUNS:,}"
            )
    if isinstance(length, bool) or not isinstance(length, int | float) or not _SHORTEST <= length <= _LONGEST:
        raise InputError(f"audit_rounds: length = {length!r}, expected a number from {_SHORTEST} to {_LONGEST:g}")
    if relation not in get_args(ClientRelation):
        raise InputError(f"audit_rounds: relation = {relation!r}, expected 'add-remove' or 'zero-out'")
    if not isinstance(promise, PromisedCell):
        raise InputError(f"audit_rounds: promise = {promise!r}, expected dpfedmeta.Promise(...)")
    if promise.unit != "client":
        raise InputError("audit_rounds: promise: unit = 'record' is not audited here; give unit='client'")
    if not same_randomness:
        _check_enough(runs, promise)
    seed = fresh_seed() if seed is None else check_audit_seed(seed)
    zeros = _zeros(like)
    counted = _Counted(as_numpy_rounds(function, like))
    trial = AuditedRounds(
        function=counted,
        like=zeros,
        clients=clients,
        rounds=rounds,
        length=length,
        delta=promise.delta,
        miss=_MISS,
        relation=relation,
    )
    judges = max(_FEWEST, runs // _SHARE)
    compared = SameRandomness(trial=trial, seed=seed).compare(judges, promise.epsilon) if same_randomness else None
    bound = compared.without_form if compared else 0.0
    found = RoundsVerdict(
        promised=promise, relation=relation, rounds=rounds, calls=counted.calls, audited=bound, confirmed=None, runs=0,
        seed=seed, compared=compared,
    )  # fmt: skip
    if found.refuted:
        return found
    generator = np.random.default_rng(seed)
    attack = trial.choose(runs // 2, generator)

    def sample(count: int) -> tuple[FloatArray, FloatArray]:
        one, other = trial.scores(attack.world, count, generator)
        return attack.seen(one), attack.seen(other)

    audited = attack.test.epsilon(*sample(runs - runs // 2), promise.delta, _MISS)
    confirmed = None
    if audited > promise.epsilon:
        confirmed = _confirmed(sample, SECOND_SAMPLE * runs, attack.test, promise)
    return replace(found, audited=audited, confirmed=confirmed, runs=runs, calls=counted.calls)


class _Counted:
    """Rounds, and how often they were called."""

    def __init__(self, function: Rounds) -> None:
        self._function, self.calls = function, 0

    def __call__(self, state: Any, updates: Mapping[int, Update], generator: np.random.Generator) -> Any:
        self.calls += 1
        return self._function(state, updates, generator)


def _confirmed(
    sample: Callable[[int], tuple[FloatArray, FloatArray]], runs: int, test: ThresholdTest, promise: PromisedCell
) -> float:
    """The bound from a second sample, which ends early where it refutes the promise; looks share what may be missed."""
    one, other, bound = np.empty(0), np.empty(0), 0.0
    for share in _LOOKS:
        new = sample(round(share * runs) - len(one) - len(other))
        one, other = np.concatenate([one, new[0]]), np.concatenate([other, new[1]])
        bound = test.epsilon(one, other, promise.delta, SECOND_MISS / len(_LOOKS))
        if bound > promise.epsilon:
            break
    return bound


def _zeros(like: Update) -> Update:
    """Zeros in the form of an update."""
    try:
        zeros = {name: np.zeros(shape_of(value)) for name, value in like.items()}
    except (ValueError, TypeError) as error:
        raise InputError(f"audit_rounds: like: expected arrays ({error})") from error
    if not any(value.size for value in zeros.values()):
        raise InputError(
            f"audit_rounds: like: {', '.join(map(repr, zeros))} hold no numbers, so no update tells a thing"
        )
    return zeros


def _check_enough(runs: int, promise: PromisedCell) -> None:
    if (most := _most_shown(runs, promise.delta)) > promise.epsilon:
        return
    enough = _enough(promise)
    advice = f"give about {enough:,} runs" if enough <= MOST_RUNS else f"nor by {MOST_RUNS:,} runs; promise less"
    raise InputError(
        f"audit_rounds: runs = {runs}: shows at most epsilon = {rounded_down(most)}, which is within the promise "
        f"of {asked(promise.epsilon)}, so nothing could be found; {advice}"
    )


def _most_shown(runs: int, delta: float) -> float:
    """The bound where the attack is always right."""
    return most_epsilon((runs - runs // 2) // 2, delta, _MISS)


def _enough(promise: PromisedCell) -> int:
    """Return the number of runs that may refute the promise; above MOST_RUNS if nobody can do so many."""
    runs = 100
    while runs <= MOST_RUNS and _most_shown(runs, promise.delta) <= 1.2 * promise.epsilon:
        runs *= 2
    return runs


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON, which has no inf."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}


def badge_words(verdict: RoundsVerdict, day: str) -> str:
    """Return what a badge says: a bound and how it was found. Nothing found is no proof, so it never says private."""
    if verdict.refuted:
        if verdict.compared is not None and verdict.confirmed is None:
            return f"promise broken: {verdict.compared.bound}, {verdict.compared.runs} runs, {day}"
        return f"promise broken: epsilon >= {rounded_down(verdict.confirmed)} at 99.9%, {verdict.runs} runs, {day}"
    return f"no violation found; lower bound {rounded_down(verdict.audited)} at 95%, {verdict.runs} runs, {day}"


def draw_badge(path: Path, verdict: RoundsVerdict) -> None:
    """Write a badge as SVG."""
    promised = f"epsilon {asked(verdict.promised.epsilon)}, delta {asked(verdict.promised.delta)}"
    words = badge_words(verdict, time.strftime("%Y-%m-%d", time.gmtime()))
    left, right = (_LETTER * len(text) + 2 * _PADDING for text in (promised, words))
    colour, middle = (_RED if verdict.refuted else _GREY), 14
    label = escape(f"{promised}: {words}")
    svg = (
        "<!-- by dpfedmeta audit -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<rect width="{left:.0f}" height="{_HEIGHT}" fill="#2e3440"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="{_HEIGHT}" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{_PADDING}" y="{middle}">{escape(promised)}</text>'
        f'<text x="{left + _PADDING:.0f}" y="{middle}">{escape(words)}</text></g></svg>\n'
    )
    replace_file(path, svg.encode())
