import math
import warnings
from collections import OrderedDict

import pytest
import torch

from dpfedmeta.config import algorithm_names, resolve
from dpfedmeta.data import load_task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.federation.plan import make_plan
from dpfedmeta.federation.privacy_plan import make_privacy
from dpfedmeta.privacy.mechanisms import GaussianMechanism, NoMechanism

TASK = load_task("strokes")[0]


def two_layers(*, channels, image_size, ways, width, norm):
    """A body and a head that is more than one layer."""
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * image_size**2, width))
    head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, ways))
    return torch.nn.Sequential(OrderedDict(body=body, head=head))


def plan_of(algo, **given):
    return make_plan(resolve(algo, "strokes", None, {k: str(v) for k, v in given.items()}), TASK)


@pytest.mark.parametrize("algo", algorithm_names())
def test_every_preset_keeps_what_it_promises(algo):
    plan = plan_of(algo)
    client_public, _, record_server, _ = plan.planned
    assert len(plan.planned) == 4
    if algo == "maml":
        assert all(math.isinf(g.epsilon) for g in plan.planned)
        assert isinstance(plan.mechanism(0), NoMechanism)
        return
    if algo == "local-dp":
        assert 2.47 <= record_server.epsilon <= 2.5
        assert isinstance(plan.mechanism(0), NoMechanism)
        return
    assert isinstance(plan.mechanism(0), GaussianMechanism)
    assert client_public.epsilon <= 1.5
    assert client_public.delta == 1e-6
    assert plan.privacy.clients == 400_000
    if algo in ("dp-agrlr", "dp-agrlr-steps"):
        assert 2.47 <= record_server.epsilon <= 2.5
        assert plan.privacy.max_participations == 1
    else:
        assert client_public.epsilon >= 0.99 * 1.5


REFUSED = [
    ("dp-agrlr-steps", {"meta.order": 2}, "Hessian"),
    ("dp-agrlr-steps", {"model.norm": "batch"}, r"--model\.norm group"),
    ("dp-agrlr-steps", {"model.features": "support"}, r"--model\.features record"),
    ("dp-agrlr-steps", {"meta.method": "reptile", "meta.learn": "all", "meta.adapt": "all"}, "stacked"),
    ("dp-agrlr", {"meta.method": "reptile", "meta.adapt": "all", "meta.order": 1}, "micro-episodes"),
    ("dp-agrlr", {"record.support_noise": 2.0}, "no support release"),
    ("dp-agrlr", {"privacy.client.colluding": 10**6, "server.noise_multiplier": 0}, "colluding"),
    ("dp-agrlr", {"meta.divisions": 5}, "a record would enter every division's gradient"),
    ("dp-agr", {"server.noise_multiplier": 0}, "infinite"),
    ("dp-agr", {"privacy.client.epsilon": "null"}, "neither a target"),
    ("dp-agrlr", {"privacy.record.epsilon": "null"}, "neither a target"),
    ("dp-agr", {"clip.policy": "none"}, "needs a clip bound"),
    ("maml", {"privacy.client.epsilon": 1.0}, "clips nothing"),
    ("maml", {"server.noise_multiplier": 1.0}, "clips nothing"),
    ("maml", {"record.enabled": "true"}, "clips nothing"),
]


@pytest.mark.parametrize(("algo", "given", "reason"), REFUSED)
def test_what_would_not_hold_is_refused_with_its_reason(algo, given, reason):
    with pytest.raises(RefusedPlan, match=reason):
        plan_of(algo, **given)


