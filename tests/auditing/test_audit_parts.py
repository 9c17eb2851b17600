"""Parts of an audit one by one: which cells and samples it takes, what a finding states, what an attack sees."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.auditing import canaries, neighbouring_runs, run_audit
from dpfedmeta.auditing.attacks import release_attack, server_attack
from dpfedmeta.auditing.attacks.likelihood_ratio import NoAttack, attack_on
from dpfedmeta.auditing.audit_request import FEWEST_GUESSES, MOST_RUNS, OF_MANY_RUNS, AuditRequest
from dpfedmeta.auditing.canaries import RandomDirections, SameDirection
from dpfedmeta.auditing.estimators import many_runs
from dpfedmeta.auditing.estimators.many_runs import SECOND_SAMPLE, Bench, Ratios, cosines
from dpfedmeta.auditing.estimators.one_run import SHARES, Guesses, best_share, guesses_of, pooled
from dpfedmeta.auditing.findings import AUDITS, Finding
from dpfedmeta.auditing.neighbouring_runs import CANARY, over_nothing
from dpfedmeta.auditing.observed_loop import _seen
from dpfedmeta.auditing.reduced_plan import OF_RECORDS, of_canaries
from dpfedmeta.auditing.rounds import audit_rounds
from dpfedmeta.auditing.rounds.audit_rounds import RoundsVerdict
from dpfedmeta.auditing.rounds.audit_rounds import audit_rounds as audited
from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.rounds.promise import PromisedCell

NAMES = (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))
BASE = {"algo": "dp-agr", "dataset": "strokes"}
NAN, INF = float("nan"), float("inf")


def cell(unit="client", observer="public", epsilon=1.5):
    bound = Bound(method="pld", epsilon=epsilon, event="", formula="")
    return Guarantee(unit=unit, observer=observer, delta=1e-5, adjacency="add-remove", bounds=(bound,))


FIELDS = {
    "unit": "record", "observer": "server", "promised": 2.0, "delta": 1e-6, "audited": 0.5, "confidence": 0.999,
    "audit": "many-runs", "method": "by hand", "runs": 17, "canaries": 19, "right": 11, "second": True,
}  # fmt: skip


@pytest.mark.parametrize("name", [None, *FIELDS])
def test_a_finding_keeps_each_of_its_values_in_a_file(name):
    found = Finding(**FIELDS)
    content = found.as_json()
    assert {key: content[key] for key in FIELDS} == FIELDS
    assert content["ratio"] == 0.25
    assert Finding.from_json(content) == found
    if name is not None:
        other = {"promised": math.inf, "audited": None, "confidence": None, "right": None, "second": False}.get(name, 3)
        changed = Finding(**FIELDS | {name: other})
        assert Finding.from_json(changed.as_json()) == changed != found
        stated = changed.as_json()[name]
        assert stated == (None if other == math.inf else other)
        assert (changed.ratio is None) == (name in ("promised", "audited") and other in (None, math.inf))


def test_a_finding_is_of_its_cell_and_of_what_it_was_made_of():
    given = {"confidence": 0.9, "runs": 3, "canaries": 4, "right": 2, "second": True}
    found = Finding.of(cell("record", "server", 2.5), "one-run", 0.5, "how", **given)
    assert (found.cell, found.promised, found.delta, found.audited) == ("(record, server)", 2.5, 1e-5, 0.5)
    assert (found.audit, found.method, found.confidence) == ("one-run", "how", 0.9)
    assert (found.runs, found.canaries, found.right, found.second) == (3, 4, 2, True)
    usual = Finding.of(cell(), "one-run", None, "how")
    assert (usual.confidence, usual.runs, usual.canaries, usual.right, usual.second) == (None, 1, 1, None, False)


@pytest.mark.parametrize(("audited_", "confidence", "above"), [
    (1.0, 0.95, False), (1.0001, 0.95, True), (2.0, None, False), (None, 0.95, False),
])  # fmt: skip
@pytest.mark.parametrize("second", [False, True])
def test_a_bound_is_above_a_promise_where_it_is_larger_and_a_bound(audited_, confidence, above, second):
    found = Finding(**FIELDS | {"promised": 1.0, "audited": audited_, "confidence": confidence, "second": second})
    assert (found.above, found.refutes) == (above, above and second)


def test_beside_a_promise_of_0_there_is_no_ratio():
    """Enough noise prints epsilon = 0."""
    found = Finding(**FIELDS | {"promised": 0.0})
    assert (found.ratio, found.above, found.as_json()["promised"]) == (None, True, 0.0)


@pytest.mark.parametrize(("given", "fits"), [
    ({"runs": 5}, True), ({"runs": 4}, False), ({"runs": MOST_RUNS}, True), ({"runs": MOST_RUNS + 1}, False),
    ({"confidence": 0.5, "runs": 2}, True), ({"confidence": 0.5, "runs": 1}, False), ({"confidence": 0.4999}, False),
    ({"confidence": 0.999}, True), ({"confidence": 1.0}, False), ({"confidence": 0.999, "runs": 9}, False),
    ({"confidence": 0.999, "runs": 10}, True), ({"canaries": 2 * FEWEST_GUESSES}, True),
    ({"canaries": 2 * FEWEST_GUESSES - 1}, False), ({"units": ("client", "image")}, False),
    ({"observers": ("public", "nobody")}, False), ({"audits": ("one-run", "guess")}, False), ({"audits": AUDITS}, True),
])  # fmt: skip
def test_a_request_is_taken_exactly_where_it_could_prove_something(given, fits):
    if fits:
        AuditRequest(**BASE, **given)
        return
    with pytest.raises(
        InputError, match=f"^{next(iter(reversed(given))) if 'runs' in given else next(iter(given))} = "
    ):
        AuditRequest(**BASE, **given)


@pytest.mark.parametrize(("name", "value"), [
    *((name, value) for name in ("runs", "canaries") for value in (-1, 0, 100.5, True, NAN, INF, "500", None)),
    *(("confidence", value) for value in (NAN, INF, -1.0, True, "0.9", None)), ("canaries", MOST_RUNS + 1),
    *(("seed", value) for value in (-1, 2**63, 1.5, True, NAN, "1", None)),
    *((name, ()) for name in ("audits", "units", "observers")),
])  # fmt: skip
def test_every_argument_of_a_request_out_of_its_range_is_refused_by_its_name(name, value):
    """A request that attacks nothing would show no violation."""
    with pytest.raises(InputError, match=rf"{name}\b") as error:
        AuditRequest(**BASE, **{name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_every_seed_that_an_audit_draws_may_be_given(seed):
    assert AuditRequest(**BASE, seed=seed).seed == seed


def test_seeds_of_second_samples_are_of_the_first_and_of_their_number():
    one, other = (AuditRequest(**BASE, seed=seed) for seed in (5, 6))
    seeds = [request.second_seed(number) for request in (one, other) for number in range(5)]
    assert len({*seeds, 5, 6}) == 12
    assert seeds[0] == AuditRequest(**BASE, seed=5).second_seed(0)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("audits", [each for n in (1, 2, 4) for each in itertools.combinations(AUDITS, n)])
@pytest.mark.parametrize("units", [("client",), ("record",), ("client", "record")])
@pytest.mark.parametrize("observers", [("public",), ("public", "server")])
def test_an_audit_looks_at_the_cells_and_in_the_ways_that_were_asked_for(monkeypatch, audits, units, observers):
    plan = SimpleNamespace(planned=[cell(*name) for name in NAMES], privacy=SimpleNamespace(relation="zero-out"))
    monkeypatch.setattr(AuditRequest, "plan", lambda self, more=None: plan)
    monkeypatch.setattr(run_audit, "_many_runs", lambda request, plan, cell, watch: [("many", cell.name)])
    monkeypatch.setattr(run_audit, "_one_run", lambda request, watch: ["one"])
    request = AuditRequest(**BASE, audits=audits, units=units, observers=observers)
    found = list(run_audit.findings(request))
    asked = [("many", f"({unit}, {observer})") for unit, observer in NAMES if unit in units and observer in observers]
    assert found == (asked if {*audits} & {*OF_MANY_RUNS} else []) + (["one"] if {*audits} - {*OF_MANY_RUNS} else [])


@pytest.mark.parametrize("epsilon", [1.5, math.inf])
@pytest.mark.parametrize("audits", [("one-run",), ("one-shot",), ("one-run", "one-shot")])
@pytest.mark.parametrize("alarm", [False, True])
def test_one_run_with_many_canaries_is_looked_at_again_in_four_of_other_seeds(monkeypatch, epsilon, audits, alarm):
    made = []

    class Crowds:
        def __init__(self, plan, canaries, seed):
            self.plan, self.canaries, self.seed = plan, canaries, seed

        def one_run(self, cell, miss):
            assert miss == pytest.approx(0.05)
            return [SimpleNamespace(above=alarm, n=1), SimpleNamespace(above=False, n=2)]

        def confirmation(self, first, cell, others):
            made.append((self.seed, first.n, [other.seed for other in others]))
            return "confirmed"

        def one_shot(self, cell):
            return ["estimate"]

    plans = []
    plan = SimpleNamespace(
        planned=[cell(*name, epsilon) for name in NAMES], privacy=SimpleNamespace(relation="zero-out", record=None)
    )
    monkeypatch.setattr(AuditRequest, "plan", lambda self, more=None: plans.append(more) or plan)
    monkeypatch.setattr(run_audit, "Crowd", Crowds)
    monkeypatch.setattr(run_audit, "replace", lambda crowd, seed: Crowds(crowd.plan, crowd.canaries, seed))
    request = AuditRequest(**BASE, audits=audits, canaries=70, seed=5)
    found: list[Any] = list(run_audit._one_run(request, lambda what, done: None))
    assert plans == [of_canaries(70)]
    if math.isinf(epsilon):
        assert [each.method for each in found] == ["nothing is promised"]
        return
    bounds = found[:2] if "one-run" in audits else []
    assert [each.n for each in bounds] == [1, 2][: len(bounds)]
    due = ["confirmed"] if alarm and bounds else []
    assert found[len(bounds) :] == due + (["estimate"] if "one-shot" in audits else [])
    assert SECOND_SAMPLE == 4
    assert made == ([(5, 1, [request.second_seed(number) for number in range(4)])] if due else [])


def test_right_runs_are_those_whose_ratio_speaks_for_their_world():
    found = Ratios(one=np.array([0.1, 0.0, -1.0, 2.0]), other=np.array([0.1, 0.0, -1.0]))
    assert (found.runs, found.right) == (7, 4)


def test_a_message_in_noise_against_nothing_is_the_normal_ratio():
    values, message = torch.tensor([1.0, 2.0, -1.0]).double(), torch.tensor([0.5, -1.0, 2.0]).double()
    due = sum((v**2 - (v - m) ** 2) / (2 * 0.25) for v, m in zip(values.tolist(), message.tolist(), strict=True))
    assert over_nothing(values, message, 0.25) == pytest.approx(due)


@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0), (0.25, 0.5, 0.125)])
@pytest.mark.parametrize("aborted", [None, 1])
@pytest.mark.parametrize("colluding", [0, 2])
def test_everybody_s_ratio_is_summed_over_rounds_each_mixed_by_its_own_rate(monkeypatch, rates, aborted, colluding):
    """A round that released nothing tells nothing. Clients that collude subtract what they sent, and its noise."""
    own, other = torch.tensor([1.5, 0.0]).double(), torch.tensor([0.0, -0.5]).double()
    seen = [SimpleNamespace(round=n, bound=1.0 + n, deviation=0.5 + n, total=None if n == aborted else
                            torch.tensor([1.0 + n, -1.0]).double()) for n in range(3)]  # fmt: skip
    plan = SimpleNamespace(privacy=SimpleNamespace(at=lambda round_: SimpleNamespace(rate=rates[round_])))
    attack = release_attack.OnReleases(plan=plan, cell=None, worlds=None)
    attack.__dict__["_colluding"] = colluding
    attack.__dict__["_clients"] = SimpleNamespace(message_noise_variance=lambda bound: 0.03 * bound)
    attack.__dict__["_messages"] = SimpleNamespace(message=lambda release, one: own if one else other)
    sent = torch.tensor([0.25, 0.75]).double()
    monkeypatch.setattr(release_attack, "message_of", lambda clients, release, which: sent * len(which))
    total = 0.0
    for each in seen:
        if each.total is not None:
            values, variance = each.total - colluding * sent, each.deviation**2 - colluding * 0.03 * each.bound
            sides = [over_nothing(values, message, variance) for message in (own, other)]
            rate = rates[each.round]
            mixed = [math.log(1 - rate + rate * math.exp(side)) if rate < 1 else side for side in sides]
            total += mixed[0] - mixed[1]
    assert attack.ratio(SimpleNamespace(releases=seen, clients=None)) == pytest.approx(total)


@pytest.mark.parametrize(("rate", "whole", "own", "due"), [
    (1.0, None, 0.5, 3), (1.0, None, 0.0, 0), (0.5, None, 0.5, 0), (1.0, object(), 0.5, 0),
])  # fmt: skip
@pytest.mark.parametrize("clients", [9, 3])
def test_clients_that_took_part_for_sure_subtract_the_noise_of_their_own(rate, whole, own, due, clients):
    event = SimpleNamespace(whole=whole, rate=rate)
    plan = SimpleNamespace(privacy=SimpleNamespace(at=lambda round_: event, colluding=3, clients=clients))
    attack = release_attack.OnReleases(plan=plan, cell=None, worlds=None)
    attack.__dict__["_clients"] = SimpleNamespace(message_noise_variance=lambda bound: own)
    # The canary itself does not collude.
    assert attack._colluding == min(due, clients - 1)


def test_a_server_looks_at_the_rounds_in_which_the_canary_took_part():
    looked, own, other = [], torch.tensor([1.5, 0.0]).double(), torch.tensor([0.0, -0.5]).double()

    def look(plan, clients, release, cohort, secret):
        looked.append((plan, clients, release.n, cohort.n, secret))
        return None if release.n == 2 else (torch.tensor([1.0, 2.0 + release.n]).double(), 0.5 + release.n)

    attack = server_attack.OnServer(plan="plan", cell=None, worlds=None, look=look)
    attack.__dict__["_messages"] = SimpleNamespace(message=lambda release, one: own if one else other)
    releases = [SimpleNamespace(n=n) for n in range(4)]
    cohorts = [SimpleNamespace(n=n, clients=np.array([3, 0] if n != 1 else [3, 4])) for n in range(4)]
    found = attack.ratio(SimpleNamespace(releases=releases, clients="own", sums=[(c, f"sum{c.n}") for c in cohorts]))
    due = 0.0
    for n in (0, 3):
        values, variance = torch.tensor([1.0, 2.0 + n]).double(), 0.5 + n
        due += over_nothing(values, own, variance) - over_nothing(values, other, variance)
    assert found == pytest.approx(due)
    assert looked == [("plan", "own", n, n, f"sum{n}") for n in (0, 2, 3)]


def test_every_slot_of_a_check_in_is_as_likely_and_one_without_a_release_tells_nothing():
    own, other = torch.tensor([1.5]).double(), torch.tensor([-0.5]).double()
    seen = [SimpleNamespace(round=n, deviation=0.5 + n, total=None if n == 1 else torch.tensor([1.0 + n]).double())
            for n in range(3)]  # fmt: skip
    attack = release_attack.OnCheckIns(plan=None, cell=None, worlds=None, slots=4)
    attack.__dict__["_messages"] = SimpleNamespace(message=lambda release, one: own if one else other)
    sides = []
    for message in (own, other):
        losses = [0.0, 0.0] + [over_nothing(seen[n].total, message, seen[n].deviation ** 2) for n in (0, 2)]
        sides.append(math.log(sum(map(math.exp, losses)) / 4))
    assert attack.ratio(SimpleNamespace(releases=seen)) == pytest.approx(sides[0] - sides[1])


def test_directions_have_length_one_and_differ_by_their_number_and_seed():
    drawn = [RandomDirections(seed=seed).of(number, 50) for seed, number in ((1, 0), (1, 1), (2, 0), (1, 0))]
    assert all(float(each.norm()) == pytest.approx(1.0) for each in [*drawn, SameDirection().of(3, 50)])
    assert torch.equal(drawn[0], drawn[3])
    assert all(abs(float(one @ two)) < 0.6 for one, two in itertools.combinations(drawn[:3], 2))
    assert torch.equal(SameDirection().of(0, 4), torch.full((4,), 0.5))


def test_a_canary_s_cosine_is_with_the_sum_of_releases_over_their_noise():
    """What a policy attached stands behind the model's part; rounds without a release are left out."""
    releases = [SimpleNamespace(model={"w": torch.zeros(3)}, deviation=deviation, total=total) for deviation, total in (
        (2.0, torch.tensor([2.0, 4.0, 0.0, 99.0]).double()), (1.0, None),
        (0.5, torch.tensor([0.0, 0.5, 1.5, 99.0]).double()))]  # fmt: skip
    directions = SimpleNamespace(of=lambda number, size: torch.eye(size)[number])
    total = np.array([1.0, 3.0, 3.0])
    assert cosines(releases, directions, 3, len(total)).tolist() == pytest.approx(
        (total / np.linalg.norm(total)).tolist()
    )


