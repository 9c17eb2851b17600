"""A register of a population: no run beyond the total promise, whatever copies and crashes do."""

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from dpfedmeta.accounting.divergences.rdp import moments_of
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.hash_chain import HashChain, heads_of, read_chain
from dpfedmeta.accounting.ledger.ledger import Budget, phases_of
from dpfedmeta.accounting.ledger.population_register import (
    begin_register,
    check_reserved,
    read_register,
    reserve,
    room_for,
)
from dpfedmeta.accounting.ledger.registered_budget import charged_cost, replaced_cost, replaced_epsilon
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.run_statement import register_lines
from dpfedmeta.core.errors import InputError, RefusedPlan
from tests.conftest import dpfedmeta

PLAN = PrivacyPlan(clients=4000, cohort=20.0, rounds=10, noise_multiplier=2.0, sampler="poisson", client_delta=1e-6)
FIXED = replace(PLAN, sampler="fixed")
WHOLE = replace(FIXED, clients=20)  # every client, every round: a plain Gaussian sum


WHOLE_QUIET = replace(WHOLE, noise_multiplier=40.0)
# Shares of delta that the two counts have.
EXACT, DIVERGED = 0.1, 0.9


@pytest.fixture
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    return begin_register(tmp_path / "people", 4.0, 1e-6).path


def test_the_total_of_gaussian_sums_is_that_of_their_composition(register):
    for number in range(3):
        found = reserve(register, run=f"run-{number}", data="d", plan=WHOLE_QUIET)
    mu = 2 * math.sqrt(30) / 40.0
    order = found.order
    by_order = order * mu**2 / 2 + math.log1p(-1 / order) - math.log(DIVERGED * 1e-6 * order) / (order - 1)
    assert found.renyi == pytest.approx(by_order, rel=1e-9)
    assert found.left == pytest.approx(4.0 - by_order, rel=1e-9)
    # They are of one event, so their exact composition counts: a Gaussian sum.
    assert found.spent == pytest.approx(gaussian_epsilon(mu, EXACT * 1e-6), rel=1e-5)
    assert found.spent < by_order
    assert read_register(register) == found


def gaussian_epsilon(mu, delta):
    """By the closed form (Balle, Wang 2018, https://arxiv.org/abs/1805.06530) and bisection."""

    def beyond(epsilon):
        return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)

    return brentq(lambda epsilon: beyond(epsilon) / delta - 1.0, 0.0, 40.0 * mu, xtol=1e-13)


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize(("cohort", "rounds", "noise"), [(20.0, 10, 2.0), (400.0, 300, 1.5), (4000.0, 3, 30.0)])
def test_the_exact_count_is_no_less_than_replacing_a_client(cohort, rounds, noise, delta):
    """The pair of a client whose update is turned round, on a grid."""
    phases = replace(PLAN, cohort=cohort, rounds=rounds, noise_multiplier=noise).phases
    found = replaced_epsilon(phases, delta)
    rate, x = cohort / 4000.0, np.linspace(-12 * noise, 12 * noise, 400_001)
    one, other = (
        (1 - rate) * np.exp(-(x**2) / (2 * noise**2)) + rate * np.exp(-((x - at) ** 2) / (2 * noise**2))
        for at in (1.0, -1.0)
    )
    loss, mass = np.log(one / other), one / one.sum()
    step = 2e-4 * max(1.0, loss.max())
    lowest = math.floor(loss.min() / step)
    cells = np.bincount(np.floor(loss / step).astype(int) - lowest, mass)  # rounded down: no more than it is
    size = len(cells) * rounds
    composed = np.fft.irfft(np.fft.rfft(cells, size) ** rounds, size).clip(0.0)
    losses = (np.arange(size) + rounds * lowest) * step
    least = np.sum(composed * -np.expm1(np.minimum(0.0, found - losses)))
    assert least <= delta * (1 + 1e-6) + 1e-15
    if rate == 1.0:  # not far from it where everybody takes part
        assert found < 1.15 * gaussian_epsilon(2 * math.sqrt(rounds) / noise, delta)


