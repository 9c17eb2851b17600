"""Heads that a client finds in closed form from a model for everybody: posterior class means, or a line nearby.

Of tensors, and of numpy's arrays where there is no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpfedmeta.core.params import float64, library_of, same_kind, same_type
from dpfedmeta.learning.meta.adaptation import PLAIN, InnerRule, PlainRule

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params


def members_of(labels: Tensor, ways: int, like: Tensor) -> Tensor:
    """[n, ways] zeros and ones of the type of `like`: whose records are of which class."""
    members: Tensor = same_type(labels[:, None] == same_kind(np.arange(ways), labels), like)
    return members


@dataclass(frozen=True, kw_only=True)
class ClosedHead:
    """Rule without a step, whose head starts where it ends; features are whitened, so all directions count alike.

    Attributes:
        prior: kappa, records that the model for everybody counts as.
        shift: Classes that the absence of a shift common to all of them counts as; None: nobody shifts as a whole.
    """

    prior: float
    shift: float | None = None

    @property
    def unadapted(self) -> InnerRule:
        """The model for everybody as it is."""
        return PLAIN

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All of them."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Return `lr`; there is no step."""
        return lr


@dataclass(frozen=True, kw_only=True)
class PosteriorMeans(ClosedHead):
    """Class means of a Gaussian model, which move to (n mean + kappa mu) / (n + kappa); shares of classes likewise.

    A head row is a class mean mu, and its bias is log pi - |mu|^2 / 2.
    """

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """The rows of the client's own classes; a class without a record keeps its mean, and is less likely."""
        if not len(labels):
            return dict(head)
        found, means, kind = features(), head["head.weight"], library_of(labels)
        members, known = members_of(labels, ways, found), head["head.bias"] + (means * means).sum(1) / 2.0
        counts, shares = members.sum(0), kind.exp(known - known.max())
        shares, sums = shares / shares.sum(), members.T @ found
        if self.shift is not None:
            held = counts > 0
            apart = (sums / counts.clip(1.0)[:, None] - means)[held].sum(0)
            means = means + apart / (held.sum() + self.shift)
        means = (sums + self.prior * means) / (counts + self.prior)[:, None]
        shares = (counts + self.prior * shares) / (counts.sum() + self.prior)
        return {"head.weight": means, "head.bias": kind.log(shares.clip(1e-12)) - (means * means).sum(1) / 2.0}


@dataclass(frozen=True)
class OwnClassMeans(PlainRule):
    """Posterior means of classes of a client's own, of a Gaussian model whose records of a class have variance 1.

    In a direction in which class means have variance v, that of n records with mean m is n v m / (n v + 1), and
    v / (n v + 1) is not known of it. A row of the model's head holds v.
    """

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """Rows and biases of the classifier by the predictive density of each class; all classes are equally likely."""
        variances = head["head.weight"][:1]
        found = features() if len(labels) else variances[:0]
        members = members_of(labels, ways, variances)
        counts = members.sum(0)[:, None]
        unknown = variances / (counts * variances + 1.0)
        means = unknown * (members.T @ found)
        # One variance for all classes, that of the usual one, since a head is linear.
        spread = 1.0 + unknown.mean(0)
        return {"head.weight": means / spread, "head.bias": -(means * means / spread).sum(1) / 2.0}


@dataclass(frozen=True, kw_only=True)
class NearbyLine(ClosedHead):
    """Ridge regression towards the line for everybody; its height is free of the penalty on slopes, and has its own."""

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """Minimise the squared errors, and kappa times the squared distance from the model for everybody."""
        if not len(labels):
            return dict(head)
        found, kind = features(), library_of(labels)
        seen = float64(kind.concatenate([found, kind.ones_like(found[:, :1])], 1))
        known = float64(kind.concatenate([head["head.weight"], head["head.bias"][:, None]], 1))
        # One record's worth: a person's own level is mostly its own.
        penalty = kind.full_like(seen[0], self.prior)
        penalty[-1] = 1.0 if self.shift is None else self.shift
        missing = float64(labels)[:, None] - seen @ known.T
        change = kind.linalg.solve(seen.T @ seen + kind.diag(penalty), seen.T @ missing).T
        line = same_type(known + change, found)
        return {"head.weight": line[:, :-1], "head.bias": line[:, -1]}
