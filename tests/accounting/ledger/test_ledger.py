import json
import math
import os
from dataclasses import replace

import pytest

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.ledger import ledger as ledger_module
from dpfedmeta.accounting.ledger.charges import Closing, planned_charge
from dpfedmeta.accounting.ledger.hash_chain import VERSION
from dpfedmeta.accounting.ledger.ledger import (
    Budget,
    Ledger,
    RunIdentity,
    check_rounds,
    head,
    phases_of,
    read,
    read_content,
    spent,
)
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.atomic_files import whole_lines
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.random_sources import KeyedSource

LAYER = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=1, support_records=25, query_records=25)
PLAN = PrivacyPlan(clients=10_000, cohort=50, rounds=8, noise_multiplier=0.8, max_participations=1, record=LAYER)


def written(path, rounds=8, plan=PLAN):
    ledger = Ledger(path, plan)
    for round_ in range(rounds):
        ledger.charge(planned_charge(plan, round_))
    return path


SCHEDULED = replace(PLAN, schedule=(Change(from_round=3, noise_scale=0.9, cohort_scale=2.0),))
PLANS = [
    PLAN,
    SCHEDULED,
    replace(SCHEDULED, record=None, max_participations=None),
    replace(PLAN, noise_mode="stacked"),
    replace(PLAN, sampler="fixed", max_participations=None),
    replace(SCHEDULED, sampler="fixed", record=None, max_participations=None, colluding=7),
    replace(PLAN, noise_multiplier=None, record=None),
]


@pytest.mark.parametrize("plan", PLANS)
def test_after_a_full_run_spent_equals_planned(tmp_path, plan):
    assert spent(*read(written(tmp_path / "l", plan=plan))) == guarantees(plan)


def test_half_a_run_costs_less(tmp_path):
    half = spent(*read(written(tmp_path / "l", rounds=4)))
    assert half[0].epsilon < guarantees(PLAN)[0].epsilon


def test_a_line_is_on_disk_when_charge_returns(tmp_path):
    ledger = Ledger(tmp_path / "l", PLAN)
    for round_ in range(3):
        ledger.charge(planned_charge(PLAN, round_))
        assert len(read(tmp_path / "l")[1]) == round_ + 1


def test_a_ledger_is_never_overwritten(tmp_path):
    written(tmp_path / "l")
    with pytest.raises(FileExistsError):
        Ledger(tmp_path / "l", PLAN)


@pytest.mark.parametrize("line", range(1, 9))
def test_an_edited_line_is_found(tmp_path, line):
    path = written(tmp_path / "l")
    lines = path.read_text().splitlines()
    body = json.loads(lines[line])
    body["noise_multiplier"] = 9.9
    lines[line] = json.dumps(body, sort_keys=True)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises((InputError, RefusedPlan), match=r"line|round"):
        spent(*read(path))


@pytest.mark.parametrize("line", range(8))
def test_a_lost_line_in_the_middle_is_found(tmp_path, line):
    path = written(tmp_path / "l")
    lines = path.read_text().splitlines()
    del lines[line]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=f"line {line + 1}"):
        read(path)


def test_a_truncated_line_is_found(tmp_path):
    path = written(tmp_path / "l")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match="truncated"):
        read(path)


@pytest.mark.parametrize("content", ["", "\n", "{}\n", "[]\n", "nonsense\n", '{"previous": 3}\n'])
def test_what_is_no_ledger_is_said_so(tmp_path, content):
    (tmp_path / "l").write_text(content)
    with pytest.raises(InputError):
        read(tmp_path / "l")


def test_a_missing_ledger_is_said_so(tmp_path):
    with pytest.raises(InputError, match="run directory"):
        read(tmp_path / "l")


def test_a_round_beyond_the_plan_is_refused():
    charges = [planned_charge(PLAN, number) for number in range(PLAN.rounds)]
    with pytest.raises(RefusedPlan, match=f"round {PLAN.rounds} of the ledger is not the mechanism of the plan"):
        spent(PLAN, [*charges, replace(charges[-1], round=PLAN.rounds)])


def test_a_ledger_of_another_plan_is_not_gone_on_with(tmp_path):
    run = RunDirectory(tmp_path)
    written(run.ledger)
    assert open_ledger(run, PLAN, KeyedSource(1), None, None).content.plan == PLAN
    for other in (replace(PLAN, rounds=PLAN.rounds + 1), replace(PLAN, client_delta=PLAN.client_delta / 2)):
        with pytest.raises(RefusedPlan, match="another plan here than the ledger states"):
            open_ledger(run, other, KeyedSource(1), None, None)


