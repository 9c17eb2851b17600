"""The audits through the product's own loop, and what the command says of them."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_mu
from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.api import audit as audit_api
from dpfedmeta.auditing import run_audit
from dpfedmeta.auditing.attacks.likelihood_ratio import NoAttack, attack_on
from dpfedmeta.auditing.audit_request import AuditRequest
from dpfedmeta.auditing.canaries import RandomDirections
from dpfedmeta.auditing.estimators.many_runs import NO_CURVE, Bench, Crowd, Ratios
from dpfedmeta.auditing.estimators.one_run import SHARES, Guesses, epsilon_of
from dpfedmeta.auditing.findings import Finding
from dpfedmeta.auditing.neighbouring_runs import ClientWorlds, observe
from dpfedmeta.auditing.reduced_plan import audited_settings
from dpfedmeta.auditing.run_audit import findings, forecast
from dpfedmeta.auditing.trade_off_function import ThresholdTest, best_threshold, epsilon_of_counts
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.results.evaluation_store import audited_cells
from tests.auditing.mistakes import Steered, attack_of, plan_of
from tests.golden.golden_runs import SMALL
from tests.reporting.test_page import written_run

FEW = {"server.rounds": "2", "population.clients": "4", "population.cohort": "4"}


@pytest.fixture(scope="module")
def plan():
    return plan_of("dp-agr", **{"clip.policy": "window", "server.rounds": "3"})


def test_rounds_without_books_are_those_of_the_whole_loop_bit_for_bit(plan, tmp_path):
    worlds, source = ClientWorlds(plan=plan), KeyedSource(3)
    quick = observe(plan, worlds.clients(True, source), source).releases
    whole = observe(plan, worlds.clients(True, source), source, tmp_path).releases
    assert [each.bound for each in quick] == [each.bound for each in whole]
    assert len(quick) == 3
    assert all(torch.equal(one.total, other.total) for one, other in zip(quick, whole, strict=True))
    # The bounds follow what was released, so a canary moves them.
    assert len({each.bound for each in quick}) == 3


def test_a_canary_moves_a_release_by_its_bound_and_no_more(plan):
    worlds, source = ClientWorlds(plan=plan), KeyedSource(3)
    there, absent = (observe(plan, worlds.clients(one, source), source).releases[0] for one in (True, False))
    assert float((there.total - absent.total).norm()) == pytest.approx(there.bound, rel=1e-5)


@pytest.mark.parametrize(("one", "other"), [(1, 0), (1, -1), (-1, 1), (0, -1)])
def test_each_world_has_the_canary_that_it_says(plan, one, other):
    worlds, source = ClientWorlds(plan=plan, one=one, other=other), KeyedSource(3)
    nobody = ClientWorlds(plan=plan, one=0, other=0).clients(True, source)
    none = observe(plan, nobody, source).releases[0]
    shown = [observe(plan, worlds.clients(first, source), source).releases[0] for first in (True, False)]
    moved = [each.total - none.total for each in shown]
    for sign, distance in zip((one, other), moved, strict=True):
        assert float(distance.norm()) == pytest.approx(abs(sign) * none.bound, rel=1e-5, abs=1e-6)
    apart = float((moved[0] - moved[1]).norm())
    assert apart == pytest.approx(abs(one - other) * none.bound, rel=1e-5)


def variation(ratios):
    """Of a normal trade-off curve mu / 2 is the mean of the ratios of the one world, over their deviation."""
    return ratios.one.mean() - ratios.other.mean(), ratios.one.std() ** 2


@pytest.mark.parametrize(
    "noise", [*(pytest.param(noise, marks=pytest.mark.slow) for noise in ("toeplitz", "blt")), "banded"]
)
def test_correlated_rounds_are_attacked_as_the_one_release_that_they_are(noise):
    # Steps of bounds that move, so that less noise cancels; the ratio is that of a sens/z normal pair all the same.
    given = {
        "server.noise": noise, "population.max_participations": "2", "server.rounds": "6",
        "population.clients": "8", "population.cohort": "2", "server.noise_multiplier": "2.0",
    }  # fmt: skip
    plan = plan_of(own_policy=Steered(1.4), **given)
    mu = plan.privacy.at(0).noise.mu(1.0)
    ratios = Bench(plan=plan, runs=400, seed=2).ratios(attack_of(plan))
    apart, spread = variation(ratios)
    # No client joins in such a way that it moves more than that; some move less.
    assert 0.5 * mu**2 < apart < 1.2 * mu**2
    assert spread < 1.3 * mu**2


# Two turns of four rounds, and coins that are heads twice in three times.
IN_TURNS = {
    "server.noise": "banded", "population.sampler": "cyclic", "population.separation": "3", "server.rounds": "6",
    "population.clients": "9", "population.cohort": "2", "server.noise_multiplier": "1.0",
}  # fmt: skip


def test_in_turns_who_joined_is_secret_and_may_not_enter_the_attack():
    plan = plan_of(own_policy=Steered(1.4), **IN_TURNS)
    attack = attack_of(plan)
    seen = observe(plan, attack.worlds.clients(True, KeyedSource(5)), KeyedSource(5))
    assert attack.ratio(replace(seen, sums=())) == attack.ratio(seen)


@pytest.mark.slow
def test_in_turns_the_best_attack_is_as_good_as_the_curve_says():
    plan = plan_of(own_policy=Steered(1.4), **IN_TURNS)  # bounds that move
    attack = attack_of(plan)
    ratios = Bench(plan=plan, runs=600, seed=4).ratios(attack)
    best = (1.0 + attack.curve.total_variation(1.0)) / 2.0
    assert best > 0.6
    assert ratios.right / ratios.runs == pytest.approx(best, abs=4.0 * (0.25 / 600) ** 0.5)


@pytest.mark.parametrize("name", ["(client, public)", "(record, public)"])
def test_the_curve_of_turns_is_that_of_its_cell(name):
    attack = attack_of(plan_of(**IN_TURNS), name)
    assert (attack.worlds.other != 0) == (attack.cell.adjacency != "add-remove")
    assert attack.curve.epsilon(1.0) == pytest.approx(attack.cell.epsilon, rel=1e-3)


def test_of_check_ins_the_best_attack_is_as_good_as_the_curve_says():
    plan = plan_of("dp-agr-checkins", **{"server.rounds": "4", "server.noise_multiplier": "0.6"})
    attack = attack_of(plan)
    ratios = Bench(plan=plan, runs=300, seed=4).ratios(attack)
    best = (1.0 + attack.curve.total_variation(1.0)) / 2.0
    assert ratios.right / ratios.runs == pytest.approx(best, abs=4.0 * (0.25 / 300) ** 0.5)


def test_a_curve_of_check_ins_has_what_full_rounds_leave_of_delta():
    given = {"server.rounds": "4", "population.clients": "40", "population.cohort": "27"}
    plan = plan_of("dp-agr-checkins", **given)
    attack, beta = attack_of(plan), surplus(plan.privacy.phases)
    assert beta > 1e-3 * attack.cell.delta
    assert attack.curve.delta == attack.cell.delta - beta
    assert attack.curve.epsilon(1.0) == pytest.approx(attack.cell.epsilon)


@pytest.mark.slow
def test_of_a_replaced_client_of_check_ins_too_the_best_attack_is_as_good_as_the_curve_says():
    plan = plan_of("dp-agr-checkins", **{"server.rounds": "4", "server.noise_multiplier": "1.0"})
    attack = attack_of(plan, "(record, public)")
    ratios = Bench(plan=plan, runs=600, seed=4).ratios(attack)
    best = (1.0 + attack.curve.total_variation(1.0)) / 2.0
    assert best > 0.6
    assert attack.curve.epsilon(1.0) == pytest.approx(plan.planned[3].epsilon)
    assert ratios.right / ratios.runs == pytest.approx(best, abs=4.0 * (0.25 / 600) ** 0.5)


def test_the_worlds_of_runs_are_tossed_and_their_noises_differ(plan):
    tosses = list(Bench(plan=plan, runs=200, seed=1)._tosses())
    assert 70 < sum(one for one, _ in tosses) < 130
    firsts = {source.generator(Purpose.SERVER_NOISE, 0).normal(1)[0] for _, source in tosses}
    assert len(firsts) == 200


SLOW = (
    "dp-agr-checkins",
    "dp-agr-correlated",
    "dp-agr-cyclic",
    "dp-agr-secure",
    "dp-agrlr",
    "dp-agrlr-micro",
    "dp-agrlr-secure",
    "dp-fedavg-fixed",
)
ALL = ["dp-agr", *(pytest.param(algo, marks=pytest.mark.slow) for algo in SLOW)]


@pytest.mark.parametrize("algo", ALL)
def test_every_cell_that_promises_something_is_attacked(algo):
    dataset = "mnist-shards" if algo == "dp-fedavg-fixed" else "strokes"
    # Of fewer than eight under secure aggregation too few would be left; of four in two groups two have their turn.
    others = {"dp-agr-cyclic": {**FEW, "population.cohort": "2"}}
    given = {"server.rounds": "2"} if algo.endswith("-secure") else others.get(algo, FEW)
    request = AuditRequest(algo=algo, dataset=dataset, given=given, runs=8, audits=("distinguish",), seed=7)
    for found in findings(request):
        if found.method == NO_CURVE:
            assert (algo, found.cell) == ("dp-agr-checkins", "(record, public)")
            continue
        assert (found.audited is None) == (found.promised == float("inf"))
        assert found.runs == (8 if found.audited is not None else 0)
        assert not found.refutes or found.audited > found.promised


def test_an_attack_on_what_is_not_known_says_so():
    settings = audited_settings("local-dp", "mnist-shards", None, {}, as_planned=False)
    plan = make_plan(settings, load_task("mnist-shards")[0])
    for cell in plan.planned:
        with pytest.raises(NoAttack, match=r"nothing is promised|noisy local steps"):
            attack_on(plan, cell)


def test_canary_records_have_no_numbers_to_predict():
    """A client does not take them, so both worlds would be the same, and nothing would ever be found."""
    given = {"task.ways": "1"}
    plan = make_plan(
        audited_settings("dp-agrlr", "sinusoids", None, given, as_planned=False), load_task("sinusoids")[0]
    )
    refused = [cell.name for cell in plan.planned if cell.unit == "record" and np.isfinite(cell.epsilon)]
    for cell in plan.planned:
        if cell.name in refused:
            with pytest.raises(NoAttack, match="numbers to predict"):
                attack_on(plan, cell)
    assert refused
    assert attack_on(plan, plan.planned[0])


def test_directions_are_a_function_of_their_number():
    one, again, other = (RandomDirections(seed=2).of(number, 500) for number in (3, 3, 4))
    assert torch.equal(one, again)
    assert float(one.norm()) == pytest.approx(1.0)
    assert abs(float(one @ other)) < 0.25
    # Of a second audit they are others: what it finds does not rest on the first one's luck.
    assert abs(float(one @ RandomDirections(seed=3).of(3, 500))) < 0.25


def test_one_run_and_one_shot_see_something_of_a_weak_promise():
    given = {"server.rounds": "1", "server.noise_multiplier": "0.5", "model.width": "2"}
    request = AuditRequest(
        algo="dp-const",
        dataset="strokes",
        given=given,
        audits=("one-run", "one-shot"),
        canaries=150,
        units=("client",),
        seed=7,
    )
    by = {(each.audit, each.method): each for each in findings(request)}
    bound, gaussian, estimate = by.values()
    assert 0.5 < bound.audited < gaussian.audited < gaussian.promised
    assert estimate.confidence is None
    assert not estimate.refutes
    assert estimate.audited == pytest.approx(estimate.promised, rel=0.5)


def test_what_can_be_seen_is_said_before(plan):
    request = AuditRequest(algo="dp-agr", dataset="strokes", given=FEW, runs=10_000, audits=("distinguish",))
    by_cell = {each.cell: each for each in forecast(request)}
    assert 0.85 < by_cell["(client, public)"].ratio < 1.0
    assert by_cell["(record, server)"].method == "nothing is promised"


def test_what_is_not_asked_for_is_not_forecast(plan):
    given = {"algo": "dp-agr", "dataset": "strokes", "given": FEW, "canaries": 150}
    audits = {each.audit for each in forecast(AuditRequest(**given, audits=("one-run", "one-shot")))}
    assert audits == {"one-run"}
    (most,) = forecast(AuditRequest(**given, audits=("one-run",)))
    # The share of guesses is chosen after they are seen, so each that has enough guesses has its part of the miss.
    perfect, miss = Guesses(canaries=150, made=150, right=150), AuditRequest(**given).miss
    shares = sum(2 * int(share * 150) >= 8 for share in SHARES)
    assert 1 < shares < len(SHARES)
    assert most.audited == epsilon_of(perfect, most.delta, miss / shares) < epsilon_of(perfect, most.delta, miss)
    assert not list(forecast(AuditRequest(**given, audits=("one-run",), observers=("server",))))
    assert not list(forecast(AuditRequest(**given, audits=("many-runs",))))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"runs": 3}, "runs = 3"),
        ({"canaries": 5}, "canaries = 5"),
        ({"confidence": 1.0}, "confidence"),
        # Not 100%.
        ({"confidence": 0.9996, "runs": 5}, "at 99.96% confidence"),
        ({"audits": ("guess",)}, "audits = guess"),
    ],
)
def test_bad_input_is_one_line(given, words):
    with pytest.raises(InputError, match=words):
        AuditRequest(algo="dp-agr", dataset="strokes", **given)


def test_what_promises_nothing_is_refused(dpfedmeta):
    assert "no promise to audit" in dpfedmeta("audit", "--algo", "maml", code=2).error
    assert "holds no config.yaml" in dpfedmeta("audit", "nowhere", code=2).error
    assert "name a run first" in dpfedmeta("audit", "--runs", "10", code=2).error


def test_a_run_is_audited_by_the_settings_of_its_ledger(tmp_path, monkeypatch):
    """The file of settings can be edited; numbers of another promise shall not be kept beside the run."""
    run = written_run(tmp_path, algo="dp-agr", given={"server.rounds": "3", "server.noise_multiplier": "1.0"})
    asked = []
    monkeypatch.setattr(audit_api, "made", lambda request, watch, *, expected: asked.append(request))
    request = AuditRequest(algo=None, dataset=None, runs=50)
    (run.path / "config.yaml").write_text(read_content(run.ledger).identity.config)
    audit_api.audit_of_run(request, run.path, expected=True)
    (run.path / "config.yaml").write_text(read_content(run.ledger).identity.config.replace("rounds: 3", "rounds: 9"))
    with pytest.raises(InputError, match=r"config\.yaml, line"):
        audit_api.audit_of_run(request, run.path)
    assert len(asked) == 1
    assert not (run.path / "audit.json").exists()


def test_canaries_that_hide_each_other_are_refused(dpfedmeta):
    words = ("--algo", "dp-agr", "--audits", "one-run", "--canaries", "900", "--model.width", "1")
    words += ("--noise-multiplier", "1")
    # Before it stands a line for logs: the audit has begun.
    assert "canaries would hide each other" in dpfedmeta("audit", *words, code=2).err.splitlines()[-1]


@pytest.mark.slow
def test_canaries_that_share_a_batch_statistic_are_refused(dpfedmeta):
    words = ("--algo", "dp-agrlr-micro", "--as-planned", "--units", "record", "--dry-run", "--observers", "server")
    words += ("--rounds", "2", "--clients", "2000", "--cohort", "20")
    assert "share a batch statistic" in dpfedmeta("audit", *words, code=2).error


def finding(audited, confidence=0.95, second=True):
    return Finding(
        unit="client", observer="public", promised=1.0, delta=1e-5, audited=audited, confidence=confidence,
        audit="distinguish", method="by hand", runs=9, canaries=1, second=second,
    )  # fmt: skip


def test_a_bound_of_a_second_sample_refutes_and_nothing_else_does():
    assert finding(1.1).refutes
    assert not finding(0.9).refutes
    assert not finding(1.1, confidence=None).refutes
    assert finding(1.1, second=False).above
    assert not finding(1.1, second=False).refutes
    assert Finding.from_json(finding(1.1).as_json()) == finding(1.1)
    assert Finding.from_json(finding(1.1, second=False).as_json()) == finding(1.1, second=False)


@pytest.mark.parametrize(("audited", "code"), [(1.1, 1), (0.9, 0)])
def test_strict_ends_with_1_where_a_second_sample_refutes_a_promise(dpfedmeta, monkeypatch, audited, code):
    both = [finding(1.2, second=False), finding(audited)]
    monkeypatch.setattr("dpfedmeta.api.audit.findings", lambda request, watch: both)
    left = dpfedmeta("audit", "--algo", "dp-agr", "--strict", "--json", code=code)
    first, second = json.loads(left.out)["cells"]
    assert {"unit", "observer", "promised", "audited", "confidence", "audit"} <= set(first)
    assert (first["second"], second["second"]) == (False, True)
    said = dpfedmeta("audit", "--algo", "dp-agr", "--audit-seed", "7").out
    assert ("does not confirm" in said) == (code == 0)
    assert ("refuted: (client, public)" in said) == (code == 1)
    assert "audit seed 7" in said


def test_an_audit_has_a_new_seed_each_time_and_its_second_sample_another():
    one, two = (AuditRequest(algo="dp-agr", dataset="strokes") for _ in range(2))
    assert one.seed != two.seed
    assert len({one.seed, *(one.second_seed(number) for number in range(4))}) == 5


def drawn(mu, generator, runs):
    """Likelihood ratios of a Gaussian mechanism that is mu-GDP."""
    one = generator.integers(0, 2, runs).astype(bool)
    ratios = generator.normal(size=runs) * mu + np.where(one, 0.5, -0.5) * mu**2
    return Ratios(one=ratios[one], other=ratios[~one])


def test_of_a_program_at_its_promise_no_alarm_is_confirmed_and_of_a_broken_one_it_is(plan, monkeypatch):
    """100 audits at the boundary, and one whose noise is a third too small."""
    generator = np.random.default_rng(3)
    request = AuditRequest(algo="dp-agr", dataset="strokes", given=FEW, units=("client",), observers=("public",))
    (cell,) = (each for each in plan.planned if each.name == "(client, public)")
    mu, found = gaussian_mu(cell.epsilon, cell.delta), []
    monkeypatch.setattr(Bench, "ratios", lambda self, attack, watch=None: drawn(scale * mu, generator, self.runs))
    monkeypatch.setattr(AuditRequest, "plan", lambda self, more=None: plan)
    scale = 1.0
    for _ in range(100):
        found += findings(request)
    firsts = [each for each in found if not each.second]
    alarms = [each for each in firsts if each.above]
    assert 0 < len(alarms) <= 20
    seconds = [each for each in found if each.second]
    assert len(seconds) == len(alarms)
    assert all(each.runs == 4 * request.runs and each.confidence == pytest.approx(0.999) for each in seconds)
    assert not any(each.refutes for each in found)
    scale = 1.5
    broken = [each for each in findings(request) if each.refutes]
    assert {each.audit for each in broken} == {"distinguish"}


def test_a_second_sample_is_tested_at_the_threshold_of_the_first():
    generator = np.random.default_rng(0)
    first, second = drawn(3.0, generator, 2000), drawn(3.0, generator, 8000)
    chosen = best_threshold(first.one, first.other, 1e-5, 0.001)
    everywhere = [
        ThresholdTest(value=value, inside=inside).epsilon(second.one, second.other, 1e-5, 0.001)
        for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        for inside in (True, False)
    ]
    assert chosen.epsilon(second.one, second.other, 1e-5, 0.001) in everywhere
    assert chosen.epsilon(first.one, first.other, 1e-5, 0.001) > epsilon_of_counts(first.one, first.other, 1e-5, 0.001)


def test_one_run_that_is_above_the_promise_is_looked_at_again_in_four_others(plan, monkeypatch):
    """The number of guesses is the one that the first run chose, and the guesses of all four count."""
    cell = replace(plan.planned[0], bounds=(replace(plan.planned[0].bounds[0], epsilon=0.2),))
    crowd = Crowd(plan=plan, canaries=200, seed=1)
    monkeypatch.setattr(Crowd, "_scores", lambda self, inside: (np.where(inside, 3.0, 0.0) + noise(self), 10))

    def noise(own):
        return np.random.default_rng(own.seed).normal(size=own.canaries)

    first = next(crowd.one_run(cell, 0.05))
    assert first.above
    again = crowd.confirmation(first, cell, [replace(crowd, seed=seed) for seed in (2, 3, 4, 5)])
    assert again.refutes
    assert (again.runs, again.confidence) == (4, pytest.approx(0.999))
    alike = crowd.confirmation(first, cell, [replace(crowd, seed=2)] * 4)
    single = crowd.confirmation(first, cell, [replace(crowd, seed=2)])
    assert alike.audited > single.audited


def test_a_runs_audit_is_kept_beside_it_and_shown(tiny_task_file, tmp_path):
    given = {"run.dir": str(tmp_path), "run.name": "run", "run.workers": "1", "evaluation.episodes": "2"}
    given |= {"server.rounds": "2", "privacy.client.epsilon": "null", "server.noise_multiplier": "1"}
    settings = resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **given})
    run = dp.train(settings, quiet=True)
    before = {path: path.read_bytes() for path in (run.path / "ledger.jsonl", *(run.path / "secret").rglob("*.json*"))}
    found = dp.audit(run, {"server.rounds": 2}, runs=10, audits=["distinguish"], units=["client"])
    assert before == {path: path.read_bytes() for path in before}
    kept = json.loads((run.path / "audit.json").read_text())
    assert kept == found.as_json()
    assert run.summary["audited"] == kept["cells"]
    page = (run.path / "report.html").read_text()
    assert "<h2>Audits</h2>" in page
    assert "canaries" in page
    assert (run.path / "audit.png").exists()
    assert "not audited" in repr(found)
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.training.verification.verify import audit as verified

    assert "summary.json agrees" in verified(RunDirectory(run.path)).remarks

    # A run that goes on writes its summary again.
    longer = dp.train(resume=run.path, extend_to=3, quiet=True)
    assert longer.summary["rounds"] == 3
    assert longer.summary["audited"] == kept["cells"]
    (run.path / "audit.json").write_text("{}")
    assert audited_cells(run.path) == {}


def test_a_run_that_released_nothing_is_refused(tiny_task_file, tmp_path):
    given = {
        "run.dir": str(tmp_path), "run.name": "run", "run.workers": "1", "evaluation.episodes": "2",
        "server.rounds": "2", "server.abort_on_failure": "true", "population.dropout": "0.9",
        "population.sampler": "fixed", "privacy.client.epsilon": "null", "server.noise_multiplier": "1",
    }  # fmt: skip
    run = dp.train(resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **given}), quiet=True)
    assert all(row["aborted"] for row in map(json.loads, (run.path / "rounds.jsonl").read_text().splitlines()))
    with pytest.raises(InputError, match=r"none of its 2 rounds released anything"):
        dp.audit(run, runs=10)
    assert not (run.path / "audit.json").exists()


def test_a_second_sample_has_coins_and_a_size_of_its_own(monkeypatch):
    made = []

    @dataclass(frozen=True)
    class Drawn:
        plan: None
        runs: int
        seed: int
        whole: bool

        def ratios(self, attack, watch):
            made.append((self.runs, self.seed))

    alarm = SimpleNamespace(audit="many-runs", above=True)
    monkeypatch.setattr(run_audit, "Bench", Drawn)
    monkeypatch.setattr(run_audit, "prepared_attack", lambda *given: (None, None, SimpleNamespace(curve=None)))
    monkeypatch.setattr(run_audit, "findings_of", lambda *given: [alarm])
    monkeypatch.setattr(run_audit, "confirmation_of", lambda *given: "confirmed")
    request = AuditRequest(algo="dp-agr", audits=("many-runs",), runs=20, seed=5)
    assert [*run_audit._many_runs(request, None, None, lambda *said: None)] == [alarm, "confirmed"]
    (runs, seed), (more, other) = made
    assert (runs, seed, more) == (20, 5, 80)
    assert other == request.second_seed(0) != seed


@pytest.mark.parametrize("relation", ["zero-out", "row-deleted", "row-exchanged"])
def test_a_record_is_audited_for_what_attacks_tell_apart_whatever_the_target_is_for(relation):
    """A larger epsilon, of a row that becomes another one, would leave the attack nothing to find."""
    layer = RecordLayer(support_noise=None, query_noise=1.6, support_steps=1, support_records=1, query_records=5,
                        rows=True)  # fmt: skip
    privacy = PrivacyPlan(clients=50, cohort=10, rounds=2, noise_multiplier=1.0, record=layer, relation=relation)
    plan = SimpleNamespace(privacy=privacy, planned=guarantees(privacy))
    found = run_audit.cells_under_zero_out(plan)
    for cell, own in zip(found[2:], plan.planned[2:], strict=True):
        assert (cell.adjacency, cell.epsilon) == ("zero-out", own.relations["zero-out"])
    assert found[:2] == plan.planned[:2]
