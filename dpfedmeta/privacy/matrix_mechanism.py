"""Noise that later rounds take back in part: what its mechanisms share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.params import Params, dimension
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import FloatArray, SecretGenerator
from dpfedmeta.privacy.mechanisms import MechanismState, Released, release_with
from dpfedmeta.privacy.units import Bounded, Unit, message_of

# Under these names the state holds its vectors and the round that they are for.
VECTORS, ROUND = "vectors", "round"


@dataclass(frozen=True)
class CorrelatedMechanism:
    """Releases (sum_t + C_t z (C^-1 Z)_t) / L, with Z standard normal and fresh in every round.

    Members say how many vectors they remember, and how (C^-1 Z)_t and their next vectors follow from Z_t and these.

    Attributes:
        plan: Its constants.

    Guarantee:
        All rounds of a run together are (sens/z)-GDP for a client that is added or removed and that joins no more
        rounds, and none closer together, than the plan's spacing allows. Nothing is sampled in secret. C_t may follow
        past releases in any way: the noise is a multiple of it, so that over C_t the release is that of a matrix
        mechanism whose inputs have length 1 at most and may be chosen adaptively (the proof is in
        events.toeplitz_noise_cost). Where C_t changes, less of the noise cancels; that costs accuracy alone.

    Note:
        The state is SECRET: with it, everybody could take the noise of past rounds out of later ones.
    """

    plan: PrivacyPlan

    @cached_property
    def noise(self) -> CorrelatedNoise:
        """Correlated noise that the plan states.

        Raises:
            ValueError: It states another noise.
        """
        noise = self.plan.at(0).noise
        if not isinstance(noise, CorrelatedNoise):
            raise ValueError(f"a plan of {noise} has no correlated noise")
        return noise

    @cached_property
    def coefficients(self) -> FloatArray:
        """c_0, ..., c_(T-1)."""
        return self.noise.coefficients(self.noise.rounds)

    @cached_property
    def _deviations(self) -> FloatArray:
        return noise_deviations(self.coefficients)

    @property
    def vectors(self) -> int:
        """Number of vectors, each as long as a message, that the mechanism remembers."""
        raise NotImplementedError

    def correlated(self, fresh: FloatArray, vectors: FloatArray, round_: int) -> tuple[FloatArray, FloatArray]:
        """((C^-1 Z)_t, the vectors for the next round); the vectors that are handed over do not change.

        Args:
            fresh: Z_t.
            vectors: SECRET: before the round, [vectors, d].
            round_: T.
        """
        raise NotImplementedError

    def init(self, form: Params) -> MechanismState:
        """No noise so far."""
        return {VECTORS: np.zeros((self.vectors, dimension(form))), ROUND: np.zeros(1, dtype=np.int64)}

    def release(
        self, round_: int, query: Bounded[Unit, Params], state: MechanismState, generator: SecretGenerator
    ) -> tuple[Released[Unit, Params], MechanismState]:
        """Add noise and release; the state for the next round.

        Raises:
            ValueError: The state is that of another round, or the sum carries noise already: then what is planned does
                not hold, and nothing is released.
        """
        if state[ROUND].item() != round_ or query.noise_variance:
            raise ValueError(
                f"round {round_}: the state of the noise is that of round {state[ROUND].item()}, and the sum carries "
                f"noise of variance {query.noise_variance:g}"
            )
        event = self.event(round_)
        # Another sum gets another Z_t. Both would take back the same noise of earlier rounds, as two charged attempts
        # at a round do.
        fresh = for_message(generator, lambda: message_of(query)).normal(dimension(query.value))
        own, vectors = self.correlated(fresh, state[VECTORS], round_)
        scale = self.noise.multiplier * query.sensitivity
        released = release_with(
            query,
            scale * own,
            noise=self.noise,
            deviation=scale * float(self._deviations[round_]),
            denominator=event.cohort,
        )
        return released, {VECTORS: vectors, ROUND: np.full(1, round_ + 1, dtype=np.int64)}

    def event(self, round_: int) -> Event:
        """Return the privacy cost of the round's release, which the ledger is charged with."""
        return self.plan.at(round_)


def without_past(fresh: FloatArray, past: FloatArray, coefficients: Sequence[float], round_: int) -> FloatArray:
    """Z_t - sum_k c_k (C^-1 Z)_(t-k), in an order of additions of its own: bit-identical on any number of threads.

    Args:
        fresh: Z_t.
        past: (C^-1 Z)_(t-k) in row (t-k) modulo their number.
        coefficients: c_1, c_2, ..., as many as there are rows.
        round_: T.
    """
    total = fresh.copy()
    for lag, coefficient in enumerate(coefficients[:round_], start=1):
        total -= coefficient * past[(round_ - lag) % len(past)]
    return total


def with_latest(past: FloatArray, own: FloatArray, round_: int) -> FloatArray:
    """The same with this round's noise in its row."""
    following = np.array(past)
    if len(following):
        following[round_ % len(following)] = own
    return following