def test_where_all_releases_are_of_one_event_the_exact_count_admits_what_divergences_do_not(register):
    """Of twice the order, divergences of few that are drawn and little noise are far from tight."""
    one = replace(PLAN, rounds=2, noise_multiplier=0.8)
    for number in range(4):
        found = reserve(register, run=f"run-{number}", data="d", plan=one)
    assert found.spent < 4.0 < found.renyi
    assert "or more of the same rounds as before, until these reach epsilon = 4" in "\n".join(register_lines(found))
    for name, plan in (("other", replace(one, noise_multiplier=0.9)), ("more", replace(one, rounds=100_000))):
        with pytest.raises(RefusedPlan, match="leaves too little"):
            reserve(register, run=name, data="d", plan=plan)
    assert read_register(register) == found
    # A run is counted once in this way too: what it had reserved is its own.
    longer = reserve(register, run="run-0", data="d", plan=replace(one, rounds=4))
    assert sum(each.plan.rounds for each in longer.runs) == 10
    assert found.spent < longer.spent == longer.exact(longer.runs)


def test_one_release_of_another_event_leaves_only_the_divergences(register):
    """Also one whose run was planned again: it may have been made before."""
    quiet = replace(PLAN, rounds=1)
    first = reserve(register, run="a", data="d", plan=quiet)
    assert first.spent < first.renyi
    reserve(register, run="b", data="d", plan=replace(quiet, noise_multiplier=9.0))
    found = reserve(register, run="b", data="d", plan=quiet)
    assert "by exact count" not in "\n".join(register_lines(found))
    assert [each.plan for each in found.runs] == [quiet, quiet]
    assert found.spent == found.renyi
    assert found.exact(found.runs) == math.inf


def test_the_shares_of_delta_make_one(register):
    assert math.isclose(EXACT + DIVERGED, 1.0, abs_tol=1e-12)
    assert 0.0 < EXACT < 1.0


OTHER_CLIENTS = {
    "population.clients": (replace(PLAN, clients=5000), {}),
    "population.kind": (PLAN, {"population.kind": "disjoint"}),
    "population.records": (PLAN, {"population.records": "400"}),
    "run.seed": (PLAN, {"run.seed": "4"}),
    # The first run does not name it.
    "population.most_shots": (PLAN, {"population.most_shots": "9"}),
}
MADE_BY = {"population.kind": "virtual", "population.records": "500", "run.seed": "3"}


@pytest.mark.parametrize("what", OTHER_CLIENTS)
def test_runs_over_other_clients_are_not_added_up(register, what):
    """Nothing is promised of a client who is somebody else in each run."""
    reserve(register, run="mine", data="d", plan=PLAN, made_by=MADE_BY)
    before = register.read_bytes()
    plan, other = OTHER_CLIENTS[what]
    with pytest.raises(InputError, match=rf"counts clients with {what} = .* its clients are others; give {what} = "):
        reserve(register, run="other", data="d", plan=plan, made_by=MADE_BY | other)
    assert register.read_bytes() == before
    again = reserve(register, run="other", data="d", plan=replace(PLAN, rounds=5), made_by=MADE_BY)
    assert [each.made_by for each in again.runs] == [MADE_BY, MADE_BY]
    with pytest.raises(InputError, match=r"population.kind = virtual, but this run has population.kind = none"):
        reserve(register, run="handed over", data="d", plan=PLAN)


