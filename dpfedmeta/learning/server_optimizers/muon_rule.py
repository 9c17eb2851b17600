"""Kernels and matrices by their nearest orthogonal matrix (Jordan et al. 2024), gains and biases as Adam."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dpfedmeta.core.params import Params
from dpfedmeta.learning.server_optimizers.adam_rule import adam
from dpfedmeta.learning.server_step import Moments

# Singular values below this share of the largest are rounding, and their vectors are anybody's.
_ROUNDING = 1e-6


def muon(moments: Moments) -> Params:
    """The first moment of each kernel with all its singular values set to one length; the rest as Adam has it.

    A meta-gradient has a few strong directions and many weak ones; a step that is as long in each of them learns from
    the weak ones too. Exact, by singular values instead of the published iteration (Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon; Bernstein and Newhouse 2024, https://arxiv.org/abs/2409.20325): a kernel
    here has 32 of them.

    Guarantee:
        As of `Rule`.
    """
    flat = [name for name, value in moments.first.items() if value.ndim < 2]
    others = Moments(first={n: moments.first[n] for n in flat}, second={n: moments.second[n] for n in flat})
    by_coordinate = adam(others)
    return {n: by_coordinate[n] if n in by_coordinate else orthogonal(v) for n, v in moments.first.items()}


def orthogonal(moment: Tensor) -> Tensor:
    """[out, ...] -> the polar factor of [out, the rest], times the root of its longer side: mean square 1.

    The root mean square is below 1 where singular values are missing; zeros stay zeros. What is not finite is returned
    as it is, for the run to end with.
    """
    if not bool(torch.isfinite(moment).all()):
        return moment
    matrix = moment.detach().cpu().double().reshape(len(moment), -1)
    left, values, right = _decomposed(matrix)
    kept = (values > _ROUNDING * values.max()).to(matrix.dtype)
    factor = (left * kept) @ right * math.sqrt(max(matrix.shape))
    return factor.to(moment).reshape(moment.shape)


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values by one thread: the same bits on any number of cores."""
    with one_thread():
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, values, right


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra with the same last bits on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


MEMBER = muon
