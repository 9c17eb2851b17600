"""The kernel's door: what a caller's own loop gets, and what no crash, copy, liar or second process takes from it."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import phases_of, read_content
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files import atomic_files
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.privacy.charged import release_sum
from dpfedmeta.privacy.clip_policies.window_policy import Window
from dpfedmeta.privacy.rounds.promise import RoundsRequest, plan_of_rounds
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT, RoundSum, form_of
from dpfedmeta.privacy.rounds.stored_release import keep_release, load_release
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from dpfedmeta.privacy.units import message_of
from dpfedmeta.training.verification.verify import left_out
from tests.conftest import dpfedmeta

ROUNDS = 3
MODEL = {"w": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}
GIVEN = {
    "clients": 400, "cohort": 40, "rounds": ROUNDS, "like": MODEL, "noise": "toeplitz",
    "promise": dp.Promise(epsilon=6.0, delta=1e-4), "clip": dp.clip.Constant(initial=1.0),
}  # fmt: skip
SAMPLERS = {
    "poisson": {},
    "fixed": {"noise": "independent"},
    "check-ins": {"noise": "independent", "cohort": 200},
    "cyclic": {"noise": "banded", "separation": 3, "buffers": 2},
    "poisson, blt": {"sampler": "poisson", "noise": "blt", "buffers": 2},
}


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def made(folder, **changes):
    return dp.PrivateRounds(**{**GIVEN, "run_dir": folder / "mine", **changes})


def update(model, client, shift=0.0):
    """A function of the client's own data and of what was released."""
    return {name: np.full(value.shape, client / 400 + shift) - value for name, value in model.items()}


def run(private, function=update, *given):
    """(the model at the end, all releases)."""
    model, releases = dict(MODEL), []
    for round_ in private:
        for client in round_.cohort:
            round_.add(client, function(model, client, *given))
        releases.append(round_.release())
        model = {name: model[name] + 0.5 * releases[-1][name] for name in model}
    return model, releases


def same(left, right):
    pairs = list(zip(left, right, strict=True))
    return bool(pairs) and all(np.array_equal(one[name], other[name]) for one, other in pairs for name in one)


def of_nobody(private):
    """Its first round, of which the noise alone is wanted."""
    private._rounds.added = True
    return next(iter(private))


def charges(folder):
    return read_content(folder / "mine/ledger.jsonl").charges


# The loop as it is written.


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_loop_is_charged_released_verified_and_done_again_from_what_is_stored(tmp_path, sampler):
    with made(tmp_path, **{"sampler": sampler, **SAMPLERS[sampler]}) as private:
        assert private.ended == ""
        model, releases = run(private)
        assert private.ended == "completed"
        assert private.spent.of("client", "public").epsilon <= 6.0
    assert [charge.round for charge in charges(tmp_path)] == [0, 1, 2]
    found = verify_rounds(RunDirectory(tmp_path / "mine"))
    assert found.guarantees == tuple(private.spent) == tuple(private.guarantees)
    other = second_opinion(phases_of(charges(tmp_path)), 1e-4)
    assert any(
        remark.startswith("(client, public) of the same rounds, checked with another") for remark in found.remarks
    ) == (other is not None)
    with made(tmp_path, **{"sampler": sampler, **SAMPLERS[sampler]}) as private:
        assert private.ended == "completed"
        asked = [(round_.cohort, round_.repeated) for round_ in private]
        again = run(private)
    assert asked == [([], True)] * 3
    assert same(again[1], releases)
    assert same([again[0]], [model])
    assert len(charges(tmp_path)) == ROUNDS


@pytest.mark.parametrize(
    "policy",
    [
        dp.clip.Window(initial=1.0, window=2), dp.clip.WindowProducts(initial=1.0, window=2),
        dp.clip.WindowLiteral(initial=1.0, window=2), Window(initial_bound=1.0, window=3),
    ],
)  # fmt: skip
def test_bounds_follow_releases_and_go_on_as_they_would_have(tmp_path, policy):
    bounds = []
    for folder, stops in (("one", ()), ("two", (0, 1, 2))):
        (tmp_path / folder).mkdir()
        found, model, seen = [], dict(MODEL), 0
        while len(found) < ROUNDS:
            with made(tmp_path / folder, clip=policy, noise_seed=5, noise="independent") as private:
                for round_ in private.after(seen):
                    round_.map(update, model)
                    found.append(round_.bound)
                    release = round_.release()
                    model, seen = {name: model[name] + release[name] for name in model}, seen + 1
                    if seen - 1 in stops:
                        break
        bounds.append((found, model))
        # Rounds that come from their files say the bounds that they had.
        with made(tmp_path / folder, clip=policy, noise_seed=5, noise="independent") as private:
            assert [round_.bound for round_ in private] == found
    assert bounds[0][0] == bounds[1][0]
    assert same([bounds[0][1]], [bounds[1][1]])
    assert len(set(bounds[0][0])) > 1


class NoBound(Window):
    """A policy of the user's own that gives what is no bound, and leads nowhere but after a charge."""

    def next_bound(self, state, aggregate):
        return state, 0.0


@pytest.mark.parametrize("like", [None, MODEL])
def test_a_policy_of_ones_own_is_tried_before_any_charge(tmp_path, like):
    wrong = NoBound(initial_bound=1.0, window=3)
    with pytest.raises(InputError, match=r"^PrivateRounds: clip: its next_bound gives 0\.0, expected a number"):
        made(tmp_path, clip=wrong, like=like)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("policy", [dp.clip.Quantile(initial=0.3), dp.clip.Median(initial=0.3, window=2)])
def test_policies_that_count_norms_ride_with_the_sum_and_stay_out_of_the_release(tmp_path, policy):
    with made(tmp_path, clip=policy, noise="independent") as private:
        _, releases = run(private)
        stored = load_release(private.run, 0)
    assert set(releases[0]) == set(MODEL)
    assert set(stored.values) > set(MODEL)
    assert stored.sensitivity > stored.bound
    verify_rounds(RunDirectory(tmp_path / "mine"))


def test_a_promise_for_records_and_one_for_clients_hold_together(tmp_path):
    promises = (dp.Promise(epsilon=6.0, delta=1e-4), dp.Promise(unit="record", epsilon=3.0, delta=1e-7))
    with made(tmp_path, promise=promises, noise="independent") as private:
        assert private.guarantees.of("client", "public").epsilon <= 6.0
        assert 2.9 < private.guarantees.of("record", "public").epsilon <= 3.0
        assert {(cell.unit, cell.delta) for cell in private.guarantees} == {("client", 1e-4), ("record", 1e-7)}
        assert "(client, server)  epsilon inf" in repr(private.guarantees)