def test_an_event_of_another_mechanism_is_never_approximated():
    first = planned_charge(PLAN, 0)
    event = replace(first, event=replace(first.event, noise=GaussianNoise(multiplier=0.1)))
    with pytest.raises(RefusedPlan, match="round 0"):
        spent(PLAN, (event,))


def test_the_budget_stops_before_the_limit():
    smaller = Budget.of(guarantees(replace(PLAN, rounds=8), rounds=3))
    affordable = smaller.affordable_rounds(PLAN)
    assert affordable == 3
    assert smaller.allows(guarantees(PLAN, rounds=3))
    assert not smaller.allows(guarantees(PLAN, rounds=4))
    assert Budget.of(guarantees(PLAN)).affordable_rounds(PLAN) == 8


@pytest.mark.parametrize("cell", range(4))
def test_every_cell_is_held_to_its_limit_to_the_last_digit(cell):
    cells = guarantees(PLAN)
    limits = [guarantee.epsilon for guarantee in cells]
    assert Budget(limits=tuple(limits)).allows(cells)
    limits[cell] *= 1 - 1e-9
    assert not Budget(limits=tuple(limits)).allows(cells)


def test_a_charge_that_did_not_reach_the_disk_is_no_charge(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "l", PLAN)
    head, lines = ledger.head, ledger.lines

    def full(handle):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            ledger.charge(planned_charge(PLAN, 0))
    assert (ledger.charges, ledger.head, ledger.lines) == ([], head, lines)
    assert read(tmp_path / "l")[1] == ()
    ledger.charge(planned_charge(PLAN, 0))
    assert read(tmp_path / "l")[1] == (planned_charge(PLAN, 0),)


def test_the_budget_guard_fails_closed_on_nan():
    cells = tuple(replace(g, bounds=(replace(g.bounds[0], epsilon=float("nan")),)) for g in guarantees(PLAN))
    assert not Budget(limits=(float("inf"),) * 4).allows(cells)


def test_the_events_alone_rebuild_the_phases(tmp_path):
    plan, events = read(written(tmp_path / "l", plan=SCHEDULED))
    rebuilt, planned = phases_of(events), plan.phases
    assert [(s.rounds, s.event) for s in rebuilt] == [(s.rounds, s.event) for s in planned]


@pytest.mark.parametrize("plan", PLANS)
def test_a_ledger_knows_its_phases_and_looks_at_each_charge_once(tmp_path, monkeypatch, plan):
    looked = []
    ledger = Ledger(tmp_path / "l", plan)
    charges = [planned_charge(plan, r) for r in (0, 1, 2, 3, 4)] + [
        replace(planned_charge(plan, r), attempt=1) for r in (2, 3, 4)
    ]
    for count, event in enumerate([*charges, *(planned_charge(plan, r) for r in (5, 6))], start=1):
        ledger.charge(event)
        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, "phases_of", lambda charges: looked.extend(charges) or phases_of(charges))
            found = ledger.phases, ledger.phases
        assert found[0] == found[1] == phases_of(ledger.charges)
        assert looked == ledger.charges[:count]
    resumed = Ledger.resume(tmp_path / "l", read_content(tmp_path / "l"), (tmp_path / "l").stat().st_size)
    assert resumed.phases == ledger.phases


def test_a_round_that_was_released_twice_may_have_had_the_same_cohort_and_is_refused():
    with pytest.raises(RefusedPlan, match="round 2, where round 3 is due"):
        spent(PLAN, [planned_charge(PLAN, r) for r in (0, 1, 2, 2, 3)])


def test_every_attempt_counts_like_one_more_round():
    events = [planned_charge(PLAN, r) for r in range(4)]
    again = [*events[:3], replace(events[1], attempt=1), replace(events[2], attempt=1), events[3]]
    assert spent(PLAN, again)[0].epsilon == pytest.approx(guarantees(PLAN, rounds=6)[0].epsilon)
    assert spent(PLAN, again)[2] == guarantees(PLAN, rounds=6)[2]


@pytest.mark.parametrize("attempts", [[(0, 0), (0, 0)], [(0, 0), (0, 2)], [(0, 1)], [(0, 0), (1, 1)], [(0, 0), (2, 0)]])
def test_attempts_out_of_order_are_refused(attempts):
    with pytest.raises(RefusedPlan, match="is due"):
        spent(PLAN, [replace(planned_charge(PLAN, r), attempt=a) for r, a in attempts])


def test_attempts_of_a_round_are_those_of_this_round_alone(tmp_path):
    ledger = Ledger(tmp_path / "l", PLAN)
    rounds = [0, 1, 1, 1, 2]
    for round_, attempt in zip(rounds, [0, 0, 1, 2, 0], strict=True):
        ledger.charge(replace(planned_charge(PLAN, round_), attempt=attempt))
    found = [[(charge.round, charge.attempt) for charge in ledger.attempts(round_)] for round_ in range(4)]
    assert found == [[(0, 0)], [(1, 0), (1, 1), (1, 2)], [(2, 0)], []]


