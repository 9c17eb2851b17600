"""Privacy cost of correlated noise: all rounds of a run together are one Gaussian release.

Proof, with everything in units of the round's clip bound C_t. Let x_t be the contributions of one client to round t,
of length 1 at most, and Z_t the independent noise of deviation z. What is released is
r_t = x_t + others_t + (C^-1 Z)_t. As C is lower triangular with ones on its diagonal, (C r)_t is made from r_0, ...,
r_t and the other way round: to see the releases is to see y_t = (C x)_t + (C others)_t + Z_t, one after the other.
Given y_0, ..., y_(t-1), the populations with and without the client differ in the mean of y_t by (C x)_t, and Z_t is
fresh. What x_t is may depend on all that was seen, and so may C_t, which is a function of it: on every path the client
joins at most R rounds, at least b apart, so sum_t |(C x)_t|^2 <= sens^2, and a sequence of Gaussian releases with
adaptive shifts whose squares never add up to more is sens/z-GDP (Smith, Thakurta 2022,
https://arxiv.org/abs/2210.17520; for matrices Denisov et al. 2022, https://arxiv.org/abs/2202.08312, theorem 2.1).
No client's participation has to be secret: the coins of the other clients are independent of this client's, and
nothing is amplified.

A round that is done again with new noise makes a tree of releases: each has fresh Z, and its shift is the sum of c over
the client's rounds on its own path, at most `largest_row`. The course of the run that goes on is charged as above; each
other release adds `largest_row`^2 to the sum of squares.

With p bands and clients that are b >= p rounds apart, the columns of two participations have no row in common. Under
cyclic sampling (Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153, section 4) a client's turn comes every b
rounds, and in each turn a secret coin of its own decides whether it joins, heads with probability q. Let t be such a
turn and y_t, ..., y_(t+b-1) the rounds up to the next one. Given all that was seen before t and the coins of all
others, these differ between the two populations by c_0 x_t, ..., c_(b-1) x_t if the coin is heads, and not at all
otherwise; x_t is fixed when the coin is tossed, and its later rounds add nothing else of this client. So they are one
Gaussian release moved by |c| at most, sampled with q, and the turns compose adaptively: ceil(T/b) times the pair
(1-q) N(0, z^2) + q N(|c|, z^2) against N(0, z^2).
A release that the run did not go on from is moved by c_0 = 1 at most, or by less: given what was seen, its law is a
mixture of being moved so and not at all, whose pair is dominated by that of being moved for sure, which it is charged
as. Who joined such an attempt stays away from the next one at that round, which only lowers the chance of heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_BUFFERS = 3


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Parameters of a plan's correlated noise.

    Attributes:
        separation: b, the fewest rounds between two participations of one client.
        buffers: Vectors that the mechanism may remember; None: as many as its strategy needs.
        numbers: Fitted numbers that its coefficients are made of; () before the fit.
    """

    separation: int
    buffers: int | None = None
    numbers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", tuple(map(float, self.numbers)))


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
    """Gaussian noise that later rounds take back in part. Members say what its coefficients are.

    Attributes:
        multiplier: z: deviation of the fresh noise of a round over the clip bound.
        rounds: T that it was fitted for; it makes no more.
        participations: R.
        separation: b.
        numbers: What the coefficients are made of.

    Guarantee:
        All rounds together are (sensitivity * distance / multiplier)-GDP; see the module. One release alone is counted
        as if it were all of them.
    """

    multiplier: float
    rounds: int
    participations: int
    separation: int
    numbers: tuple[float, ...] = ()
    steady: ClassVar[bool] = False

    def of_sums(self, rounds: int) -> FloatArray:
        """Deviation of the noise of the sum of 1, 2, ... releases, over that of independent noise."""
        from dpfedmeta.accounting.events.toeplitz_coefficients import sums_over_independent

        return sums_over_independent(self.coefficients(rounds))

    def __post_init__(self) -> None:
        _ = GaussianNoise(multiplier=self.multiplier), self.spacing
        if not (isinstance(self.rounds, int) and self.rounds >= 1):
            raise ValueError(f"rounds = {self.rounds!r}: expected a whole number, at least 1")
        object.__setattr__(self, "numbers", tuple(map(float, self.numbers)))

    @property
    def spacing(self) -> Spacing:
        """R and b."""
        return Spacing(participations=self.participations, separation=self.separation)

    @staticmethod
    def fitted(rounds: int, spacing: Spacing, buffers: int | None) -> tuple[float, ...]:
        """The numbers that its coefficients are made of, for so many rounds.

        Raises:
            RefusedPlan: They cannot be made with so many buffers.
        """
        raise NotImplementedError

    def coefficients(self, rounds: int) -> FloatArray:
        """c_0, ..., c_(rounds-1)."""
        raise NotImplementedError

    def sensitivity(self, rounds: int | None = None) -> float:
        """L2 sensitivity of the first `rounds` rounds (by default all) to one client, in clip bounds.

        Raises:
            RefusedPlan: More rounds than it was fitted for.
        """
        return _moved(replace(self, multiplier=1.0), self.rounds if rounds is None else rounds)[0]

    @property
    def largest_row(self) -> float:
        """Largest change by one client of a release that a further attempt replaced, in clip bounds."""
        return _moved(replace(self, multiplier=1.0), self.rounds)[1]

    def together(self, rounds: int, further: int = 0) -> GaussianNoise:
        """The noise of a single release that costs as much.

        Args:
            rounds: How many rounds are charged, without further attempts.
            further: How many charges there are besides, of attempts and of copies of the run.

        Raises:
            RefusedPlan: More rounds than it was fitted for.
        """
        squared = (self.sensitivity(rounds) if rounds else 0.0) ** 2 + further * self.largest_row**2
        return GaussianNoise(multiplier=self.multiplier / math.sqrt(squared))

    def apart(self, rounds: int) -> tuple[int, GaussianNoise]:
        """Only bands keep participations apart."""
        raise RefusedPlan(
            f"server.noise = {self._name}: with randomly drawn cohorts no guarantee is known for noise in which two "
            "participations of a client overlap; use --server.noise banded"
        )

    def profile(self, epsilons: FloatArray, distance: float) -> FloatArray:
        """Privacy profile of all rounds together."""
        return self.together(self.rounds).profile(epsilons, distance)

    def largest_loss(self, distance: float) -> float:
        """Largest privacy loss of all rounds together."""
        return self.together(self.rounds).largest_loss(distance)

    def mu(self, distance: float) -> float:
        """Mu of all rounds together."""
        return self.together(self.rounds).mu(distance)

    def replaced(self, rate: float, grid: float) -> PrivacyLossDistribution | None:
        """Nothing is sampled."""
        return None

    def dp_event(self, distance: float) -> DpEvent | None:
        """Other accountants are asked about all rounds together, not about one."""
        return None

    @property
    def words(self) -> str:
        """Description for people: z, the spacing of the clients and the sensitivity of all rounds."""
        return (
            f"noise of z = {self.multiplier:.4g} that is correlated over rounds ({self._name}); a client that joins at "
            f"most {self.participations} rounds, {self.separation} apart, moves all {self.rounds} by "
            f"{self.sensitivity():.4g} clip bounds"
        )

    @property
    def _name(self) -> str:
        return next(name for name, kind in KINDS.items() if kind is type(self))