@pytest.mark.parametrize("order", [2, 3, 8, 32])
@pytest.mark.parametrize("cohort", [20.0, 4000.0])
def test_replacing_is_out_and_in_by_the_triangle_inequality_of_renyi(order, cohort):
    """D_a(P, R) <= (a - 1/2)/(a - 1) D_2a(P, Q) + D_(2a-1)(Q, R) (Mironov 2017, https://arxiv.org/abs/1702.07476)."""
    plan = replace(PLAN, cohort=cohort)
    twice, less = moments_of(plan.phases, (2 * order, 2 * order - 1))
    due = (order - 0.5) / (order - 1) * twice + less
    assert replaced_cost(plan, order) == pytest.approx(due, rel=1e-9)
    if cohort == 4000.0:  # everybody, each time: a Gaussian sum, whose divergence of order a is a times another number
        gaussian = 10 / (2 * 2.0**2)
        due = (order - 0.5) / (order - 1) * 2 * order * gaussian + (2 * order - 1) * gaussian
        assert charged_cost(plan.phases, order) == pytest.approx(due, rel=1e-6)


def test_a_run_that_adds_or_removes_is_counted_for_replacing():
    for order in (2, 5, 9):  # beyond, the bound is loose
        adds, replaces = replaced_cost(PLAN, order), replaced_cost(FIXED, order)
        # A bound for the pair q N(C) + (1-q) N(0) against q N(-C) + (1-q) N(0), by quadrature.
        rate, noise = 20 / 4000, 2.0
        x = np.linspace(-60, 60, 400_001)
        one, other = (
            np.logaddexp(math.log(rate) - (x - at) ** 2 / (2 * noise**2), math.log1p(-rate) - x**2 / (2 * noise**2))
            for at in (1.0, -1.0)
        )
        integral = np.trapezoid(np.exp(order * one - (order - 1) * other), x) / (noise * math.sqrt(2 * math.pi))
        exact = 10 * math.log(integral) / (order - 1)
        assert exact <= adds * (1 + 1e-9)
        assert adds < 4 * exact + 1e-6
        assert replaces == pytest.approx(moments_of(FIXED.phases, (order,))[0])


def test_a_run_beyond_the_promise_is_refused_and_not_written(register):
    reserve(register, run="first", data="d", plan=PLAN)
    before = register.read_bytes()
    for plan in (replace(PLAN, noise_multiplier=0.4, rounds=500), replace(PLAN, noise_multiplier=None)):
        with pytest.raises(RefusedPlan):
            reserve(register, run="second", data="d", plan=plan)
    assert register.read_bytes() == before
    # Many small runs add up too.
    with pytest.raises(RefusedPlan, match="leaves too little"):
        for number in range(40):
            reserve(register, run=f"run-{number}", data="d", plan=replace(FIXED, cohort=4000.0, noise_multiplier=9.0))
    assert read_register(register).spent <= 4.0


def test_a_run_counts_in_full_once_and_longer_when_it_is_extended(register):
    found = reserve(register, run="mine", data="d", plan=PLAN)
    assert found.spent > 0
    assert reserve(register, run="mine", data="d", plan=PLAN) == found
    longer = reserve(register, run="mine", data="d", plan=replace(PLAN, rounds=20))
    assert longer.runs[0].cost == pytest.approx(2 * found.runs[0].cost)
    assert len(longer.runs) == 1
    with pytest.raises(RefusedPlan):
        reserve(register, run="mine", data="d", plan=replace(PLAN, rounds=2_000_000))


def test_a_run_that_is_planned_again_for_less_counts_as_before(register):
    before = reserve(register, run="run", data="d", plan=WHOLE_QUIET).spent
    assert reserve(register, run="run", data="d", plan=replace(WHOLE_QUIET, rounds=1)).spent == before > 0


def test_identity_is_that_of_the_data(register):
    reserve(register, run="mine", data="d", plan=PLAN)
    with pytest.raises(InputError, match="is of other data"):
        reserve(register, run="other", data="e", plan=PLAN)


def test_a_run_without_a_plain_divergence_is_refused(register):
    plan = replace(PLAN, sampler="check-ins", cohort=400.0, capacity=600, max_participations=1)
    with pytest.raises(RefusedPlan, match="no plain Renyi divergence"):
        reserve(register, run="mine", data="d", plan=plan)