def test_releases_are_of_the_models_kind_and_updates_of_any(tmp_path):
    like = {name: torch.from_numpy(value) for name, value in MODEL.items()}

    class Exchanged:
        def __init__(self, value):
            self.value = value

        def __dlpack__(self, **words):
            return self.value.__dlpack__(**words)

        def __dlpack_device__(self):
            return self.value.__dlpack_device__()

    kinds = [
        lambda value: torch.from_numpy(value),
        lambda value: torch.from_numpy(value).bfloat16().requires_grad_(),
        lambda value: Exchanged(value),
        lambda value: value.astype(np.float16),
        lambda value: value.tolist(),
        lambda value: value.astype(np.int32),
    ]
    ones = {name: np.ones(value.shape) for name, value in MODEL.items()}
    totals = []
    for kind in kinds:
        total = RoundSum(form_of(MODEL), 9.0, None, [7])
        total.add(7, {name: kind(value) for name, value in ones.items()})
        assert total.left_out == 0
        totals.append(total.query().value)
    assert same(totals, [totals[0]] * len(kinds))
    with made(tmp_path, like=like) as private:
        released = of_nobody(private).release()
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in released.values())


def test_each_array_is_released_as_the_models_own_is(tmp_path):
    names = list(MODEL)
    for tensor in names:
        like = {name: torch.from_numpy(value) if name == tensor else value for name, value in MODEL.items()}
        with made(tmp_path / tensor, like=like) as private:
            released = of_nobody(private).release()
        assert {name for name, value in released.items() if isinstance(value, torch.Tensor)} == {tensor}
        assert all(isinstance(released[name], np.ndarray) for name in names if name != tensor)


# What an update may be.


class Broken(dict):
    def items(self):
        raise OSError("this client's disk")


NOTHING = [
    None, {}, 3, "w", [1.0], {"w": MODEL["w"]}, {**MODEL, "c": np.zeros(1)}, {"w": MODEL["w"].T, "b": MODEL["b"]},
    {"w": np.full((2, 3), np.nan), "b": MODEL["b"]}, {"w": np.full((2, 3), np.inf), "b": MODEL["b"]},
    {"w": np.full((2, 3), "x"), "b": MODEL["b"]}, {"w": np.zeros((2, 3), complex), "b": MODEL["b"]},
    {"w": np.full((2, 3), None), "b": MODEL["b"]}, {"w": [[1.0], [2.0, 3.0]], "b": MODEL["b"]},
    {"w": np.full((2, 3), 1e300), "b": MODEL["b"]},
    {1: MODEL["w"], "b": MODEL["b"]}, {"w": object(), "b": MODEL["b"]}, Broken(w=MODEL["w"], b=MODEL["b"]),
]  # fmt: skip


@pytest.mark.parametrize("wrong", NOTHING, ids=range(len(NOTHING)))
def test_what_is_no_update_counts_as_zero_without_a_word(wrong, capsys):
    total = RoundSum(form_of(MODEL), 1.0, None, [3, 4])
    total.add(3, wrong)
    total.add(4, update(MODEL, 100))
    alone = RoundSum(form_of(MODEL), 1.0, None, [4])
    alone.add(4, update(MODEL, 100))
    assert same([total.query().value], [alone.query().value])
    assert total.left_out == 1
    assert capsys.readouterr() == ("", "")


def test_nobody_is_added_twice_and_nobody_from_outside():
    once = RoundSum(form_of(MODEL), 1.0, None, [3])
    once.add(3, update(MODEL, 8))
    for _ in range(2):
        once.add(3, update(MODEL, 8))
        once.add(5, update(MODEL, 8))
    other = RoundSum(form_of(MODEL), 1.0, None, [3])
    other.add(3, update(MODEL, 8))
    assert same([once.query().value], [other.query().value])
    assert once.left_out == 4


class Series:
    """As pandas has it, as far as anybody looks."""

    index = ("age", "chol", "bmi", "height")

    def __array__(self, dtype=None, copy=None):
        return np.asarray([1.0, 2.0, 3.0, 4.0], dtype=dtype)

    def to_numpy(self):
        return np.asarray(self)


LOST = {
    "a mask": np.ma.masked_array([1.0, 2, 3, 4], mask=[0, 0, 0, 1]),
    "a list with one": [np.ma.masked_array(1.0, mask=True), 2.0, 3.0, 4.0],
    "names": Series(),
}


@pytest.mark.parametrize("which", LOST)
def test_arrays_that_would_lose_a_mask_or_names_count_as_zero_and_are_told_before(tmp_path, which):
    wrong = {**MODEL, "b": LOST[which]}
    total = RoundSum(form_of(MODEL), 1.0, None, [3])
    total.add(3, wrong)
    assert total.left_out == 1
    with made(tmp_path) as private, pytest.raises(InputError, match=r"b: (a mask|names), .*; hand over a plain array"):
        private.check_update(wrong)
    with pytest.raises(InputError, match=r"like: expected the model.*b: (a mask|names)"):
        made(tmp_path / "other", like=wrong)
    total = RoundSum(form_of(MODEL), 99.0, None, [3])
    total.add(3, {"w": MODEL["w"], "b": np.ma.masked_array(np.ones(4))})
    assert same([total.query().value], [{"w": MODEL["w"], "b": np.ones(4)}])


