import math
import warnings
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
import yaml

from dpfedmeta.config import presets
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.episodes.row_layout import micro_slots
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning import run_plan
from dpfedmeta.planning.client_spec import evaluation_shape
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism
from dpfedmeta.privacy.matrix_mechanism import CorrelatedMechanism
from dpfedmeta.privacy.mechanisms import GaussianMechanism, NoMechanism

TASK = load_task("strokes")[0]


def two_layers(*, channels, image_size, ways, width, norm):
    """A body and a head that is more than one layer."""
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * image_size**2, width))
    head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, ways))
    return torch.nn.Sequential(OrderedDict(body=body, head=head))


def plan_of(algo, **given):
    settings = resolve(algo, "strokes", None, {k: str(v) for k, v in given.items()})
    return make_plan(settings, replace(TASK, encoding=encoding_of_run(settings)))


# Presets with an encoder have the plans of those without, on other records.
SOLVED = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("encoder-agr", "encoder-agrlr") else name
    for name in algorithm_names()
]


@pytest.mark.parametrize("algo", SOLVED)
def test_every_preset_keeps_what_it_promises(algo):
    plan = plan_of(algo)
    client_public, _, record_server, _ = plan.planned
    assert len(plan.planned) == 4
    if algo == "maml":
        assert all(math.isinf(g.epsilon) for g in plan.planned)
        assert isinstance(plan.mechanism.at(0), NoMechanism)
        return
    if algo == "local-dp":
        assert 2.47 <= record_server.epsilon <= 2.5
        assert isinstance(plan.mechanism.at(0), NoMechanism)
        return
    if algo == "dp-agr-correlated":
        assert plan.privacy.clients == 10_000
        assert 0.99 * 4.0 <= client_public.epsilon <= 4.0
        return
    if algo == "dp-agr-cyclic":
        assert isinstance(plan.mechanism, CorrelatedMechanism)
    else:
        assert isinstance(plan.mechanism.at(0), GaussianMechanism | WholeNumberMechanism)
    # Whole numbers cannot be clipped client by client, so of clients it promises nothing.
    assert client_public.epsilon <= 1.5 or algo == "moments-agrlr-secure"
    assert client_public.delta == 1e-6
    assert plan.privacy.clients == {"dp-agr-checkins": 16_000}.get(algo, 400_000)
    if "agrlr" in algo:
        # Under sums (client, public) may ask for more noise than the records need.
        assert (0 if algo == "encoder-agrlr-secure" else 2.47) < record_server.epsilon <= 2.5
        assert plan.privacy.max_participations == 1
    else:
        assert client_public.epsilon >= 0.99 * 1.5


def by_line(algo, given, tmp_path, monkeypatch):
    return resolve(algo, "strokes", None, {k: str(v) for k, v in given.items()})


def nested(given):
    """Dotted names to values as typed, as sections with keys."""
    content = {}
    for name, value in given.items():
        section = content
        *sections, key = name.split(".")
        for each in sections:
            section = section.setdefault(each, {})
        section[key] = yaml.safe_load(value) if isinstance(value, str) else value
    return content


def by_file(algo, given, tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(nested(given)))
    return resolve(algo, "strokes", path)


def by_preset(algo, given, tmp_path, monkeypatch):
    """The same values as a preset would hold them."""
    own = {**presets._of_preset(algo, "strokes"), **dict(flattened(nested(given)))}
    # A preset has the noise or the target of a cell, not both.
    for target, noises in presets._CELLS:
        if any(given.get(noise) is not None for noise in noises):
            own.pop(target, None)
    monkeypatch.setattr(presets, "_of_preset", lambda algo, dataset: own)
    return resolve(algo, "strokes")


def half_by_file(algo, given, tmp_path, monkeypatch):
    names = list(given)
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(nested({name: given[name] for name in names[::2]})))
    return resolve(algo, "strokes", path, {name: str(given[name]) for name in names[1::2]})


OTHER_WAYS = [by_file, by_preset, half_by_file]

