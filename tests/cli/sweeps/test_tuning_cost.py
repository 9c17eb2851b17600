import json
import math
import re
import shutil
from dataclasses import asdict, replace

import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, read_content
from dpfedmeta.accounting.observers.four_guarantees import client_public_epsilon, guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.private_selection import RunCount, selection_cost
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.sweeps.tuning_cost import compose, cost_lines, tuning_cost
from dpfedmeta.core.errors import InputError, RefusedPlan
from tests.conftest import dpfedmeta

PLAN = PrivacyPlan(clients=4000, cohort=20, rounds=6, noise_multiplier=0.9, client_delta=1e-5)
RECORDS = replace(
    PLAN,
    max_participations=1,
    record=RecordLayer(support_noise=3.0, query_noise=2.0, support_steps=1, support_records=25, query_records=25),
)


def test_runs_in_a_row_are_one_longer_run():
    cost = compose([PLAN] * 3)
    longer = guarantees(replace(PLAN, rounds=18))[0]
    assert cost.client_public == pytest.approx(longer.epsilon, rel=1e-6)
    assert cost.single == pytest.approx(guarantees(PLAN)[0].epsilon, rel=1e-6)
    assert cost.single < cost.client_public < 3 * cost.single
    assert cost.adjacency == "add-remove"
    assert cost.record_server == math.inf


def test_runs_may_differ_in_what_was_fixed_in_advance():
    noisier = replace(PLAN, noise_multiplier=1.8, rounds=4)
    together = compose([PLAN, noisier]).client_public
    assert compose([PLAN]).client_public < together < compose([PLAN, PLAN]).client_public
    assert together == pytest.approx(compose([noisier, PLAN]).client_public, rel=1e-6)


def test_records_pay_for_every_run_towards_the_server():
    cost = compose([RECORDS] * 4)
    assert cost.record_server == pytest.approx(guarantees(replace(RECORDS, max_participations=4))[2].epsilon, rel=1e-6)
    assert compose([replace(RECORDS, max_participations=None)] * 2).record_server is None
    assert any("not added up" in line for line in cost_lines(compose([replace(RECORDS, max_participations=None)])))


def test_records_under_sums_pay_for_every_run_too():
    """Parts carry no noise of their own there: the sum's is what covers them."""
    parts = RecordLayer(
        support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=5, of_sum=True
    )
    secure = SecureRounds(bits=20, dimension=100, parts=5, adversarial=0.05)
    plan = PrivacyPlan(
        clients=2000, cohort=100, rounds=3, noise_multiplier=4.0, max_participations=1, server_sees="sum",
        secure=secure, record=parts,
    )  # fmt: skip
    alone, cost = guarantees(plan)[2], compose([plan] * 2)
    assert cost.record_server > 1.3 * alone.epsilon
    assert cost.relations["in-place"] > 1.3 * alone.relations["in-place"]
    assert cost.record_server == pytest.approx(guarantees(replace(plan, max_participations=2))[2].epsilon, rel=0.05)


def test_no_noise_promises_nothing():
    assert compose([PLAN, replace(PLAN, noise_multiplier=None)]).client_public == math.inf


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (replace(PLAN, clients=5000), "clients"),
        (replace(PLAN, sampler="fixed"), "sampler"),
        (replace(PLAN, client_delta=1e-6), "client_delta"),
    ],
)
def test_runs_that_are_not_of_one_kind_are_refused(other, reason):
    with pytest.raises(RefusedPlan, match=reason):
        compose([PLAN, other])


def test_noise_that_earlier_results_chose_is_refused():
    assert compose([PLAN, PLAN], adaptive=True).runs == 2
    with pytest.raises(RefusedPlan, match="earlier results"):
        compose([PLAN, replace(PLAN, rounds=5)], adaptive=True)


def test_rare_events_that_use_up_delta_are_refused():
    shared = replace(RECORDS, rounds=1)
    surplus = shared.at(0).surplus_probability
    with pytest.raises(RefusedPlan, match="rare events"):
        compose([shared] * math.ceil(1.01 * shared.client_delta / surplus))


# What a ledger's first line says of a run whose noise nobody chose.
REAL = RunIdentity(config="run: {noise_seed: null}")