def test_a_register_that_lost_a_line_or_is_an_older_copy_is_refused(register, tmp_path):
    reserve(register, run="one", data="d", plan=PLAN)
    shutil.copy(register, tmp_path / "copy")
    reserve(register, run="two", data="d", plan=PLAN)
    lines = register.read_text().splitlines(keepends=True)
    for path, content in ((register, "".join(lines[:2])), (tmp_path / "copy", None), (register, lines[0])):
        if content is not None:
            path.write_text(content)
        for act in (read_register, lambda path: reserve(path, run="three", data="d", plan=PLAN)):
            with pytest.raises(InputError, match="an older copy, or lines are lost"):
                act(path)
    register.write_text(lines[0] + lines[2])
    with pytest.raises(InputError, match="hash chain breaks"):
        read_register(register)
    register.write_text("".join(lines))
    assert len(read_register(register).runs) == 2
    # The same through a copy that is as new: it is the same register.
    shutil.copy(register, tmp_path / "copy")
    reserve(tmp_path / "copy", run="three", data="d", plan=PLAN)
    with pytest.raises(InputError, match="an older copy"):
        reserve(register, run="four", data="d", plan=PLAN)


def test_a_line_that_a_crash_tore_was_never_reserved(register):
    reserve(register, run="one", data="d", plan=PLAN)
    whole = register.read_bytes()
    with register.open("ab") as file:
        file.write(b'{"run": "two", "da')
    assert len(reserve(register, run="three", data="d", plan=PLAN).runs) == 2
    assert register.read_bytes().startswith(whole)


@pytest.mark.parametrize("failing", ["fsync", "pwrite"])
def test_what_a_disk_does_not_take_whole_is_not_reserved(register, monkeypatch, failing):
    """The line, and the note of this machine that there is one."""
    reserve(register, run="one", data="d", plan=PLAN)
    before = register.read_bytes()

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(InputError, match=r"No space left on device\)$"):
            reserve(register, run="two", data="d", plan=PLAN)
    assert register.read_bytes() == before
    assert [each.run for each in reserve(register, run="three", data="d", plan=PLAN).runs] == ["one", "three"]


TWO = """
import sys
from pathlib import Path
from tests.accounting.ledger.test_population_register import PLAN, reserve
for number in range(8):
    reserve(Path(sys.argv[1]), run=f"{sys.argv[2]}-{number}", data="d", plan=PLAN)
"""


def test_two_processes_at_once_reserve_one_after_the_other(register):
    started = [subprocess.Popen([sys.executable, "-c", TWO, str(register), name]) for name in "ab"]
    assert [each.wait(timeout=120) for each in started] == [0, 0]
    found = read_register(register)
    assert len(found.runs) == 16
    assert found.spent == pytest.approx(reserve(register, run="a-0", data="d", plan=PLAN).spent)


def test_a_promise_is_made_once(register, tmp_path):
    with pytest.raises(InputError, match="keeps its promise"):
        begin_register(register, 9.0, 1e-6)
    for epsilon, delta in ((0.0, 1e-6), (math.nan, 1e-6), (math.inf, 1e-6), (1.0, 0.0), (1e-4, 1e-6)):
        with pytest.raises(InputError):
            begin_register(tmp_path / "new", epsilon, delta)
    assert not (tmp_path / "new").exists()


