"""The window policy where the signal drowns: the knee from inner products of different rounds' aggregates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import ConfigDict

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.clip_policies.window_policy import Walk
from dpfedmeta.privacy.clip_policy import Mode, Surroundings, check_window

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit

# Standard deviations of noise above which a signal counts as visible, and as certain.
_VISIBLE, _CERTAIN = 2.0, 3.0
# Factor by which the centre falls in a round without a visible signal: at first, and once a signal was seen.
_SEARCH, _SEARCH_AGAIN = 1.6, 1.2
# Elasticities that are weighed lie so far around the expected one, and so wide is the belief before any release.
_AROUND, _BELIEF = np.linspace(-1.35, 1.35, 55), 1.0
# Of the largest product or deviation: a floor for deviations, so that releases without noise leave everything finite.
_FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class ProductsState:
    """State of the policy: the centre of its search, the last releases, and their inner products.

    Attributes:
        centre: Current centre of the search.
        bound: The bound to use next, beside the centre.
        bounds: C of the last W rounds.
        deviations: Deviation of the noise in each coordinate of the last W aggregates.
        releases: The last W aggregates, flat.
        products: Their inner products: of each with those before it and with itself.
        seen: Whether a signal stood out before.
        mode: Current mode, for people.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"arbitrary_types_allowed": True}

    centre: float
    bound: float
    bounds: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    releases: tuple[FloatArray, ...] = ()
    products: tuple[tuple[float, ...], ...] = ()
    seen: bool = False
    mode: Mode = "searching"


@dataclass(frozen=True, kw_only=True)
class WindowProducts:
    """The window policy with inner products of aggregates beside their energies.

    Noises of different rounds are independent, so <G_i, G_j> is unbiased for <s_i, s_j> without any correction; when
    that helps is in docs/policies.md. Without a signal, products and energies ||G_i||^2 - sigma_i^2 d are uncorrelated,
    with variances sigma_i^2 sigma_j^2 d (energies: twice that). The elasticity e is that of s_i = exp(a + e ln C_i) u
    with one direction u: its posterior mean on a grid, with the level exp(2a) fitted for each e. It moves the centre as
    in `window` (`Walk`); but once a signal was seen, a window without one lowers the bound slowly.

    Attributes:
        initial_bound: C_0.
        window: W >= 2 past aggregates; 16 is a good number.
        walk: How its centre moves.

    Guarantee:
        Post-processing of released aggregates; no event. The bound of round t is a function of the releases
        before t, and the mechanism's noise is a multiple of it.
    """

    initial_bound: float
    window: int
    walk: Walk
    attachment: None = None

    def __post_init__(self) -> None:
        if self.window < 2:
            raise InputError(f"clip.window = {self.window}: inner products need at least 2 aggregates")

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> WindowProducts:
        """Build the policy from the settings.

        Raises:
            InputError: The window is longer than the run, or C_0 out of range.
            RefusedPlan: The noises of rounds are correlated, and their products not known to be zero on average.
        """
        check_window(clip, around)
        if not around.independent:
            raise RefusedPlan(
                "clip.policy = window-products: with correlated noise, products of releases measure noise, not signal; "
                "use --clip.policy window, or --server.noise independent"
            )
        return cls(initial_bound=clip.initial, window=clip.window, walk=Walk.planned(clip))

    def initial(self) -> ProductsState:
        """Starts above the centre, so that the second round looks below it."""
        return ProductsState(centre=self.initial_bound, bound=self.initial_bound * self.walk.probe)

    def next_bound(self, state: ProductsState, aggregate: Released[ClientUnit, Params]) -> tuple[ProductsState, float]:
        """Take the products with the last W - 1 aggregates, move the centre, and probe its other side."""
        state = _remembered(state, aggregate, self.window)
        if len(state.bounds) < 2:
            return self._probed(state, state.centre, state.mode)
        significance, elasticity = estimate(state, self.walk.target_elasticity)
        at_the_end = state.centre <= self.walk.lowest
        if significance > (_CERTAIN if at_the_end else _VISIBLE):
            return self._probed(replace(state, seen=True), self.walk.moved(state.centre, elasticity), "following")
        centre = self.walk.within(state.centre / (_SEARCH_AGAIN if state.seen else _SEARCH))
        return self._probed(state, centre, "holding" if at_the_end else "searching")

    def _probed(self, state: ProductsState, centre: float, mode: Mode) -> tuple[ProductsState, float]:
        bound = self.walk.other_side(state.centre, state.bound, centre)
        return replace(state, centre=centre, bound=bound, mode=mode), bound


def _remembered(state: ProductsState, aggregate: Released[ClientUnit, Params], window: int) -> ProductsState:
    own = aggregate.vector
    kept = (*state.releases, own)
    # Not a BLAS product: any number of threads makes the same bits.
    row = tuple(float(np.sum(own * other)) for other in kept)
    gone = max(0, len(kept) - window)
    products = (*state.products, row)[gone:]
    return replace(
        state,
        bounds=(*state.bounds, state.bound)[gone:],
        deviations=(*state.deviations, aggregate.noise_deviation)[gone:],
        releases=kept[gone:],
        # The oldest leaves every row with it.
        products=tuple(products_of[gone:] for products_of in products),
    )


def estimate(state: ProductsState, expected: float) -> tuple[float, float]:
    """Compute the signal's significance, in deviations of what noise alone would show, and its elasticity.

    Args:
        state: State with two aggregates or more.
        expected: Elasticity that is assumed where the releases say nothing.
    """
    later, earlier = np.tril_indices(len(state.products))
    variance, log_bound = np.square(state.deviations), np.log(state.bounds)
    size = state.releases[0].size
    twice = 1.0 + (later == earlier)
    found = np.concatenate([np.array(row) for row in state.products])
    found -= (later == earlier) * variance[later] * size
    energy = np.maximum(found[later == earlier], 0.0)
    alone = variance[later] * variance[earlier] * size * twice
    crossed = (variance[later] * energy[earlier] + variance[earlier] * energy[later]) * twice
    largest = max(float(np.abs(found).max()), float(np.sqrt(alone).max()), 1e-150)
    found, floor = found / largest, _FLOOR**2
    significance = float(np.sum(found / np.sqrt(alone / largest**2 + floor)) / math.sqrt(len(found)))
    slopes = log_bound[later] + log_bound[earlier] - 2.0 * log_bound.mean()
    return significance, _elasticity(found, (alone + crossed) / largest**2 + floor, slopes, expected)


def _elasticity(found: FloatArray, variance: FloatArray, slopes: FloatArray, expected: float) -> float:
    elasticities = expected + _AROUND
    form = np.exp(elasticities[:, None] * slopes)
    level = np.maximum((form * found / variance).sum(1) / (form**2 / variance).sum(1), 0.0)
    misfit = ((found - level[:, None] * form) ** 2 / variance).sum(1)
    belief = -0.5 * misfit - 0.5 * (_AROUND / _BELIEF) ** 2
    weight = np.exp(belief - belief.max())
    return float((weight * elasticities).sum() / weight.sum())


MEMBER = WindowProducts