def begun(path, *, plan=PLAN, rounds=6, identity=REAL):
    path.mkdir(parents=True)
    ledger = Ledger(path / "ledger.jsonl", plan, identity)
    for number in range(rounds):
        ledger.charge(planned_charge(plan, number))
    return path


def of_clients(dataset="strokes", kind="virtual", records=500, seed=3):
    return RunIdentity(
        config=f"dataset: {dataset}\npopulation: {{kind: {kind}, records: {records}}}\n"
        f"run: {{seed: {seed}, noise_seed: null}}\n"
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 4}, "run.seed = 3 in .*, 4 in"),
        ({"kind": "disjoint"}, "population.kind = virtual in .*, disjoint in"),
        ({"records": 400}, "population.records = 500 in .*, 400 in"),
        ({"dataset": "textures"}, "dataset = strokes in .*, textures in"),
    ],
)
def test_runs_over_other_clients_are_not_added_up(tmp_path, other, words):
    """Client k of one is nobody in particular to the other: also where the whole sweep is over run.seed."""
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "method": "grid"}))
    begun(tmp_path / "runs" / "a", identity=of_clients())
    begun(tmp_path / "runs" / "b", identity=of_clients())
    assert tuning_cost(tmp_path).runs == 2
    begun(tmp_path / "runs" / "c", identity=of_clients(**other))
    with pytest.raises(RefusedPlan, match=f"have other clients: {words}.* Sweep with one "):
        tuning_cost(tmp_path)


def test_clients_whom_the_data_name_are_the_same_for_every_seed(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "method": "grid"}))
    for seed in (3, 4):
        begun(tmp_path / "runs" / str(seed), identity=of_clients(kind="natural", seed=seed))
    assert tuning_cost(tmp_path).runs == 2


@pytest.fixture
def folder(tmp_path):
    """A sweep's folder with one finished run and one that was set aside."""
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "method": "grid"}))
    for name, rounds in (("runs/a", 6), ("set-aside/b.1", 2)):
        run = tmp_path / name
        run.mkdir(parents=True)
        ledger = Ledger(run / "ledger.jsonl", PLAN, REAL)
        for number in range(rounds):
            ledger.charge(planned_charge(PLAN, number))
    return tmp_path


def test_a_run_that_was_set_aside_counts_in_full(folder):
    cost = tuning_cost(folder)
    assert cost.runs == 2
    assert cost.client_public == pytest.approx(compose([PLAN, PLAN]).client_public)


def test_a_chosen_noise_seed_is_refused(folder):
    """As the run's ledger says, whatever its config.yaml says today."""
    (folder / "runs/a/config.yaml").write_text("run: {noise_seed: 3}")
    assert tuning_cost(folder).runs == 2
    for seed in (3, 0):
        begun(folder / "runs" / f"seeded-{seed}", identity=replace(REAL, config=f"run: {{noise_seed: {seed}}}"))
        (folder / f"runs/seeded-{seed}/config.yaml").write_text("run: {noise_seed: null}")
        with pytest.raises(RefusedPlan, match=rf"seeded-{seed}: run.noise_seed = {seed} is set, so it is a simulation"):
            tuning_cost(folder)
        shutil.rmtree(folder / f"runs/seeded-{seed}")
    for config in ("", "run: {}", "run: [", "word"):
        run = begun(folder / "runs" / "unsaid", identity=replace(REAL, config=config))
        with pytest.raises(InputError, match=r"unsaid/ledger\.jsonl, line 1: identity\.config: does not say how"):
            tuning_cost(folder)
        shutil.rmtree(run)


def test_an_analysis_with_a_chosen_noise_seed_is_refused(folder):
    config = "analysis:\n  kind: quantile\n  noise_seed: 5\n\n---\nrun: {noise_seed: null}\n"
    begun(folder / "runs" / "a-quantile", plan=ASKED, rounds=1, identity=replace(REAL, config=config))
    with pytest.raises(RefusedPlan, match=r"a-quantile: run\.noise_seed = 5 is set"):
        tuning_cost(folder)


def noted(folder, *lines):
    text = [json.dumps({"number": 0, "parameters": {}, **line}) for line in lines]
    (folder / "trials.jsonl").write_text("\n".join(text) + "\n")


A, B, C = ({"name": name} for name in "abc")


