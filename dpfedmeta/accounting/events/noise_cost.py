"""Privacy cost of the noise of one release: the types that mechanism, ledger, accountant and report share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

from dpfedmeta.accounting.divergences.gdp import gaussian_delta
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# Privacy losses beyond this many standard deviations count as certain failures (probability 1e-22).
TAIL = 10.0


class Noise(Hashable, Protocol):
    """The noise that an observer of one release faces, beside a sum that one unit moves by its sensitivity at most.

    A member is a frozen dataclass of numbers and words: the ledger keeps its fields and its name, and makes it again.
    Distances are in units of the sensitivity: 1 for a unit that comes or goes, 2 for one that is replaced.
    """

    steady: ClassVar[bool]
    """Whether every release carries noise of the one deviation that the plan states."""

    def profile(self, epsilons: FloatArray, distance: float) -> FloatArray:
        """Hockey-stick divergence of the release from itself moved by `distance`, at each epsilon; symmetric.

        With a = e^epsilon < 1 it is a times that at 1/a, plus 1 - a.
        """
        ...

    def largest_loss(self, distance: float) -> float:
        """A privacy loss that is exceeded with negligible probability."""
        ...

    def mu(self, distance: float) -> float:
        """The release is mu-GDP (Dong, Roth, Su 2019, https://arxiv.org/abs/1905.02383); inf where no mu is known."""
        ...

    def replaced(self, rate: float, grid: float) -> PrivacyLossDistribution | None:
        """Loss distribution of one Poisson-sampled round in which a unit is replaced, rounded up to a grid.

        None: the general bound applies.
        """
        ...

    def dp_event(self, distance: float) -> DpEvent | None:
        """The same for other accountants, where a replaced unit moves the sum by `distance`; None: they cannot say."""
        ...

    @property
    def words(self) -> str:
        """For people: 'Gaussian noise of z = 1.2'."""
        ...


@runtime_checkable
class JointNoise(Noise, Protocol):
    """Noise of which only all rounds together are accounted for."""

    multiplier: float

    def together(self, rounds: int, further: int = 0) -> Noise:
        """The noise of a single release, of nobody in secret, that costs as much as `rounds` rounds of one run.

        Args:
            rounds: Rounds of one course of the run.
            further: Releases of the same run besides: further attempts, and copies of it that went on apart.
        """
        ...

    def apart(self, rounds: int) -> tuple[int, Noise]:
        """(how often a client takes part in so many rounds, the noise of each time), where no two times meet.

        Raises:
            RefusedPlan: They do meet.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Independent Gaussian noise in each coordinate.

    Attributes:
        multiplier: z or z_eff: standard deviation over the sensitivity.
    """

    multiplier: float
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (isinstance(self.multiplier, int | float) and 0 < self.multiplier < math.inf):
            raise ValueError(f"multiplier = {self.multiplier!r}: expected a finite number above 0")

    def profile(self, epsilons: FloatArray, distance: float) -> FloatArray:
        """delta_mu(epsilon) with mu = distance / z."""
        return gaussian_delta(epsilons, distance / self.multiplier)

    def largest_loss(self, distance: float) -> float:
        """TAIL deviations out."""
        mu = distance / self.multiplier
        return TAIL * mu + mu**2 / 2

    def mu(self, distance: float) -> float:
        """Distance / z."""
        return distance / self.multiplier

    def replaced(self, rate: float, grid: float) -> PrivacyLossDistribution | None:
        """(1-q)N(0)+qN(C) against (1-q)N(0)+qN(-C)."""
        # Inside: worker processes draw noise, and need none of the accountant's libraries.
        from dpfedmeta.accounting.divergences.pld_in_arrays import replaced_gaussian

        return replaced_gaussian(rate, self.multiplier, grid)

    def dp_event(self, distance: float) -> DpEvent | None:
        """Std over the change."""
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(self.multiplier / distance)

    @property
    def words(self) -> str:
        """Description for people, with z."""
        return f"Gaussian noise of z = {self.multiplier:.4g}"


@dataclass(frozen=True, kw_only=True)
class ThresholdedNoise:
    """Gaussian noise on counts of names that nobody listed, of which those above a threshold are released.

    Attributes:
        multiplier: z: standard deviation of the noise over the sensitivity of the counts.
        missed: p: probability that a name which only one client holds is released all the same, or that the release
            fails; over all names of a client.

    Guarantee:
        Exactly the pair P = (1-p) N(1, z^2) + p A and Q = (1-p) N(0, z^2) + p B, with A and B told apart for sure.
        With c and without it (or with another client's data in its place), counts of names that others hold too are
        the Gaussian mechanism; the noise of the other names is independent of theirs, so whatever follows from one of
        these being released has probability p at most on either side. With p' <= p and p'' <= p on the two sides,
        H_a = (1-p') H_{a(1-p'')/(1-p')} + p' grows with p' and with p'', hence is at most (1-p) H_a + p.
    """

    multiplier: float
    missed: float
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (isinstance(self.multiplier, int | float) and 0 < self.multiplier < math.inf):
            raise ValueError(f"multiplier = {self.multiplier!r}: expected a finite number above 0")
        if not (isinstance(self.missed, int | float) and 0 <= self.missed < 1):
            raise ValueError(f"missed = {self.missed!r}: expected a probability below 1")

    def profile(self, epsilons: FloatArray, distance: float) -> FloatArray:
        """(1-p) times that of the noise alone, plus p."""
        return (1.0 - self.missed) * gaussian_delta(epsilons, distance / self.multiplier) + self.missed

    def largest_loss(self, distance: float) -> float:
        """Largest privacy loss of the Gaussian noise alone.

        Losses beyond it count as certain failure; so does p, the probability that the threshold fails.
        """
        return GaussianNoise(multiplier=self.multiplier).largest_loss(distance)

    def mu(self, distance: float) -> float:
        """None is known: p is lost at any epsilon."""
        return math.inf

    def replaced(self, rate: float, grid: float) -> PrivacyLossDistribution | None:
        """The general bound."""
        return None

    def dp_event(self, distance: float) -> DpEvent | None:
        """Other accountants cannot say."""
        return None

    @property
    def words(self) -> str:
        """Description for people, with z and p."""
        return f"Gaussian noise of z = {self.multiplier:.4g} and a threshold (p = {self.missed:.2g})"


def noise_of(name: str, multiplier: float) -> Noise:
    """The noise that a mechanism of this name adds at a multiplier.

    Args:
        name: independent, or package.module:Mechanism, whose `noise(multiplier)` it is.
        multiplier: Its deviation over the sensitivity, or what takes its place.

    Raises:
        InputError: There is no such mechanism, or it has no `noise`.
    """
    if name == "independent":
        return GaussianNoise(multiplier=multiplier)
    kind = _imported(name)
    try:
        made: Noise = kind.noise(multiplier)
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"server.noise = {name}: needs noise(multiplier), a method that returns the noise to be charged ({error})"
        ) from error
    return made


