import math

import pytest
import torch

from dpfedmeta.learning.server_optimizers.adam_rule import adam
from dpfedmeta.learning.server_optimizers.muon_rule import muon, orthogonal
from dpfedmeta.learning.server_step import Moments


def kernel(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def newton_schulz(matrix):
    """The polar factor by an iteration, as an independent second way."""
    found = matrix.double() / torch.linalg.matrix_norm(matrix.double())
    for _ in range(200):
        found = 1.5 * found - 0.5 * found @ found.T @ found
    return found


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (32, 3, 3, 3), (6, 9), (9, 6)])
def test_a_kernel_steps_by_its_polar_factor(shape):
    moment = kernel(*shape)
    matrix = moment.reshape(shape[0], -1)
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    expected = newton_schulz(wide)
    expected = expected if wide is matrix else expected.T
    longer = math.sqrt(max(matrix.shape))
    assert torch.allclose(orthogonal(moment).reshape(matrix.shape).double(), longer * expected, atol=1e-4)
    assert orthogonal(moment).square().mean().sqrt() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1e15])
def test_the_length_of_a_moment_does_not_matter(factor):
    moment = kernel(4, 2, 3, 3)
    assert torch.allclose(orthogonal(factor * moment), orthogonal(moment), atol=1e-4)


def test_directions_that_hold_nothing_stay_at_rest():
    assert torch.equal(orthogonal(torch.zeros(4, 3)), torch.zeros(4, 3))
    left, right = kernel(5, 1), kernel(1, 7, seed=1)
    stepped = orthogonal(left @ right)
    assert torch.linalg.matrix_rank(stepped.double(), rtol=1e-4) == 1
    assert float((stepped * (left @ right)).sum()) > 0


def test_what_is_not_finite_is_passed_on_so_that_the_run_ends():
    broken = torch.full((2, 2), math.nan)
    assert torch.isnan(orthogonal(broken)).all()


def test_gains_and_biases_step_as_under_adam():
    first = {"kernel": kernel(4, 2, 3, 3), "gain": kernel(4)}
    second = {name: value.square() + 1.0 for name, value in first.items()}
    moments = Moments(first=first, second=second)
    found = muon(moments)
    assert list(found) == ["kernel", "gain"]
    assert torch.equal(found["gain"], adam(moments)["gain"])
    assert torch.equal(found["kernel"], orthogonal(first["kernel"]))


def test_the_bits_do_not_depend_on_the_number_of_threads():
    moment, before = kernel(32, 32, 3, 3), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(orthogonal(moment))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