@pytest.mark.parametrize(
    ("lines", "lost"),
    [([A, B], None), ([A, B, C], "c"), ([A, C, B, {"name": "d"}], "c, d"), ([A, B, C, {**C, "began": False}], None)],
    ids=str,
)
def test_runs_that_were_started_and_are_not_here_are_named(folder, lines, lost):
    noted(folder, *lines)
    if lost is None:
        assert tuning_cost(folder).runs == 2
    else:
        with pytest.raises(InputError, match=rf"{len(lost.split())} runs .* have no ledger here \({lost}\).*Put their"):
            tuning_cost(folder)


def test_a_folder_that_was_moved_away_or_lost_its_ledger_costs_no_less(folder, tmp_path_factory):
    noted(folder, A, B)
    ledger = folder / "set-aside/b.1/ledger.jsonl"
    ledger.rename(away := tmp_path_factory.mktemp("away") / "b")
    with pytest.raises(InputError, match=r"1 runs that were started have no ledger here \(b\)"):
        tuning_cost(folder)
    away.rename(ledger)
    assert tuning_cost(folder).gone == 0
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "set-aside")
    with pytest.raises(InputError, match=r"2 runs that were started have no ledger here \(a, b\)"):
        tuning_cost(folder)
    noted(folder, *({"name": name} for name in "dcba"))
    with pytest.raises(InputError, match=r"4 runs that were started have no ledger here \(a, b, c, \.\.\.\)"):
        tuning_cost(folder)


def test_a_start_whose_folder_is_gone_counts_as_one_that_is_here(folder):
    """A folder that was moved away before the same command ran its settings again."""
    noted(folder, A, B, A, B, B, {**B, "began": False})
    cost = tuning_cost(folder)
    assert (cost.runs, cost.gone) == (4, 2)
    assert cost.client_public == pytest.approx(compose([PLAN] * 4).client_public, rel=1e-9)
    assert "  2 of them left no folder here; they are counted as whole runs of their settings" in cost_lines(cost)
    assert not any("left no folder" in line for line in cost_lines(compose([PLAN])))


def test_a_run_that_was_extended_when_its_results_could_be_seen_is_refused(folder):
    ledger = folder / "runs/a/ledger.jsonl"
    content = read_content(ledger)
    Ledger.resume(ledger, content, ledger.stat().st_size).extend(8)
    with pytest.raises(RefusedPlan, match=r"a/ledger\.jsonl: was extended from 6 to 8 rounds when its results"):
        tuning_cost(folder)


def test_a_ledger_of_another_plan_is_refused(folder):
    ledger = folder / "runs/a/ledger.jsonl"
    ledger.unlink()
    made = Ledger(ledger, PLAN, REAL)
    made.charge(planned_charge(replace(PLAN, noise_multiplier=9.0), 0))
    with pytest.raises(RefusedPlan, match="line 2"):
        tuning_cost(folder)


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(InputError, match=r"sweep\.json"):
        tuning_cost(tmp_path)
    (tmp_path / "sweep.json").write_text('{"method": "grid"}')
    with pytest.raises(InputError, match="no run"):
        tuning_cost(tmp_path)


ASKED = PrivacyPlan(clients=4000, cohort=2000, rounds=1, noise_multiplier=8.0, client_delta=1e-5)


def asked(folder, name, *, charged=True):
    """The folder of an analysis beside the runs."""
    run = folder / "runs" / name
    run.mkdir(parents=True)
    identity = RunIdentity(run=name, config="analysis:\n  kind: quantile\n  noise_seed: null\n", secure=False)
    ledger = Ledger(run / "ledger.jsonl", ASKED, identity)
    if charged:
        ledger.charge(planned_charge(ASKED, 0))
    return Earlier(run=name, head=ledger.head, phases=ASKED.phases)


@pytest.mark.parametrize("charged", [True, False])
def test_an_analysis_counts_whether_a_run_came_to_count_it_or_not(folder, charged):
    """One whose run never began, and one that may still be charged."""
    alone = tuning_cost(folder)
    asked(folder, "c-quantile", charged=charged)
    cost = tuning_cost(folder)
    assert cost.runs == 2
    row = [*ASKED.phases, *PLAN.phases, *PLAN.phases]
    assert cost.client_public == pytest.approx(client_public_epsilon(row, 1e-5), rel=1e-9)
    assert cost.client_public > 1.01 * alone.client_public
    assert cost.record_server == math.inf


