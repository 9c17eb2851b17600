"""The product's own rounds, with an observer who notes what leaves them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dpfedmeta.core.params import Params, flatten
from dpfedmeta.core.random.random_sources import Purpose, SecretSource
from dpfedmeta.learning.meta.algorithm import message_form
from dpfedmeta.learning.server_step import ServerState, initial_state, skip, step
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.charged import noise_of_attempt
from dpfedmeta.privacy.clip_policy import with_attachment
from dpfedmeta.privacy.mechanisms import MechanismState, Released, ValueT
from dpfedmeta.privacy.rounds.round_journal import Journal, Releasing
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import ClientUnit
from dpfedmeta.training.loop import ReleaseDoor, Training, averages, server_step

# Of the clip bound: less noise than this hides nothing from an attack.
_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRound:
    """Knowledge of an observer about one round.

    Attributes:
        round: Number of the round.
        bound: C, or C_q: released with the round before.
        model: Model before the round.
        total: [d] float64: the released sum: the aggregate times its public denominator; None: nothing was released.
        deviation: Deviation of the noise of that sum, per coordinate, as it is stated; above 0, so that an attack on a
            release that states none finds what is there, and does not divide by 0.
    """

    round: int
    bound: float
    model: Params
    total: Tensor | None
    deviation: float


class NoAccuracy:
    """The network of an audit learns nothing that anybody asks for."""

    score_name = "accuracy"

    def accuracy(self, *words: object) -> NoAccuracy:
        """None."""
        return self

    def as_json(self) -> dict[str, object]:
        """Nothing."""
        return {}


@dataclass(frozen=True, kw_only=True)
class UncheckedDoor:
    """Door for made-up clients (a `ReleaseDoor`): an audit attacks what a mechanism gives, whatever it states.

    Nobody's data are in such a sum, so nothing is charged. A run would be refused where this releases all the same.

    Attributes:
        source: Secret randomness of the server.
    """

    source: SecretSource

    def release(
        self, cohort: Cohort, releasing: Releasing[ValueT], *, bound: float, denominator: float | None = None
    ) -> tuple[Released[ClientUnit, ValueT], MechanismState]:
        """Release with the noise that the loop would draw; nothing is compared."""
        return releasing(noise_of_attempt(self.source, cohort.round, cohort.again, cohort.fresh))


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditedTraining(Training):
    """The training loop as it is; what it releases is noted as well.

    Attributes:
        seen: By round; the last release of a round that was done again.
    """

    seen: list[ObservedRound] = field(default_factory=list)

    def _released(
        self, state: ServerState, remembered: MechanismState, drawn: Cohort, door: ReleaseDoor
    ) -> tuple[Released[ClientUnit, Params] | None, MechanismState]:
        released, following = super()._released(state, remembered, drawn, door)
        self.seen.append(_seen(self.plan, state, released))
        return released, following

    def _door(self, journal: Journal) -> ReleaseDoor:
        """A door that compares nothing with the charge."""
        return UncheckedDoor(source=self.source)

    def _note_left_out(self, round_: int, messages: int) -> None:
        """An audit has no owner who would look."""

    def without_books(self) -> ServerState:
        """All rounds: cohort, sum, release and server step by the loop's own parts, with no ledger and no files.

        A round takes a fraction of the time that charging, journal and rows take. The noise and the cohorts are those
        of the whole loop, bit for bit (a test compares the two).
        """
        plan, policy = self.plan, self.plan.policy
        weights = plan.algorithm.initial(plan.network, plan.settings.run.seed)
        learned = plan.algorithm.learned(plan.network, weights)
        state = initial_state(learned, policy, message_form(plan.algorithm, learned))
        remembered = plan.mechanism.init(with_attachment(state.first, policy.attachment))
        counts: dict[int, int] = {}
        latest: dict[int, int] = {}
        door = UncheckedDoor(source=self.source)
        while state.round < plan.privacy.rounds:
            round_ = state.round
            drawn = plan.sampler(round_).draw(round_, counts, self.source.generator(Purpose.COHORT, round_), latest)
            for client in drawn.clients.tolist():
                counts[client] = counts.get(client, 0) + 1
                latest[client] = round_
            released, remembered = self._released(state, remembered, drawn, door)
            if released is None:
                state = skip(state)
            else:
                state = step(server_step(plan, round_), policy, state, released, averages=averages(plan, round_))
        return state


def _seen(plan: Plan, state: ServerState, released: Released[ClientUnit, Params] | None) -> ObservedRound:
    cohort = plan.privacy.at(state.round).cohort
    return ObservedRound(
        round=state.round,
        bound=state.bound,
        model=state.model,
        total=None if released is None else flatten(released.value).double() * cohort,
        deviation=0.0 if released is None else max(released.noise_deviation * cohort, _LEAST * state.bound),
    )
