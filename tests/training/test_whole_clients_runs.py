"""Runs of whole clients, from a table to a verified ledger; and what is refused in one line before any charge."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import dpfedmeta
from dpfedmeta.api.run import Run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.data.populations.from_records import RecordsPopulation
from dpfedmeta.data.populations.whole_population import able_numbers
from dpfedmeta.planning.client_population import clients_of
from dpfedmeta.reporting.compare.paired_runs import kept_episodes
from dpfedmeta.training import throughput
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions, prepared
from dpfedmeta.training.verification.verify import audit
from tests.data.own_data import write_csv

WHOLE = {
    "population.episodes": "whole", "population.cohort": "6", "server.rounds": "3", "server.noise_multiplier": "2",
    "privacy.client.epsilon": "null", "privacy.client.delta": "0.001", "clip.window": "2", "model.width": "4",
    "meta.steps": "2", "evaluation.episodes": "4", "evaluation.validation_episodes": "2", "evaluation.every": "3",
    "run.workers": "1", "run.noise_seed": "3", "run.checkpoint_every": "1",
}  # fmt: skip


def rows_of(clients, seed=0):
    """Clients with one to five classes of one to nine records."""
    draw = np.random.default_rng(seed)
    rows = [["client", "class", "x", "y", "z"]]
    for client in range(clients):
        for label in range(int(draw.integers(1, 6))):
            centre = draw.normal(size=3)
            count = int(draw.integers(1, 10))
            rows += [
                [f"p{client:02d}", f"c{label}", *row] for row in np.round(centre + draw.normal(size=(count, 3)), 3)
            ]
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("table") / "ragged.csv", rows_of(40))


def settings_of(data, folder, algo="dp-agr", **given):
    return resolve(algo, str(data), None, {**WHOLE, "run.dir": str(folder), **given})


def weights_of(run):
    return b"".join(value.numpy().tobytes() for _, value in sorted(load_file(run.weights).items()))


@pytest.fixture(scope="module")
def ran(table, tmp_path_factory):
    return run_training(settings_of(table, tmp_path_factory.mktemp("runs")))


def test_a_run_is_verified_and_says_what_clients_hold(ran):
    run, summary = ran[0], ran[0].read_json("summary.json")
    sizes = {"episodes": "whole", "support_share": 0.5, "most_ways": 20, "most_records": 400, "balance": "classes"}
    assert summary["task"] == sizes
    assert summary["records"] == "vectors"
    assert "each uses all its records" in summary["described"]["population"]["text"]
    assert "whole held-out clients" in summary["accuracy"]["protocol"]
    assert summary["accuracy"]["episodes"] == 4
    audit(run)
    changed = summary | {"task": sizes | {"most_records": 40}}
    path = run.path / "summary.json"
    honest = path.read_text()
    try:
        path.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"task\.most_records"):
            audit(run)
    finally:
        path.write_text(honest)


@pytest.mark.slow
def test_workers_change_no_bit(table, ran, tmp_path):
    other, _ = run_training(settings_of(table, tmp_path, **{"run.workers": "2"}))
    assert weights_of(other) == weights_of(ran[0])


def test_limits_that_nobody_reaches_change_no_bit_and_others_do(table, ran, tmp_path):
    given = {"task.most_ways": "50", "task.most_records": "5000"}
    body = [n for n in load_file(ran[0].weights) if n.startswith("body")]
    honest = {name: load_file(ran[0].weights)[name] for name in body}
    larger = load_file(run_training(settings_of(table, tmp_path / "a", **given))[0].weights)
    assert all(bool((larger[name] == honest[name]).all()) for name in body)
    for number, (name, value) in enumerate((("most_ways", "2"), ("support_share", "0.8"), ("balance", "records"))):
        found = load_file(
            run_training(settings_of(table, tmp_path / str(number), **{f"task.{name}": value}))[0].weights
        )
        assert any(bool((found[name] != honest[name]).any()) for name in body), name


def test_a_run_goes_on_with_its_own_clients_alone(table, ran, tmp_path):
    """Cut after two rounds, it ends with the weights of one that was not; with other limits it does not go on."""
    settings = settings_of(table, tmp_path)
    rounds = []

    class Stop(dpfedmeta.Callback):
        def on_round(self, row):
            rounds.append(row)
            if len(rounds) == 2:
                raise KeyboardInterrupt

    run, status = run_training(settings, RunOptions(), (Stop(),))
    assert status == "interrupted"
    changed = replace(settings, task=replace(settings.task, support_share=0.4))
    with pytest.raises(InputError, match=r"task\.support_share"):
        dpfedmeta.train(changed, resume=run.path, quiet=True)
    with pytest.raises(InputError, match=r"population\.episodes|task\."):
        fixed = replace(settings, population=replace(settings.population, episodes="fixed"))
        dpfedmeta.train(fixed, resume=run.path, quiet=True)
    dpfedmeta.train(resume=run.path, quiet=True)
    assert weights_of(run) == weights_of(ran[0])


def test_a_mapping_trains_as_it_is(table, tmp_path):
    held = {f"p{n}": (np.random.default_rng(n).normal(size=(6, 3)), ["a", "a", "b", "b", "b", "c"]) for n in range(20)}
    settings = settings_of(table, tmp_path, **{"population.clients": "20"})
    run = dpfedmeta.train(settings, population=held, quiet=True)
    assert run.summary["population"]["kind"] == "own"
    with pytest.raises(InputError, match=r"population\.clients = 19, but 20 clients were handed over"):
        dpfedmeta.train(settings_of(table, tmp_path, **{"population.clients": "19"}), population=held, quiet=True)
    fixed = resolve("dp-agr", str(table), None, {"population.clients": "20", "population.cohort": "5"})
    with pytest.raises(InputError, match=r"a mapping from each client to \(records, targets\) is for whole clients"):
        dpfedmeta.train(fixed, population=held, quiet=True)


@pytest.mark.parametrize("algo", ["dp-agrlr", "dp-agrlr-micro", "dp-agrlr-secure", "local-dp"])
def test_whatever_promises_records_something_is_refused(table, algo):
    with pytest.raises((RefusedPlan, InputError), match=r"population\.episodes = whole with record\.enabled"):
        dpfedmeta.plan(resolve(algo, str(table), None, {"population.episodes": "whole", "population.cohort": "6"}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"privacy.record.epsilon": "2", "privacy.record.observer": "public"}, "with privacy.record.epsilon"),
        ({"record.enabled": "true", "privacy.record.epsilon": "2"}, "with record.enabled"),
        ({"meta.learn": "all"}, "a learned head has a row for each of a fixed number of classes"),
        ({"meta.divisions": "3"}, "leave out meta.divisions"),
        ({"meta.method": "meta-sgd"}, "meta.method = meta-sgd learns rate/head.weight"),
        ({"population.most_shots": "9"}, "population.most_shots is for fixed episodes"),
        ({"task.most_records": "30"}, "give at least 40, or lower task.most_ways"),
        ({"task.support_share": "1"}, "task.support_share"),
        ({"population.episodes": "fixed", "task.most_ways": "3"}, "task.most_ways = 3: has no effect"),
        ({"run.chunk": "4"}, "run.chunk = 4: has no effect here"),
    ],
)
def test_what_does_not_go_with_whole_clients_is_refused_in_one_line(table, given, why):
    with pytest.raises((RefusedPlan, InputError)) as caught:
        dpfedmeta.plan(resolve("dp-agr", str(table), None, {**WHOLE, **given}))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", [{"mean": [1, 2, 3], "deviation": [2, 2, 2]}, {"missing": ["?"]}, {}])
@pytest.mark.parametrize("direct", [False, True])
def test_tables_are_refused_before_round_0_where_the_task_would_have_changed_their_numbers(tmp_path, task, direct):
    """A run was charged for clients in raw units, and judged on standardised ones."""
    lines, names = rows_of(40), ("x", "y", "z")
    path, data = write_csv(tmp_path / "ragged.csv", lines), tmp_path / "task.yaml"
    source = {"reader": "vectors", "path": path.name}
    data.write_text(json.dumps({"name": "t", "source": source, "features": 3, **task}))
    draw = np.random.default_rng(0)
    held = {
        number: ({name: draw.normal(size=8).tolist() for name in names}, [0, 0, 0, 0, 1, 1, 1, 1])
        for number in range(12)
    }
    values = {**WHOLE, "run.dir": str(tmp_path), "population.clients": "12", "run.name": "r"}
    settings = resolve("dp-agr", str(data), None, values)
    shape = WholeShape(support_share=0.5, most_ways=20, most_records=400)
    own: Any = RecordsPopulation(held=held, shape=shape, seed=0, columns=names) if direct else held
    if not task:
        dpfedmeta.train(settings, population=own, quiet=True)
        return
    with pytest.raises(InputError, match=r"hand over dpfedmeta\.standardised\('.*task.yaml', table\)"):
        dpfedmeta.train(settings, population=own, quiet=True)
    assert not (tmp_path / "r").exists()
    ready = {number: (dpfedmeta.standardised(str(data), table), targets) for number, (table, targets) in held.items()}
    dpfedmeta.train(settings, population=replace(own, held=ready) if direct else ready, quiet=True)


def test_clients_that_hold_too_little_are_refused_before_anything_is_written(tmp_path):
    rows = [["client", "class", "x"], *([f"p{client}", "only", client] for client in range(20) for _ in range(5))]
    data = write_csv(tmp_path / "one.csv", rows)
    with pytest.raises(InputError, match=r"none of the .* holds 2 classes with 2 records each"):
        run_training(settings_of(data, tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    plain = write_csv(tmp_path / "plain.csv", [["class", "x"], *([f"c{n % 30}", n] for n in range(240))])
    given = {"population.kind": "natural", "population.clients": "20"}
    with pytest.raises(InputError, match=r"population\.episodes = whole: this data set does not say whose"):
        run_training(settings_of(plain, tmp_path / "runs", **given))
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_computes_a_client_of_the_largest_size(table, tmp_path, monkeypatch):
    seen = []
    honest = throughput.compute_largest

    def watched(public, shape, workers):
        largest = throughput.Largest(shape=shape, form=public.network.form.shape)
        assert public.data_form.fits(largest.episode(0))
        seen.append(len(largest.episode(0).support_labels) + len(largest.episode(0).query_labels))
        honest(public, shape, workers)

    monkeypatch.setattr(throughput, "compute_largest", watched)
    with prepared(settings_of(table, tmp_path), RunOptions(), lambda text: None) as made:
        cost = throughput.cost_of(made.plan, made.public, (made.validation, made.test), InProcess(), 0.1, 0.0)
    assert seen == [400]
    assert cost.memory_mb > 0


def test_public_clients_are_those_of_the_validation_part(table, tmp_path):
    with prepared(settings_of(table, tmp_path), RunOptions(), lambda text: None) as made:
        public: Any = made.public.population
        test: Any = made.test
        own = {*public.of.pool.clients}
        assert own == {*made.dataset.val.clients}
        assert own.isdisjoint(made.dataset.train.clients)
        assert {*test.clients.pool.clients} == {*made.dataset.test.clients}
        population: Any = clients_of(made.plan.settings, made.dataset, made.plan.privacy.clients)
        assert population.pool.clients == made.dataset.train.clients
    many = settings_of(table, tmp_path, **{"track.public_clients": "99"})
    with (
        pytest.raises(InputError, match=r"track\.public_clients = 99: the validation part of the data has"),
        prepared(many, RunOptions(), print),
    ):
        pass


def test_evaluate_judges_whole_clients_unless_sizes_are_given(ran, dpfedmeta):
    run, _ = ran
    (found,) = __import__("dpfedmeta").evaluate(run.path, episodes=6, workers=1)
    assert "whole held-out clients" in found.protocol
    assert found.results[0].keys() >= {"accuracy", "accuracy_before_adaptation", "accuracy_untrained", "clients"}
    assert "whole clients" in repr(found)
    # Kept for a comparison: one mean of each client, also where every split is another client's.
    kept = kept_episodes(run)[-1]
    with prepared(Run(run.path).settings, RunOptions(), lambda text: None) as made:
        test: Any = made.test
        able = len(able_numbers(test.clients))
    assert able > 1
    assert (kept.counted, len(kept.accuracies)) == ("clients", min(6, able))
    assert np.mean(kept.accuracies) == pytest.approx(found.results[0]["accuracy"]["mean"])
    # Splits of another seed are another measurement, and stand beside it.
    __import__("dpfedmeta").evaluate(run.path, episodes=6, workers=1, seeds=[9])
    names = {path.name for path in (run.path / "evaluations").iterdir()}
    assert names == {f"6-whole-clients-seed-{Run(run.path).settings.run.seed}.json", "6-whole-clients-seed-9.json"}
    left = dpfedmeta("evaluate", run.path, "--steps", "3", code=2)
    assert "whole clients are judged once" in left.error
    left = dpfedmeta("evaluate", run.path, "--ways", "2", code=2)
    assert "holds 2 classes with 5 shots" in left.error


def ragged_task(folder, kind):
    """Clients with other numbers of records, of labels that no client has all of; or with numbers to predict."""
    draw, rows, labels = np.random.default_rng(3), list[list[object]](), ["a", "b", "c"]
    column = "target" if kind == "numbers" else "class"
    for client in range(24):
        split = "val" if client < 3 else "test" if client < 6 else "train"
        for _ in range(2 + client % 5):
            x = np.round(draw.normal(size=3), 3)
            label = round(float(x.sum()), 3) if kind == "numbers" else labels[(client + int(x[0] > 0)) % 3]
            rows.append([f"p{client:02d}", split, label, *x])
    write_csv(folder / f"{kind}.csv", [["client", "split", column, "x", "y", "z"], *rows])
    more = (
        "kind: regression\ntargets: {centre: 0, scale: 1, lowest: -20, highest: 20}\n"
        if kind == "numbers"
        else "labels: [a, b, c]\n"
    )
    (folder / f"{kind}.yaml").write_text(
        f"name: {kind}\nsource: {{reader: vectors, path: {kind}.csv}}\nfeatures: 3\n{more}"
    )
    return folder / f"{kind}.yaml", rows


@pytest.mark.parametrize("kind", ["shared", "numbers"])
def test_whole_clients_of_a_public_list_or_with_numbers_train_and_are_verified(tmp_path, kind):
    task, rows = ragged_task(tmp_path, kind)
    given = {"population.cohort": "6"}
    run, status = run_training(settings_of(task, tmp_path / "runs", **given))
    summary = run.read_json("summary.json")
    assert status == "completed"
    score = {"shared": "accuracy", "numbers": "error"}[kind]
    assert "whole held-out clients" in summary[score]["protocol"]
    assert load_file(run.weights)["head.weight"].shape[0] == {"shared": 3, "numbers": 1}[kind]
    audit(run)
    # Limits that nobody reaches change no bit.
    larger, _ = run_training(settings_of(task, tmp_path / "b", **given, **{"task.most_records": "5000"}))
    assert weights_of(larger) == weights_of(run)
    # The same people as a mapping.
    held: dict[str, Any] = {}
    for client, split, label, *numbers in rows:
        if split == "train":
            own = held.setdefault(client, ([], []))
            own[0].append(numbers)
            own[1].append(label)
    mapped = dpfedmeta.train(settings_of(task, tmp_path / "c", **given), population=held, quiet=True)
    assert mapped.summary["population"]["kind"] == "own"
    assert {*mapped.summary} >= {score, f"{score}_untrained"}
    if kind == "shared":
        (found,) = dpfedmeta.evaluate(run.path, episodes=6, workers=1)
        assert "whole held-out clients" in found.protocol