def test_an_analysis_that_a_run_counts_is_counted_once(folder):
    own = asked(folder, "d-quantile")
    run = folder / "runs" / "d"
    run.mkdir()
    ledger = Ledger(run / "ledger.jsonl", plan := replace(PLAN, earlier=(own,)), REAL)
    for number in range(6):
        ledger.charge(planned_charge(plan, number))
    row = [*ASKED.phases, *PLAN.phases, *PLAN.phases, *PLAN.phases]
    assert tuning_cost(folder).client_public == pytest.approx(client_public_epsilon(row, 1e-5), rel=1e-9)


def test_runs_of_a_search_may_each_begin_with_an_analysis():
    plans = [replace(PLAN, earlier=(Earlier(run=name, head=name, phases=ASKED.phases),)) for name in "ab"]
    assert compose(plans, adaptive=True).runs == 2
    other = Earlier(run="c", head="c", phases=replace(ASKED, noise_multiplier=4.0).phases)
    with pytest.raises(RefusedPlan, match="earlier results"):
        compose([plans[0], replace(PLAN, earlier=(other,))], adaptive=True)


def test_analyses_alone_are_no_free_sweep(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"version": 1, "method": "grid"}))
    asked(tmp_path, "c-quantile")
    with pytest.raises(InputError, match="1 analyses were charged"):
        tuning_cost(tmp_path)


def test_beside_an_analysis_of_real_clients_a_client_is_replaced():
    """Adding or removing one has no meaning where a cohort of fixed size was asked."""
    asked_before = replace(ASKED, sampler="fixed", cohort=2000)
    before = Earlier(run="asked", head="", phases=asked_before.phases)
    counting = replace(PLAN, earlier=(before,))
    cost, alone = compose([counting]), guarantees(counting)[0]
    assert (cost.adjacency, cost.client_public) == (alone.adjacency, pytest.approx(alone.epsilon))
    # Of one run alone it is what that run states, with all that it counts.
    assert cost.single == pytest.approx(alone.epsilon)
    assert compose([counting, PLAN]).single == pytest.approx(alone.epsilon)
    assert "(client, public), replace-one" in cost_lines(cost)[1]
    assert compose([PLAN], besides=[before]).adjacency == "replace-one"
    assert compose([PLAN], besides=[replace(before, phases=ASKED.phases)]).adjacency == "add-remove"


def test_an_analysis_beside_rounds_that_clients_chose_is_not_added_up():
    """Nothing is proved of both together; as rounds by coins they would cost less than they do."""
    chosen = replace(PLAN, sampler="check-ins", cohort=1000.0, rounds=4, max_participations=1, capacity=1400)
    assert compose([chosen]).runs == 1
    with pytest.raises(RefusedPlan, match="allocated and independent are not added up"):
        compose([chosen], besides=[Earlier(run="asked", head="", phases=ASKED.phases)])


def test_beside_an_analysis_nothing_is_stated_of_a_record_towards_the_server():
    """It saw what clients answered then, and no cap of the runs counts that."""
    alone, beside = compose([RECORDS]), compose([RECORDS], besides=[Earlier(run="asked", head="", phases=ASKED.phases)])
    assert math.isfinite(alone.record_server)
    assert all(map(math.isfinite, alone.relations.values()))
    assert {beside.record_server, *beside.relations.values()} == {math.inf}
    assert not any(re.search(r"\(record, server\).*epsilon = [0-9]", line) for line in cost_lines(beside))


def test_where_a_private_sweep_showed_its_runs_too_both_are_counted(folder):
    """Earlier versions allowed an ordinary sweep in the folder of a private one."""
    made = RunCount(mean=2.0)
    price = selection_cost([PLAN], made)
    (folder / "private-sweep.json").write_text(json.dumps(asdict(price)))
    words = ("sweep", "window", "--out", folder, "--count-tuning")
    shown = dpfedmeta(*words).out
    assert f"epsilon = {rounded_up(price.epsilon, 4)} of the chosen run" in shown
    assert "its epsilon and delta add to that price:\n2 runs over the same 4,000 clients" in shown
    for name in ("runs", "set-aside"):
        shutil.rmtree(folder / name)
    assert "2 runs in expectation" in (alone := dpfedmeta(*words).out)
    assert "add to that price" not in alone