KEYS = {
    "int": int, "numpy": np.int64, "float": float, "text": str, "tensor": torch.tensor, "0-d array": np.array,
    "array of one": lambda c: np.array([c]), "a loader's batch": lambda c: torch.tensor([c]), "a list": lambda c: [c],
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_a_client_is_known_by_its_number_in_whatever_form(tmp_path, kind):
    with made(tmp_path, noise_seed=3, noise="independent") as private:
        round_ = next(iter(private))
        for client in round_.cohort:
            round_.add(KEYS[kind](client), update(MODEL, client))
        found = round_._asked()[1]
        assert len(found._waiting) == found.left_out == 0


@pytest.mark.parametrize(
    "wrong", [None, "ann", "1.5", 1.5, True, math.nan, math.inf, [1, 2], torch.arange(3), b"x", {}]
)
def test_what_names_no_client_is_refused_before_anything_is_charged(tmp_path, wrong):
    with made(tmp_path) as private:
        with pytest.raises(dp.InputError, match="expected the number of one client"):
            next(iter(private)).add(wrong, MODEL)
        assert not charges(tmp_path)


def test_tensors_are_added_by_their_names_in_whatever_order_they_come():
    sent = {"w": np.arange(6.0).reshape(2, 3), "b": -np.ones(4)}
    for names in (["b", "w"], ["w", "b"]):
        total = RoundSum(form_of(MODEL), 99.0, None, [3])
        total.add(3, {name: sent[name] for name in names})
        assert same([total.query().value], [sent])


BIG = float(np.float32(1e30))


def test_threads_that_bring_one_client_twice_add_it_once(monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from dpfedmeta.privacy.discretised import fixed_point_jit
    from dpfedmeta.privacy.rounds import round_sum

    class Slow(int):
        def __hash__(self):
            time.sleep(0.001)  # another thread's turn, between the look at the name and its end
            return super().__hash__()

    add = fixed_point_jit.add_shortened

    def slowly(values, factor, scale, total):
        own = np.zeros_like(total)
        add(values, factor, scale, own)
        own += total
        time.sleep(0.02)
        total[:] = own

    total, once = (RoundSum(form_of(MODEL), 1.0, None, range(8)) for _ in range(2))
    monkeypatch.setattr(round_sum, "add_shortened", slowly)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda call: total.add(Slow(call // 4), update(MODEL, call // 4)), range(32)))
    for client in range(8):
        once.add(client, update(MODEL, client))
    assert same([total.query().value], [once.query().value])
    assert total.left_out == 24


ROWS = st.lists(
    st.lists(st.floats(-BIG, BIG, width=32) | st.just(math.nan), min_size=10, max_size=10), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, bound=st.floats(1e-3, 1e3), place=st.integers(0, 4), counted=st.booleans())
def test_one_client_moves_the_sum_by_its_sensitivity_at_most_and_order_changes_nothing(rows, bound, place, counted):
    from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound

    attachment = BelowBound(scale=0.7) if counted else None

    def total(clients):
        own = RoundSum(form_of(MODEL), bound, attachment, range(len(rows)))
        for client in clients:
            row = np.array(rows[client])
            own.add(client, {"w": row[:6].reshape(2, 3), "b": row[6:]})
        query = own.query()
        return np.concatenate([value.reshape(-1) for value in query.value.values()]), query.sensitivity

    everybody = range(len(rows))
    whole, sensitivity = total(everybody)
    without, _ = total([client for client in everybody if client != place % len(rows)])
    assert np.linalg.norm(whole - without) <= sensitivity * (1 + 1e-9)
    assert np.array_equal(whole, total(reversed(everybody))[0])


def test_a_client_whose_function_fails_is_zero_and_only_the_private_folder_says_why(tmp_path, capsys):
    def fails(model, client):
        if client % 2:
            raise RuntimeError(f"secret of {client}")
        return update(model, client)

    with made(tmp_path) as private:
        for round_ in private:
            odd = sum(client % 2 for client in round_.cohort)
            round_.map(fails, MODEL)
            round_.release()
            assert left_out(private.run)[round_.number] == odd
    assert "secret of" in (tmp_path / "mine/secret/client-errors.txt").read_text()
    public = [path for path in (tmp_path / "mine").rglob("*") if path.is_file() and "secret" not in path.parts]
    assert len(public) >= 5
    assert not [path for path in public if b"secret of" in path.read_bytes() or LEFT_OUT.encode() in path.read_bytes()]
    assert (tmp_path / "mine/secret/sums.jsonl").stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr() == ("", "")


def test_never_comers_and_an_empty_cohort_are_noise_of_the_planned_deviation(tmp_path):
    with made(tmp_path, like={"w": np.zeros(4000)}, noise="independent") as private:
        private._rounds.added = True
        for round_ in private:
            deviation = np.std(round_.release()["w"])
            assert deviation == pytest.approx(load_release(private.run, round_.number).deviation, rel=0.05)


# The statistics of the real loop.


@pytest.mark.parametrize("noise", ["independent", "toeplitz", "blt"])
def test_the_noise_is_what_is_stated_on_a_known_sum_and_new_in_every_round(tmp_path, noise):
    form = {"w": np.zeros(3000)}
    with made(tmp_path, like=form, noise=noise, sampler="poisson") as private:
        residues, stated = [], []
        for round_ in private:
            direction = np.full(3000, 1 / math.sqrt(3000))
            for client in round_.cohort:
                round_.add(client, {"w": 5.0 * direction})  # clipped to the bound of 1
            expected = len(round_.cohort) * direction / 40
            residues.append(round_.release()["w"] - expected)
            stated.append(load_release(private.run, round_.number).deviation)
    for residue, deviation in zip(residues, stated, strict=True):
        assert np.mean(residue) == pytest.approx(0.0, abs=5 * deviation / math.sqrt(3000))
        assert np.std(residue) == pytest.approx(deviation, rel=0.06)
    if noise == "independent":
        z = read_content(private.run.ledger).plan.noise_multiplier
        assert stated == pytest.approx([z / 40] * ROUNDS)
        assert abs(np.corrcoef(residues)[0, 1]) < 0.1


def test_noise_that_is_not_the_charged_one_never_leaves(tmp_path, monkeypatch):
    from dpfedmeta.privacy.mechanisms import GaussianMechanism
    from dpfedmeta.privacy.noises.independent import Independent

    def weaker(self, round_):
        event = self.event(round_)
        return GaussianMechanism(total_multiplier=0.01, charged_multiplier=0.01, denominator=event.cohort)

    monkeypatch.setattr(Independent, "at", weaker)
    with made(tmp_path, noise="independent") as private, pytest.raises(dp.RefusedPlan, match="nothing was released"):
        of_nobody(private).release()
    assert not list((tmp_path / "mine").glob("releases/*"))


# Crashes.

FEW = {"clients": 60, "cohort": 6, "rounds": 2}


class Killed(BaseException):
    """A power cut: nobody cleans up."""


def with_cut(monkeypatch, number, kind):
    """The `number`-th write of the process fails, or is cut off in its middle; returns the number of writes so far."""
    count = {"writes": 0}
    write, sync = atomic_files._write, os.fsync

    def cut_write(handle, content):
        count["writes"] += 1
        if count["writes"] == number:
            if kind == "torn":
                write(handle, content[: len(content) // 2])
                raise Killed
            raise OSError(28, "No space left on device")
        write(handle, content)

    def cut_sync(handle):
        count["writes"] += 1
        if count["writes"] == number:
            if kind == "torn":
                raise Killed
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(atomic_files, "_write", cut_write)
    monkeypatch.setattr(os, "fsync", cut_sync)
    return count


def lives(folder, number, kind, *, seen, shift=lambda life: 0.0, form=None, **changes):
    """Loops until the rounds are completed; the first life ends at write `number`. Whether it did."""
    ended, handed = False, {}
    for life in range(6):
        with pytest.MonkeyPatch.context() as patch:
            if life == 0:
                with_cut(patch, number, kind)
            try:
                private = made(folder, **changes)
            except (Killed, dp.InputError, OSError):
                ended = True
                continue
            try:
                model = dict(MODEL)
                for round_ in private:
                    for client in round_.cohort:
                        round_.add(client, update(model, client, shift(life)))
                    release = round_.release()
                    handed.setdefault(round_.number, []).append(release)
                    model = {name: model[name] + release[name] for name in model}
            except (Killed, OSError):
                ended = True
                continue
            except dp.InputError:
                # Another sum: the program is run again.
                ended = True
                continue
            finally:
                private.close()
            if private.ended:
                seen.append(handed)
                return ended
    raise AssertionError("never completed")


@pytest.fixture
def noted(monkeypatch):
    """Every use of noise: its key, and the exact sum that it was added to."""
    found = []
    true = release_sum

    def noting(mechanism, round_, secret, remembered, noise):
        found.append((noise.key, b"".join(message_of(secret))))
        return true(mechanism, round_, secret, remembered, noise)

    monkeypatch.setattr("dpfedmeta.privacy.rounds.charged_rounds.release_sum", noting)
    return found


def check_every_write(tmp_path, kind, noted, step, **changes):
    number, ended = 0, True
    while ended:
        number += step
        folder = tmp_path / str(number)
        folder.mkdir()
        seen = []
        ended = lives(folder, number, kind, seen=seen, **changes)
        # Each round has one release, however often it was handed out, and one charge.
        for releases in seen[0].values():
            assert same(releases, releases[:1] * len(releases))
        assert sorted(seen[0]) == [charge.round for charge in charges(folder)]
        assert len(seen[0]) == changes.get("rounds", ROUNDS)
    assert number > 20
    used = {}
    for key, message in noted:
        used.setdefault(key, set()).add(message)
    assert max(map(len, used.values())) == 1


@pytest.mark.parametrize("kind", ["torn", "full"])
def test_at_whatever_write_it_is_cut_off_a_loop_goes_on_and_is_charged_once(tmp_path, kind, noted):
    check_every_write(tmp_path, kind, noted, step=2 if kind == "full" else 1, **FEW)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["toeplitz", "independent", "blt"])
@pytest.mark.parametrize("kind", ["torn", "full"])
def test_at_whatever_write_every_loop_is_cut_off_it_goes_on(tmp_path, noise, kind, noted):
    check_every_write(tmp_path, kind, noted, step=1, noise=noise)


def test_clients_that_answer_otherwise_after_a_crash_never_share_noise_and_are_charged_again(tmp_path, noted):
    again = 0
    for number in range(1, 40):
        folder = tmp_path / str(number)
        folder.mkdir()
        seen = []
        # Numbers of this machine's arithmetic: every life computes others.
        ended = lives(folder, number, "torn", seen=seen, shift=lambda life: 0.01 * life, noise="independent", **FEW)
        for releases in seen[0].values():
            assert same(releases, releases[:1] * len(releases))
        again += sum(charge.attempt for charge in charges(folder))
        assert len(charges(folder)) <= FEW["rounds"]  # a further attempt takes the place of a round
        if not ended:
            break
    used = {}
    for key, message in noted:
        used.setdefault(key, set()).add(message)
    assert max(map(len, used.values())) == 1
    # Somewhere the digest was on disk and the release was not.
    assert again


def lost(folder, number):
    (folder / f"mine/releases/round-{number:06d}.safetensors").unlink()


@pytest.mark.parametrize("gone", [ROUNDS, 2, 1])
@pytest.mark.parametrize("noise", ["independent", "toeplitz"])
def test_the_last_releases_that_are_lost_come_out_again_uncharged(tmp_path, noise, gone):
    """A backup that copied releases before the ledger: later charges are there already."""
    with made(tmp_path, noise=noise) as private:
        _, releases = run(private)
    for number in range(ROUNDS - gone, ROUNDS):
        lost(tmp_path, number)
    with made(tmp_path, noise=noise) as private:
        if noise == "toeplitz" and gone < ROUNDS:
            # The noise that later rounds take back is kept for the next round alone.
            with pytest.raises(InputError, match="no readable state of the noise"):
                run(private)
        else:
            assert same(run(private)[1], releases)
    assert len(charges(tmp_path)) == ROUNDS
    if noise == "toeplitz" and gone < ROUNDS:
        return
    assert f"{ROUNDS} rounds, hash chain intact" in verify_rounds(RunDirectory(tmp_path / "mine")).remarks


def in_a_fork(call):
    """Run a call in a forked process, where it has to be refused."""
    child = os.fork()
    if not child:
        try:
            call()
        except InputError as error:
            os._exit(0 if "in the process that made the rounds" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_neither_adds_nor_releases(tmp_path):
    """What it adds would never reach the sum, and each process would release another one."""
    with made(tmp_path) as private:
        round_ = next(iter(private))
        round_.add(round_.cohort[0], update(MODEL, 0))
        in_a_fork(lambda: round_.add(round_.cohort[1], update(MODEL, 1)))
        in_a_fork(round_.release)
        in_a_fork(lambda: round_.map(update, MODEL))
        assert round_.release() is not None


def test_a_forked_process_begins_no_round_and_ends_nothing(tmp_path):
    """What it wrote would stand in the middle of what its parent writes, and prove nothing from there on."""
    with made(tmp_path) as private:
        rounds = iter(private)
        round_ = next(rounds)
        round_.add(round_.cohort[0], update(MODEL, 0))
        round_.release()
        lines = (tmp_path / "mine" / "ledger.jsonl").read_bytes()

        def leaves():
            with private:
                next(rounds)

        in_a_fork(lambda: next(rounds))
        in_a_fork(leaves)
        assert (tmp_path / "mine" / "ledger.jsonl").read_bytes() == lines
        for round_ in rounds:
            round_.release()
    assert f"{ROUNDS} rounds, hash chain intact" in verify_rounds(RunDirectory(tmp_path / "mine")).remarks


@pytest.mark.parametrize("noise", ["independent", "toeplitz"])
def test_a_lost_release_comes_out_again_from_the_same_sum_and_by_map_anew_from_another(tmp_path, noise, monkeypatch):
    monkeypatch.setattr("dpfedmeta.privacy.rounds.private_round.check_some_work", lambda *given: None)
    changes = {"noise": noise, "rounds": 2}
    with made(tmp_path, **changes) as private:
        first = next(iter(private))
        assert not first.repeated
        cohort = first.cohort
        first.map(update, MODEL)
        release = first.release()
    lost(tmp_path, 0)
    with made(tmp_path, **changes) as private:
        again = next(iter(private))
        again.map(update, MODEL)
        assert again.cohort == cohort
        assert same([again.release()], [release])
    assert len(charges(tmp_path)) == 1
    lost(tmp_path, 0)
    with made(tmp_path, **changes) as private:
        other = next(iter(private))
        asked = []
        other.map(lambda client: asked.append(client) or update(MODEL, client, 0.5))
        if noise == "toeplitz":
            # Noise that is taken back later leaves no room for a further attempt within this promise.
            with pytest.raises(dp.InputError, match="the budget allows no further attempt"):
                other.release()
            return
        assert not same([other.release()], [release])
        assert other.cohort != cohort
        # All that the first cohort was asked, in its order.
        assert asked == [*cohort, *other.cohort]
    assert [(charge.round, charge.attempt) for charge in charges(tmp_path)] == [(0, 0), (0, 1)]


def test_a_loop_that_asked_itself_is_told_to_start_again(tmp_path):
    with made(tmp_path, noise="independent") as private:
        round_ = next(iter(private))
        for client in round_.cohort:
            round_.add(client, update(MODEL, client))
        round_.release()
    lost(tmp_path, 0)
    with made(tmp_path, noise="independent") as private:
        round_ = next(iter(private))
        round_.add(round_.cohort[0], update(MODEL, 1))
        with pytest.raises(dp.InputError, match="run the program again"):
            round_.release()
        with pytest.raises(dp.InputError, match="was begun anew"):
            round_.release()
    with made(tmp_path, noise="independent") as private:
        round_ = next(iter(private))
        round_.map(update, MODEL)
        round_.release()
    assert [charge.attempt for charge in charges(tmp_path)] == [0, 1]


def test_a_round_that_is_used_up_takes_nothing_from_the_one_that_was_begun_after_it(tmp_path):
    with made(tmp_path, noise="independent") as private:
        of_nobody(private).release()
    lost(tmp_path, 0)
    with made(tmp_path, noise="independent") as private:
        stale = of_nobody(private)
        stale.add(stale.cohort[0], update(MODEL, 1))
        with pytest.raises(dp.InputError, match="run the program again"):
            stale.release()
        later = of_nobody(private)
        with pytest.raises(dp.InputError, match="was begun anew"):
            stale.release()
        later.map(update, MODEL)
        later.release()
        assert private.released == 1
    assert [charge.attempt for charge in charges(tmp_path)] == [0, 1]


def test_further_attempts_end_the_rounds_before_the_budget_is_exceeded(tmp_path):
    shift = iter(range(100))
    for _ in range(2):
        with made(tmp_path, noise="independent") as private:
            next(iter(private)).map(lambda client: update(MODEL, client))
            round_ = next(iter(private))
            own = next(shift)
            round_.map(lambda client, own=own: update(MODEL, client, own))
            round_.release()
        lost(tmp_path, 0)
    with made(tmp_path, noise="independent") as private:
        for round_ in private:
            round_.map(lambda client: update(MODEL, client))
            round_.release()
        assert private.ended == "budget"
        assert private.spent.of("client", "public").epsilon <= private.guarantees.of("client", "public").epsilon
    assert len(charges(tmp_path)) == ROUNDS


# Copies, rollbacks, other processes.


def exact(private, number, shift):
    """(release, exact sum over L) of the next round, whose updates are all inside the bound."""
    round_ = next(iter(private.after(number)))
    total = {name: np.zeros(value.shape) for name, value in MODEL.items()}
    for client in round_.cohort:
        own = {name: np.full(value.shape, shift) for name, value in MODEL.items()}
        round_.add(client, own)
        total = {name: total[name] + own[name] for name in total}
    return round_.release(), {name: value / 40 for name, value in total.items()}


@pytest.mark.parametrize("noise", ["independent", "toeplitz"])
def test_a_rolled_back_folder_shares_no_noise_between_two_sums(tmp_path, noise, monkeypatch):
    with made(tmp_path, noise=noise) as private:
        exact(private, 0, 0.01)
        next(iter(private.after(1)))  # round 1 is charged
    shutil.copytree(tmp_path / "mine", tmp_path / "backup")
    noises = []
    for place, shift in (("here", 0.02), ("there", 0.05), ("again", 0.05)):
        shutil.rmtree(tmp_path / "mine")
        shutil.copytree(tmp_path / "backup", tmp_path / "mine")
        monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / place))
        with made(tmp_path, noise=noise) as private:
            release, mean = exact(private, 1, shift)
        noises.append(np.concatenate([(release[name] - mean[name]).reshape(-1) for name in MODEL]))
    assert not np.any(np.isclose(noises[0], noises[1], atol=1e-6))
    # The same sum is the same release.
    assert np.array_equal(noises[1], noises[2])


def test_on_one_machine_a_stale_copy_is_refused(tmp_path):
    with made(tmp_path) as private:
        exact(private, 0, 0.01)
    shutil.copytree(tmp_path / "mine", tmp_path / "backup")
    with made(tmp_path) as private:
        run(private)
    shutil.rmtree(tmp_path / "mine")
    shutil.copytree(tmp_path / "backup", tmp_path / "mine")
    with pytest.raises(dp.InputError, match="a stale copy, or lines are lost"):
        made(tmp_path)


def test_a_release_of_an_attempt_that_was_never_charged_is_nothing_to_go_on_from(tmp_path):
    """The round was charged, and not as often as the release says."""
    with made(tmp_path) as private:
        exact(private, 0, 0.01)
        stored = load_release(private.run, 0, private._rounds._state)
    keep_release(RunDirectory(tmp_path / "mine"), replace(stored, attempt=1))
    with pytest.raises(dp.InputError, match="lacks the charge of round 0, which was released"):
        made(tmp_path)


@pytest.mark.parametrize("deltas", [(1e-4, 1e-9), (1e-9, 1e-4)])
def test_that_a_first_round_is_empty_is_rare_beside_the_smallest_of_all_deltas(monkeypatch, deltas):
    """e to minus the expected cohort is how likely it is: a millionth of delta at most, whoever is promised that."""
    promises = tuple(
        dp.Promise(unit=unit, epsilon=8.0, delta=delta)
        for unit, delta in zip(("client", "record"), deltas, strict=True)
    )
    monkeypatch.setattr(RoundsRequest, "planned", property(lambda self: SimpleNamespace(cohort=self.cohort)))
    for cohort in (28, 34):
        request = RoundsRequest(clients=400, cohort=cohort, rounds=1, promises=promises)
        with pytest.raises(InputError, match="like is missing"):
            request.check_form_known()
    RoundsRequest(clients=400, cohort=35, rounds=1, promises=promises).check_form_known()


def test_two_processes_never_write_the_same_rounds_nor_copies_of_them(tmp_path):
    private = made(tmp_path)
    program = (
        "import dpfedmeta as dp, sys\n"
        "try:\n"
        "    dp.PrivateRounds(clients=400, cohort=40, rounds=3, noise='toeplitz', clip=dp.clip.Constant(initial=1.0),\n"
        "        promise=dp.Promise(epsilon=6.0, delta=1e-4), run_dir=sys.argv[1])\n"
        "except dp.InputError as error:\n"
        "    print(error)\n"
    )
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    # The folder's own lock, where another user has another register; and the register, where the folder is another.
    for folder, state, words in (
        ("mine", "of somebody else", "another process is writing this run; wait"),
        ("copy", "state", "or a copy of it, right now"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / folder)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "DPFEDMETA_STATE": str(tmp_path / state)},
        )
        assert words in done.stdout
    private.close()
    made(tmp_path).close()


def test_the_lock_goes_with_the_last_reference(tmp_path):
    private = made(tmp_path)
    with pytest.raises(dp.InputError, match=r"this process itself holds this run; .* run private.close\(\)"):
        made(tmp_path)
    del private
    made(tmp_path).close()


def test_a_round_that_is_asked_twice_is_released_once(tmp_path):
    with made(tmp_path) as private:
        one, two = next(iter(private)), next(iter(private))
        assert one.cohort == two.cohort
        one.map(update, MODEL)
        release = one.release()
        two.map(lambda client: update(MODEL, client, 0.3))
        assert same([two.release(), one.release()], [release] * 2)
        assert private.released == 1
        third, fourth = next(iter(private.after(1))), next(iter(private.after(1)))
        fourth.map(update, MODEL)
        third.map(update, MODEL)
        assert same([third.release()], [fourth.release()])
        one.add(one.cohort[0], update(MODEL, 1))
        assert same([one.release()], [release])
    assert [charge.round for charge in charges(tmp_path)] == [0, 1]
    verify_rounds(RunDirectory(tmp_path / "mine"))


def test_whole_numbers_of_clients_and_floats_are_the_same_question(tmp_path):
    with made(tmp_path) as private:
        cohort = next(iter(private)).cohort
    with made(tmp_path, cohort=40.0) as private:
        assert next(iter(private)).cohort == cohort
    assert len(charges(tmp_path)) == 1


@pytest.mark.parametrize("seed", [0, 7])
def test_a_chosen_seed_repeats_and_is_no_promise(tmp_path, seed):
    found = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        with made(tmp_path / folder, noise_seed=seed) as private:
            found.append(run(private)[1])
    assert same(*found)
    assert "a simulation" in verify_rounds(RunDirectory(tmp_path / "one/mine")).simulation
    with pytest.raises(dp.InputError, match="began with another noise_seed"):
        made(tmp_path / "one", noise_seed=8)
    with pytest.raises(dp.InputError, match="began with simulation = True, and now it is False"):
        made(tmp_path / "one")


def test_with_the_operating_systems_randomness_every_new_start_is_charged_again(tmp_path):
    for _ in range(2):
        with made(tmp_path, secure_rng=True, noise="independent") as private:
            first, second = next(iter(private)), next(iter(private))
            assert first.cohort == second.cohort  # one process, one attempt
    assert len(charges(tmp_path)) == 2
    assert not (tmp_path / "mine/secret/noise_seed.json").exists()
    with pytest.raises(dp.InputError, match="began with secure_rng = True"):
        made(tmp_path, noise="independent")


def test_noise_follows_from_key_and_fresh_bytes_and_a_charge_is_on_disk_before_the_cohort(tmp_path, monkeypatch):
    seen = []
    true = FreshSource.again

    def noting(self, key, fresh=b""):
        seen.append((len(charges(tmp_path)), fresh))
        return true(self, key, fresh)

    monkeypatch.setattr(FreshSource, "again", noting)
    with made(tmp_path) as private:
        private._rounds.added = True
        for number, round_ in enumerate(private):
            assert len(charges(tmp_path)) == (number and number + 1)  # the first charge waits for the first question
            assert isinstance(round_.cohort, list)
            assert len(charges(tmp_path)) == number + 1
            assert charges(tmp_path)[-1].fresh
            round_.release()
    assert len({fresh for _, fresh in seen if fresh}) == ROUNDS


# Refusals.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 0}, "clients = 0, expected a whole number"),
        ({"promise": None}, r"promise: expected dpfedmeta\.Promise\(\.\.\.\), got None"),
        ({"promise": 5}, r"promise: expected dpfedmeta\.Promise\(\.\.\.\), got 5"),
        (
            {"sampler": "check-ins", "noise": "independent", "cohort": 300.7},
            "cohort = 300.7 with sampler = check-ins: .*; give a whole number",
        ),
        ({"clients": 400.0}, "clients = 400.0, expected a whole number"),
        ({"rounds": True}, "rounds = True, expected a whole number"),
        ({"cohort": 500}, "cohort = 500 is more than clients = 400"),
        ({"cohort": math.nan}, "cohort = nan, expected a number above 0"),
        ({"cohort": 10, "like": None}, "give like=model"),
        ({"like": {"w": ["x"]}}, "like: expected the model"),
        ({"like": MODEL | {"batches": torch.tensor(3)}}, "like: batches: holds whole numbers"),
        ({"like": MODEL | {"a": np.zeros(2, np.uint8), "b": np.int32(1)}}, "like: a, b: holds whole numbers"),
        ({"promise": ()}, "at least one"),
        ({"promise": 4.0}, "expected dpfedmeta.Promise|not iterable"),
        ({"sampler": "shuffled"}, "sampler"),
        ({"sampler": "cyclic", "noise": "banded"}, "separation is missing"),
        ({"sampler": "cyclic", "noise": "banded", "separation": 99, "rounds": 4}, "more groups than rounds"),
        ({"noise": "pink"}, "noise"),
        ({"noise": "own:Noise"}, "has a place in a training"),
        ({"separation": 3, "noise": "independent"}, "separation is of use to correlated noise alone"),
        ({"sampler": "fixed", "max_participations": 2, "noise": "independent"}, "max_participations"),
        ({"clip": dp.clip.Window(initial=1.0, window=9)}, "clip.window = 9 is more than server.rounds"),
        ({"clip": dp.clip.Named("none", initial=1.0)}, "bounds nothing"),
        ({"clip": dp.clip.WindowProducts(initial=1.0, window=2)}, "products of releases measure noise"),
        ({"clip": Window}, "is a class; hand over an object"),
        ({"noise_seed": 3, "secure_rng": True}, "exclude each other"),
        ({"noise_seed": -3}, "noise_seed = -3, expected a whole number"),
        ({"noise_seed": "3"}, "noise_seed = '3', expected a whole number"),
        ({"separation": "3"}, "separation = '3', expected a whole number"),
        ({"max_participations": 0}, "max_participations = 0, expected a whole number"),
        ({"noise": None}, "noise = None, expected a name"),
        ({"clip": "window"}, "expected a policy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_in_a_sentence_and_leaves_nothing(tmp_path, changes, words):
    with pytest.raises((dp.InputError, TypeError), match=words):
        made(tmp_path, **changes)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"unit": "image"}, "expected 'client' or 'record'"),
        ({"observer": "server"}, r"sees each update.*give observer='public', or .*--algo dp-agr-secure"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"epsilon": math.inf}, "epsilon = inf"),
    ],
)
def test_a_promise_that_no_noise_keeps_is_refused(given, words):
    with pytest.raises(dp.InputError, match=words):
        dp.Promise(**{"epsilon": 1.0, "delta": 1e-5, **given})


