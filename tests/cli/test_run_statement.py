"""A run on one page: its numbers are those of its ledger, and what they mean holds."""

import math

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.cli.run_statement import most_right_guesses
from tests.conftest import dpfedmeta


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_no_guess_about_a_gaussian_is_right_more_often_than_is_said(mu, delta):
    right = 0.5 * math.erfc(-mu / 2 / math.sqrt(2))  # of the best threshold, at mu/2
    said = most_right_guesses(gaussian_epsilon(mu, delta), delta)
    assert right <= said <= 1.0
    # Randomised response with this epsilon reaches it.
    epsilon = 1.3
    assert most_right_guesses(epsilon, 0.0) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
    assert most_right_guesses(0.0, delta) == pytest.approx(0.5 * (1 + delta))
    assert most_right_guesses(math.inf, delta) == 1.0


def test_the_page_of_a_loop_says_what_its_ledger_proves(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=2, promise=dp.Promise(epsilon=6.0, delta=1e-4), like={"w": np.zeros(3)},
        clip=dp.clip.Constant(initial=1.0), run_dir=tmp_path / "mine",
    ) as private:  # fmt: skip
        for round_ in private:
            round_.release()
        epsilon = private.spent.of("client", "public").epsilon
    shown = dpfedmeta("account", "--statement", str(tmp_path / "mine")).out
    assert f"(client, public): epsilon = {epsilon:.4g} at delta = 0.0001" in shown
    assert f"right at most {most_right_guesses(epsilon, 1e-4):.1%} of the time" in shown
    assert "(client, server): nothing." in shown
    assert "2 rounds over 400 clients, 40 of them" in shown
    assert f"has the hash {read_content(tmp_path / 'mine/ledger.jsonl').heads[-1]}." in shown
    assert "Attention" not in shown
    (tmp_path / "mine/selection.json").write_text('{"epsilon": 7.5, "delta": 1e-05}')
    assert (
        "Attention: chosen by a private sweep: report (client, public) epsilon = 7.5"
        in dpfedmeta("account", "--statement", str(tmp_path / "mine")).out
    )
    (tmp_path / "mine/plan.json").write_text("{}")
    assert "plan.json" in dpfedmeta("account", "--statement", str(tmp_path / "mine"), code=2).error