def test_the_command_shows_what_all_runs_reserved(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    path = tmp_path / "people"
    assert "begin a register" in dpfedmeta("account", "--population", str(path), code=2).error
    shown = dpfedmeta("account", "--population", str(path), "--promise", "4", "1e-6").out
    assert "epsilon = 0 of 4 is reserved by 0 runs" in shown
    found = reserve(path, run="mine", data="d", plan=PLAN)
    shown = " ".join(dpfedmeta("account", "--population", str(path)).out.split())
    assert f"epsilon = {rounded_up(found.spent, 4)} of 4 is reserved by 1 runs" in shown
    assert found.head in shown
    content = json.loads(dpfedmeta("account", "--population", str(path), "--json").out)
    assert content["spent"] == found.spent
    assert "belongs to --population" in dpfedmeta("account", "--promise", "4", "1e-6", code=2).error


AFTER = {
    "nothing": [],
    "the same rounds": [PLAN] * 3,
    "other noise": [PLAN, replace(PLAN, noise_multiplier=3.0)],
    "little left": [replace(PLAN, cohort=400.0, noise_multiplier=1.6)],
}


@pytest.mark.parametrize("held", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("noise", [5.0, 0.9, 0.6, 0.3])
def test_a_plan_is_told_before_the_run_whether_it_fits(register, held, noise):
    """What is told is what `reserve` does, and the noise that is named fits."""
    for number, each in enumerate(held):
        reserve(register, run=f"run-{number}", data="d", plan=each)
    before, plan = register.read_bytes(), replace(PLAN, cohort=400.0, noise_multiplier=noise)
    found, room = read_register(register), room_for(register, plan)
    assert register.read_bytes() == before
    assert f"spend epsilon = {rounded_up(found.spent, 4)} of 4 at delta = 1e-06" in room.words
    if room.remedy is None:
        reserved = reserve(register, run="next", data="d", plan=plan)
        assert room.words.endswith(f": fits, and then epsilon = {rounded_up(reserved.spent, 4)} is spent")
        assert room_for(register, plan, run="next").remedy is None  # it has its room
        return
    with pytest.raises(RefusedPlan, match="leaves too little"):
        reserve(register, run="next", data="d", plan=plan)
    named, epsilon = re.search(
        r"--noise-multiplier (\S+) it does(?:, or with --epsilon (\S+) where)?", room.words
    ).groups()
    louder = replace(plan, noise_multiplier=float(named))
    assert room_for(register, replace(louder, noise_multiplier=0.98 * float(named))).remedy is not None
    if epsilon is None:  # what is left is for the same rounds alone
        assert found.spent < 4.0 < found.renyi
    else:
        assert guarantees(louder)[0].epsilon == pytest.approx(float(epsilon), rel=0.02)
    assert reserve(register, run="next", data="d", plan=louder).spent <= 4.0


def test_a_register_that_no_noise_makes_room_in_says_so(register):
    reserve(register, run="all", data="d", plan=noise_that_costs(register, read_register(register).left))
    assert "does not fit; no noise makes room for it" in room_for(register, replace(WHOLE, rounds=5_000_000)).words
    with pytest.raises(InputError, match=r"counts clients with population\.clients = 20"):
        room_for(register, PLAN)


def test_plan_and_dry_run_say_whether_they_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    path = begin_register(tmp_path / "people.jsonl", 4.0, 1e-6).path
    words = ("--algo", "dp-agr", "--dataset", "strokes", "--clients", "4000", "--cohort", "200", "--rounds", "100")
    words += ("--population.register", str(path))
    for command in (("account",), ("train", "--dry-run")):
        told = dpfedmeta(*command, *words, "--noise-multiplier", "0.6", code=2)
        assert "register people.jsonl: 0 runs in it spend epsilon = 0 of 4" in told.out
        assert "does not fit; with --noise-multiplier 1.36 it does, or with --epsilon 2.29" in told.out
        assert "no room for this plan; with --noise-multiplier 1.36 it does" in told.error
        for followed in (("--noise-multiplier", "1.36"), ("--epsilon", "2.29")):
            assert ": fits, and then epsilon = " in dpfedmeta(*command, *words, *followed).out
    made = json.loads(dpfedmeta("account", *words, "--epsilon", "2.29", "--json").out)
    assert "fits, and then epsilon = " in made["register"]
    assert "begin a register" in dpfedmeta("account", *words[:-1], str(tmp_path / "none"), code=2).error
    reserve(path, run="other", data="d", plan=PLAN, made_by=MADE_BY)
    for command in (("account",), ("train", "--dry-run")):
        assert "its clients are others" in dpfedmeta(*command, *words, code=2).error


def noise_that_costs(register, divergence):
    """Of whole Gaussian rounds: a plan whose divergence of the register's order is this."""
    order = read_register(register).order
    # 10 rounds in which a replaced client moves the sum by 2: 10 order 4 / (2 z^2).
    return replace(WHOLE, noise_multiplier=math.sqrt(20 * order / divergence))


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.2, 0.3, 0.5)])
def test_all_that_is_promised_may_be_spent_and_nothing_beyond(register, shares):
    left = read_register(register).left
    for number, share in enumerate(shares):
        found = reserve(register, run=f"run-{number}", data="d", plan=noise_that_costs(register, share * left))
    assert found.left == pytest.approx(0.0, abs=1e-6)
    assert found.spent == pytest.approx(4.0, rel=1e-6)
    with pytest.raises(RefusedPlan, match="leaves too little"):
        reserve(register, run="more", data="d", plan=noise_that_costs(register, 1e-4 * left))