def test_a_wrong_clip_setting_is_named():
    with pytest.raises(dp.InputError, match=r"clip\.initial"):
        dp.clip.Window(initial=-1.0)


def test_rounds_go_on_with_the_numbers_and_the_model_that_they_began_with(tmp_path):
    with made(tmp_path) as private:
        exact(private, 0, 0.01)
    for changes, words in (
        ({"cohort": 30}, "began with cohort = 40, and now it is 30"),
        ({"clip": dp.clip.Constant(initial=2.0)}, "began with clip"),
        ({"like": {"w": np.zeros(2)}}, "go on with the same model"),
    ):
        with pytest.raises(dp.InputError, match=words):
            made(tmp_path, **changes)
    (tmp_path / "mine/config.yaml").write_text("x")
    (tmp_path / "other").mkdir()
    with pytest.raises(dp.InputError, match="holds no rounds of a loop"):
        made(tmp_path, run_dir=tmp_path / "other")


@pytest.mark.parametrize("step", ["begin", "release"])
def test_after_a_failure_in_between_nothing_goes_on_in_the_same_process(tmp_path, monkeypatch, step):
    with made(tmp_path) as private:
        round_ = next(iter(private))
        for client in round_.cohort:
            round_.add(client, update(MODEL, client))
        if step == "begin":
            round_.release()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, step, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(dp.InputError, match=r"No space left.*make room"):
                next(private.after(1)) if step == "begin" else round_.release()
        with pytest.raises(dp.InputError, match="is closed"):
            next(private.after(1)) if step == "begin" else round_.release()