def test_guesses_are_of_the_most_certain_in_each_direction():
    inside, outside = (
        np.array([9.0, 8.0, 1.0, 7.0, 0.5]),
        np.array([0.0, 8.5, 2.0, 3.0, 0.25, 4.0, 5.0, 6.0, 6.5, 6.75, 1.5]),
    )
    (half, quarter) = guesses_of(inside, outside, (0.5, 0.25))
    assert half == Guesses(canaries=16, made=16, right=3 + 6)
    # The four largest: 9, 8.5 (out), 8, 7; the four smallest: 0, 0.25, 0.5 (in), 1 (in).
    assert quarter == Guesses(canaries=16, made=8, right=3 + 2)
    # Fewer guesses than could reject anything are not made.
    assert [each.made for each in guesses_of(inside, outside, SHARES)] == [16, 8]


def test_the_share_is_the_one_with_the_largest_bound_of_the_first_run():
    """Two clear canaries among many that are told apart by nothing: few guesses show most."""
    generator = np.random.default_rng(0)
    inside, outside = generator.normal(size=500), generator.normal(size=500)
    inside[:16] += 50
    outside[:16] -= 50
    assert best_share(inside, outside, 1e-9, 0.001) < 0.1
    assert best_share(generator.normal(size=500) + 3, generator.normal(size=500), 1e-5, 0.001) > 0.1
    assert pooled([Guesses(canaries=3, made=5, right=7), Guesses(canaries=20, made=40, right=60)]) == Guesses(
        canaries=23, made=45, right=67
    )