WRONG = [
    ("maml", {"population.cohort": 11, "population.clients": 10}, "more than population.clients"),
    ("maml", {"meta.method": "fomaml", "meta.order": 2}, "first-order"),
    ("maml", {"meta.method": "anil", "meta.adapt": "all"}, "head only"),
    ("maml", {"model.name": "resnet"}, "known are conv3-blur, conv4"),
    ("maml", {"model.name": "no.such:thing"}, "model.name"),
    ("dp-agr", {"clip.window": 1}, "at least 2"),
    ("dp-agrlr", {"record.engine": "opacus"}, "micro-episodes"),
    ("dp-agrlr-steps", {"record.engine": "opacus", "run.precision": "bfloat16"}, "hooks see float32 only"),
    ("dp-agrlr", {"run.chunk": 4}, "for several clients at once"),
    ("dp-agr", {"run.chunk": 4, "meta.divisions": 2}, "for several clients at once"),
    (
        "maml",
        {"run.chunk": 4, "meta.method": "reptile", "meta.adapt": "all", "meta.order": 1},
        "several clients at once",
    ),
    ("maml", {"model.first_gain": 2, "model.norm": "none"}, "behind its first convolution"),
    ("maml", {"model.first_gain": 2, "model.name": "mlp"}, "behind its first convolution"),
    ("maml", {"run.precision": "bfloat16", "model.width": 2}, "none of this package's convolutions"),
    ("maml", {"run.precision": "tf32", "model.name": "linear"}, "none of this package's convolutions"),
    ("maml", {"model.name": "mlp", "run.precision": "bfloat16"}, "none of this package's convolutions"),
    ("dp-agrlr", {"record.micro_ways": 2, "meta.learn": "all"}, "meta.learn body"),
    ("dp-agrlr", {"record.micro_shots": 10}, "do not fit"),
    ("dp-agrlr", {"record.micro_ways": 6}, "do not fit"),
    ("dp-agr", {"model.name": "torch.nn:Identity"}, r"model\.name"),
    ("dp-agr", {"meta.divisions": 2, "meta.division_shots": 10}, "10 records of each class, and a query set needs one"),
    ("dp-agr", {"meta.divisions": 2, "meta.adapt": "all"}, "one pass through the body"),
    ("dp-agr", {"meta.divisions": 2, "model.name": "tests.federation.test_plan:two_layers"}, r"one torch\.nn\.Linear"),
]


@pytest.mark.parametrize(("algo", "given", "reason"), WRONG)
def test_settings_that_do_not_fit_name_the_key(algo, given, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(algo, **given)


def test_there_are_no_more_divisions_than_records_of_a_class():
    assert plan_of("dp-agr", **{"meta.divisions": 10}).meta.divisions.count == 10
    assert plan_of("dp-agr", **{"meta.divisions": 10, "task.shots": 1}).meta.divisions.count == 6


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
    privacy = plan_of("dp-agrlr-steps", **{"record.query_noise": 2.0, "meta.steps": 4}).privacy
    assert privacy.record.support_noise == pytest.approx(4.0)
    privacy = plan_of("dp-agrlr-steps", **{"record.support_noise": 4.0, "meta.steps": 4}).privacy
    assert privacy.record.query_noise == pytest.approx(2.0)


def test_methods_fill_in_order_and_adaptation():
    anil = plan_of("maml", **{"meta.method": "anil", "meta.adapt": "null", "meta.order": "null"}).meta
    assert (anil.message, anil.order, anil.adaptation.adapt) == ("query", 2, "head")
    reptile = plan_of("maml", **{"meta.method": "reptile", "meta.adapt": "null", "meta.order": "null"}).meta
    assert (reptile.message, reptile.order, reptile.adaptation.adapt) == ("update", 1, "all")


REFUSED_POLICIES = [
    ("dp-agrlr", {"clip.policy": "quantile"}, "never computes"),
    ("dp-agrlr", {"clip.policy": "median"}, "never computes"),
    ("dp-agrlr", {"clip.scope": "per-layer"}, "clips records"),
    ("dp-aqc", {"clip.count_noise": 1e-6}, "count_noise"),
    ("dp-agr", {"clip.window": 500}, "longer than the run"),
    ("dp-agr", {"clip.lowest": 2.0, "clip.highest": 1.0}, "clip.lowest"),
    ("dp-agr", {"clip.initial": 5.0, "clip.highest": 1.0}, "clip.highest"),
]


@pytest.mark.parametrize(("algo", "given", "reason"), REFUSED_POLICIES)
def test_a_policy_that_does_not_fit_is_refused_before_the_first_round(algo, given, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(algo, **given)


@pytest.mark.parametrize("policy", ["constant", "quantile", "median", "window-literal", "window"])
@pytest.mark.parametrize("scope", ["flat", "per-layer"])
def test_every_policy_costs_the_same(policy, scope):
    plan = plan_of("dp-agr", **{"clip.policy": policy, "clip.scope": scope, "server.noise_multiplier": 1.0})
    assert plan.mechanism(0).charged_multiplier == 1.0
    assert plan.planned == plan_of("dp-const", **{"server.noise_multiplier": 1.0, "population.cohort": 200,
                                                  "server.rounds": 80}).planned  # fmt: skip
    assert (plan.policy.attachment is not None) == (policy in ("quantile", "median"))
