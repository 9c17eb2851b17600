"""What simulated clients answer, and a training that begins with an analysis."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, read_content
from dpfedmeta.analytics import initial_clip_bound
from dpfedmeta.analytics.analyses.quantile import Quantile
from dpfedmeta.analytics.analysis_request import Request, options_of
from dpfedmeta.analytics.client_answers import HeldImages
from dpfedmeta.analytics.execute import Place
from dpfedmeta.analytics.initial_clip_bound import _begun, _request, planned_after_start, with_private_start
from dpfedmeta.analytics.public_context import Ground
from dpfedmeta.analytics.simulated_clients import SimulatedClients
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import SUMMARY, RunDirectory, save_weights
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.verification.verify import audit
from tests.data.test_labels import TARGETS, number, rows_of, task_in

SMALL = {
    "population.clients": "60", "population.cohort": "30", "server.rounds": "2", "server.noise_multiplier": "2",
    "run.workers": "1", "run.device": "cpu", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "model.width": "4", "meta.steps": "2", "evaluation.episodes": "2", "evaluation.validation_episodes": "2",
    "evaluation.queries": "2", "evaluation.every": "2", "privacy.client.delta": "1e-3", "run.name": "run",
}  # fmt: skip


@pytest.fixture
def settings(tiny_task_file, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    # A bound is told from noise by 60 clients where epsilon is large.
    monkeypatch.setattr(Quantile, "default_epsilon", 5.0)
    return resolve("dp-const", str(tiny_task_file), None, {**SMALL, "run.dir": str(tmp_path), "clip.start": "quantile"})


def request_of(settings, **changes):
    given = replace(settings, clip=replace(settings.clip, start="given"))
    return Request(
        **{
            "kind": "quantile", "epsilon": 5.0, "delta": 1e-3, "cohort": 60.0, "clients": 60,
            "own": options_of(Quantile()), "settings": given, **changes,
        }
    )  # fmt: skip


def test_an_analysis_that_no_training_could_count_is_not_charged(settings, tmp_path):
    client = replace(settings.privacy.client, epsilon=1.0)
    server = replace(settings.server, noise_multiplier=None)
    with pytest.raises(RefusedPlan, match="is spent already"):
        with_private_start(replace(settings, server=server, privacy=replace(settings.privacy, client=client)), None)
    chosen = replace(settings.population, sampler="check-ins", cohort=60.0)
    with pytest.raises(RefusedPlan, match=r"check-ins with privacy\.spent_before"):
        with_private_start(replace(settings, population=chosen), None)
    register = replace(settings.population, register="people")
    for act in (with_private_start, planned_after_start):
        with pytest.raises(InputError, match=r"population\.register = people: cannot count the analysis"):
            act(replace(settings, population=register), None)
    assert not (tmp_path / "run-quantile").exists()


def refuse(*given, **named):
    raise InputError("refused")


@pytest.mark.parametrize("check", ["planned_after_start", "check_new", "trackers_of", "forecast"])
def test_nothing_is_charged_before_all_that_the_training_checks(begun, monkeypatch, check):
    """Each of them refuses a training for which the analysis would have been charged in vain."""
    settings, _, asked = begun
    monkeypatch.setattr(initial_clip_bound, check, refuse)
    with pytest.raises(InputError, match="refused"):
        with_private_start(settings, None)
    assert not asked


def test_a_training_without_a_name_does_not_pay_for_its_start_again(settings, tmp_path, monkeypatch):
    """The training behind the analysis could not begin; the same command goes on with what it has paid for."""
    settings = replace(settings, run=replace(settings.run, name=None))
    monkeypatch.setattr(initial_clip_bound, "forecast", lambda *given, **named: None)

    def tried(settings):
        started, _ = with_private_start(settings, None)
        (before,) = started.privacy.spent_before
        assert before == str(tmp_path / f"{started.run.name}-quantile")
        return started.run.name

    first = tried(settings)
    (paid,) = tmp_path.glob("*-quantile")
    before = (paid / "ledger.jsonl").read_bytes()
    assert tried(settings) == first
    assert [*tmp_path.glob("*-quantile")] == [paid]
    assert (paid / "ledger.jsonl").read_bytes() == before
    # What a run counts already, what another process writes, and what asked something else, is no start of this one.
    monkeypatch.setattr(initial_clip_bound, "default_name", lambda settings, when="new": when)
    with only_writer(paid):
        assert tried(settings) == "new"
    shutil.rmtree(tmp_path / "new-quantile")
    assert tried(replace(settings, run=replace(settings.run, seed=7))) == "new"
    shutil.rmtree(tmp_path / "new-quantile")
    (tmp_path / first).mkdir()
    assert tried(settings) == "new"


OTHERS = {"epsilon": 4.0, "delta": 1e-4, "cohort": 30.0, "own": options_of(Quantile(bins=7)), "noise_seed": 3}


@pytest.mark.parametrize("change", OTHERS)
def test_a_training_begins_with_the_answer_of_its_own_analysis_alone(settings, tmp_path, monkeypatch, change):
    """By the name of its folder there is another one: its bound and its charge are not what was planned with."""
    monkeypatch.setattr(initial_clip_bound, "resume", lambda path, data_folder: path)
    place = Place(folder=str(tmp_path), name="run-quantile")
    (tmp_path / "run-quantile").mkdir()
    request = request_of(settings)
    identity = RunIdentity(run="a", config=request_of(settings, **{change: OTHERS[change]}).as_text())
    Ledger(tmp_path / "run-quantile/ledger.jsonl", request.planned(), identity)
    with pytest.raises(InputError, match="is another analysis"):
        _begun(request, place, None, secure_rng=False)
    (tmp_path / "run-quantile/ledger.jsonl").unlink()
    Ledger(tmp_path / "run-quantile/ledger.jsonl", request.planned(), replace(identity, config=request.as_text()))
    assert _begun(request, place, None, secure_rng=False) == tmp_path / "run-quantile"


def test_what_was_spent_before_is_planned_with_beside_the_analysis_to_come(settings, monkeypatch):
    before = Earlier(run="another", head="", phases=request_of(settings).planned().phases)
    monkeypatch.setattr(initial_clip_bound, "earlier_releases", lambda settings: (before,))
    planned = planned_after_start(settings)
    assert [each.run for each in planned.earlier] == ["another", "clip.start"]
    assert len(planned.before) == 2


@pytest.mark.slow
def test_a_training_begins_with_its_analysis_and_counts_it(settings, tmp_path):
    started, words = with_private_start(settings, None)
    assert "charged in" in words
    found = (tmp_path / "run-quantile" / SUMMARY).read_text()
    assert started.clip.initial == pytest.approx(float(found.split('"bound": ')[1].split(",")[0]))
    assert started.privacy.spent_before == (str(tmp_path / "run-quantile"),)
    assert resolve(None, None, _written(tmp_path, started), {}) == started
    run, status = run_training(started, RunOptions())
    assert status == "completed"
    content, before = read_content(run.ledger), read_content(tmp_path / "run-quantile" / "ledger.jsonl")
    assert content.plan.earlier[0].phases == before.plan.phases
    spent = run.read_json(SUMMARY)["guarantees"][0]["epsilon"]
    alone = run_training(
        replace(started, privacy=replace(started.privacy, spent_before=()), run=replace(started.run, name="alone")),
        RunOptions(),
    )[0]
    assert spent > 1.2 * alone.read_json(SUMMARY)["guarantees"][0]["epsilon"]
    # More rounds, where the analysis is no longer there: the run's own first line has what it charged.
    (tmp_path / "run-quantile").rename(tmp_path / "gone")
    run_training(started, RunOptions(resume=run, extend_to=3))
    longer = audit(run)
    assert longer.plan.earlier == content.plan.earlier
    assert longer.guarantees[0].epsilon > spent
    assert any("is not here" in remark for remark in longer.remarks)
    (tmp_path / "gone").rename(tmp_path / "run-quantile")
    assert any("run-quantile agrees" in remark for remark in audit(run).remarks)
    # Stopped before its own first line, a training finds the analysis again, and pays nothing.
    place = Place(folder=str(tmp_path), name="run-quantile")
    again = _begun(request_of(settings), place, None, secure_rng=False)
    assert len(read_content(again.ledger).charges) == 1
    with pytest.raises(InputError, match="is another analysis"):
        _begun(
            request_of(settings, epsilon=4.0), Place(folder=str(tmp_path), name="run-quantile"), None, secure_rng=False
        )


def _written(folder, settings):
    path = folder / "again.yaml"
    path.write_text(to_yaml(settings))
    return path


def test_a_norm_is_that_of_the_message(settings):
    asked = SimulatedClients(request_of(settings))
    assert isinstance(asked.held, HeldImages)
    (message,) = asked.held._side.exact_messages(asked.held._start, 0, [5])
    squared = sum(float((value.double() ** 2).sum()) for value in message.values())
    assert asked.held.message_norm(5) == pytest.approx(squared**0.5, rel=1e-6)
    assert asked.clients == 60


def test_algorithms_without_exact_messages_have_no_norms(settings, monkeypatch):
    monkeypatch.setattr(Ground, "plan", SimpleNamespace(algorithm=SimpleNamespace(releases=True)))
    with pytest.raises(RefusedPlan, match="no exact message"):
        Ground(request_of(settings)).check_messages()


def test_another_loss_gives_other_answers(tmp_path):
    """An analysis that is asked again with the same noise must have the same answers, and no record holds the loss."""
    digests = set()
    for other in ({}, {"loss": "huber"}):
        task = task_in(tmp_path, rows_of(number), "target", kind="regression", targets={**TARGETS, **other})
        clients = SimulatedClients(SimpleNamespace(names=None, run=None))
        vars(clients)["_dataset"] = open_dataset(task, tmp_path)
        digests.add(clients.digest)
    assert len(digests) == 2


@pytest.mark.parametrize("more", [-1, 1])
def test_an_analysis_asks_as_many_clients_as_there_are(settings, more):
    asked = SimulatedClients(request_of(settings, clients=60 + more, cohort=30.0))
    with pytest.raises(InputError, match=f"{60 + more} clients were asked for, but the data have 60"):
        asked.check(Quantile())


@pytest.mark.parametrize("change", [{"width": 8}, {"name": "conv3-blur"}, {"norm": "none"}])
def test_a_model_that_is_adapted_is_of_the_plans_network(settings, tmp_path, change):
    """Else its numbers would be read as another layer's."""
    other = replace(settings, model=replace(settings.model, **change))
    weights = {}
    for name, given in (("same", settings), ("other", other)):
        plan = Ground(request_of(given)).plan
        run = RunDirectory(tmp_path / name)
        run.weights.parent.mkdir(parents=True)
        weights[name] = plan.algorithm.initial(plan.network, 5)
        save_weights(run.weights, weights[name])
    asked = {name: Ground(request_of(settings, run=str(tmp_path / name))) for name in weights}
    assert asked["same"].model == np.concatenate([each.numpy().ravel() for each in weights["same"].values()]).tobytes()
    with pytest.raises(InputError, match=r"expected|network|lack"):
        _ = asked["other"].model


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(("clients", "cohort"), [(60, 60.0), (5000, 2000.0)])
def test_the_analysis_of_a_training_is_asked_with_the_trainings_own_numbers(settings, seed, clients, cohort):
    given = replace(
        settings,
        run=replace(settings.run, noise_seed=seed),
        population=replace(settings.population, clients=clients),
        clip=replace(settings.clip, quantile=0.7),
        privacy=replace(settings.privacy, client=replace(settings.privacy.client, delta=3e-4)),
    )
    request = _request(given)
    assert (request.kind, request.epsilon, request.delta) == ("quantile", Quantile.default_epsilon, 3e-4)
    assert (request.clients, request.cohort, request.noise_seed) == (clients, cohort, seed)
    assert request.analysis == Quantile(quantile=0.7)
    # The bound that is to be found is not asked for once more.
    assert request.settings == replace(given, clip=replace(given.clip, start="given"))


