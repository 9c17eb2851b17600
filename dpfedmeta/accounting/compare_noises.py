"""Which noise a plan should take: every way to one target beside each other, with its noise, error and assumptions.

The error is a proxy: root mean square, per coordinate and in units of the clip bound C, of the noise in the sum of all
releases at the end. What Adam, decay and normalised bounds make of it is decided by training alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.gdp import gaussian_mu
from dpfedmeta.accounting.events.failure_probability import least_capacity
from dpfedmeta.accounting.events.fit_toeplitz import fit_banded, fit_blt
from dpfedmeta.accounting.events.toeplitz_coefficients import optimal_toeplitz, prefix_errors, sensitivity
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

# Vectors that correlated noise may remember: of buffers, and of bands.
BUFFERS, BANDS = 3, 32

_SECRET_COINS = "assume that the server draws each cohort in secret, and that all drawn clients are available"
_OWN_ROUND = "assumes that each client draws its own round, keeps it secret, and does not coordinate with others"
_NO_SECRET = "assume nothing secret; each client counts its rounds and keeps the required distance between them"


@dataclass(frozen=True, kw_only=True)
class FederationFacts:
    """Size and privacy target of a federation for which noise is to be chosen.

    Attributes:
        clients: N, clients of the federation.
        rounds: T.
        cohort: L, messages of a round.
        participations: R, the most rounds that one client joins.
        epsilon: Target of (client, public).
        delta: Delta of the target.

    Raises:
        InputError: The rounds need more messages than the clients may send.
    """

    clients: int
    rounds: int
    cohort: float
    participations: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if self.cohort * self.rounds > self.participations * self.clients * (1 + 1e-9):
            raise InputError(
                f"--advise: {self.rounds} rounds of {self.cohort:g} clients are {self.cohort * self.rounds:,.0f} "
                f"messages, but {self.clients:,} clients that each join {self.participations} "
                f"rounds send at most {self.participations * self.clients:,}; "
                "raise population.max_participations (or leave it "
                "out), or lower population.cohort"
            )

    @property
    def separation(self) -> int:
        """b: rounds between two participations that clients can keep."""
        return max(self.rounds // self.participations, 1)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Noise and sampler that reach the target, with the resulting error and assumptions.

    Attributes:
        name: Name of the noise or of the sampler.
        options: Command-line options that select it.
        adjacency: Neighbouring relation of the guarantee.
        assumes: Assumptions of the guarantee.
        noise: z, deviation of the fresh noise over C; None: refused.
        cohort: Expected messages of a round.
        error: Root mean square error of the sum of all releases, in units of C.
        refused: Reason for the refusal; None: it is available.
    """

    name: str
    options: str
    adjacency: str
    assumes: str
    noise: float | None = None
    cohort: float | None = None
    error: float | None = None
    refused: str | None = None

    def per_message(self, rounds: int) -> float:
        """Error over the number of messages of the whole run; inf where it is refused."""
        return math.inf if self.error is None or self.cohort is None else self.error / (self.cohort * rounds)


def advise(question: FederationFacts) -> tuple[Advice, ...]:
    """All seven, in the order in which they ask for less trust."""
    rows = (_cyclic, _poisson, _fixed, _check_ins, _toeplitz, _blt, _banded)
    return tuple(row(question) for row in rows)


def best(rows: tuple[Advice, ...], rounds: int) -> Advice:
    """The one with the least error for each message."""
    return min(rows, key=lambda row: row.per_message(rounds))


def _independent(q: FederationFacts, about: Advice, plan: Callable[[], PrivacyPlan]) -> Advice:
    """Noise that is drawn anew in each round: errors add up in squares."""
    try:
        made = calibrate(plan(), Targets(client_epsilon=q.epsilon))
    except RefusedPlan as error:
        return Advice(**{**vars(about), "refused": str(error)})
    noise = made.noise_multiplier or 0.0
    return Advice(**{**vars(about), "noise": noise, "cohort": made.cohort, "error": noise * math.sqrt(q.rounds)})


def _poisson(q: FederationFacts) -> Advice:
    about = Advice(
        name="poisson", options="--population.sampler poisson", adjacency="add-remove", assumes=_SECRET_COINS
    )
    return _independent(
        q,
        about,
        lambda: PrivacyPlan(
            clients=q.clients, cohort=q.cohort, rounds=q.rounds, noise_multiplier=0.0, client_delta=q.delta
        ),
    )


