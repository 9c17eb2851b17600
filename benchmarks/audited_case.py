"""One mechanism of other people, in two neighbouring worlds, attacked as dpfedmeta.auditing attacks the product.

Not the product: what it is compared with. Nothing here gives a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfedmeta.accounting.divergences.gdp import gaussian_mu
from dpfedmeta.auditing.estimators.many_runs import Ratios
from dpfedmeta.auditing.trade_off_function import GaussianCurve, epsilon_of_counts, epsilon_of_curve

MISS = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is audited.

    Attributes:
        name: What it is, in words.
        worlds: What the two worlds differ in.
        claimed: Epsilon.
        by: Whose number that is, and from what.
        true: Epsilon of what the code does in these worlds, by this project's accountant.
        delta: Of all of them.
        ratio: One run of one world: (which one, seed) -> log-likelihood ratio of what was released.
        runs: How many.
    """

    name: str
    worlds: str
    claimed: float
    by: str
    true: float
    delta: float
    ratio: Callable[[bool, int], float]
    runs: int


def audited(case: Case, seed: int) -> dict[str, Any]:
    """The row of a case: each run is of either world, by a coin.

    The bound by the curve reads "the Gaussian mechanism with the claimed epsilon, with so little noise": where the code
    keeps its claim and its curve is a Gaussian one it is above the claim with probability 5% at most. The other one
    assumes no curve.
    """
    generator = np.random.default_rng(seed)
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(case.runs):
        one, own = bool(generator.integers(2)), int(generator.integers(2**31))
        found[one].append(case.ratio(one, own))
    ratios = Ratios(one=np.array(found[True]), other=np.array(found[False]))
    curve = GaussianCurve(mu=gaussian_mu(case.claimed, case.delta), delta=case.delta)
    by_curve = epsilon_of_curve(ratios.right, ratios.runs, curve, MISS)
    return {
        "case": case.name,
        "worlds": case.worlds,
        "claimed": case.claimed,
        "by": case.by,
        "true": case.true,
        "audited": by_curve,
        "audited_without_a_curve": epsilon_of_counts(ratios.one, ratios.other, case.delta, MISS),
        "delta": case.delta,
        "runs": ratios.runs,
        "right": ratios.right,
        "refuted": by_curve > case.claimed,
    }