def test_an_analysis_depends_on_its_data_and_on_the_model_that_is_adapted(settings, tmp_path):
    """Going on with other names, other images or another model is another attempt."""
    for name, text in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        RunDirectory(tmp_path / name).weights.write_bytes(text.encode())

    def digest(names=None, run=None):
        named = {} if names is None else {"names": str(tmp_path / f"{names}.txt")}
        adapted = {} if run is None else {"run": str(tmp_path / run)}
        return SimulatedClients(request_of(settings, **named, **adapted)).digest

    found = [digest(), digest(run="a"), digest(run="b"), digest(names="a"), digest(names="b"), digest("a", "a")]
    assert len({*found}) == len(found)
    assert found[1] == digest(run="a")


FOUND = {"bound": 0.75, "low": 0.7, "high": 0.8, "quantile": 0.5, "too_noisy": False, "beyond": False}


@pytest.fixture
def begun(settings, monkeypatch):
    """A training whose analysis found what is said here; (settings, what was found, what was asked)."""
    found, asked = dict(FOUND), []

    def analysis(request, place, data_folder, *, secure_rng):
        asked.append((request, place, data_folder, secure_rng))
        return SimpleNamespace(path="runs/an-analysis", read_json=lambda name: {SUMMARY: {"found": found}}[name])

    monkeypatch.setattr(initial_clip_bound, "_begun", analysis)
    monkeypatch.setattr(initial_clip_bound, "planned_after_start", lambda settings, data_folder: None)
    monkeypatch.setattr(initial_clip_bound, "forecast", lambda *given, **named: None)
    return settings, found, asked