def test_a_round_is_released_before_the_next_and_no_loop_goes_on_from_what_is_not_released(tmp_path):
    with made(tmp_path) as private:
        with pytest.raises(dp.InputError, match="before the next one"):
            list(private)
        with pytest.raises(dp.InputError, match="no loop goes on after 2"):
            list(private.after(2))
        with pytest.raises(dp.InputError, match="and the model has"):
            private.check_update({"w": np.zeros(3)})
        with pytest.raises(dp.InputError, match="real numbers"):
            private.check_update([3])
        for value in (np.nan, np.inf, 1e200):
            with pytest.raises(dp.InputError, match="length is not finite"):
                private.check_update({name: np.full(np.shape(each), value) for name, each in MODEL.items()})
        private.check_update(MODEL)
        # A length beyond float32 is one that a round clips.
        private.check_update({name: np.full(np.shape(each), 1e30, np.float32) for name, each in MODEL.items()})
    with pytest.raises(dp.InputError, match="is closed"):
        next(iter(private)).release()


# Verification.


def test_the_command_recomputes_a_loop_and_others_say_what_it_is(tmp_path, monkeypatch):
    with made(tmp_path) as private:
        run(private)
    folder = str(tmp_path / "mine")
    shown = dpfedmeta("account", "--verify", folder, "--json").out
    cell = json.loads(shown)["guarantees"][0]
    assert cell["epsilon"] == private.spent.of("client", "public").epsilon
    assert "3 stored releases, each charged" in dpfedmeta("account", "--verify", folder).out
    assert "clients that took part" in dpfedmeta("account", "--realised", folder).out
    assert "rounds of a loop of your own" in dpfedmeta("train", "--resume", folder, code=2).error


