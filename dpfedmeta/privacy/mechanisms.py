"""Mechanisms, which alone turn secret values into released ones, and the one that a plan names."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, cast, final

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, Noise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import Params, dimension, is_finite, norm, rounded_mean, vector_of
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import FloatArray, SecretGenerator
from dpfedmeta.privacy.units import Bounded, Unit, message_of

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

_SEAL: Final = object()

MechanismState = dict[str, Any]
"""SECRET: what a mechanism remembers between rounds: numpy arrays or tensors by name."""
_SETTING, _FOLDER = "server.noise", "dpfedmeta.privacy.noises"


@final
class Released(Generic[Unit, ValueT]):
    """A PUBLIC value: it left a mechanism, and all that follows is post-processing.

    Not a dataclass and not picklable: dataclasses.replace or a round trip through pickle would forge one.

    Attributes:
        value: The noisy value.
        noises: The noise of each release that it comes from, which is what it costs; None: one without noise.
        noise_deviation: Standard deviation per coordinate of all noise in `value`; a public number.
    """

    __slots__ = ("noise_deviation", "noises", "value")
    value: ValueT
    noises: tuple[Noise | None, ...]
    noise_deviation: float

    def __init__(
        self, value: ValueT, noises: tuple[Noise | None, ...], noise_deviation: float, *, seal: object
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("only a mechanism in dpfedmeta.privacy.mechanisms releases a value")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "noises", noises)
        object.__setattr__(self, "noise_deviation", noise_deviation)

    @property
    def size(self) -> int:
        """d, where the value is a vector of parameters."""
        return dimension(cast(Params, self.value))

    @property
    def length(self) -> float:
        """L2 norm, likewise."""
        return norm(cast(Params, self.value))

    @property
    def vector(self) -> FloatArray:
        """All coordinates in the order of the parameters, likewise."""
        return vector_of(cast(Params, self.value))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a released value does not change")

    def __reduce__(self) -> str:
        raise TypeError("a released value is not pickled: send .value")


def post_process(
    function: Callable[..., ResultT],
    releases: Sequence[Released[Unit, Any]],
    noise_deviation: float,
) -> Released[Unit, ResultT]:
    """A function of released values alone is released too, and costs what they cost together.

    Args:
        function: Called with the values of the releases.
        releases: What it is computed from.
        noise_deviation: Standard deviation per coordinate of the noise in the result; a public number.
    """
    noises = tuple(noise for release in releases for noise in release.noises)
    return Released(function(*(release.value for release in releases)), noises, noise_deviation, seal=_SEAL)


def release_with(
    query: Bounded[Unit, Params], added: FloatArray, *, noise: Noise, deviation: float, denominator: float
) -> Released[Unit, Params]:
    """Add noise that is drawn already, divide, and release: the one door from Bounded to Released.

    For authors of mechanisms, who vouch that `added` has the law that `noise` states for the sensitivity of `query`.

    Args:
        query: What is released.
        added: Noise, one number for each coordinate, in the units of the sum.
        noise: What an observer of the release faces.
        deviation: Standard deviation per coordinate of all noise of the sum; a public number.
        denominator: A constant of the plan.

    Raises:
        ValueError: The query has no finite sensitivity or holds a value that is not finite: nothing may be released.
    """
    if not math.isfinite(query.sensitivity):
        raise ValueError("a value of unbounded sensitivity cannot be released by adding noise")
    if not is_finite(query.value):
        raise ValueError("a sum with NaN or Inf reached the mechanism; contributions are checked before")
    noisy = rounded_mean(query.value, added, denominator)
    return Released(noisy, (noise,), deviation / denominator, seal=_SEAL)


class Mechanism(Protocol):
    """Mechanism that releases the sums of all rounds, and states the privacy cost.

    A member is made from the plan. Its state is SECRET and lies beside the noise seed; independent noise has none.
    """

    def init(self, form: Params) -> MechanismState:
        """The state before the first round, for sums of this form; empty where there is none."""
        ...

    def release(
        self, round_: int, query: Bounded[Unit, Params], state: MechanismState, generator: SecretGenerator
    ) -> tuple[Released[Unit, Params], MechanismState]:
        """Add noise and release; the state for the next round."""
        ...

    def event(self, round_: int) -> Event:
        """Return the privacy cost of the round's release, which the ledger is charged with."""
        ...


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Gaussian noise to a constant total, divided by a public denominator.

    The released value is (query + N(0, total^2)) / denominator with total = total_multiplier * sensitivity
    per coordinate. Noise that the query already carries (shared mode) is topped up to that total, so the
    total never depends on who answered. Hostile clients may send messages without theirs; then that much is missing,
    and the charged multiplier leaves room for it.

    Attributes:
        total_multiplier: z, or z_T where clients add noise of their own: standard deviation of all noise over the
            sensitivity, if every client adds its own.
        charged_multiplier: The multiplier that the observer of the release faces: z, or z_eff, which counts neither on
            the noise of hostile clients nor on what colluding ones know.
        denominator: L, n_s or n_q: a constant of the plan, never a realised count.

    Guarantee:
        One release is a Gaussian mechanism with noise multiplier `charged_multiplier` for the unit of the
        query (Dong, Roth, Su 2019, https://arxiv.org/abs/1905.02383: 1/charged_multiplier-GDP), whatever the
        sensitivity.

    Note:
        Sum and noise are added in float64 and rounded to float32 together. The attack of Mironov (2012) on low-order
        bits of floating-point noise is not defended against, here as in Opacus or dp-accounting.
    """

    total_multiplier: float
    charged_multiplier: float
    denominator: float

    def __post_init__(self) -> None:
        if not (0 < self.charged_multiplier <= self.total_multiplier < math.inf):
            raise ValueError(f"noise multipliers must be finite and > 0, got {self}")
        if not 0 < self.denominator < math.inf:
            raise ValueError(f"the denominator must be finite and > 0, got {self.denominator}")

    def release(self, query: Bounded[Unit, Params], generator: SecretGenerator) -> Released[Unit, Params]:
        """Top the noise of `query` up to the total and release it.

        Raises:
            ValueError: The query has no finite sensitivity, holds a non-finite value, or carries more noise
                than the total: then the plan and the round disagree, and nothing may be released.
        """
        deviation = self.total_multiplier * query.sensitivity
        missing = deviation**2 - query.noise_variance
        # Shares of one noise may add up to it but for the last bits of a float.
        if missing < -1e-12 * deviation**2:
            raise ValueError(
                f"the messages carry noise of variance {query.noise_variance:.6g}, more than the planned "
                f"total {deviation**2:.6g}: more messages entered the sum than the plan allows"
            )
        own = for_message(generator, lambda: message_of(query, self.total_multiplier, self.denominator))
        added = math.sqrt(max(missing, 0.0)) * own.normal(dimension(query.value))
        return release_with(
            query,
            added,
            noise=GaussianNoise(multiplier=self.charged_multiplier),
            deviation=deviation,
            denominator=self.denominator,
        )


@dataclass(frozen=True, kw_only=True)
class NoMechanism:
    """Releases the plain mean, for training without privacy.

    Guarantee:
        None: there is no noise, and every cell that depends on it is infinite.
    """

    denominator: float

    def release(self, query: Bounded[Unit, Params], generator: SecretGenerator) -> Released[Unit, Params]:
        """Divide by the denominator; no noise."""
        return Released(rounded_mean(query.value, None, self.denominator), (None,), 0.0, seal=_SEAL)


def mechanism_of(plan: PrivacyPlan) -> Mechanism:
    """The mechanism that `server.noise` names.

    Raises:
        InputError: There is none of this name, or it breaks its protocol.
    """
    mechanism: Mechanism = members.planned(_SETTING, plan.noise, members.find(_SETTING, plan.noise, _FOLDER), plan=plan)
    members.check_protocol(_SETTING, plan.noise, mechanism, "init", "release", "event")
    return mechanism


def check_mechanism(mechanism: Mechanism, plan: PrivacyPlan) -> None:
    """Check that the mechanism costs what the plan counts with, and that the ledger can store its noise.

    Raises:
        RefusedPlan: It states another event than the plan, or one that cannot be read back.
        InputError: The accountant does not know its noise.
    """
    for number, phase in enumerate(plan.phases):
        round_ = sum(before.rounds for before in plan.phases[:number])
        stated = mechanism.event(round_)
        if stated != phase.event:
            raise RefusedPlan(
                f"server.noise = {plan.noise}: in round {round_} its mechanism states {stated.noise}, but the plan "
                f"counts {phase.event.noise}, so no guarantee would hold"
            )
        if Event.from_json(stated.as_json()) != stated:
            raise RefusedPlan(
                f"server.noise = {plan.noise}: its noise cannot be read back from the ledger unchanged; give it only "
                "fields of numbers and text"
            )