REFUSED = [
    # Second order: as given, and by the default of each method that has it.
    ("dp-agrlr", {"meta.order": "null"}, "Hessian"),
    ("dp-agrlr", {"meta.order": "null", "meta.adapt": "all"}, "Hessian"),
    ("dp-agrlr", {"meta.method": "anil", "meta.order": "null"}, "Hessian"),
    ("dp-agrlr-micro", {"record.release": "steps", "model.norm": "group", "model.features": "raw"}, "Hessian"),
    ("dp-agrlr-micro", {"record.release": "steps", "meta.order": "null"}, "Hessian"),
    # Reptile by a method whose messages are unbounded before their last noise.
    ("dp-agrlr", {"meta.method": "reptile", "meta.learn": "all", "meta.adapt": "null"}, "stacked"),
    ("dp-agrlr-micro", {"meta.method": "reptile", "meta.adapt": "null", "meta.order": "null"}, "micro-episodes"),
    # Coupled records: by the preset's own network, by a normalisation, by features.
    ("dp-agrlr-micro", {"record.release": "steps", "meta.order": 1}, "model.norm group"),
    ("dp-agrlr-micro", {"record.release": "steps", "meta.order": 1, "model.norm": "group"}, "model.features record"),
    # Divisions.
    ("dp-agrlr", {"meta.divisions": 2}, "a record would enter the gradient of every division"),
    ("dp-agrlr", {"meta.division_shots": 2}, "a record would enter the gradient of every division"),
    # Promises without what they need.
    ("dp-const", {"server.noise_multiplier": 0}, "infinite"),
    ("dp-agrlr-micro", {"server.noise_mode": "stacked", "server.noise_multiplier": 0}, "infinite"),
    # A preset that says so itself promised nothing.
    ("dp-agrlr-micro", {"clip.policy": "none"}, "needs a clip bound|clips nothing"),
    ("dp-agrlr-micro", {"population.sampler": "fixed"}, "max_participations"),
    (
        "dp-agrlr-micro",
        {"population.sampler": "fixed", "population.max_participations": "null", "record.client_ledgers": "true"},
        "client_ledgers",
    ),
    ("dp-agr", {"server.noise_site": "clients"}, "noise_site"),
    # Noise that is counted towards a server that sees sums, and that whoever falls silent does not add.
    (
        "dp-agr",
        {
            "server.noise_site": "clients",
            "population.sampler": "fixed",
            "population.dropout": "0.1",
            "aggregation.mode": "tests.seams.own_aggregation:Halves",
        },
        r"population\.dropout = 0\.1 with server\.noise_site = clients",
    ),
    (
        "dp-agrlr-micro",
        {"population.sampler": "fixed", "population.max_participations": "null", "server.noise_site": "clients"},
        "noise_site",
    ),
    (
        "dp-agr",
        {
            "server.noise_site": "clients",
            "population.sampler": "fixed",
            "server.schedule": "[{from_round: 2, noise_scale: 0.5}]",
        },
        "noise_site",
    ),
    ("dp-agrlr", {"clip.policy": "quantile"}, "counts norms of exact messages"),
    ("dp-agrlr", {"clip.policy": "median"}, "counts norms of exact messages"),
    ("dp-agrlr", {"clip.scope": "per-layer"}, "clips records"),
    ("dp-agrlr", {"meta.order": 2}, "Hessian"),
    ("dp-agrlr", {"model.norm": "batch"}, r"--model\.norm group"),
    ("dp-agrlr", {"model.features": "support"}, r"--model\.features record"),
    ("dp-agrlr", {"meta.method": "reptile", "meta.learn": "all", "meta.adapt": "all"}, "stacked"),
    ("dp-agrlr-micro", {"meta.method": "reptile", "meta.adapt": "all", "meta.order": 1}, "micro-episodes"),
    ("dp-agrlr-micro", {"record.support_noise": 2.0}, "they release no support steps"),
    ("dp-agrlr-micro", {"privacy.client.colluding": 10**6, "server.noise_multiplier": 0}, "colluding"),
    ("dp-agr", {"server.noise_multiplier": 0}, "infinite; .*, or train without privacy: --algo maml"),
    ("dp-agr", {"privacy.client.epsilon": "null"}, "neither a target .*, or train without privacy: --algo maml"),
    ("dp-agrlr-micro", {"privacy.record.epsilon": "null"}, "neither a target"),
    ("dp-agr", {"clip.policy": "none"}, "needs a clip bound|clips nothing"),
    ("maml", {"privacy.client.epsilon": 1.0}, "clips nothing"),
    ("maml", {"server.noise_multiplier": 1.0}, "clips nothing"),
    ("maml", {"record.enabled": "true"}, "clips nothing"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_would_not_hold_is_refused_with_its_reason_by_every_way_in(number, tmp_path, monkeypatch):
    """Each on the command line and in one other way, which takes turns."""
    algo, given, reason = REFUSED[number]
    for way in (by_line, OTHER_WAYS[number % 3]):
        with pytest.raises(RefusedPlan, match=reason):
            make_plan(way(algo, given, tmp_path, monkeypatch), TASK)


@pytest.mark.parametrize(
    ("given", "problem"), [({}, "neither a target"), ({"server.noise_multiplier": "0"}, "epsilon is infinite")]
)
def test_of_an_algorithm_without_privacy_what_clips_is_named_and_what_to_leave_out(given, problem):
    """It cannot be told to use itself."""
    with pytest.raises(RefusedPlan) as refused:
        make_plan(resolve("maml", "strokes", None, {"clip.policy": "window", **given}), TASK)
    said = str(refused.value)
    assert said.startswith(("clip.policy = window bounds", "server.noise_multiplier = 0: clip.policy = window bounds"))
    assert problem in said
    assert said.endswith("leave clip.policy out to train without privacy (maml then clips nothing and adds no noise)")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"population.max_participations": 3}, ("max_participations", 3)),
        ({"privacy.client.colluding": 7}, ("colluding", 7)),
        ({"population.sampler": "fixed", "population.max_participations": "null"}, ("sampler", "fixed")),
        ({"privacy.client.delta": 3e-7}, ("client_delta", 3e-7)),
        ({"privacy.record.delta": 2e-5}, ("record_delta", 2e-5)),
        ({"server.noise_mode": "stacked"}, ("noise_mode", "stacked")),
        ({"population.clients": 12_345}, ("clients", 12_345)),
        ({"population.cohort": 77}, ("cohort", 77.0)),
        ({"server.rounds": 9}, ("rounds", 9)),
    ],
)
def test_every_setting_that_an_epsilon_depends_on_reaches_the_plan(given, expected):
    name, value = expected
    privacy = plan_of("dp-agrlr-micro", **given).privacy
    assert getattr(privacy, name) == value


