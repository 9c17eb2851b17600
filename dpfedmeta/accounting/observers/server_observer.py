"""Guarantees towards the server, for a client and a record: it knows who took part, so nothing is amplified.

Beside them: what the server saw of earlier ledgers' releases, and a client's own steps on mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Event, Phase, have_whole_numbers, surplus
from dpfedmeta.accounting.events.guarantee import ANY_NUMBER_OF_ROWS, Bound, Guarantee, UnitName
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import AccountantName, RecordLayer
from dpfedmeta.accounting.participation_cost import Participation, change_of, participation
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs import participations_of, rounds_seen

if TYPE_CHECKING:
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates


def client_server(phases: Sequence[Phase], terms: Terms) -> Guarantee:
    """Every message may change as a whole; only its own record-level noise is in the way."""
    if terms.record is not None and terms.record.unbounded:
        bounds = [ANY_NUMBER_OF_ROWS]
    elif terms.record is None or terms.server_sees == "sum":
        bounds = _of_what_is_sent(phases, terms, terms.client_delta)
    else:
        bounds = [_worst(phases, terms, "client", terms.client_delta)]
    return Guarantee(
        unit="client", observer="server", delta=terms.client_delta, adjacency="replace-one", bounds=tuple(bounds)
    )


def record_server(phases: Sequence[Phase], terms: Terms) -> Guarantee:
    """The server knows who took part: nothing is amplified, the worst number of participations counts."""
    if terms.record is not None and terms.record.of_sum:
        bounds = _of_the_sum(phases, terms, "record", terms.record_delta)
    elif terms.record is None:
        bounds = _of_what_is_sent(phases, terms, terms.record_delta)
    elif terms.record.batch_rate < 1:
        bounds = [_of_local_steps(phases, terms, terms.record)]
    else:
        bounds = [_worst(phases, terms, "record", terms.record_delta)]
    return Guarantee(
        unit="record", observer="server", delta=terms.record_delta, adjacency=terms.relation, bounds=tuple(bounds)
    )


def _one(phases: Sequence[Phase], terms: Terms, unit: UnitName) -> Participation:
    """The costliest participation of these rounds."""
    each = [participation(phase.event, terms.record, terms.server_sees, unit, terms.relation) for phase in phases]
    return max(each, key=lambda one: one.mu, default=Participation(mu=0.0))


def _worst(phases: Sequence[Phase], terms: Terms, unit: UnitName, delta: float) -> Bound:
    """sqrt(R) * mu-GDP for the worst R, and in squares what was seen before."""
    one = _one(phases, terms, unit)
    mu, formula = one.mu, one.formula
    worst, left = participations_of(phases, terms.max_participations, delta)
    seen = seen_before(terms.before, 2.0, delta)

    def at(delta: float) -> float:
        return gaussian_epsilon(math.hypot(math.sqrt(worst) * mu, math.sqrt(seen.squared)), delta)

    how = f"exceeded with probability <= {delta / 100:g}"
    if terms.max_participations is not None:
        how = "the cap" if len({phase.copy for phase in phases}) < 2 else "the cap in each copy"
    return Bound(
        method="gdp",
        epsilon=_with_discrete(at, left - seen.rare, seen.coordinates),
        event=f"{worst} participation{'s' if worst != 1 else ''} ({how}), each one {mu:.4g}-GDP release"
        + _seen(terms.before),
        formula=f"sqrt(R) * {formula}-GDP",
    )


def _of_what_is_sent(phases: Sequence[Phase], terms: Terms, delta: float) -> list[Bound]:
    """Towards the server, a client that sends its exact message has nothing; one that adds its share has little.

    A server that sees only the sum faces the noise of all clients together, less that of those it works with.
    """
    summed = terms.server_sees == "sum"
    if math.isinf(_one(phases, terms, "client").mu) or not (phases or summed):
        return [_nothing(f"the client's exact {'part of the exact sum' if summed else 'message'}")]
    return _of_the_sum(phases, terms, "client", delta) if summed else [_worst(phases, terms, "client", delta)]


def _of_the_sum(phases: Sequence[Phase], terms: Terms, unit: UnitName, delta: float) -> list[Bound]:
    """A server that sees only the sum knows who took part; the noise of the honest survivors is in the way."""
    mu, change = _one(phases, terms, unit).mu, change_of(unit, terms.record, terms.relation)
    cap, delta = terms.max_participations, delta - surplus(phases)
    worst, left = participations_of(phases, cap, delta)
    # Whatever a record moves its client's message by: what it said before may have changed as a whole.
    seen = seen_before(terms.before, 2.0, delta)

    def at(delta: float) -> float:
        return gaussian_epsilon(math.hypot(math.sqrt(worst) * mu, math.sqrt(seen.squared)), delta)

    discrete = seen_coordinates(phases)
    ours = Bound(
        method="gdp",
        epsilon=_with_discrete(at, left - seen.rare, [*seen.coordinates, *discrete]),
        event=f"the sum in {worst} participation{'s' if worst != 1 else ''}, each one {mu:.4g}-GDP release"
        + _seen(terms.before),
        formula=f"sqrt(R) * {change:.4g} / z_sum-GDP",
    )
    if not discrete or terms.before:
        return [ours]
    from dpfedmeta.accounting.observers.concentrated_dp_bound import participations_bound

    return [ours, participations_bound(phases, discrete, change, cap, delta)]


def records_of_several(runs: Sequence[tuple[Sequence[Phase], Terms]]) -> float | None:
    """Epsilon of (record, server) of several runs over the same clients, each with a cap; None: nothing caps one.

    All terms have one relation. Nothing is amplified, so mu^2 = sum over runs of R mu^2; with discrete noise as in one
    run.
    """
    squared, delta = 0.0, runs[0][1].record_delta
    for phases, terms in runs:
        mu = _one(phases, terms, "record").mu
        if math.isinf(mu) or terms.before:
            return math.inf  # of both together nothing is proven here
        if terms.max_participations is None:
            return None
        squared += participations_of(phases, terms.max_participations, delta)[0] * mu**2
    rounds = [phase for phases, terms in runs if terms.server_sees == "sum" for phase in phases]
    left = delta - surplus(rounds)

    def at(delta: float) -> float:
        return gaussian_epsilon(math.sqrt(squared), delta)

    return _with_discrete(at, left, seen_coordinates(rounds)) if left > 0 else math.inf


def _of_local_steps(phases: Sequence[Phase], terms: Terms, record: RecordLayer) -> Bound:
    """Mini-batches that the client draws for itself: sqrt(K)-GDP does not hold, each of the K R steps is composed."""
    # Inside: few plans have such steps.

    worst, left = participations_of(phases, terms.max_participations, terms.record_delta)
    steps, rate, noise = worst * record.support_steps, record.batch_rate, record.support_noise or 0.0
    earlier = 0.0
    if terms.before:
        # Two bounds of different kinds: half of delta for each, and their epsilons added.
        left /= 2.0
        seen = seen_before(terms.before, 2.0, terms.record_delta)
        mu = math.sqrt(seen.squared)
        earlier = _with_discrete(lambda delta: gaussian_epsilon(mu, delta), left - seen.rare, seen.coordinates)
    if terms.relation != "zero-out":
        # A row less lets another one in: one record is exchanged, whose coins are those of the one that went.
        epsilon = earlier + replaced_steps_epsilon(rate, noise, steps, left)
        how: AccountantName = "pld"
        other = "(1-b) N(0, z_s^2) + b N(-1, z_s^2)"
    else:
        how, other = record.accountant, "N(0, z_s^2)"
        epsilon = earlier + poisson_steps_epsilon(rate, noise, steps, left, record.accountant)
    return Bound(
        method=how,
        epsilon=epsilon,
        event=f"{worst} participations of {record.support_steps} steps (each record in a step with probability "
        f"{record.batch_rate:.4g}) with Gaussian noise of z_s = {noise:.4g}" + _seen(terms.before),
        formula=f"{how.upper()} of (1-b) N(0, z_s^2) + b N(1, z_s^2) against {other}, K R-fold",
    )


def _with_discrete(at: Callable[[float], float], delta: float, coordinates: Sequence[Coordinates]) -> float:
    """Epsilon at delta, with what discrete noise costs more where there is such."""
    if not coordinates:
        return at(delta)
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import epsilon_of_discrete

    return epsilon_of_discrete(at, delta, at(delta), coordinates)


def _seen(before: Sequence[Phase]) -> str:
    """Behind what is seen."""
    return f", besides {rounds_seen(before)} before" if before else ""


def _nothing(event: str) -> Bound:
    return Bound(method="none", epsilon=math.inf, event=event, formula="no noise covers it")


@dataclass(frozen=True, kw_only=True)
class SeenBefore:
    """Earlier releases as seen by a server that sees sums alone and knows who took part in which round.

    Attributes:
        squared: Sum of mu^2 of Gaussian differential privacy; inf where a sum had no noise of the clients'.
        coordinates: All numbers that it saw with discrete noise.
        rare: Probability that any of it does not hold; off delta.
    """

    squared: float = 0.0
    coordinates: tuple[Coordinates, ...] = ()
    rare: float = 0.0


def seen_before(before: Sequence[Phase], change: float, delta: float) -> SeenBefore:
    """By a server, of a unit that moves every sum by `change` times what a client moves it by.

    Guarantee:
        Each release is mu-GDP given all before it, and they compose in squares; nothing is amplified, and of each
        phase the worst number of participations counts, which a rare event of probability delta/100 may exceed.
    """
    squared, rare = 0.0, surplus(before)
    for phase in before:
        noise = phase.event.sum_noise
        worst, left = participations_of([phase], None, delta)
        # A sum that carries none hides nothing, however seldom a client is in it.
        squared += worst * noise.mu(change) ** 2 if noise else math.inf
        rare += delta - left
    return SeenBefore(squared=squared, coordinates=seen_coordinates(before), rare=rare)


def seen_coordinates(phases: Sequence[Phase]) -> tuple[Coordinates, ...]:
    """Coordinates with discrete noise that a server sees; of rounds that are no sums of whole numbers none."""
    if not have_whole_numbers(phases):
        return ()
    # Inside: what belongs to sums of whole numbers is loaded where there are such.
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import summed_coordinates

    return tuple(summed_coordinates(phases))


def poisson_steps_epsilon(rate: float, noise: float, steps: int, delta: float, accountant: AccountantName) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps, by the accountant that is asked for.

    Guarantee:
        An upper bound under removing, adding or zeroing out one record, whichever accountant: pld is tight, prv
        (Gopi, Lee, Wutschitz 2021, https://arxiv.org/abs/2106.02848) states its own error and the upper end is taken,
        rdp is loose.
    """
    if accountant == "prv":
        # Opacus takes a second to import, and few need it.
        from opacus.accountants import PRVAccountant

        prv = PRVAccountant()
        prv.history = [(noise, rate, steps)]
        return float(prv.get_epsilon(delta))
    step = _steps(rate, noise, steps)
    return rdp_epsilon([step], delta) if accountant == "rdp" else sampled_epsilon([step], "add-remove", delta)


def replaced_steps_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps where one record is replaced by any other one, by PLD."""
    return sampled_epsilon([_steps(rate, noise, steps)], "replace-one", delta)


def _steps(rate: float, noise: float, steps: int) -> Phase:
    own = Event(sampler="poisson", clients=1, cohort=rate, rate=rate, noise=GaussianNoise(multiplier=noise))
    return Phase(event=own, rounds=steps)