@lru_cache(maxsize=1024)
def _moved(noise: CorrelatedNoise, rounds: int) -> tuple[float, float]:
    """(sensitivity, largest row)."""
    from dpfedmeta.accounting.events.toeplitz_coefficients import largest_row, sensitivity

    if rounds > noise.rounds:
        raise RefusedPlan(
            f"correlated noise was fitted for {noise.rounds} rounds, but {rounds} are asked for: the privacy cost of "
            "more rounds is not known; start a new run that is planned for all of them"
        )
    c, spacing = noise.coefficients(rounds), (noise.participations, noise.separation)
    return sensitivity(c, *spacing), largest_row(c, *spacing)


class ToeplitzNoise(CorrelatedNoise):
    """c_k = c_(k-1) (2k-1)/(2k): the least largest error of prefix sums for one participation; remembers all rounds."""

    @staticmethod
    def fitted(rounds: int, spacing: Spacing, buffers: int | None) -> tuple[float, ...]:
        """There is nothing to fit."""
        if buffers is not None:
            raise RefusedPlan(
                f"server.buffers = {buffers}: server.noise = toeplitz keeps the noise of every round and takes no "
                "buffers; leave server.buffers out, or use --server.noise blt"
            )
        return ()

    def coefficients(self, rounds: int) -> FloatArray:
        """c_0, ..., c_(rounds-1)."""
        from dpfedmeta.accounting.events.toeplitz_coefficients import optimal_toeplitz

        if self.numbers:
            raise RefusedPlan("toeplitz: its coefficients are fixed, but the ledger states others")
        return optimal_toeplitz(rounds)