def test_what_a_client_releases_is_what_the_plan_accounts_for():
    micro = plan_of("dp-agrlr-micro", **{"record.message_clip_ratio": 4, "server.noise_mode": "stacked"})
    assert micro.privacy.record.support_noise is None
    assert micro.privacy.record.query_records == len(micro_slots(micro.algorithm.client, micro.algorithm.shape)) == 5
    assert micro.privacy.record.query_to_message_bound == micro.message_clip_ratio**-1 == 0.25
    assert micro.algorithm.noise == micro.privacy.record.query_noise
    steps = plan_of("dp-agrlr", **{"record.message_clip_ratio": 4, "meta.steps": 3, "task.shots": 2})
    layer = steps.privacy.record
    assert (layer.support_noise is None, layer.support_steps, layer.query_to_message_bound) == (False, 3, 0.25)
    assert (layer.support_records, layer.query_records) == (10, 25)
    assert (steps.algorithm.support_noise, steps.algorithm.query_noise) == (layer.support_noise, layer.query_noise)
    assert steps.algorithm.needs.counts == (10, 25)
    assert steps.message_clip_ratio is None
    reptile = {"meta.method": "reptile", "meta.learn": "all", "meta.adapt": "all", "server.noise_mode": "stacked"}
    assert plan_of("dp-agrlr", **reptile).privacy.record.query_noise is None


