"""What is kept between tests is what would be computed."""

import numpy as np
import pytest

from tests.conftest import KEPT, PATCHED, keep_what_dp_accounting_computes, once


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


def test_a_function_is_asked_once_where_a_test_is_about_something_else(monkeypatch):
    asked = []
    function = once(lambda phases, *, cap: asked.append(cap) or (phases, cap))
    for solved, cap, times in ((True, 1, 1), (True, 2, 1), (False, 2, 2)):
        asked.clear()
        monkeypatch.setitem(PATCHED, "solved", solved)
        assert function([1, 2], cap=cap) == function((1, 2), cap=cap) == ((1, 2), cap)
        assert asked == [cap] * times
    monkeypatch.setitem(PATCHED, "solved", True)
    # What cannot be compared is asked for each time.
    assert function({}, cap={}) == function({}, cap={})
    assert asked == [2, 2, {}, {}]