def tampered(folder, change):
    path = folder / "mine/plan.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def texts_in(content, place):
    """The place of each text under a name."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(value, dict | list):
            yield from texts_in(value, (*place, key))
        elif isinstance(value, str) and isinstance(content, dict):
            yield (*place, key)


def test_what_is_stated_beside_the_ledger_is_compared_with_it(tmp_path):
    with made(tmp_path) as private:
        run(private)
    mine = RunDirectory(tmp_path / "mine")
    plan = (tmp_path / "mine/plan.json").read_bytes()
    tampered(tmp_path, lambda content: content["planned"][0].update(epsilon=1.0))
    with pytest.raises(dp.InputError, match="planned"):
        verify_rounds(mine)
    # A sentence says what is promised, and is compared like the number beside it.
    texts = list(texts_in(json.loads(plan), ()))
    assert {"event", "formula", "method", "unit", "sampler"} <= {place[-1] for place in texts}
    for *places, last in texts:
        (tmp_path / "mine/plan.json").write_bytes(plan)
        at = partial(reduce, getitem, places)
        tampered(tmp_path, lambda content, at=at, last=last: at(content).update({last: "0"}))
        with pytest.raises(dp.InputError, match=rf"plan\.json: .*({last}: states '0'|the cells: states .*), but"):
            verify_rounds(mine)
    (tmp_path / "mine/plan.json").write_bytes(plan)
    release = tmp_path / "mine/releases/round-000001.safetensors"
    content = release.read_bytes()
    release.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(dp.InputError, match="damaged"):
        verify_rounds(mine)
    release.unlink()
    with pytest.raises(dp.InputError, match="is missing, and later releases are there"):
        verify_rounds(mine)


def test_a_release_that_states_less_noise_than_is_charged_is_found(tmp_path):
    with made(tmp_path) as private:
        run(private)
    mine = RunDirectory(tmp_path / "mine")
    stored = load_release(mine, 1, private._rounds._state)
    for changes, words in (
        ({"deviation": stored.deviation / 2}, "deviation of round 1"),
        (
            {"sensitivity": stored.bound / 2, "deviation": stored.deviation / 2},
            "states a sensitivity of 0.5 for a bound of 1",
        ),
        ({"attempt": 3}, "no charge in the ledger"),
        ({"head": "0" * 64}, "no charge in the ledger"),
    ):
        keep_release(mine, replace(stored, **changes))
        with pytest.raises(dp.InputError, match=words):
            verify_rounds(mine)


def test_a_ledger_of_another_plan_than_was_asked_for_is_found(tmp_path, monkeypatch):
    planned = vars(RoundsRequest)["planned"].fget

    def half(self):
        return replace(planned(self), noise_multiplier=planned(self).noise_multiplier / 2)

    with monkeypatch.context() as patch:
        patch.setattr(RoundsRequest, "planned", property(half))
        made(tmp_path, noise="independent").close()
    mine = RunDirectory(tmp_path / "mine")
    # Whoever wrote it puts an honest plan beside it.
    request = RoundsRequest.from_text(read_content(mine.ledger).identity.config, "")
    mine.write_json("plan.json", plan_of_rounds(request))
    with pytest.raises(dp.InputError, match=r"ledger.jsonl: plan"):
        verify_rounds(mine)
    with pytest.raises(dp.RefusedPlan, match="another plan"):
        made(tmp_path, noise="independent")


# The kernel is small and needs no PyTorch.

WITHOUT_TORCH = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "opacus", "wandb", "matplotlib", "rich"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Without())
import numpy as np
import dpfedmeta as dp

private = dp.PrivateRounds(
    clients=400, cohort=40, rounds=2, noise=sys.argv[1], clip=dp.clip.Median(initial=1.0, window=2),
    promise=dp.Promise(epsilon=6.0, delta=1e-4), run_dir=sys.argv[2],
)
for round in private:
    round.map(lambda client: {"w": np.ones(5)})
    round.release()
private.close()
for name in sorted(sys.modules):
    if name.startswith("dpfedmeta"):
        print(name, sys.modules[name].__file__)
"""
ABOVE = (
    "learning", "planning", "simulation", "training", "analytics", "auditing", "reporting", "federation", "api", "cli",
)  # fmt: skip


