from types import SimpleNamespace

import pytest

from dpfedmeta.cli.sweeps.runner import check, same_result, settings_of
from dpfedmeta.cli.sweeps.sweep_file import Choices, make_trial, propose, read_sweep, trials_of, without_fixed
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError


def test_a_grid_is_the_product_in_the_order_of_the_file(sweep_file):
    trials = trials_of(read_sweep(sweep_file()), {})
    assert [(trial.parameters["clip.window"], trial.parameters["run.seed"]) for trial in trials] == [
        (2, 0), (2, 1), (2, 2), (8, 0), (8, 1), (8, 2),
    ]  # fmt: skip
    assert len({trial.name for trial in trials}) == 6
    assert trials[0].name.startswith("window-2_seed-0-")
    assert settings_of(trials[5]).clip.window == 8


def test_a_name_follows_from_the_values_alone(sweep_file):
    sweep = read_sweep(sweep_file())
    first = trials_of(sweep, {"server.rounds": "9"})
    assert [trial.name for trial in trials_of(sweep, {"server.rounds": "9"})] == [trial.name for trial in first]
    assert not {trial.name for trial in trials_of(sweep, {"server.rounds": "8"})} & {trial.name for trial in first}


def test_the_command_line_takes_a_parameter_out_of_the_sweep(sweep_file):
    sweep = read_sweep(sweep_file())
    fixed = {"run.seed": "3"}
    trials = trials_of(without_fixed(sweep, fixed), fixed)
    assert [settings_of(trial).run.seed for trial in trials] == [3, 3]
    with pytest.raises(InputError, match="nothing to sweep"):
        without_fixed(sweep, dict.fromkeys(sweep.parameters, "1"))


def test_run_cap_ends_a_trials_of(sweep_file):
    assert len(trials_of(read_sweep(sweep_file(run_cap=2)), {})) == 2


def test_too_many_combinations(sweep_file):
    parameters = {"clip.window": {"min": 1, "max": 200}, "run.seed": {"min": 1, "max": 200}}
    with pytest.raises(InputError, match="combinations"):
        trials_of(read_sweep(sweep_file(parameters=parameters)), {})


@pytest.mark.parametrize(
    ("fixed", "reason"),
    [
        ({"server.rounds": "4"}, "clip.window = 8 is more than"),
        ({"population.cohort": "500000"}, "population.cohort"),
        ({"clip.policy": "wndow"}, "clip.policy"),
        ({"dataset": "omnigolt"}, "no such task"),
        ({"config": "nowhere.yaml"}, "nowhere.yaml"),
        ({"privacy.client.epsilon": "null"}, "neither a target"),
        ({"dataset": "sinusoids"}, "a sweep chooses by accuracy"),
    ],
)
def test_a_combination_that_train_would_refuse_is_refused_before_the_first_run(sweep_file, fixed, reason):
    sweep = without_fixed(read_sweep(sweep_file()), fixed)
    with pytest.raises(InputError) as refusal:
        check(trials_of(sweep, fixed))
    assert reason in str(refusal.value)
    assert "in the combination" in str(refusal.value)


def test_a_plan_is_made_once_for_all_seeds(sweep_file, monkeypatch):
    calls = []

    def counted(settings, task):
        calls.append(settings)
        return make_privacy(settings, task)

    from dpfedmeta.planning.privacy.solve import make_privacy

    monkeypatch.setattr("dpfedmeta.cli.sweeps.runner.make_privacy", counted)
    trials = trials_of(read_sweep(sweep_file()), {})
    assert set(check(trials)) == {trial.name for trial in trials}
    assert [settings.clip.window for settings in calls] == [2, 8]


def test_a_changed_preset_makes_another_result():
    settings = resolve("dp-agr", "strokes")
    assert same_result(settings, {}) is None  # an older version knew less
    assert same_result(settings, {"run": {"name": "x", "workers": 7}, "server": {"schedule": []}, "clip": {}}) is None
    assert same_result(settings, {"track": {"to": ["wandb"], "wandb": "online"}}) is None
    assert same_result(settings, {"clip": {"initial": 9.0}}) == "clip.initial was 9.0, now it is 0.15"


PARAMETERS = {
    "algo": {"value": "dp-agr"},
    "dataset": {"value": "strokes"},
    "clip.initial": {"min": 0.01, "max": 10.0, "distribution": "log_uniform_values"},
    "server.lr": {"min": 0.001, "max": 0.1},
    "clip.window": {"min": 2, "max": 16},
    "meta.steps": {"values": [1, 5]},
}


@pytest.fixture(params=["random", "bayes"])
def search(request, sweep_file):
    return read_sweep(sweep_file(method=request.param, run_cap=5, parameters=PARAMETERS))


def test_a_search_proposes_the_same_again(search):
    first = [propose(number, search, []) for number in range(5)]
    assert first == [propose(number, search, []) for number in range(5)]
    assert len({str(parameters) for parameters in first}) == 5
    for parameters in first:
        assert 0.01 <= parameters["clip.initial"] <= 10
        assert 2 <= parameters["clip.window"] <= 16
        assert isinstance(parameters["clip.window"], int)
        assert parameters["meta.steps"] in (1, 5)


def test_bayes_goes_where_it_was_good(sweep_file):
    sweep = read_sweep(sweep_file(method="bayes", run_cap=50, parameters={"server.lr": {"min": 0.0, "max": 1.0}}))
    past = [({"server.lr": number / 30}, -abs(number / 30 - 0.8)) for number in range(30)]
    past.append(({"server.lr": 0.1}, None))
    proposed = [propose(number, sweep, past)["server.lr"] for number in range(31, 41)]
    assert sum(abs(value - 0.8) < 0.2 for value in proposed) >= 8


def test_a_private_start_is_counted_before_any_run_and_a_finished_run_stays_finished():
    options = {"algo": "dp-const", "dataset": "strokes", "clip.start": "quantile", "privacy.client.epsilon": "1.5"}

    def trial(**changes):
        sweep = SimpleNamespace(parameters={"server.lr": Choices(values=(0.01,))})
        given = options | {name.replace("__", "."): value for name, value in changes.items()}
        return make_trial(0, sweep, {"server.lr": 0.01}, given)

    (plan,) = check([trial()]).values()
    (alone,) = check([trial(clip__start="given")]).values()
    assert len(plan.earlier) == 1
    # What the analysis will cost is not there for the rounds.
    assert plan.noise_multiplier > alone.noise_multiplier
    settings = settings_of(trial())
    written = {"clip": {"start": "given", "initial": 0.77}, "privacy": {"spent_before": ["runs/x-quantile"]}}
    assert same_result(settings, written) is None
    for spoiled in ({"clip": {"start": "given"}, "privacy": {"spent_before": []}}, {"clip": {"start": "given"}}):
        assert same_result(settings, spoiled) == "clip.start was given, now it is quantile"
    with pytest.raises(InputError, match="is spent already"):
        check([trial(privacy__client__epsilon="0.05")])
