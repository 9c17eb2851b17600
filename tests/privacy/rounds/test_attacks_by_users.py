"""Loops as people write them, and what their mistakes must not cost: policies, updates, edits, copies, sums."""

import decimal
import fractions
import json
import shutil
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import phases_of, read_content
from dpfedmeta.accounting.observers.four_guarantees import client_public_epsilon
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.params import norm
from dpfedmeta.core.plugins.own_function import FEWEST_TRIED
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from tests.conftest import dpfedmeta

SMALL = {
    "clients": 1000, "cohort": 100, "rounds": 3, "like": {"w": np.zeros(3)}, "noise_seed": 3,
    "promise": dp.Promise(epsilon=4.0, delta=1e-5),
}  # fmt: skip


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def update(client):
    return {"w": np.full(3, client % 7)}


# A policy of one's own: whatever kind of number it gives, a run that was cut off ends as one that was not.


@dataclass(frozen=True, kw_only=True)
class Bound:
    bound: float
    before: tuple[float, ...] = ()
    passed: float | None = None
    mode: str = "following"


@dataclass(frozen=True, kw_only=True)
class Following:
    """The next bound follows the release; each number of its answer is of the kind that `kinds` names."""

    kinds: tuple[str, ...]
    attachment: None = None

    def initial(self):
        return Bound(bound=0.5)

    def next_bound(self, state, aggregate):
        now = float(norm(aggregate.value)) / 6 + 0.25
        bound, kept, before, first = (KINDS[kind] for kind in self.kinds)
        # Passed on from round to round, and so through a file where the run was cut off.
        passed = first(2.0) if state.passed is None else state.passed
        return Bound(bound=kept(now), before=(*state.before, before(now)), passed=passed), bound(now)


KINDS = {
    "float": float,
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "80 bits": np.longdouble,
    "array": np.array,
    "array of float32": lambda value: np.array(value, dtype=np.float32),
    "tensor": torch.tensor,
    "whole": lambda value: 1,
    "numpy's whole": lambda value: np.int64(1),
    "one-element array": lambda value: np.array([value]),
    "complex": complex,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
}
TAKEN = list(KINDS)[:10]


def policy_run(path, kind, place, stop=None):
    kinds = ["float"] * 4
    kinds[place] = kind
    found = []
    with dp.PrivateRounds(**SMALL, clip=Following(kinds=tuple(kinds)), run_dir=path) as private:
        for round_ in private:
            if round_.number == stop:
                return found
            round_.map(update)
            found.append((round_.bound, round_.release()["w"].tobytes()))
    return found


