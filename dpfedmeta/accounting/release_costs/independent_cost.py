"""Rounds that are accounted for one by one: each samples its clients anew and has noise of its own."""

import math
from collections.abc import Sequence
from typing import ClassVar

from dpfedmeta.accounting.divergences.pld_composition import GRIDS, ComposedBy, composed, sampled_delta
from dpfedmeta.accounting.events.events import Event, Phase, neighbours_of
from dpfedmeta.accounting.events.guarantee import Bound
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.participation_cost import change_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs import ReleaseCost

_REMOVED = "(1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2)"
_REPLACED = "(1-q) N(0, z^2) + q N(1, z^2) against (1-q) N(0, z^2) + q N(-1, z^2)"
_COUPLED = "the symmetric pair of (1-q) N(0, z^2) + q N(2, z^2) against N(0, z^2)"


class IndependentCost(ReleaseCost):
    """The tight composition of each round's dominating pair.

    Guarantee:
        *Client.* See `pld_composition.composed`.
        *Record.* The smaller of two bounds: the mixture over how often its client takes part, each time with the
        smaller layer, and that of a client whose whole message becomes another one.
    """

    joint: ClassVar[bool] = False

    def composed(
        self, phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
    ) -> tuple[float, ComposedBy]:
        """Through the privacy loss distributions of the rounds."""
        return composed(self.released(phases), neighbours, delta, grids)

    def delta_at(self, phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
        """Likewise, on a coarse grid."""
        return sampled_delta(self.released(phases), neighbours, epsilon)

    def pair(self, phases: Sequence[Phase], neighbours: Neighbours) -> str:
        """One round with the client and without it, or with another message of its."""
        if neighbours_of(phases) == "replace-one":
            return _COUPLED
        return _REMOVED if neighbours == "add-remove" else _REPLACED

    def participations(self, phases: Sequence[Phase], cap: int | None, delta: float) -> tuple[int, float]:
        """The cap, or what sampling exceeds with a probability of at most delta/100."""
        from dpfedmeta.accounting.divergences.participation_counts import worst_participations

        return worst_participations(phases, cap, delta)

    def record(self, own: Sequence[Phase], terms: Terms, delta: float, grids: tuple[float, ...]) -> list[Bound]:
        """The mixture, the replaced client, and towards the server, who sees more, where steps are mini-batched."""
        bounds = [self._mixture(own, terms, delta), *super().record(own, terms, delta, grids)]
        if terms.record is not None and terms.record.batch_rate < 1:
            bounds.append(record_server(own, terms).binding)
        return bounds

    def _mixture(self, own: Sequence[Phase], terms: Terms, delta: float) -> Bound:
        """Over how often the client takes part, each time with the smaller layer."""
        phases = (*terms.before, *own)
        # What was released before knows no record-level layer, and no cap limits it.
        mus = [phase.event.noise.mu(2.0) if phase.event.noise else math.inf for phase in terms.before]
        mus += [_worse_role_mu(phase.event, terms) for phase in own]
        return Bound(
            method="gdp-mixture",
            epsilon=self.mixed(phases, mus, terms, delta),
            event=f"in {self.own_rounds(terms)}, one mu-GDP release with mu = "
            + ", ".join(f"{mu:.4g}" for mu in dict.fromkeys(mus)),
            formula="E over participations of delta_mu(eps) with mu^2 summed; mu of the smaller layer, for the worse "
            "role" + self.off_delta(phases),
        )

    def mixed(self, phases: Sequence[Phase], mus: Sequence[float], terms: Terms, delta: float) -> float:
        """Epsilon of the mixture."""
        from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon

        return mixture_epsilon(phases, mus, terms.max_participations, delta, uncapped=len(terms.before))

    def own_rounds(self, terms: Terms) -> str:
        """The rounds that a client takes part in."""
        limit = "" if terms.max_participations is None else f", at most {terms.max_participations}"
        return f"each round that the client takes part in (binomial{limit})"

    def second_opinion(self, phases: Sequence[Phase], delta: float) -> tuple[str, float] | None:
        """By dp-accounting."""
        from dpfedmeta.accounting.other_accountants import opinion_on_releases

        return opinion_on_releases(self.released(phases), delta)


def _worse_role_mu(event: Event, terms: Terms) -> float:
    """Mu of one participation towards the public: in the worst case of the relation, the smaller layer for each role.

    The sum that is released is a function of the client's noisy steps and of its query release; given the steps, it is
    moved by the latter alone, and the noise of the sum covers that as well as the client's own does.
    """
    noise, record = event.noise, terms.record
    whole_message = noise.mu(2.0) if noise else math.inf
    if record is None:
        return whole_message
    if record.of_sum:
        return noise.mu(change_of("record", record, terms.relation)) if noise else math.inf
    support, query = record.roles()
    bound = 1.0
    if terms.noise_mode == "stacked":
        # Of a message that is rounded as a whole: two that are close may be rounded apart.
        bound = record.query_to_message_bound if event.whole is None else math.inf

    def shared(of_query: float) -> float:
        return noise.mu(min(bound * (of_query / record.query_records), 2.0)) if noise and of_query else math.inf

    cases = record.moves(terms.relation)
    worst = max(math.hypot(a * support, min(b * query, shared(b))) for a, b in cases)
    return min(worst, whole_message, record.towards_messages(terms.relation)[0])


MEMBER = IndependentCost
