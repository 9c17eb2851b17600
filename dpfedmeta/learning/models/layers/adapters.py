"""Adapters on the features of a frozen encoder: they begin as the identity, and few weights are learned and sent."""

import torch
from torch import Tensor, nn

from dpfedmeta.learning.models.weight_shapes import FLOOR, SHARPNESS

# Of the first weights of a low-rank residual: at 1.0 its first steps undo the encoder.
_SPREAD = 0.1


class UnitLength(nn.Module):
    """Each record's vector at length 1, so that no record weighs more than another."""

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d]; a vector of zeros stays one."""
        lengths: Tensor = (features.square().sum(-1, keepdim=True) + FLOOR).sqrt()
        return features / lengths


class LowRank(nn.Module):
    """Residual of low rank, x + B A x, with B = 0 at the start (Hu et al. 2022, https://arxiv.org/abs/2106.09685).

    Args:
        features: d.
        rank: Columns of B.
    """

    def __init__(self, features: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(features, rank, bias=False)
        self.up = nn.Linear(rank, features, bias=False)
        nn.init.normal_(self.down.weight, std=_SPREAD)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        found: Tensor = features + self.up(self.down(features))
        return found


class Affine(nn.Module):
    """A gain and a shift for each feature, 1 and 0 at the start (FiLM: Perez et al. 2018, https://arxiv.org/abs/1709.07871).

    Args:
        features: d.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        return features * (1 + self.gain) + self.shift


class Metric(nn.Module):
    """A centre and a matrix, (x - c) M: a metric between records, at the start that of their first numbers.

    Args:
        features: d.
        directions: Columns of M.
    """

    def __init__(self, features: int, directions: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(features))
        self.matrix = nn.Parameter(torch.eye(features, directions))

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, k]."""
        found: Tensor = (features - self.centre) @ self.matrix
        return found


class Sharpened(nn.Module):
    """Vectors times one learned positive number: the inverse temperature of logits that are made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        return features * (SHARPNESS * torch.exp(self.exponent))


def adapter_layers(kind: nn.Module) -> nn.ModuleList:
    """Unit length, the adapter, unit length again, one learned factor."""
    return nn.ModuleList([UnitLength(), kind, UnitLength(), Sharpened()])