WRONG = [
    ("maml", {"population.cohort": 11, "population.clients": 10}, "more than population.clients"),
    ("maml", {"meta.method": "fomaml", "meta.order": 2}, "first-order"),
    ("maml", {"meta.method": "anil", "meta.adapt": "all"}, "adapts only the head"),
    ("maml", {"model.name": "resnet"}, "known are affine, conv3-blur, conv4"),
    ("maml", {"model.name": "no.such:thing"}, "model.name"),
    ("dp-agr", {"clip.window": 1}, "at least 2"),
    ("dp-agrlr-micro", {"record.engine": "opacus"}, "micro-episodes"),
    ("dp-agrlr", {"record.engine": "opacus", "run.precision": "bfloat16"}, "works only in float32"),
    ("dp-agrlr-micro", {"run.chunk": 4}, "several clients at once"),
    (
        "maml",
        {"run.chunk": 4, "meta.method": "reptile", "meta.adapt": "all", "meta.order": 1},
        "several clients at once",
    ),
    ("maml", {"model.first_gain": 2, "model.norm": "none"}, "after its first convolution"),
    ("maml", {"model.first_gain": 2, "model.name": "mlp"}, "after its first convolution"),
    ("maml", {"run.precision": "bfloat16", "model.width": 2}, "none of this package's convolutions"),
    ("maml", {"run.precision": "tf32", "model.name": "linear"}, "none of this package's convolutions"),
    ("maml", {"model.name": "mlp", "run.precision": "bfloat16"}, "none of this package's convolutions"),
    ("dp-agrlr-micro", {"record.micro_ways": 2, "meta.learn": "all"}, "meta.learn body"),
    (
        "dp-agrlr-micro",
        {"record.micro_ways": 2, "meta.method": "meta-sgd"},
        "learns rate/head.weight, .*micro_ways null",
    ),
    ("dp-agrlr-micro", {"record.micro_shots": 10}, "do not fit"),
    ("dp-agrlr-micro", {"record.micro_ways": 6}, "do not fit"),
    ("dp-agr", {"model.name": "torch.nn:Identity"}, r"model\.name"),
    ("dp-agr", {"meta.divisions": 2, "meta.division_shots": 10}, "10 records of each class, .*; give at most 9"),
    ("dp-agrlr-micro", {"meta.division_shots": 2}, "2 records of each class, .*; give at most 1"),
    (
        "dp-agrlr-micro",
        {"meta.divisions": 2, "model.name": "tests.planning.test_run_plan:two_layers"},
        "one torch.nn.Lin",
    ),
    ("dp-agr", {"meta.divisions": 2, "meta.adapt": "all"}, "one pass through the body"),
    (
        "dp-agr",
        {"meta.divisions": 2, "model.name": "tests.planning.test_run_plan:two_layers"},
        r"one torch\.nn\.Linear",
    ),
]


