"""Members that nobody planned for, one file each, trained end to end; and members that break their protocol."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
import yaml

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import cost_of
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.caveats import word_of_authors
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.reporting.html.run_page import AGREES, check_report
from dpfedmeta.training.verification.verify import audit
from tests.golden.golden_runs import SMALL, values_of
from tests.seams import own_cost, own_policy
from tests.seams.own_aggregation import Halves
from tests.seams.own_noise import Coin
from tests.seams.trained import gone_on, interrupted, trained

HERE = "tests.seams"
POLICY, NOISE = "tests.seams.own_policy:Halving", "tests.seams.own_noise:Coin"
SUM, METHOD = "tests.seams.own_aggregation:Halves", "tests.seams.own_method:SignMaml"


def cells(run):
    return {
        f"({cell['unit']}, {cell['observer']})": cell["epsilon"] for cell in run.read_json("summary.json")["guarantees"]
    }


def test_a_policy_of_ones_own(tiny_task_file, tmp_path):
    run = trained(
        tiny_task_file, tmp_path, "dp-agr", {"clip.policy": POLICY, "clip.own.every": "1", "server.rounds": "4"}
    )
    bounds = [row["clip"] for row in run.rounds()]
    assert bounds == pytest.approx([bounds[0] / 2**place for place in range(4)])
    plain = trained(tiny_task_file, tmp_path / "plain", "dp-agr", {"clip.policy": "constant"})
    assert cells(run) == cells(plain)
    assert "summary.json agrees" in audit(run).remarks


@pytest.mark.parametrize("bound", ["inf", "nan", "-1", "0", "5e-324", "1e300"])
def test_a_policy_that_gives_what_is_no_bound_is_refused_before_a_charge(bound, tiny_task_file, tmp_path, monkeypatch):
    monkeypatch.setattr(own_policy.Runaway, "given", float(bound))
    with pytest.raises(InputError, match=r"^clip\.policy: its next_bound gives .*expected a number from") as e:
        trained(tiny_task_file, tmp_path, "dp-agr", {"clip.policy": f"{HERE}.own_policy:Runaway"})
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()


def test_a_policy_that_gives_what_is_no_bound_later_ends_the_run_in_one_line(tiny_task_file, tmp_path, monkeypatch):
    monkeypatch.setattr(own_policy.Runaway, "given", float("nan"))
    monkeypatch.setattr(own_policy.Runaway, "after", 3)
    given = {"clip.policy": f"{HERE}.own_policy:Runaway", "server.rounds": "5"}
    with pytest.raises(InputError, match=r"^clip\.policy: after round 3 its next_bound gives nan, expected") as e:
        trained(tiny_task_file, tmp_path, "dp-agr", given)
    assert "\n" not in str(e.value)
    run = RunDirectory(tmp_path / "run")
    assert [row["round"] for row in run.rounds()] == [0, 1, 2]
    assert not run.weights.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Swapped", r"its next_bound gives \(.*expected \(state, bound\), with a state as initial\(\) gives"),
        ("Raising", r"its next_bound raised KeyError: 'bound'$"),
        ("Counting", r"its next_bound gives .*, then .*, for the same state and release; keep all"),
    ],
)
def test_a_policy_that_is_no_pure_function_is_refused_before_a_charge(name, words, tiny_task_file, tmp_path):
    with pytest.raises(InputError, match=rf"^clip\.policy: {words}"):
        trained(tiny_task_file, tmp_path, "dp-agr", {"clip.policy": f"{HERE}.own_policy:{name}"})
    assert not (tmp_path / "run").exists()


def test_a_policy_that_remembers_vectors_and_gives_numbers_of_numpy_is_sound(tiny_task_file, tmp_path):
    run = trained(tiny_task_file, tmp_path, "dp-agr", {"clip.policy": f"{HERE}.own_policy:Remembering"})
    assert "summary.json agrees" in audit(run).remarks


def test_a_policy_that_writes_into_a_release_changes_no_update(tiny_task_file, tmp_path):
    given = {"clip.policy": f"{HERE}.own_policy:Writing"}
    written = trained(tiny_task_file, tmp_path / "written", "dp-agr", given)
    plain = trained(tiny_task_file, tmp_path / "plain", "dp-agr", {"clip.policy": "constant"})
    norms = [[row["aggregate_norm"] for row in run.rounds()] for run in (written, plain)]
    assert norms[0] == norms[1]
    assert load_weights(written.weights).keys() == load_weights(plain.weights).keys()
    for name, value in load_weights(written.weights).items():
        assert torch.equal(value, load_weights(plain.weights)[name])


def test_a_mechanism_of_ones_own_is_charged_with_what_it_costs(tiny_task_file, tmp_path):
    given = {"server.noise": NOISE, "server.noise_multiplier": "2.0"}
    run = trained(tiny_task_file, tmp_path, "dp-agr", given)
    small = trained(tiny_task_file, tmp_path / "small", "dp-agr", {"server.noise_multiplier": "2.0"})
    large = trained(tiny_task_file, tmp_path / "large", "dp-agr", {"server.noise_multiplier": "4.0"})
    assert cells(large)["(client, public)"] < cells(run)["(client, public)"] < cells(small)["(client, public)"]
    assert cells(run)["(record, public)"] < float("inf")
    line = json.loads(run.ledger.read_text().splitlines()[1])
    assert line["event"]["noise"] == {"kind": "tests.seams.own_noise:CoinNoise", "small": 2.0, "large": 4.0}
    assert {"summary.json agrees", "rounds.jsonl agrees"} <= {*audit(run).remarks}


LIARS = {
    "Noiseless": "in round 0 it released with no noise, but the ledger was charged for one release with Gaussian",
    "Nought": "states noise of deviation 0,",
    "LessGaussian": "states noise of deviation .* but the plan's is",
    "Often": "released with Gaussian noise of z = 2, Gaussian noise of z = 2, Gaussian noise of z = 2, but",
    "Another": "released with Gaussian noise of z = 0.01, but",
    "Bare": "it returned dict, expected Released",
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_release_is_compared_with_what_was_charged_before_anything_leaves(liar, tiny_task_file, tmp_path):
    given = {"server.noise": f"{HERE}.own_noise:{liar}", "server.noise_multiplier": "2.0"}
    with pytest.raises(RefusedPlan, match=LIARS[liar]):
        trained(tiny_task_file, tmp_path, "dp-agr", given)
    run = RunDirectory(tmp_path / "run")
    assert len(run.ledger.read_text().splitlines()) == 2
    assert not run.rounds_file.exists() or not run.rounds()
    assert not run.weights.exists()


def test_noise_of_somebody_elses_rests_on_their_word_wherever_it_is_shown(tiny_task_file, tmp_path):
    given = {"server.noise": NOISE, "server.noise_multiplier": "2.0"}
    planned = dp.plan(resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **given}))
    assert any("author vouches for it" in caution for caution in planned.cautions)
    assert "pld, by word" in repr(planned.guarantees)
    run = trained(tiny_task_file, tmp_path, "dp-agr", given)
    page = write_report(run).read_text()
    assert re.search("<td[^>]*>pld, by word", page)
    assert "author vouches for it" in page
    found = audit(run)
    assert check_report(found.snapshot, found.proven) == [f"report.html {AGREES}"]
    assert found.proven.word.startswith(f"server.noise = {NOISE}:")
    ours = dp.plan(resolve("dp-agr", str(tiny_task_file), None, SMALL))
    assert "by word" not in repr(ours)


@pytest.mark.parametrize(
    ("algo", "given", "rests"),
    [
        ("dp-agr", {"aggregation.mode": SUM}, True),
        ("dp-agr", {"meta.method": METHOD}, False),
        ("dp-agrlr-micro", {"meta.method": METHOD}, True),
    ],
)
def test_which_code_of_the_users_own_a_guarantee_rests_on(algo, given, rests, tiny_task_file):
    settings = resolve(algo, str(tiny_task_file), None, {**SMALL, **given})
    assert (word_of_authors(settings) is not None) == rests


def test_its_noise_is_solved_from_a_target_too(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    plan = make_privacy(resolve("dp-agr", str(tiny_task_file), None, {**SMALL, "server.noise": NOISE}), task)
    plain = make_privacy(resolve("dp-agr", str(tiny_task_file), None, SMALL), task)
    assert plain.noise_multiplier / 2 < plan.noise_multiplier < plain.noise_multiplier


def test_its_state_is_secret_and_outlives_a_crash(tiny_task_file, tmp_path):
    given = {"server.noise": NOISE, "server.noise_multiplier": "2.0", "server.rounds": "5", "run.checkpoint_every": "2"}
    whole = trained(tiny_task_file, tmp_path / "whole", "dp-agr", given)
    run = interrupted(tiny_task_file, tmp_path / "cut", "dp-agr", given, after=3)
    kept = sorted((run.secret / "noise").iterdir())
    assert kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    gone_on(run)
    assert torch.equal(*(torch.tensor([row["clip"] for row in each.rounds()]) for each in (whole, run)))
    assert values_of(run)["bits"] == values_of(whole)["bits"]


def test_a_state_that_is_lost_ends_the_run(tiny_task_file, tmp_path):
    given = {"server.noise": NOISE, "server.noise_multiplier": "2.0", "server.rounds": "5", "run.checkpoint_every": "2"}
    run = interrupted(tiny_task_file, tmp_path, "dp-agr", given, after=3)
    for path in (run.secret / "noise").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"secret/noise/round-"):
        gone_on(run)


def test_an_aggregation_of_ones_own(tiny_task_file, tmp_path):
    whole = trained(tiny_task_file, tmp_path / "whole", "dp-agr", {})
    halves = trained(tiny_task_file, tmp_path / "halves", "dp-agr", {"aggregation.mode": SUM})
    assert values_of(halves)["bits"] == values_of(whole)["bits"]
    assert audit(halves).plan.server_sees == "sum"


def test_what_the_server_sees_decides_over_its_cells(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    given = {**SMALL, "population.cohort": "20", "server.noise_site": "clients", "server.noise_multiplier": "3",
             "population.max_participations": "null"}  # fmt: skip

    def epsilons(**more):
        plan = make_plan(resolve("dp-fedavg-fixed", str(tiny_task_file), None, {**given, **more}), task)
        return {cell.name: cell.epsilon for cell in plan.planned}

    messages, total = epsilons(), epsilons(**{"aggregation.mode": SUM})
    assert total["(client, public)"] == messages["(client, public)"]
    assert total["(client, public)"] < total["(client, server)"] < messages["(client, server)"] / 2
    alone = epsilons(**{"aggregation.mode": SUM, "server.noise_site": "server"})
    assert alone["(client, server)"] == float("inf")


def test_a_method_of_ones_own_under_either_layer(tiny_task_file, tmp_path):
    run = trained(tiny_task_file, tmp_path / "a", "dp-agr", {"meta.method": METHOD})
    assert run.read_json("summary.json")["status"] == "completed"
    micro = trained(tiny_task_file, tmp_path / "b", "dp-agrlr-micro", {"meta.method": METHOD})
    assert cells(micro)["(record, server)"] == pytest.approx(2.5, rel=0.01)


REFUSED = {
    "no such policy": ({"clip.policy": "windw"}, InputError, r"clip\.policy.*did you mean window"),
    "no such module": ({"clip.policy": "nowhere.at_all:Policy"}, InputError, "cannot be imported"),
    "no such name": ({"clip.policy": f"{HERE}.own_policy:Nothing"}, InputError, "has no Nothing"),
    "a policy that cannot go on": ({"clip.policy": f"{HERE}.own_policy:Forgetful"}, InputError, "has no next_bound"),
    "a policy that does not take its settings": (
        {"clip.policy": f"{HERE}.own_policy:Deaf"},
        InputError,
        r"its planned\(clip, around\) is given 2 .* and own, its",
    ),
    "a policy whose state is silent": ({"clip.policy": f"{HERE}.own_policy:Wordless"}, InputError, "has no mode;"),
    "a policy that asks for what it likes": (
        {"clip.policy": f"{HERE}.own_policy:Listening"}, RefusedPlan, r"Listening: its attachment is Attached, whose"
    ),
    "an attachment that passes for another": (
        {"clip.policy": f"{HERE}.own_policy:Subclassed"}, RefusedPlan, "its attachment is LongBit, whose"
    ),
    "an attachment with another sensitivity": (
        {"clip.policy": f"{HERE}.own_policy:Understated"}, RefusedPlan, "changes more of BelowBound"
    ),
    "an attachment with other values": (
        {"clip.policy": f"{HERE}.own_policy:Patched"}, RefusedPlan, "changes more of BelowBound"
    ),
    "a policy without a bound": (
        {"clip.policy": f"{HERE}.own_policy:Unbounded"}, InputError, r"initial\(\)\.bound is inf, expected a num"
    ),
    "settings of nobody": ({"clip.own.every": "2"}, InputError, "takes no settings of its own"),
    "a setting it does not take": ({"clip.policy": POLICY, "clip.own.evry": "2"}, InputError, "did you mean every"),
    "a value it does not take": ({"clip.policy": POLICY, "clip.own.every": "0"}, InputError, r"clip\.own\.every"),
    "a policy that is none": ({"clip.policy": f"{HERE}.own_policy:HalvingState"}, InputError, "has no planned; it"),
    "noise without a price": ({"server.noise": f"{HERE}.own_noise:Costless"}, InputError, r"needs noise\(multiplier\)"),
    "noise at another price": ({"server.noise": f"{HERE}.own_noise:Cheat"}, RefusedPlan, "but the plan counts"),
    "an aggregation that hides": ({"aggregation.mode": f"{HERE}.own_aggregation:Blind"}, InputError, "sees ="),
    "a method that does not count": ({"meta.method": f"{HERE}.own_method:Uncounted"}, InputError, "has no parts; it"),
    "a method that is silent": ({"meta.method": f"{HERE}.own_method:Speechless"}, InputError, "has no adaptation"),
    "other noise beside the clients'": (
        {"server.noise": NOISE, "server.noise_site": "clients", "population.sampler": "fixed"},
        RefusedPlan,
        "independent noise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_member_that_breaks_its_protocol_is_refused_before_round_0(name, tiny_task_file):
    given, kind, words = REFUSED[name]
    task, _ = load_task(str(tiny_task_file))
    with pytest.raises(kind, match=words):
        make_plan(resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **given}), task)


def test_a_wrong_sum_never_becomes_a_release(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    plan = make_plan(resolve("dp-agr", str(tiny_task_file), None, SMALL), task)
    raw = {"w": torch.ones(3)}
    with pytest.raises(AttributeError):
        plan.mechanism.release(0, raw, {}, None)


def test_classes_can_be_handed_over_in_python(tiny_task_file, tmp_path):
    given = {"run.dir": str(tmp_path), "run.name": "run", "server.noise_multiplier": "2.0"}
    settings = resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **given})
    run = dp.train(settings, aggregation=Halves, mechanism=Coin, quiet=True)
    assert (run.settings.aggregation.mode, run.settings.server.noise) == (SUM, NOISE)
    assert "summary.json agrees" in audit(RunDirectory(run.path)).remarks

    class Local(Halves):
        """Nobody finds it again."""

    with pytest.raises(InputError, match="a module of its own"):
        dp.train(settings, aggregation=Local, quiet=True)


def test_a_tracker_of_ones_own_is_told_rows_and_end(tiny_task_file, tmp_path):
    own = {"track.to": f"{HERE}.own_tracker:Tracker", "server.rounds": "2"}
    run = trained(tiny_task_file, tmp_path, "dp-agr", own)
    told = [json.loads(line) for line in (run.path / "notes.jsonl").read_text().splitlines()]
    # With a chosen noise seed nothing is private, so rows may tell times.
    assert told == [{"round": 0, "timed": True}, {"round": 1, "timed": True}, {"status": "completed"}]
    with pytest.raises(InputError, match="takes no notes of nowhere"):
        trained(tiny_task_file, tmp_path / "b", "dp-agr", own | {"track.project": "nowhere"})
    with pytest.raises(InputError, match="Half has no check; it needs check, opened"):
        trained(tiny_task_file, tmp_path / "c", "dp-agr", {"track.to": f"{HERE}.own_tracker:Half"})
    assert not (tmp_path / "b" / "run").exists()


def test_trackers_are_named_in_a_list():
    assert resolve("dp-agr", "strokes", None, {"track.to": "tensorboard,wandb"}).track.to == ("tensorboard", "wandb")
    with pytest.raises(InputError, match=r"track\.to: tensorbord is unknown; did you mean tensorboard"):
        resolve("dp-agr", "strokes", None, {"track.to": "tensorbord"})


BLOCKS, HOUSEHOLDS = "tests.seams.own_sampler:Blocks", "tests.seams.own_cost:Households"
# Two epochs of three blocks.
IN_BLOCKS = {
    "population.sampler": BLOCKS, "population.clients": "18", "population.cohort": "6", "server.rounds": "6",
    "population.max_participations": "null", "server.noise_multiplier": "4.0",
}  # fmt: skip


def drawn_in(run):
    """(round, clients) of every cohort."""
    lines = [json.loads(line) for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    return [(line["round"], line["clients"]) for line in lines]


def came_in(run, rounds):
    return [client for round_, clients in drawn_in(run) if round_ in rounds for client in clients]


def test_a_sampler_of_ones_own_is_trained_charged_verified_and_reported(tiny_task_file, tmp_path):
    run = trained(tiny_task_file, tmp_path, "dp-agr", IN_BLOCKS)
    assert [len(clients) for _, clients in drawn_in(run)] == [6] * 6
    for epoch in (range(3), range(3, 6)):
        assert sorted(came_in(run, epoch)) == list(range(18))
    cell = run.read_json("summary.json")["guarantees"][0]
    assert (cell["adjacency"], cell["method"]) == ("replace-one", "gdp")
    assert cell["epsilon"] == gaussian_epsilon(2.0 * math.sqrt(2.0) / 4.0, cell["delta"])
    assert "once in each of the epochs" in cell["formula"]
    assert "a block of 6, each client in one of an epoch" in cell["event"]
    assert json.loads(run.ledger.read_text().splitlines()[1])["event"]["sampler"] == BLOCKS
    assert {"summary.json agrees", "rounds.jsonl agrees"} <= {*audit(run).remarks}
    page = write_report(run).read_text()
    assert "blocks of 6, each client once in an epoch" in page or "a block of 6" in page
    assert f"population.sampler = {BLOCKS}" in page
    found = audit(run)
    assert check_report(found.snapshot, found.proven) == [f"report.html {AGREES}"]


def test_its_noise_is_solved_and_its_record_cells_count_the_epochs(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    given = {name: value for name, value in {**SMALL, **IN_BLOCKS}.items() if name != "server.noise_multiplier"}
    target = {"privacy.client.epsilon": "3.0", "privacy.client.delta": "1.0e-3"}
    solved = make_privacy(resolve("dp-agr", str(tiny_task_file), None, {**given, **target}), task)
    reached = gaussian_epsilon(2.0 * math.sqrt(2.0) / solved.noise_multiplier, 1e-3)
    assert 2.99 < reached <= 3.0
    micro = {"privacy.client.hostile": "0", "record.query_noise": "2.0"}
    settings = resolve("dp-agrlr-micro", str(tiny_task_file), None, {**SMALL, **IN_BLOCKS, **micro})
    server = guarantees(make_privacy(settings, task))[2]
    assert "2 participations" in server.binding.event


def test_a_run_that_goes_on_within_an_epoch_has_each_client_of_it_once(tiny_task_file, tmp_path):
    cut = interrupted(tiny_task_file, tmp_path, "dp-agr", {**IN_BLOCKS, "run.checkpoint_every": "6"}, after=4)
    assert gone_on(cut)[1] == "completed"
    for epoch in (range(3), range(3, 6)):
        assert sorted(came_in(cut, epoch)) == list(range(18))
    assert "summary.json agrees" in audit(cut).remarks


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"population.cohort": "7"}, "a cohort that divides the clients into blocks"),
        ({"aggregation.mode": "secure"}, "an attempt that is made again has nobody in it"),
        ({"population.sampler": "tests.seams.own_sampler:Unstated"}, "neighbours: expected one of add-remove"),
        ({"population.sampler": "tests.seams.own_sampler:EpochCost"}, "EpochCost has no of"),
        ({"population.sampler": "tests.seams.own_sampler:Uncosted"}, "Uncosted states no loss of one round"),
        ({"server.noise": "toeplitz"}, "keeps no minimum distance between a client"),
    ],
)
def test_what_a_sampler_does_not_state_is_refused(given, words, tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    with pytest.raises(InputError, match=words):
        guarantees(make_privacy(resolve("dp-agr", str(tiny_task_file), None, {**SMALL, **IN_BLOCKS, **given}), task))


def test_a_cost_of_ones_own_is_charged_and_verified(tiny_task_file, tmp_path):
    run = trained(tiny_task_file, tmp_path, "dp-agr", {"server.noise": HOUSEHOLDS, "server.noise_multiplier": "30"})
    cell = run.read_json("summary.json")["guarantees"][0]
    assert cell["epsilon"] == gaussian_epsilon(3.0 * math.sqrt(4 * (1 / 30) ** 2), cell["delta"])
    assert cells(run)["(record, public)"] > cell["epsilon"]
    assert "of households" in cell["formula"]
    assert {"summary.json agrees", "rounds.jsonl agrees"} <= {*audit(run).remarks}


def test_costs_that_know_nothing_of_each_other_are_not_added_up():
    noise = own_cost.HouseholdNoise(multiplier=3.0)
    plain = PrivacyPlan(clients=100, cohort=10.0, rounds=2, noise_multiplier=3.0).phases[0]
    ours = replace(plain, event=replace(plain.event, noise=noise))
    blocks = replace(plain, event=replace(plain.event, sampler=BLOCKS))
    for phases in ([plain, ours], [ours, blocks], [blocks, plain]):
        with pytest.raises(RefusedPlan, match="are not added up: no bound is known"):
            cost_of(phases)
    assert isinstance(cost_of([ours, ours]), own_cost.HouseholdCost)


def test_a_cost_that_does_not_say_what_rounds_cost_is_refused(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    given = {**SMALL, "server.noise": "tests.seams.own_cost:Half", "server.noise_multiplier": "3"}
    with pytest.raises(InputError, match="HalfCost has no composed; it needs composed, delta_at, pair"):
        guarantees(make_privacy(resolve("dp-agr", str(tiny_task_file), None, given), task))


STRIPES = {
    "name": "stripes", "source": {"reader": "tests.seams.own_reader:Stripes", "widths": 9}, "split": "split.csv",
    "image_size": 28, "channels": 1, "images_per_class": 4,
}  # fmt: skip
WIDTHS = "class,split\n1,train\n2,train\n3,train\n4,val\n5,val\n6,val\n7,test\n8,test\n9,test\n"


def stripes_in(folder, rows=WIDTHS, **changes):
    (folder / "split.csv").write_text(rows)
    path = folder / "stripes.yaml"
    path.write_text(yaml.safe_dump(STRIPES | changes))
    return path


def test_a_reader_of_ones_own_is_trained_on(tmp_path):
    path = stripes_in(tmp_path)
    data = open_dataset(str(path), tmp_path)
    assert (data.train.names, data.val.names, data.test.names) == (("1", "2", "3"), ("4", "5", "6"), ("7", "8", "9"))
    assert data.train.images[4, 0, 0, :5].tolist() == [0, 0, 255, 255, 0]
    run = trained(path, tmp_path, "dp-agr", {"task.shots": "1", "task.queries": "1", "evaluation.queries": "1"})
    assert run.read_json("summary.json")["status"] == "completed"
    assert "summary.json agrees" in audit(run).remarks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": STRIPES["source"] | {"width": 3}}, r"source\.width: unknown key; did you mean widths"),
        ({"source": STRIPES["source"] | {"widths": "many"}}, r"source\.widths: .*got 'many'"),
        ({"source": {"reader": "tests.seams.own_reader:NoReader"}}, "is no PublishedReader"),
        ({"source": {"reader": "tests.seams.own_reader:Absent"}}, "has no Absent"),
        ({"channels": 3}, "own_reader:Stripes has 1, got 3"),
        ({"images_per_class": None}, "images_per_class: missing"),
    ],
)
def test_a_task_file_says_what_a_reader_of_ones_own_asks_for(changes, words, tmp_path):
    with pytest.raises(InputError, match=words) as caught:
        load_task(str(stripes_in(tmp_path, **changes)))
    assert str(caught.value).startswith(str(tmp_path / "stripes.yaml"))


def test_what_its_reader_refuses_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no width 12"):
        open_dataset(str(stripes_in(tmp_path, WIDTHS + "12,test\n")), tmp_path)