@pytest.mark.parametrize("noise", ["independent", "banded"])
def test_the_kernel_runs_without_torch_and_loads_nothing_above_it(tmp_path, noise):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, noise, str(tmp_path / "mine")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert "dpfedmeta.privacy.rounds.private_rounds" in loaded
    assert not [name for name in loaded if name.partition(".")[2].partition(".")[0] in ABOVE]
    lines = sum(Path(file).read_text().count("\n") for file in loaded.values())
    # docs/kernel.md says what is in it; it grew last for own policies' states and edited functions.
    assert 5_000 < lines <= 12_600, f"{len(loaded)} files, {lines} lines"


def test_the_example_of_the_class_runs():
    import doctest

    from dpfedmeta.privacy.rounds import private_rounds

    found = doctest.testmod(private_rounds)
    assert found.attempted > 5
    assert not found.failed


@pytest.mark.parametrize("scope", ["flat", "per-layer"])
def test_layers_are_clipped_as_the_clip_settings_say(tmp_path, scope):
    """One layer of length 3 and one of 0.1, under a bound of 1."""
    clip = ClipSettings(policy="constant", initial=1.0, scope=scope)
    long, short = np.full(9, 1.0), np.full(4, 0.05)
    like = {"long.weight": np.zeros_like(long), "short.weight": np.zeros_like(short)}
    due = (math.sqrt(0.5), 0.1) if scope == "per-layer" else (3.0 / math.sqrt(9.01), 0.1 / math.sqrt(9.01))
    with made(tmp_path, clip=clip, like=like, noise_seed=5, noise="independent") as private:
        round_ = next(iter(private))
        round_.add(round_.cohort[0], {"long.weight": long, "short.weight": short})
        found = round_._asked()[1].query().value
    assert [float(np.linalg.norm(found[name])) for name in like] == pytest.approx(due, rel=1e-3)