PROMISE = PromisedCell(epsilon=1.5, delta=1e-5)
ABOUT = {"relation": "add-remove", "rounds": 8, "calls": 12_000}


@pytest.mark.parametrize(("bound", "confirmed", "refuted"), [
    (0.5, None, False), (1.6, 1.5, False), (1.6, 1.5001, True), (1.6, 0.0, False), (math.inf, math.inf, True),
])  # fmt: skip
def test_a_verdict_is_that_of_the_second_sample(bound, confirmed, refuted):
    verdict = RoundsVerdict(promised=PROMISE, audited=bound, confirmed=confirmed, **ABOUT, runs=200, seed=7)
    assert verdict.refuted == refuted
    content = verdict.as_json()
    assert content["audited"] == (bound if math.isfinite(bound) else None)
    assert content["confirmed"] == (confirmed if confirmed is not None and math.isfinite(confirmed) else None)
    assert (content["runs"], content["seed"], content["promised"]["epsilon"]) == (200, 7, 1.5)
    assert (content["relation"], content["rounds"], content["calls"]) == ("add-remove", 8, 12_000)
    assert ("does not hold" in str(verdict)) == refuted
    assert str(verdict).endswith("; 8 round(s) a run, 12,000 calls")


@pytest.mark.parametrize(("given", "words"), [
    ({"clients": 2.0}, "clients = 2.0"), ({"rounds": True}, "rounds = True"), ({"runs": 99}, "runs = 99"),
    ({"clients": 1}, "clients = 1, expected a whole number of at least 2"), ({"like": {}}, "like: a mapping"),
])  # fmt: skip
def test_a_number_of_an_audit_is_whole_and_large_enough(given, words):
    usual = {"promise": PROMISE, "like": {"w": np.zeros(2)}, "clients": 2, "rounds": 1, "runs": 100}
    with pytest.raises(InputError, match=words):
        audited(lambda *given: given, **usual | given)