def test_a_run_that_is_planned_again_is_counted_once_also_where_hardly_anything_is_left(register):
    """What it had reserved is its own; what others did is not."""
    left = read_register(register).left
    for name in ("other", "mine"):
        reserve(register, run=name, data="d", plan=noise_that_costs(register, 0.45 * left))
    longer = noise_that_costs(register, 0.54 * left)
    with pytest.raises(RefusedPlan, match="leaves too little"):
        reserve(register, run="new", data="d", plan=longer)
    found = reserve(register, run="mine", data="d", plan=longer)
    assert found.left == pytest.approx(0.01 * left, rel=1e-3)
    assert [each.run for each in found.runs] == ["other", "mine"]
    assert [each.plan for each in found.runs] == [noise_that_costs(register, 0.45 * left), longer]
    with pytest.raises(RefusedPlan, match="leaves too little"):
        reserve(register, run="mine", data="d", plan=noise_that_costs(register, 0.56 * left))


def test_another_line_in_the_place_of_one_that_was_written_here_is_an_older_copy(register, tmp_path):
    """As many lines as there were, in a chain that holds: one of them was reserved elsewhere."""
    reserve(register, run="one", data="d", plan=PLAN)
    shutil.copy(register, tmp_path / "copy")
    reserve(register, run="two", data="d", plan=PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
        elsewhere = reserve(tmp_path / "copy", run="three", data="d", plan=PLAN)
        reserve(tmp_path / "copy", run="four", data="d", plan=PLAN)
    lines = (tmp_path / "copy").read_text().splitlines(keepends=True)
    for count in (3, 4):
        (tmp_path / "copy").write_text("".join(lines[:count]))
        with pytest.raises(InputError, match=f"has {count} lines, but .* went on to line 3: an older copy"):
            read_register(tmp_path / "copy")
    assert elsewhere.lines == read_register(register).lines == 3


def test_a_register_is_told_by_what_it_holds(register):
    found = reserve(register, run="one", data="digest", plan=PLAN)
    assert (found.path, found.epsilon, found.delta, found.lines) == (register, 4.0, 1e-6, 2)
    (run,) = found.runs
    assert (run.run, run.data, run.plan) == ("one", "digest", PLAN)
    assert run.cost == replaced_cost(PLAN, found.order)
    lines = [json.loads(line) for line in register.read_text().splitlines()]
    assert found.name == lines[0]["register"]
    assert found.head == heads_of(read_chain(register, "register")[0])[-1]
    assert register.stat().st_mode & 0o777 == 0o600
    # Nothing reserved is nothing spent, though an order alone would say otherwise.
    assert begin_register(register.with_name("empty"), 0.9, 1e-6).spent == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (4.0, 1e-6), (4.0, 1e-2), (200.0, 1e-9)])