@pytest.mark.parametrize("place", [0, 1, 2, 3], ids=["bound", "state", "tuple", "passed on"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_policy_of_ones_own_are_floats_or_refused_before_a_charge(tmp_path, kind, place):
    if kind not in TAKEN and not (kind == "Fraction" and place == 0):
        with pytest.raises(InputError, match="PrivateRounds: clip: its next_bound gives "):
            policy_run(tmp_path / "whole", kind, place)
        assert not (tmp_path / "whole").exists()
        return
    whole = policy_run(tmp_path / "whole", kind, place)
    assert len(whole) == 3
    assert {type(bound) for bound, _ in whole} == {float}
    cut = tmp_path / "cut"
    policy_run(cut, kind, place, 2)
    # It is computed again, and has the digest that the ledger holds.
    (cut / "releases/round-000001.safetensors").unlink()
    assert policy_run(cut, kind, place) == whole
    assert len(read_content(cut / "ledger.jsonl").charges) == 3
    verify_rounds(RunDirectory(cut))


# An edited loop: what is refused or said comes before anything more is charged.

LIVE = SMALL | {"noise_seed": None, "rounds": 6, "clip": dp.clip.Constant(1.0)}


def doubled(client):
    return {"w": np.full(3, 2.0 * (client % 7))}


def added(round_, function):
    for client in round_.cohort:
        round_.add(client, function(client))


def mapped(round_, function):
    round_.map(function)


def some_rounds(path, do, function, stop=None, after=0, **changes):
    with dp.PrivateRounds(**LIVE | changes, run_dir=path) as private:
        for round_ in private.after(after):
            if round_.number == stop:
                break
            do(round_, function)
            round_.release()
    return charged(path)


def charged(path):
    return len(read_content(path / "ledger.jsonl").charges)


@pytest.mark.parametrize("after", [0, 2], ids=["from the first", "after(2)"])
def test_an_edited_function_spends_nothing_of_what_is_left(tmp_path, after):
    path = tmp_path / "mine"
    before = some_rounds(path, mapped, update, 2)
    for function in (doubled, lambda client: 1 / 0):
        with pytest.raises(
            InputError, match=r"\(2\) are not done again, and all others would be charged for the edited"
        ):
            some_rounds(path, mapped, function, after=after)
        assert charged(path) == before == 3  # the third was begun
    # Its owner may want it, and it is then the function of these rounds.
    assert some_rounds(path, mapped, doubled, 4, after, changed_code=True) == 5
    with pytest.raises(InputError, match=r"\(4\) are not done again"):
        some_rounds(path, mapped, lambda client: 1 / 0, after=4)
    assert some_rounds(path, mapped, doubled) == LIVE["rounds"]
    some_rounds(path, mapped, lambda client: 1 / 0)  # all come from disk, and nothing is left to spend


def test_a_loop_that_asks_clients_itself_is_told_before_more_is_charged(tmp_path, capsys):
    path = tmp_path / "mine"
    some_rounds(path, added, update, 2)
    assert capsys.readouterr().err == ""
    with dp.PrivateRounds(**LIVE, run_dir=path) as private:
        next(iter(private)).release()
        said = capsys.readouterr().err
        assert "rounds 0 to 1 come from disk, and nobody is asked." in said
        assert "If the loop was edited, stop it and give another run_dir: 4 more would be charged." in said
    assert charged(path) == 3  # the third was begun


def test_a_loop_with_two_functions_goes_on_with_either(tmp_path):
    path = tmp_path / "mine"
    with dp.PrivateRounds(**LIVE, run_dir=path) as private:
        for round_ in private:
            if round_.number == 4:
                break
            round_.map(update if round_.number < 2 else doubled)
            round_.release()
    assert some_rounds(path, mapped, doubled) == LIVE["rounds"]


def test_an_edited_function_is_refused_by_the_object_that_was_there_before(tmp_path):
    """A notebook's cell with the loop alone: its rounds so far are another function's."""
    path = tmp_path / "mine"
    with dp.PrivateRounds(**LIVE, run_dir=path) as private:
        for round_ in private:
            round_.map(update)
            round_.release()
            if round_.number == 1:
                break
        for after in (0, 2):
            with closing(private.after(after)) as again, pytest.raises(InputError, match=r"\(2\) are not done again"):
                next(again).map(doubled)
            assert charged(path) <= 3  # the third was begun
        for round_ in private.after(2):
            round_.map(update)
            round_.release()
    assert charged(path) == LIVE["rounds"]


def test_a_function_that_was_interrupted_in_its_first_round_excuses_no_edited_one(tmp_path):
    """It released nothing, so the rounds so far are those of the one that came after it."""
    path = tmp_path / "mine"

    asked = []

    def interrupted(client):
        asked.append(client)
        if len(asked) > FEWEST_TRIED:  # those are tried before the charge
            raise KeyboardInterrupt
        return update(client)

    with pytest.raises(KeyboardInterrupt):
        some_rounds(path, mapped, interrupted)
    assert charged(path) == 1
    assert some_rounds(path, mapped, update, 2) == 3
    for function in (doubled, interrupted):
        with pytest.raises(InputError, match=r"\(2\) are not done again"):
            some_rounds(path, mapped, function)
    assert charged(path) == 3


def test_a_second_function_in_one_round_is_refused(tmp_path):
    """It added nothing, without a word: each client had sent its update."""
    path = tmp_path / "mine"
    with dp.PrivateRounds(**LIVE, run_dir=path) as private:
        for round_ in private:
            round_.map(update)
            with pytest.raises(InputError, match="map was called before in this round"):
                round_.map(doubled)
            round_.release()
    assert some_rounds(path, mapped, update) == LIVE["rounds"]


# Updates and models that are not finite.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
def test_what_is_not_finite_is_told_of_before_a_charge_and_of_one_client_never(tmp_path, value, capsys):
    def fails_for(clients):
        return lambda client: {"w": np.full(3, value if client in clients else 1.0)}

    tries = {
        "everybody": lambda round_: round_.map(fails_for(range(1000))),
        "rehearse": lambda round_: round_.map(fails_for([-1]), rehearse=-1),
    }
    if not np.isfinite(value):  # 1e308 has no finite length, and is a number
        tries["model"] = lambda round_: round_.map(lambda model, client: update(client), {"w": np.full(3, value)})
    for name, attempt in tries.items():
        with dp.PrivateRounds(**LIVE, run_dir=tmp_path / name) as private:
            with pytest.raises(InputError, match="not finite"):
                attempt(next(iter(private)))
            with pytest.raises(InputError, match="not finite; it would count as zero"):
                private.check_update({"w": np.full(3, value)})
        assert charged(tmp_path / name) == 0
    # One client's data are nobody's business: its update is zero, without a word.
    assert some_rounds(tmp_path / "one", mapped, fails_for([0, 7])) == LIVE["rounds"]
    with dp.PrivateRounds(**LIVE, run_dir=tmp_path / "data") as private:
        next(iter(private)).map(lambda data, client: update(client), {client: {"w": value} for client in range(9)})
    assert capsys.readouterr().err == ""


def test_a_model_that_diverged_costs_one_round_and_not_all_that_are_left(tmp_path):
    path, model = tmp_path / "mine", {"w": np.zeros(3)}
    with (
        dp.PrivateRounds(**LIVE, run_dir=path) as private,
        np.errstate(all="ignore"),
        pytest.raises(InputError, match="round 2: the model given to map is not finite"),
    ):
        for round_ in private:
            round_.map(lambda model, client: update(client), model)
            model = {"w": round_.release()["w"].astype(np.float64) * 1e300 + model["w"] * 1e20}
    assert charged(path) == 3


# One client in several loops.


def test_several_loops_over_the_same_clients_add_up_and_copies_of_one_do_not(tmp_path):
    given = {"clients": 1000, "cohort": 100, "rounds": 3}
    for name, changes in {
        "one": {},
        "two": {"rounds": 5},
        "banded": {"noise": "toeplitz"},
        "few": {"clients": 900},
    }.items():
        some_rounds(tmp_path / name, mapped, update, **given | changes)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")

    def verified(*names, **how):
        return dpfedmeta("account", "--verify", *(str(tmp_path / name) for name in names), **how)

    said = verified("one", "two").out
    charges = [read_content(tmp_path / name / "ledger.jsonl").charges for name in ("one", "two")]
    together = client_public_epsilon([phase for each in charges for phase in phases_of(each)], 1e-5)
    assert 4.0 < together < 8.0
    assert f"add-remove, delta = 1e-05: epsilon = {rounded_up(together, 4)}; at most " in said
    assert "If client k is the same client in each (no ledger says so)" in said
    assert "verified: " in said
    content = json.loads(dpfedmeta("account", "--verify", *(str(tmp_path / n) for n in ("one", "two")), "--json").out)
    assert content["client_public"] == together
    assert " for one alone" in verified("one", "banded").out
    assert "holds the same rounds as" in verified("one", "copy", code=2).error
    assert "these loops differ in clients" in verified("one", "few", code=2).error
