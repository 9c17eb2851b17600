"""The model that follows from the moments of all releases, in closed form (learning.algorithms.moments)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.server_optimizers.muon_rule import one_thread

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.learning.meta.algorithm import ClientAlgorithm
    from dpfedmeta.learning.models.spec import NetworkSpec


@dataclass(frozen=True, kw_only=True)
class Solve:
    """The model of what clients send; ridge and weights of directions follow from the known noise.

    Attributes:
        method: Whose messages were released.
        size: d, numbers of a record.
        width: Most directions.

    Guarantee:
        As of `Solver`.
    """

    method: Any
    size: int
    width: int

    @classmethod
    def planned(cls, algorithm: ClientAlgorithm, network: NetworkSpec) -> Solve:
        """Build it for what clients send.

        Raises:
            InputError: They send no moments.
        """
        method = getattr(algorithm, "method", algorithm)
        if not hasattr(method, "moments"):
            raise InputError(
                "server.optimizer = solve: clients send no moments; use --meta.method moments, or --server.optimizer "
                "adam"
            )
        return cls(method=method, size=network.channels, width=network.width)

    def solved(self, mean: Params, deviation: float, /) -> Params:
        """The model, from the mean of all releases."""
        like = next(iter(mean.values()))
        with one_thread():
            found = self.method.solved(mean, deviation, self.size, self.width)
        model: Params = {name: value.to(like) for name, value in found.items()}
        return model


MEMBER = Solve