def test_the_order_of_a_register_is_the_one_by_which_gaussian_noise_is_worth_most(register, epsilon, delta):
    found = begin_register(register.with_name("other"), epsilon, delta)

    def rho(order):
        """Of a Gaussian sum whose divergence of this order is all that is promised."""
        return (epsilon - math.log1p(-1 / order) + math.log(DIVERGED * delta * order) / (order - 1)) / order

    assert rho(found.order) == max(map(rho, range(2, 513)))
    assert found.left == pytest.approx(rho(found.order) * found.order)


def test_a_promise_has_to_be_above_what_an_order_adds(register):
    """At this delta no order leaves anything of a smaller epsilon."""
    least = min(math.log1p(-1 / order) - math.log(DIVERGED * 1e-6 * order) / (order - 1) for order in range(2, 513))
    assert begin_register(register.with_name("a"), least * 1.01, 1e-6).left > 0
    with pytest.raises(InputError, match="is too small to count in at delta = 1e-06"):
        begin_register(register.with_name("b"), least * 0.99, 1e-6)
    for epsilon, delta in ((1.0, 1.0), (1.0, 1.5), (1.0, -1e-9), (-1.0, 1e-6)):
        with pytest.raises(InputError, match="a finite epsilon above 0 and a delta between 0 and 1"):
            begin_register(register.with_name("c"), epsilon, delta)
    with pytest.raises(InputError, match=r"none.new: cannot be written \(No such file"):
        begin_register(register.parent / "none" / "new", 1.0, 1e-6)


@pytest.mark.parametrize("field", ["epsilon", "delta", "order", "register"])
def test_a_register_that_lacks_something_is_none(register, field):
    first = json.loads(register.read_text())
    del first["previous"]
    register.unlink()
    HashChain.start(register, {name: value for name, value in first.items() if name != field})
    with pytest.raises(InputError, match=r"is no register of a population|names its run"):
        read_register(register)


LEDGERS = [
    ({"config": "analysis:\n  kind: quantile\n"}, "is the ledger of an analysis, and no register"),
    ({"config": "algo: dp-agr\n"}, "is the ledger of a run, and no register"),
]


@pytest.mark.parametrize(("identity", "words"), LEDGERS)
def test_the_ledger_of_something_else_is_told_as_what_it_is(register, identity, words):
    path = register.parent / "hh" / "ledger.jsonl"
    path.parent.mkdir()
    HashChain.start(path, {"version": 5, "plan": {}, "identity": identity})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"torn')
    for act in (read_register, lambda path: reserve(path, run="run", data="d", plan=PLAN)):
        with pytest.raises(InputError, match=f"{words}.*account --verify {path.parent}$"):
            act(path)
    assert path.read_bytes() == whole + b'{"torn'
    with pytest.raises(InputError, match=f"hh: is a folder, .*account --verify {path.parent}$"):
        read_register(path.parent)


@pytest.mark.parametrize("content", [b'{"x": 1}', b"a,b\n1,2\n3,4", b"[1]", b"\xff\xfe\n", b"", b'{"identity": 1}'])
def test_a_file_that_is_no_register_stays_as_it_is(register, content):
    path = register.with_name("table.csv")
    path.write_bytes(content)
    for act in (read_register, lambda path: reserve(path, run="run", data="d", plan=PLAN)):
        with pytest.raises(InputError, match=r"table\.csv: is no register of a population; begin one"):
            act(path)
        assert path.read_bytes() == content