def test_the_budget_counts_repeats():
    budget, done = Budget.of(guarantees(PLAN)), [planned_charge(PLAN, r) for r in range(3)]
    assert budget.further_rounds(PLAN, done, 3) == 5
    repeated = [*done, replace(done[2], attempt=1), replace(done[2], attempt=2)]
    assert budget.further_rounds(PLAN, repeated, 3) == 3
    unlimited = replace(PLAN, noise_multiplier=None, record=None, max_participations=None)
    assert Budget.of(guarantees(unlimited)).further_rounds(unlimited, repeated, 3) == 5


def test_a_line_that_a_crash_tore_is_left_out_and_written_again(tmp_path):
    path = written(tmp_path / "l", rounds=3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    content = read_content(path, torn=True)
    assert [event.round for event in content.charges] == [0, 1]
    ledger = Ledger.resume(path, content, whole_lines(path)[0])
    ledger.charge(planned_charge(PLAN, 2))
    assert path.read_bytes() == whole


def test_a_missing_round_is_found():
    with pytest.raises(RefusedPlan, match="round 2, where round 1 is due"):
        spent(PLAN, [planned_charge(PLAN, 0), planned_charge(PLAN, 2)])
    with pytest.raises(RefusedPlan, match="not the mechanism"):
        spent(replace(PLAN, rounds=1), [planned_charge(PLAN, 0), planned_charge(PLAN, 1)])


def test_the_head_notices_what_the_chain_cannot(tmp_path):
    path = written(tmp_path / "l")
    before = head(path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    assert len(read(path)[1]) == 7
    assert head(path) != before


@pytest.mark.parametrize("version", [1, VERSION - 1, VERSION + 1])
def test_a_ledger_of_another_version_is_not_guessed_at(tmp_path, version):
    from dpfedmeta.accounting.ledger.hash_chain import HashChain

    HashChain.start(tmp_path / "l", {"version": version, "plan": {}})
    with pytest.raises(InputError, match=f"has version {version}, which "):
        read(tmp_path / "l")


@pytest.mark.parametrize("change", [{"fresh": "cd" * 16}, {"inputs": "another question"}])
def test_an_attempts_streams_follow_from_its_fresh_bytes_and_its_question(change):
    charge = replace(planned_charge(PLAN, 0), fresh="ab" * 16, inputs="a question")
    assert charge.stream
    assert replace(charge, **change).stream != charge.stream
    assert replace(charge, round=3).stream == charge.stream


@pytest.mark.parametrize("wrong", range(6))
def test_a_charge_that_is_refused_is_named_by_its_line_in_the_file(tmp_path, wrong):
    """Lines that extend and close the run stand between charges."""
    path, plan, longer = tmp_path / "l", replace(PLAN, rounds=2), {2: 4, 4: 6}
    ledger, extended = Ledger(path, plan), plan.extended(4).extended(6)
    for round_ in range(6):
        if round_ in longer:
            ledger.close(Closing(rounds=round_))
            ledger.extend(longer[round_])
        charge = planned_charge(extended, round_)
        ledger.charge(replace(charge, event=replace(charge.event, cohort=1.0)) if round_ == wrong else charge)
    lines = [json.loads(line).get("round") for line in path.read_text().splitlines()]
    with pytest.raises(RefusedPlan, match=rf"^line {1 + lines.index(wrong)}: round {wrong} "):
        check_rounds((found := read_content(path)).plan, found.charges, found.lines)


CORRELATED = PrivacyPlan(
    clients=100, cohort=10.0, rounds=8, noise_multiplier=4.0, noise="blt",
    correlation=Correlation(separation=4, numbers=(0.9, 0.4, 0.2, 0.3)),
)  # fmt: skip


def test_attempts_of_rounds_that_are_one_release_are_phases_of_their_own_however_they_are_asked_for(tmp_path):
    """Line after line, or all of them together: an attempt costs the largest row and is no round of the course."""
    ledger = Ledger(tmp_path / "l", CORRELATED)
    due = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (4, 0)]
    for count, (round_, attempt) in enumerate(due, start=1):
        ledger.charge(replace(planned_charge(CORRELATED, round_), attempt=attempt, inputs=str(count)))
        assert ledger.phases == phases_of(ledger.charges)
    assert [(phase.rounds, phase.again) for phase in ledger.phases] == [
        (2, False), (2, True), (1, False), (1, True), (2, False),
    ]  # fmt: skip
    check_rounds(CORRELATED, ledger.charges)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_rounds_that_were_begun_before_are_charged_once_more_as_attempts(done):
    """Where attempts cost otherwise than rounds: counted as first ones they would be more rounds than the noise has."""
    charges = [planned_charge(CORRELATED, round_) for round_ in range(4)]
    budget = Budget.of(guarantees(CORRELATED))
    # All of them may be done without attempts; each attempt at a round moves the rest towards the limit.
    assert budget.further_rounds(CORRELATED, charges, 4) == 4
    noise, limit = CORRELATED.at(0).noise, CORRELATED.at(0).noise.sensitivity()
    left = [
        more
        for more in range(9 - done)
        if noise.together(max(4, done + more), min(more, 4 - done)).mu(1.0) <= limit / 4.0 * (1 + 1e-12)
    ]
    assert budget.further_rounds(CORRELATED, charges, done) == max(left)


@pytest.mark.parametrize("rounds", [0, 1, 4, 7, 8])
def test_as_many_rounds_are_affordable_as_were_promised(rounds):
    """The limit itself is within it; nothing is where less than a round is."""
    limits = Budget.of(guarantees(PLAN, rounds=rounds))
    assert limits.affordable_rounds(PLAN) == rounds
    assert limits.further_rounds(PLAN, [], 0) == rounds
    done = [planned_charge(PLAN, round_) for round_ in range(min(rounds, 3))]
    assert limits.further_rounds(PLAN, done, len(done)) == rounds - len(done)


def test_a_budget_is_that_of_each_cell_in_its_own_order():
    cells = guarantees(PLAN)
    assert Budget.of(cells).limits == tuple(cell.epsilon for cell in cells)
    with pytest.raises(ValueError, match="zip"):
        Budget(limits=(math.inf,) * 3).allows(cells)


IDENTITY = {"run": "a" * 32, "config": "algo: x\n", "secure": True, "candidate": "b" * 64}


@pytest.mark.parametrize("left_out", [None, *IDENTITY])
def test_a_first_line_names_its_run(tmp_path, left_out):
    """Each part of the name, and of a candidate only where it is one."""
    identity = RunIdentity(**{name: value for name, value in IDENTITY.items() if name != left_out})
    Ledger(tmp_path / "l", PLAN, identity)
    content = read_content(tmp_path / "l")
    assert content.identity == identity
    assert content.plan == PLAN
    stated = json.loads((tmp_path / "l").read_text())["identity"]
    assert set(stated) == {*IDENTITY} - ({"candidate"} if left_out == "candidate" else set())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"extended_to": 4.0}], "extended to 4.0 rounds after 2 of 2"),
        ([{"extended_to": True}], "extended to True rounds after 2 of 2"),
        ([{"extended_to": 4, "more": 1}], "extended to 4 rounds after 2 of 2"),
        ([{"extended_to": 2}], "increasing numbers"),
        ([{"extended_to": 1}], "increasing numbers"),
        ([{"extended_to": 4}, {"extended_to": 6}], "extended to 6 rounds after 2 of 4"),
    ],
    ids=str,
)
@pytest.mark.parametrize("done", [2, 1])
def test_a_line_that_extends_a_run_follows_its_last_round(tmp_path, lines, words, done):
    plan = replace(PLAN, rounds=2)
    ledger = Ledger(tmp_path / "l", plan)
    for round_ in range(done):
        ledger.charge(planned_charge(plan, round_))
    # An attempt is no round of the course.
    ledger.charge(replace(planned_charge(plan, 0), attempt=1))
    for line in lines:
        ledger._chain.append(line)
    with pytest.raises(InputError, match=words if done == 2 else "rounds after 1 of 2"):
        read(tmp_path / "l")


def test_a_first_line_of_an_extended_plan_is_none(tmp_path):
    Ledger(tmp_path / "l", replace(PLAN, rounds=4, ends=(2,)))
    with pytest.raises(InputError, match="its first line holds an extended plan"):
        read(tmp_path / "l")


def test_a_run_that_was_extended_and_stopped_at_once_is_closed_again(tmp_path):
    """The line before the extension closes the shorter run; a ledger that ends with the extension goes on."""
    path, closing = tmp_path / "ledger.jsonl", Closing(rounds=1, release="a" * 64)
    plan = replace(PLAN, rounds=1)
    ledger = Ledger(path, plan)
    ledger.charge(planned_charge(plan, 0))
    ledger.close(closing)
    ledger.extend(3)
    assert read_content(path).closing is None
    ledger.close(closing)
    lines = len(read_content(path).heads)
    assert read_content(path).closing == closing
    ledger.close(closing)
    assert len(read_content(path).heads) == lines
