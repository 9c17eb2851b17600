import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks.roc_hull import hull_epsilon


def test_the_hull_gives_what_jax_privacy_gives():
    quantiles = ndtri((np.arange(10_000) + 0.5) / 10_000)
    found, thresholds = hull_epsilon(quantiles + 2.0, quantiles, 1e-6, 0.05)
    assert found == pytest.approx(2.311945, abs=1e-6)
    assert thresholds == 374