def test_reading_a_register_writes_nothing(register, tmp_path, monkeypatch):
    reserve(register, run="one", data="d", plan=PLAN)
    with register.open("ab") as file:
        file.write(b'{"run": "two", "da')
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "of another person"))
    before = sorted((path, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*"))
    assert len(read_register(register).runs) == 1
    assert sorted((path, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")) == before
    # Where something is reserved, the line that was never finished goes.
    assert len(reserve(register, run="three", data="d", plan=PLAN).runs) == 2
    assert register.read_bytes().count(b"\n") == 3
    assert b'"two"' not in register.read_bytes()


def own_budget(plan):
    return Budget.of(guarantees(plan))


# Its first two rounds cost so much that all others may be given up for one more of them.
SCHEDULED = PrivacyPlan(
    clients=2000, cohort=10.0, rounds=40, noise_multiplier=2.0, client_delta=1e-4,
    schedule=(Change(from_round=0, noise_scale=0.5), Change(from_round=2)),
)  # fmt: skip


def attempts_at(plan, round_, count):
    return [replace(planned_charge(plan, round_), attempt=attempt) for attempt in range(count)]


def test_costly_rounds_that_are_done_again_stay_within_what_is_reserved(register):
    """Though the epsilon at the run's own delta would allow them."""
    wide = begin_register(register.with_name("wide"), 4.0, 1e-5).path
    found = reserve(wide, run="mine", data="d", plan=SCHEDULED)
    alone = own_budget(SCHEDULED)
    budget = found.budget("mine", alone)
    two, three = attempts_at(SCHEDULED, 0, 2), attempts_at(SCHEDULED, 0, 3)
    assert alone.allows_charges(SCHEDULED, three)
    assert not budget.allows_charges(SCHEDULED, three)
    assert budget.allows_charges(SCHEDULED, two)
    costs = [charged_cost(phases_of(charges), found.order) for charges in (two, three)]
    assert costs[0] < found.runs[0].cost < costs[1] / 1.4


def test_how_many_rounds_may_follow_is_what_both_limits_allow(register):
    budget = reserve(register, run="mine", data="d", plan=WHOLE_QUIET).budget("mine", own_budget(WHOLE_QUIET))
    done = attempts_at(WHOLE_QUIET, 0, 4)
    assert (
        budget.further_rounds(WHOLE_QUIET, done, 0) == own_budget(WHOLE_QUIET).further_rounds(WHOLE_QUIET, done, 0) == 6
    )
    less = replace(budget, reserved=0.75 * budget.reserved)
    assert [less.further_rounds(WHOLE_QUIET, attempts_at(WHOLE_QUIET, 0, count), 0) for count in (4, 7, 8)] == [3, 0, 0]
    assert replace(budget, limits=(0.0,) * 4).further_rounds(WHOLE_QUIET, done, 0) == 0
    assert (budget.limits, budget.order) == (own_budget(WHOLE_QUIET).limits, read_register(register).order)


def test_a_run_has_the_budget_of_its_own_reservation(register):
    reserve(register, run="other", data="d", plan=replace(PLAN, rounds=5))
    found = reserve(register, run="mine", data="d", plan=PLAN)
    assert found.budget("mine", own_budget(PLAN)).reserved == pytest.approx(2 * found.reserved("other"))
    assert charged_cost((), found.order) == 0.0
    with pytest.raises(InputError, match="does not hold run none; use the register that it was reserved in"):
        found.budget("none", own_budget(PLAN))


def test_what_was_charged_is_compared_with_what_is_reserved(register):
    """A run whose further attempts nobody had limited."""
    found = reserve(register, run="mine", data="d", plan=WHOLE_QUIET)
    charges = tuple(attempts_at(WHOLE_QUIET, 0, 11))

    assert check_reserved(register, "mine", charges[:10]) == [
        f"register: {register} holds no less for this run than it charged"
    ]
    cost = "0.0962[56]"  # 11 rounds of 7 * 2^2 / (2 * 40^2)
    with pytest.raises(InputError, match=rf"order {found.order} for run mine, whose charges cost {cost} \(rounds"):
        check_reserved(register, "mine", charges)
    assert "does not hold this run" in check_reserved(register, "other", charges)[0]
    assert "is not here" in check_reserved(register.with_name("none"), "mine", charges)[0]
