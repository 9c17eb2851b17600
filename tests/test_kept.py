"""What is kept between tests of dp-accounting's numbers is what it computes."""

import numpy as np
import pytest

from tests.conftest import KEPT, keep_what_dp_accounting_computes


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.3), (1.3, 0.01), (20.0, 0.5)])
def test_divergences_of_fixed_cohorts_have_the_same_bits(noise, rate, monkeypatch):
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    keep_what_dp_accounting_computes()
    orders = [2, 3, 10, 64, 65, 80, 256, 257]
    kept = rdp._compute_rdp_sample_wor_gaussian(rate, noise, orders)
    monkeypatch.setattr(rdp, "_get_forward_diffs", KEPT["rdp"])
    assert np.array_equal(kept, rdp._compute_rdp_sample_wor_gaussian(rate, noise, orders))


def test_a_kept_distribution_is_not_changed_by_who_uses_it():
    from dp_accounting.pld import privacy_loss_distribution as pld

    keep_what_dp_accounting_computes()
    given = {"sampling_prob": 0.1, "value_discretization_interval": 1e-3}
    kept = pld.from_gaussian_mechanism(1.1, **given)
    kept.self_compose(20).get_epsilon_for_delta(1e-5)
    kept.compose(kept).get_delta_for_epsilon(0.5)
    again, new = pld.from_gaussian_mechanism(1.1, **given), KEPT["pld"](1.1, **given)
    assert again is kept
    for one, other in ((again._pmf_remove, new._pmf_remove), (again._pmf_add, new._pmf_add)):
        assert one._lower_loss == other._lower_loss
        assert one._infinity_mass == other._infinity_mass
        assert np.array_equal(one._probs, other._probs)
