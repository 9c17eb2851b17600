"""A loop that adds nobody: refused before its first release where that is its code, and never for one person's data."""

import os

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.plugins.own_function import FEWEST_TRIED

REFUSED = "nobody was added, so its release would be noise alone"


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def private(**changes):
        given = {
            "clients": 400, "cohort": 40, "rounds": 3, "like": {"w": np.zeros(3)}, "run_dir": tmp_path / "mine",
            "clip": dp.clip.Constant(initial=1.0), "promise": dp.Promise(epsilon=6.0, delta=1e-4),
        }  # fmt: skip
        return dp.PrivateRounds(**given | changes)

    return private


def nothing(round_):
    pass


def only_computes(round_):
    for client in round_.cohort:
        np.full(3, client)


def in_children(round_):
    for client in round_.cohort:
        if os.fork() == 0:
            try:
                round_.add(client, {"w": np.ones(3)})
            except dp.InputError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7


FORGETS = {
    "neither add nor map": (nothing, 0),
    "computes": (only_computes, 1),
    "adds in forked workers": (in_children, 1),
}


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("way", FORGETS)
def test_a_loop_that_forgets_to_add_is_refused_before_its_first_release_in_a_process(made, way, first):
    forgets, asked = FORGETS[way]
    with made() as private:
        for round_ in private if first else ():
            round_.map(lambda client: {"w": np.ones(3)})
            round_.release()
            if round_.number + 1 == first:
                break
    with made() as private, pytest.raises(dp.InputError, match=REFUSED):
        for round_ in private.after(first):
            forgets(round_)
            round_.release()
    # Whoever was asked was charged for; a loop that asked nobody is charged for nothing, and none is charged twice.
    assert len(read_content(private.run.ledger).charges) == first + asked
    assert private.released == first
    with made() as private:
        for round_ in private.after(first):
            for client in round_.cohort:
                round_.add(client, {"w": np.ones(3)})
            round_.release()
    assert private.ended == "completed"
    assert len(read_content(private.run.ledger).charges) == 3


@pytest.mark.parametrize("update", [None, {"w": np.full(3, np.nan)}, {"w": np.ones(3)}])
def test_whatever_clients_send_a_loop_that_adds_them_is_not_refused(made, update):
    """Their updates are data: a refusal would tell of them."""
    with made() as private:
        for round_ in private:
            for client in round_.cohort:
                round_.add(client, update)
            round_.release()
    assert private.ended == "completed"


@pytest.mark.parametrize("absent", range(1, FEWEST_TRIED + 1))
def test_one_person_never_decides_alone(made, absent):
    """Cohorts of a few, down to one person: what left them out may be their data, so the noise is released."""
    with made(clients=10, cohort=absent, sampler="fixed", promise=dp.Promise(epsilon=50.0, delta=1e-2)) as private:
        round_ = next(iter(private))
        assert len(round_.cohort) == absent
        if absent == FEWEST_TRIED:
            with pytest.raises(dp.InputError, match=REFUSED):
                round_.release()
        else:
            assert round_.release()["w"].any()


def test_a_whole_cohort_that_is_absent_later_in_the_process_is_noise(made):
    """Once a loop has added, its code does; absences are data."""
    with made() as private:
        for round_ in private:
            if round_.number == 0:
                round_.add(round_.cohort[0], None)
            round_.release()
    assert private.ended == "completed"


def test_a_simulation_is_refused_for_a_cohort_of_one(made):
    with (
        made(
            clients=1, cohort=1, noise_seed=3, sampler="fixed", promise=dp.Promise(epsilon=50.0, delta=1e-2)
        ) as private,
        pytest.raises(dp.InputError, match=REFUSED),
    ):
        next(iter(private)).release()


SAYS = "round.add was called for clients outside round.cohort"
OWN = {"a sample of its own": range(0, 400, 7), "everybody": range(400), "numbers that nobody has": range(-60, -20)}


@pytest.mark.parametrize("names", OWN)
def test_a_loop_that_names_clients_of_its_own_choice_is_told_once(made, capsys, names):
    with made() as private:
        for round_ in private:
            cohort = {*round_.cohort}
            for client in [*cohort, *OWN[names]]:
                round_.add(client, {"w": np.ones(3)})
            round_.release()
            said = capsys.readouterr().err
            assert said.count(SAYS) == (round_.number == 0)
            # The cohort is secret, also how much of what the loop names is in it.
            assert not said or {*said.split("round 0")[1]}.isdisjoint("0123456789")
    assert private.ended == "completed"


def test_twice_for_one_client_is_told_too(made, capsys):
    with made() as private:
        round_ = next(iter(private))
        for client in round_.cohort * 2:
            round_.add(client, None)
    assert SAYS in capsys.readouterr().err


@pytest.mark.parametrize("named", range(1, FEWEST_TRIED + 2))
def test_outsiders_alone_are_nobody_unless_they_are_a_few(made, capsys, named):
    """A refusal says that none of those whom the loop names is in the cohort."""
    with made() as private:
        round_ = next(iter(private))
        outside = [client for client in range(400) if client not in round_.cohort][:named]
        for client in outside * 3:
            round_.add(client, {"w": np.ones(3)})
        assert (SAYS in capsys.readouterr().err) == (named >= FEWEST_TRIED)
        if named >= FEWEST_TRIED:
            with pytest.raises(dp.InputError, match=REFUSED):
                round_.release()
        else:
            assert round_.release()["w"].any()


def test_a_loop_over_the_cohort_hears_nothing(made, capsys):
    with made() as private:
        for round_ in private:
            for client in round_.cohort:
                round_.add(client, None)
            round_.release()
    assert not capsys.readouterr().err