@pytest.mark.parametrize("secure", [False, True])
def test_a_ledger_says_whether_all_is_the_operating_system_s_and_rounds_go_on_so(tmp_path, secure):
    """Without that word a loop that was started again would look for a seed that was never kept."""
    with made(tmp_path, secure_rng=secure, noise="independent") as private:
        first = next(iter(private))
        first.add(first.cohort[0], update(MODEL, 1))
        released = first.release()
    assert read_content(tmp_path / "mine/ledger.jsonl").identity.secure == secure
    assert (tmp_path / "mine/secret/noise_seed.json").exists() != secure
    with made(tmp_path, secure_rng=secure, noise="independent") as private:
        again = next(iter(private))
        assert again.number == 0
        assert same([again.release()], [released])


def test_rounds_that_an_earlier_version_began_with_half_a_place_are_read(tmp_path):
    """It cut the half off, and their ledger is right."""
    given = {"sampler": "check-ins", "noise": "independent"}
    made(tmp_path, **given, cohort=300).close()
    folder = tmp_path / "mine"
    request = RoundsRequest.from_text(read_content(folder / "ledger.jsonl").identity.config, "")
    older = replace(request, cohort=300.7)
    assert RoundsRequest.from_text(older.as_text(), "") == older
    assert older.planned == request.planned


# What people hand over in the place of a policy, a noise or a number.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": 1.0}, r"clip = 1\.0: expected a policy, such as dp\.clip\.Constant"),
        ({"clip": "window"}, "clip = 'window': expected a policy"),
        ({"clip": None}, "clip = None: expected a policy"),
        ({"run_dir": None}, "run_dir = None: expected a folder for the ledger and the releases"),
        ({"noise": "gaussian"}, r"noise = 'gaussian': unknown; known are independent, .*\(all are Gaussian\)"),
        ({"cohort": 0.1}, r"cohort = 0\.1: is a number of clients, at least 1; for a share of 0\.1 give cohort=40"),
    ],
)
def test_what_is_meant_otherwise_is_told_what_to_type(tmp_path, changes, words):
    with pytest.raises(InputError, match=words) as refused:
        made(tmp_path, **changes)
    assert "PYTHONPATH" not in str(refused.value)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("numbers", [(4.0,), (4.0, 1e-5), ("client", "public", 4.0, 1e-5)])
def test_a_promise_without_names_is_told_them(numbers):
    with pytest.raises(InputError, match=r"without a name; as in Promise\(epsilon=4\.0, delta=1e-5\)"):
        getattr(dp, "Promise")(*numbers)  # noqa: B009


def test_of_a_changed_clip_policy_what_differs_is_said(tmp_path):
    made(tmp_path, clip=dp.clip.Window(initial=0.5, window=3), noise="independent").close()
    with pytest.raises(InputError, match=r"mine: began with clip = initial=0\.5, and now it is initial=0\.25; go on"):
        made(tmp_path, clip=dp.clip.Window(initial=0.25, window=3), noise="independent")


def test_a_bound_may_be_given_by_its_place():
    assert dp.clip.Constant(1.0) == dp.clip.Constant(initial=1.0)
    assert dp.clip.Window(1.0, window=5) == dp.clip.Window(initial=1.0, window=5)
    for policy in (dp.clip.WindowProducts, dp.clip.WindowLiteral, dp.clip.Quantile, dp.clip.Median):
        assert policy(0.5) == policy(initial=0.5)


@pytest.mark.parametrize("number", [9, 14, 20])
def test_a_full_disk_is_one_line_that_says_how_to_go_on(tmp_path, number):
    with pytest.MonkeyPatch.context() as patch:
        with_cut(patch, number, "full")
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); make room, and start"):
            private = made(tmp_path)
            try:
                run(private)
            finally:
                private.close()
    with made(tmp_path) as private:
        run(private)
    assert [charge.round for charge in charges(tmp_path)] == [0, 1, 2]