class BltNoise(CorrelatedNoise):
    """c_k = sum of w_i theta_i^(k-1): `numbers` are the decays theta, then the weights w."""

    @staticmethod
    def fitted(rounds: int, spacing: Spacing, buffers: int | None) -> tuple[float, ...]:
        """For the largest error of prefix sums."""
        from dpfedmeta.accounting.events.fit_toeplitz import fit_blt

        found = fit_blt(rounds, _BUFFERS if buffers is None else buffers, spacing.participations, spacing.separation)
        return (*found.decays, *found.weights)

    def coefficients(self, rounds: int) -> FloatArray:
        """c_0, ..., c_(rounds-1)."""
        from dpfedmeta.accounting.events.toeplitz_coefficients import Blt

        half = len(self.numbers) // 2
        return Blt(decays=self.numbers[:half], weights=self.numbers[half:]).coefficients(rounds)


class BandedNoise(CorrelatedNoise):
    """`numbers` are c_0, ..., c_(p-1); all later ones are 0."""

    @staticmethod
    def fitted(rounds: int, spacing: Spacing, buffers: int | None) -> tuple[float, ...]:
        """For the largest error of prefix sums."""
        from dpfedmeta.accounting.events.fit_toeplitz import fit_banded

        bands = min(spacing.separation, rounds) if buffers is None else buffers + 1
        return fit_banded(rounds, bands, spacing.participations, spacing.separation)

    def coefficients(self, rounds: int) -> FloatArray:
        """c_0, ..., c_(rounds-1)."""
        import numpy as np

        c = np.zeros(max(rounds, len(self.numbers)))
        c[: len(self.numbers)] = self.numbers
        return c[:rounds]

    def apart(self, rounds: int) -> tuple[int, GaussianNoise]:
        """Ceil(rounds/b) participations, each moving its own rounds by |c|.

        Raises:
            RefusedPlan: More bands than rounds between two participations, or more rounds than it was fitted for.
        """
        if len(self.numbers) > self.separation:
            raise RefusedPlan(
                f"server.noise = banded with {len(self.numbers)} bands and clients {self.separation} rounds apart: the "
                "noise of two participations overlaps, and with randomly drawn cohorts no guarantee is known for that; "
                "lower server.buffers"
            )
        alone = replace(self, participations=1).sensitivity(rounds)
        return -(-rounds // self.separation), GaussianNoise(multiplier=self.multiplier / alone)


KINDS: Mapping[str, type[CorrelatedNoise]] = {"toeplitz": ToeplitzNoise, "blt": BltNoise, "banded": BandedNoise}
"""By the name of `server.noise`, and of the noise in a ledger."""