def test_so_many_runs_as_are_advised_could_show_a_broken_promise():
    for epsilon in (0.5, 1.5, 4.0):
        promise = PromisedCell(epsilon=epsilon, delta=1e-5)
        runs = audit_rounds._enough(promise)
        assert audit_rounds._most_shown(runs, 1e-5) > 1.2 * epsilon
        assert runs == 100 or audit_rounds._most_shown(runs // 2, 1e-5) <= 1.2 * epsilon


GAUSSIAN, OTHER = GaussianNoise(multiplier=2.0), object()


@pytest.mark.parametrize(("noises", "rates", "kind"), [
    ([GAUSSIAN, GAUSSIAN], [1, 1], "normal"), ([GAUSSIAN, GAUSSIAN], [1, 0.5], "sampled"),
    ([GAUSSIAN, GAUSSIAN], [0.5, 1], "sampled"), ([GAUSSIAN, OTHER], [1, 1], None), ([OTHER, GAUSSIAN], [0.5, 1], None),
    ([OTHER, OTHER], [1, 1], None),
])  # fmt: skip
@pytest.mark.parametrize("other", [0, -1])
def test_a_curve_is_known_where_all_noise_is_gaussian_and_normal_where_nobody_is_sampled(
    monkeypatch, noises, rates, kind, other
):
    phases = tuple(SimpleNamespace(event=SimpleNamespace(noise=noise, rate=rate))
                   for noise, rate in zip(noises, rates, strict=True))  # fmt: skip
    monkeypatch.setattr(release_attack, "surplus", lambda phases: 1e-6)
    plan = SimpleNamespace(privacy=SimpleNamespace(phases=phases))
    worlds = SimpleNamespace(other=other)
    found = release_attack.OnReleases(plan=plan, cell=cell(), worlds=worlds).curve
    if kind == "sampled":
        assert (found.phases, found.delta) == (phases, pytest.approx(1e-5 - 1e-6))
        assert found.neighbours == ("replace-one" if other else "add-remove")
    else:
        assert (found is None) == (kind is None)
        assert found is None or found.epsilon(1.0) == pytest.approx(1.5)


@pytest.mark.parametrize("others", [False, True])
def test_canaries_are_among_the_same_clients_with_their_own_directions(monkeypatch, others):
    kept = {}
    monkeypatch.setattr(canaries, "SideWithCanaries", lambda **given: kept.update(given))
    directions = RandomDirections(seed=3)
    side = SimpleNamespace(population="people", record_noises=("noise",), source="source")
    canaries.with_canaries(side, {4: 1}, directions, others=others)
    assert kept == {"population": "people", "source": "source", "record_noises": (), "canaries": {4: 1},
                    "directions": directions, "others": others}  # fmt: skip


@pytest.mark.parametrize("releases", [False, True])
def test_an_attacker_knows_messages_without_any_noise_of_the_clients(monkeypatch, releases):
    """Also that of their support steps, which would move every message."""
    asked = []
    algorithm = SimpleNamespace(releases=releases, quiet=lambda **given: asked.append(given) or "quiet")
    monkeypatch.setattr(neighbouring_runs, "replace", lambda side, **changes: changes)
    found = neighbouring_runs.quiet(SimpleNamespace(algorithm=algorithm))
    assert asked == ([{"support": False, "noise": neighbouring_runs._NO_NOISE}] if releases else [])
    due = {"algorithm": "quiet", "message_noise": 0.0, "record_noises": ()} if releases else {"message_noise": 0.0}
    assert found == due


@pytest.mark.parametrize("colluding", [0, 1, 2, 5])
def test_a_server_subtracts_the_messages_of_as_many_as_collude_with_it(monkeypatch, colluding):
    """The canary is not one of them; the noise of those that remain is what it faces."""
    taken = []

    def rounded(clients, arrays, bounds, round_, known, source):
        taken.extend(known)
        return [np.full(2, 10 * client, dtype=np.int64) for client in known]

    monkeypatch.setattr(server_attack, "rounded_messages", rounded)
    whole = SimpleNamespace(share=lambda asked: 3.0)
    plan = SimpleNamespace(privacy=SimpleNamespace(at=lambda round_: SimpleNamespace(whole=whole), colluding=colluding))
    clients = SimpleNamespace(source=SimpleNamespace(again=lambda again, fresh: "source"))
    release = SimpleNamespace(round=4, bound=1.0, model={"w": torch.zeros(2)})
    cohort = SimpleNamespace(clients=np.array([4, CANARY, 7, 9]), asked=4, again=0, fresh=None)
    grid = SimpleNamespace(read=lambda total: total, centred=lambda left: left, width=0.5)
    secret = SimpleNamespace(noise_variance=12.0, grid=grid, value={"w": torch.tensor([100, 100])})
    values, variance = server_attack.the_sum(plan, clients, release, cohort, secret)
    due = [4, 7, 9][:colluding]
    assert taken == due
    assert values.tolist() == [100.0 - 10 * sum(due)] * 2
    assert variance == (12.0 - 3.0 * len(due)) * 0.25


@pytest.mark.parametrize("round_", [0, 1, 2])
def test_an_observer_sees_the_sum_of_its_own_round_with_the_noise_of_it(round_):
    """A release is a mean over the cohort of its round, which may be another one in each."""
    cohorts = (4.0, 6.0, 10.0)
    plan = SimpleNamespace(privacy=SimpleNamespace(at=lambda number: SimpleNamespace(cohort=cohorts[number])))
    state = SimpleNamespace(round=round_, bound=0.5, model={"w": torch.zeros(2)})
    found = _seen(plan, state, SimpleNamespace(value={"w": torch.tensor([1.0, 3.0])}, noise_deviation=0.25))
    assert (found.round, found.bound) == (round_, 0.5)
    assert found.total.tolist() == [cohorts[round_], 3.0 * cohorts[round_]]
    assert found.deviation == 0.25 * cohorts[round_]
    # Without noise an attack divides by a millionth of the bound.
    assert _seen(plan, state, SimpleNamespace(value={"w": torch.ones(2)}, noise_deviation=0.0)).deviation == 0.5e-6
    aborted = _seen(plan, state, None)
    assert (aborted.total, aborted.deviation) == (None, 0.0)


def test_a_watcher_hears_the_share_of_runs_that_are_done():
    heard = []
    attack = SimpleNamespace(worlds=SimpleNamespace(clients=lambda one, source: one), ratio=lambda seen: 1.0)
    bench = Bench(plan=None, runs=4, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_runs, "observe", lambda *given, **more: None)
        found = bench.ratios(attack, heard.append)
    assert heard == [0.25, 0.5, 0.75, 1.0]
    assert found.runs == 4


@pytest.mark.parametrize("noises", [(1.0,), (1.0, None), (None,), (None, 1.0)])
@pytest.mark.parametrize("epsilon", [1.5, math.inf])
def test_noise_of_local_steps_in_any_stretch_is_attacked_by_nobody(noises, epsilon):
    phases = [SimpleNamespace(event=SimpleNamespace(noise=noise)) for noise in noises]
    whole = SimpleNamespace(whole="whole", slots=None, noise=None)
    plan = SimpleNamespace(privacy=SimpleNamespace(phases=phases, record=None, at=lambda round_: whole))
    own = cell("client", "server", epsilon)
    if math.isfinite(epsilon) and None not in noises:
        assert vars(attack_on(plan, own))["cell"] is own
        return
    with pytest.raises(NoAttack, match="noisy local steps" if math.isfinite(epsilon) else "nothing is promised"):
        attack_on(plan, own)


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("record", [None, "noise"])
@pytest.mark.parametrize("epsilon", [1.5, math.inf])
@pytest.mark.parametrize("as_planned", [False, True])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_only_records_inside_a_client_need_a_network_of_their_own(monkeypatch, unit, record, epsilon, as_planned, norm):
    """And only where it is not the planned one is another plan made."""
    other = SimpleNamespace(
        planned=[cell(*name, 7.0) for name in NAMES], privacy=SimpleNamespace(record=record, relation="zero-out")
    )
    asked = []
    request = SimpleNamespace(as_planned=as_planned, plan=lambda more: (asked.append(more), other)[1])
    plan = SimpleNamespace(
        privacy=SimpleNamespace(record=record, relation="zero-out"), network=SimpleNamespace(norm=norm),
        planned=[cell(*name, epsilon) for name in NAMES],
    )  # fmt: skip
    monkeypatch.setattr(run_audit, "attack_on", lambda plan, cell: ("attack", plan, cell))
    own, inside = cell(unit, "server", epsilon), unit == "record" and record is not None and math.isfinite(epsilon)
    if inside and as_planned and norm == "batch":
        with pytest.raises(InputError, match=r"model\.norm = batch"):
            run_audit.prepared_attack(request, plan, own)
        return
    found, its, attack = run_audit.prepared_attack(request, plan, own)
    assert asked == ([OF_RECORDS] if inside and not as_planned else [])
    assert found is (other if asked else plan)
    assert attack == ("attack", found, its)
    assert (its.unit, its.observer, its.epsilon) == (unit, "server", 7.0 if asked else epsilon)


def test_a_cell_that_nobody_audits_has_no_runs_and_no_canaries():
    found = run_audit.nothing(cell("record", "server", 2.0), "one-run", "why not")
    assert (found.audited, found.method, found.audit) == (None, "why not", "one-run")
    assert (found.runs, found.canaries, found.confidence) == (0, 0, None)