def stated(noise: Noise | None) -> dict[str, Any] | None:
    """Return the form in which a ledger keeps the noise: its name and its fields; None where there is none."""
    if noise is None:
        return None
    kind = type(noise)
    names = {built_in: name for name, built_in in _built_in().items()}
    name = names.get(kind, f"{kind.__module__}:{kind.__qualname__}")
    return {"kind": name, **asdict(cast(Any, noise))}


def restored(content: Mapping[str, Any] | None) -> Noise | None:
    """The noise that `stated` wrote.

    Raises:
        InputError: Its kind is not known here, or these are not its fields.
    """
    if content is None:
        return None
    values = dict(content)
    name = values.pop("kind", None)
    kind = _built_in().get(name) or _imported(name)
    names = {field.name for field in fields(kind)} if is_dataclass(kind) else None
    if names is None:
        raise InputError(f"noise of kind {name}: {kind.__name__} is not a dataclass, so it cannot be read as a noise")
    if names != set(values):
        raise InputError(
            f"noise of kind {name}: expected {', '.join(sorted(names))}, found {', '.join(sorted(values))}"
        )
    try:
        made: Noise = kind(**values)
    except (TypeError, ValueError) as error:
        raise InputError(f"noise of kind {name}: {error}") from error
    return made


def _imported(name: object) -> type[Any]:
    unknown = (
        f"noise of kind {name!r} is not known here: the accountant needs the class that the run was made with; make "
        "its module importable (for example by PYTHONPATH)"
    )
    if not isinstance(name, str) or ":" not in name:
        raise InputError(unknown)
    from dpfedmeta.core.plugins.user_code import own_object  # as in plugin_registry.find

    try:
        kind = own_object("noise of kind", name)
    except InputError as error:
        raise InputError(f"{unknown} ({error})") from error
    if not isinstance(kind, type):
        raise InputError(f"{unknown} ({name} is not a class)")
    return kind


def _built_in() -> Mapping[object, type[Any]]:
    from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS

    known: dict[object, type[Any]] = {"gaussian": GaussianNoise, "thresholded": ThresholdedNoise}
    known.update(KINDS)
    return known