@pytest.mark.parametrize("before", [(), ("one",), ("one", "two")])
def test_the_bound_that_was_found_takes_the_place_of_the_one_that_was_given(begun, before):
    """All else stays as it was, and the analysis is counted behind whatever was spent before it."""
    settings, _, asked = begun
    settings = replace(settings, privacy=replace(settings.privacy, spent_before=before))
    started, words = with_private_start(settings, "data", secure_rng=True)
    assert started.privacy.spent_before == (*before, "runs/an-analysis")
    assert (started.clip.initial, started.clip.start) == (0.75, "given")
    back = replace(started, clip=settings.clip, privacy=settings.privacy)
    assert back == settings
    assert replace(started.clip, initial=settings.clip.initial, start="quantile") == settings.clip
    assert words == (
        "50% of the clients' messages are no longer than 0.75 (between 0.7 and 0.8 with 95% confidence); charged in "
        "runs/an-analysis, which this run counts as spent before"
    )
    ((request, place, folder, secure),) = asked
    assert request == _request(settings)
    assert (place, folder, secure) == (Place(folder=settings.run.dir, name="run-quantile"), "data", True)


@pytest.mark.parametrize(
    ("kind", "words"), [("too_noisy", "too large compared with the answers of 60 clients"), ("beyond", "larger --high")]
)
def test_a_training_begins_with_no_bound_that_says_nothing(begun, kind, words):
    settings, found, _ = begun
    found[kind] = True
    with pytest.raises(InputError, match=rf"clip\.start = quantile: .*{words}.*charged all the same: runs/an-analysis"):
        with_private_start(settings, None)