def _fixed(q: FederationFacts) -> Advice:
    about = Advice(name="fixed", options="--population.sampler fixed", adjacency="replace-one", assumes=_SECRET_COINS)
    return _independent(
        q,
        about,
        lambda: PrivacyPlan(
            clients=q.clients,
            cohort=float(max(round(q.cohort), 1)),
            rounds=q.rounds,
            noise_multiplier=0.0,
            client_delta=q.delta,
            sampler="fixed",
        ),
    )


def _cyclic(q: FederationFacts) -> Advice:
    """Banded noise and coins; the number of groups doubles for as long as that leaves less error."""
    most = max(min(q.rounds, int(q.clients / q.cohort)), 1)
    row = _in_turns(q, min(4, most))
    for doubled in range(3, 10):
        following = _in_turns(q, min(2**doubled, most))
        if following.per_message(q.rounds) >= row.per_message(q.rounds):
            break
        row = following
    return row


def _in_turns(q: FederationFacts, groups: int) -> Advice:
    about = Advice(
        name="cyclic",
        options=f"--server.noise banded --population.sampler cyclic --population.separation {groups}",
        adjacency="add-remove",
        assumes=_SECRET_COINS,
    )
    c = np.zeros(q.rounds)
    c[:groups] = fit_banded(q.rounds, groups, -(-q.rounds // groups), groups)
    plan = PrivacyPlan(
        clients=q.clients,
        cohort=q.cohort,
        rounds=q.rounds,
        noise_multiplier=0.0,
        client_delta=q.delta,
        sampler="cyclic",
        noise="banded",
        correlation=Correlation(separation=groups, numbers=tuple(map(float, c[:groups]))),
    )
    try:
        noise = calibrate(plan, Targets(client_epsilon=q.epsilon)).noise_multiplier or 0.0
    except RefusedPlan as error:
        return replace(about, refused=str(error))
    return replace(about, noise=noise, cohort=q.cohort, error=noise * prefix_errors(c).last)


def _check_ins(q: FederationFacts) -> Advice:
    capacity = least_capacity(q.clients, q.rounds, min(q.delta, 1e-5))
    about = Advice(
        name="check-ins",
        options=f"--population.sampler check-ins --cohort {capacity}",
        adjacency="add-remove",
        assumes=_OWN_ROUND,
    )
    return _independent(
        q,
        about,
        lambda: PrivacyPlan(
            clients=q.clients,
            cohort=q.clients / q.rounds,
            rounds=q.rounds,
            noise_multiplier=0.0,
            client_delta=q.delta,
            sampler="check-ins",
            capacity=capacity,
            max_participations=1,
        ),
    )


def _correlated(q: FederationFacts, name: str, coefficients: FloatArray, more: str = "") -> Advice:
    """All rounds are one Gaussian release that a client moves by the sensitivity of the coefficients at most."""
    moved = sensitivity(coefficients, q.participations, q.separation)
    noise = moved / gaussian_mu(q.epsilon, q.delta)
    return Advice(
        name=name,
        options=f"--server.noise {name} --population.separation {q.separation} "
        f"--population.max_participations {q.participations}{more}",
        adjacency="add-remove",
        assumes=_NO_SECRET,
        noise=noise,
        cohort=q.cohort,
        error=noise * prefix_errors(coefficients).last,
    )


def _toeplitz(q: FederationFacts) -> Advice:
    return _correlated(q, "toeplitz", optimal_toeplitz(q.rounds))


def _blt(q: FederationFacts) -> Advice:
    return _correlated(q, "blt", fit_blt(q.rounds, BUFFERS, q.participations, q.separation).coefficients(q.rounds))


def _banded(q: FederationFacts) -> Advice:
    bands = min(q.separation, BANDS + 1, q.rounds)
    coefficients = np.zeros(q.rounds)
    coefficients[:bands] = fit_banded(q.rounds, bands, q.participations, q.separation)
    fewer = f" --server.buffers {BANDS}" if bands < q.separation else ""
    return _correlated(q, "banded", coefficients, fewer)