@pytest.mark.parametrize(("algo", "given", "reason"), WRONG)
def test_settings_that_do_not_fit_name_the_key(algo, given, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(algo, **given)


def test_there_are_no_more_divisions_than_records_of_a_class():
    assert plan_of("dp-agr", **{"meta.divisions": 10}).algorithm.divisions.count == 10
    assert plan_of("dp-agr", **{"meta.divisions": 10, "task.shots": 1}).algorithm.divisions.count == 6


def test_micro_episodes_divide_their_own_records():
    given = {"meta.divisions": 9, "record.micro_shots": 3, "record.micro_queries": 2}
    divisions = plan_of("dp-agrlr-micro", **given).algorithm.method.divisions
    assert (divisions.count, divisions.shots) == (5, 3)
    assert plan_of("dp-agrlr-micro").algorithm.method.divisions is None


def test_a_delta_that_exposes_clients_is_warned_about():
    with pytest.warns(UserWarning, match="1/N"):
        plan_of("dp-agr", **{"privacy.client.delta": 1e-3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_of("dp-agr")


def test_the_account_of_the_interface_needs_no_data():
    given = {"population.cohort": "1500", "server.rounds": "266", "server.noise_multiplier": "1.0"}
    privacy = make_privacy(resolve("dp-agr", "omniglot", None, given), load_task("omniglot")[0])
    assert (privacy.noise_multiplier, privacy.rounds, privacy.cohort) == (1.0, 266, 1500)


def test_a_role_without_its_own_noise_gets_the_balanced_one():
    privacy = plan_of("dp-agrlr", **{"record.query_noise": 2.0, "meta.steps": 4}).privacy
    assert privacy.record.support_noise == pytest.approx(4.0)
    privacy = plan_of("dp-agrlr", **{"record.support_noise": 4.0, "meta.steps": 4}).privacy
    assert privacy.record.query_noise == pytest.approx(2.0)


def test_methods_fill_in_order_and_adaptation():
    anil = plan_of("maml", **{"meta.method": "anil", "meta.adapt": "null", "meta.order": "null"}).algorithm
    assert (anil.sends, anil.order, anil.adaptation.adapt) == ("query", 2, "head")
    reptile = plan_of("maml", **{"meta.method": "reptile", "meta.adapt": "null", "meta.order": "null"}).algorithm
    assert (reptile.sends, reptile.order, reptile.adaptation.adapt) == ("update", 1, "all")


REFUSED_POLICIES = [
    ("dp-agrlr-micro", {"clip.policy": "quantile"}, "counts norms of exact messages"),
    ("dp-agrlr-micro", {"clip.policy": "median"}, "counts norms of exact messages"),
    ("dp-agrlr-micro", {"clip.scope": "per-layer"}, "clips records"),
    ("dp-aqc", {"clip.count_noise": 1e-6}, "count_noise"),
    ("dp-agr", {"clip.window": 500}, r"is more than server\.rounds"),
    ("dp-agr-cyclic", {"clip.policy": "window-products"}, "with correlated noise, products of releases"),
    ("dp-agr-correlated", {"clip.policy": "window-products"}, "with correlated noise, products of releases"),
    ("dp-agr", {"clip.lowest": 2.0, "clip.highest": 1.0}, "clip.lowest"),
    ("dp-agr", {"clip.initial": 5.0, "clip.highest": 1.0}, "clip.highest"),
]


@pytest.mark.parametrize(("algo", "given", "reason"), REFUSED_POLICIES)
def test_a_policy_that_does_not_fit_is_refused_before_the_first_round(algo, given, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(algo, **given)


@pytest.mark.parametrize("policy", ["constant", "quantile", "median", "window-literal", "window-products", "window"])
@pytest.mark.parametrize("scope", ["flat", "per-layer"])
def test_every_policy_costs_the_same(policy, scope):
    plan = plan_of("dp-agr", **{"clip.policy": policy, "clip.scope": scope, "server.noise_multiplier": 1.0})
    assert plan.mechanism.at(0).charged_multiplier == 1.0
    assert plan.planned == plan_of("dp-const", **{"server.noise_multiplier": 1.0, "population.cohort": 200,
                                                  "server.rounds": 80}).planned  # fmt: skip
    assert (plan.policy.attachment is not None) == (policy in ("quantile", "median"))


def test_held_out_episodes_are_as_clients_hold_them_or_as_the_evaluation_says():
    given = {"task.ways": "12", "task.shots": "300", "task.queries": "300", "evaluation.queries": "9"}
    judged = {"evaluation.ways": "5", "evaluation.shots": "1"}
    as_held = evaluation_shape(resolve("maml", "cifar-fs", None, given))
    assert as_held == EpisodeShape(ways=12, shots=300, queries=9)
    assert evaluation_shape(resolve("maml", "cifar-fs", None, given | judged)) == EpisodeShape(
        ways=5, shots=1, queries=9
    )


def test_a_network_larger_than_the_machine_is_refused_by_whoever_makes_the_plan():
    settings = resolve("maml", "strokes", None, {"model.width": "100000"})
    with pytest.raises(InputError, match=r"270,003,700,005 weights: .* GiB, and this machine has"):
        make_plan(settings, load_task("strokes")[0])


@pytest.mark.parametrize("trained", ["all", "head"])
@pytest.mark.parametrize("evaluated", [None, "all", "head"])
def test_a_head_is_asked_for_where_training_or_evaluation_adapts_it_alone(monkeypatch, trained, evaluated):
    asked = []
    monkeypatch.setattr(run_plan, "check_has_head", lambda network, name: asked.append(name))
    given = {"meta.adapt": trained, "evaluation.adapt": "null" if evaluated is None else evaluated, "model.width": "4"}
    make_plan(resolve("maml", "strokes", None, given), TASK)
    assert bool(asked) is ("head" in (trained, evaluated))