def test_an_analysis_of_a_training_without_a_name_has_one_by_itself(begun):
    settings, _, asked = begun
    started, _ = with_private_start(replace(settings, run=replace(settings.run, name=None)), None)
    assert asked[0][1] == Place(folder=settings.run.dir, name=f"{started.run.name}-quantile")


@pytest.mark.parametrize("name", [None, "taken"])
def test_an_analysis_that_is_there_is_gone_on_with_and_else_begun(settings, tmp_path, monkeypatch, name):
    calls = []
    monkeypatch.setattr(initial_clip_bound, "begin", lambda *given, **named: calls.append((given, named)) or "begun")
    monkeypatch.setattr(initial_clip_bound, "resume", lambda *given: calls.append(given) or "resumed")
    request, place = request_of(settings), Place(folder=str(tmp_path), name=name)
    # What lies there is no analysis: whoever begins one says that the name is taken.
    (tmp_path / "taken").mkdir()
    assert _begun(request, place, "data", secure_rng=True) == "begun"
    assert calls == [((request, place), {"data_folder": "data", "secure_rng": True})]
    if name is not None:
        Ledger(tmp_path / "taken/ledger.jsonl", request.planned(), RunIdentity(run="a", config=request.as_text()))
        assert _begun(request, place, "data", secure_rng=False) == "resumed"
        assert calls[1:] == [(tmp_path / "taken", "data")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "run"}, r"run: exists already; choose another run\.name"),
        ({"dir": "none/there"}, r"run\.dir none/there"),
        ({"name": "no/name"}, r"run\.name"),
        ({}, "no tracker here"),
    ],
    ids=str,
)
def test_what_the_training_would_refuse_is_refused_before_anybody_is_asked(begun, tmp_path, monkeypatch, given, words):
    settings, _, asked = begun
    (tmp_path / "run").mkdir()
    settings = replace(settings, run=replace(settings.run, name="free"))

    def refuse(tracked, say):
        say("what the training says again")
        if not given:
            raise InputError("no tracker here")

    monkeypatch.setattr(initial_clip_bound, "trackers_of", lambda tracked: [SimpleNamespace(check=refuse)])
    with pytest.raises(InputError, match=words):
        with_private_start(replace(settings, run=replace(settings.run, **given)), None)
    assert asked == []
    monkeypatch.undo()


def test_a_training_that_nothing_stands_against_begins_with_its_analysis(begun, tmp_path):
    settings, _, asked = begun
    with_private_start(settings, None)
    assert len(asked) == 1
    assert [*tmp_path.glob("run*")] == []
