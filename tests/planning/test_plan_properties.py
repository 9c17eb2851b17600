"""What a plan says of itself, each property by its own terms; nothing is solved here."""

import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning import run_plan
from dpfedmeta.planning.client_spec import clients_at_once, message_clip_ratio
from dpfedmeta.planning.network_trial import forward_test, independence_test, synthetic_clients
from dpfedmeta.planning.privacy import solve
from dpfedmeta.planning.run_plan import Plan

TASK = load_task("omniglot")[0]


def of(**fields):
    return SimpleNamespace(**fields)


@pytest.mark.parametrize("ratio", [None, 12.0])
@pytest.mark.parametrize("attached", [None, of(scale=0.75, sensitivity=0.5)])
def test_a_client_moves_a_round_by_its_bound_the_servers_ratio_and_what_is_attached(ratio, attached):
    plan = of(policy=of(attachment=attached), message_clip_ratio=ratio)
    due = 0.3 * (ratio or 1.0) * (math.sqrt(1 + 0.375**2) if attached else 1.0)
    assert Plan.message_bound(plan, 0.3) == pytest.approx(due)


@pytest.mark.parametrize(("releases", "mode", "due"), [
    ((1,), "stacked", 7.0), ((1,), "shared", None), ((), "stacked", None), ((), "shared", None),
])  # fmt: skip
def test_the_server_clips_again_where_noisy_messages_are_stacked(releases, mode, due):
    settings = of(record=of(message_clip_ratio=7.0))
    assert message_clip_ratio(settings, of(releases=releases), mode) == due


@pytest.mark.parametrize(("rounds", "short"), [(8, False), (7, True), (1, True)])
def test_a_plan_is_shortened_where_it_has_fewer_rounds_than_were_asked_for(rounds, short):
    assert vars(Plan)["shortened"].fget(of(privacy=of(rounds=rounds), settings=of(server=of(rounds=8)))) is short
    assert vars(Plan)["private"].fget(of(privacy=of(noise_multiplier=0.0)))
    assert not vars(Plan)["private"].fget(of(privacy=of(noise_multiplier=None)))


@pytest.mark.parametrize(
    ("chunk", "releases", "together", "refused"),
    [
        (None, (), 1, False), (1, (), 1, False), (1, (1,), 1, False), (2, (), 4, False), (2, (), 1, True),
        (2, (1,), 4, True), (2, (), None, False),
    ],
)  # fmt: skip
def test_a_number_of_clients_side_by_side_changes_something(chunk, releases, together, refused):
    algorithm = of(releases=releases, together=lambda engine, device, asked: together)
    if refused:
        with pytest.raises(InputError, match=f"^run.chunk = {chunk}: has no effect"):
            run_plan._check_chunk(of(run=of(chunk=chunk)), algorithm)
    else:
        run_plan._check_chunk(of(run=of(chunk=chunk)), algorithm)


@pytest.mark.parametrize(
    ("chunk", "device", "own", "due"),
    [(None, "cpu", 16, 16), (3, "cpu", 16, 3), (None, "cuda", 16, None), (3, "cuda", 16, 3), (None, "cpu", None, None)],
)
def test_clients_of_one_call_are_those_that_were_asked_for_or_the_methods_own_on_a_cpu(chunk, device, own, due):
    algorithm = of() if own is None else of(side_by_side=lambda network: own)
    assert clients_at_once(of(run=of(chunk=chunk)), None, algorithm, device) == due


# Constants that are not in one field alone.

SECURE = {"aggregation.mode": "secure", "population.clients": 900, "population.cohort": 60, "aggregation.dimension": 50}


def plan_of(algo="dp-agr", **given):
    return solve._plan(resolve(algo, "omniglot", None, {name: str(value) for name, value in given.items()}), TASK, ())


def test_constants_of_the_accountant_are_those_of_their_own_settings():
    given = {
        "privacy.client.colluding": 3, "privacy.client.hostile": 0.0, "privacy.client.delta": 2e-7,
        "privacy.record.delta": 3e-6, "server.noise_mode": "stacked", "server.rounds": 17,
    }  # fmt: skip
    found = plan_of(**SECURE, **given)
    assert (found.colluding, found.client_delta, found.record_delta, found.rounds) == (3, 2e-7, 3e-6, 17)
    assert (found.clients, found.cohort, found.server_sees, found.noise_mode) == (900, 60.0, "sum", "stacked")
    assert plan_of(**{"aggregation.mode": "messages"}).server_sees == "messages"
    assert plan_of(**{"aggregation.mode": "messages"}).secure is None
    schedule = "[{from_round: 2, noise_scale: 0.5, cohort_scale: 1.5}, {from_round: 4, noise_scale: 3.0}]"
    changes = plan_of(**{"server.schedule": schedule}).schedule
    assert [(each.from_round, each.noise_scale, each.cohort_scale) for each in changes] == [
        (2, 0.5, 1.5),
        (4, 3.0, 1.0),
    ]


def test_a_noise_is_given_or_left_open_or_there_is_none():
    assert plan_of(**{"server.noise_multiplier": 1.25}).noise_multiplier == 1.25
    assert plan_of().noise_multiplier == 0.0
    assert plan_of("maml").noise_multiplier is None


def test_among_real_clients_masks_withstand_more_and_nothing_else_changes():
    from dataclasses import fields, replace

    secure = SecureRounds(bits=16, dimension=50, dropout=0.1, adversarial=0.05)
    given = {
        "clients": 900,
        "cohort": 60,
        "rounds": 9,
        "noise_multiplier": 1.0,
        "sampler": "fixed",
        "server_sees": "sum",
    }
    privacy = PrivacyPlan(**given, secure=secure)
    plan = Plan(**{field.name: None for field in fields(Plan)} | {"privacy": privacy})
    hard = plan.among_real_clients()
    assert (privacy.secure.malicious, hard.privacy.secure.malicious) == (False, True)
    assert replace(hard, privacy=replace(hard.privacy, secure=secure)) == plan
    without = replace(plan, privacy=replace(privacy, secure=None, server_sees="messages"))
    assert without.among_real_clients() is without


@pytest.mark.parametrize("together", [1, 4, None])
@pytest.mark.parametrize(("releases", "parts"), [((), 1), ((1,), 1), ((), 2)])
def test_a_trial_computes_several_clients_at_once_where_the_run_would(monkeypatch, together, releases, parts):
    """On a CPU that is where messages are exact and of one part; on a GPU wherever the method does."""
    asked = []
    algorithm = of(
        together=lambda engine, device, chunk: asked.append((device, chunk)) or together,
        releases=releases, parts=parts, shortened=lambda: "short", adaptation=of(targets=None),
    )  # fmt: skip
    monkeypatch.setattr(synthetic_clients, "per_record_engine", lambda *given: given[0])
    for device, available in (("cpu", True), ("auto", False), ("auto", True), ("cuda", True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        on_gpu = device != "cpu" and available
        settings = of(run=of(device=device, chunk=3), record=of(engine="vmap", enabled=False))
        found = synthetic_clients.rehearsal_of(settings, "network", algorithm, private=True)
        assert (found.network, found.algorithm, found.engine) == ("network", "short", "vmap")
        assert asked[-1] == ("cuda" if on_gpu else "cpu", 3)
        assert found.side_by_side == (together != 1 and (on_gpu or (releases, parts) == ((), 1)))


@pytest.mark.parametrize(
    ("records", "private", "promise"),
    [(True, True, "record-level"), (True, False, "record-level"), (False, True, "client-level"), (False, False, None)],
)
def test_a_trial_says_what_would_not_hold(records, private, promise):
    algorithm = of(
        together=lambda engine, device, chunk: 1, releases=(), parts=1, shortened=lambda: None,
        adaptation=of(targets=of(masked=True, numbers=False)),
    )  # fmt: skip
    settings = of(run=of(device="cpu", chunk=None), record=of(engine="auto", enabled=records))
    assert synthetic_clients.rehearsal_of(settings, None, algorithm, private=private).promise == promise


def test_threads_that_may_have_drawn_are_the_others(monkeypatch):
    here = threading.current_thread()
    other = threading.Thread(name="heartbeat")
    for threads, words in (
        ([here], ""),
        ([here, other], "(heartbeat)"),
        ([other, here, other], "(heartbeat, heartbeat)"),
    ):
        monkeypatch.setattr(threading, "enumerate", lambda found=threads: found)
        said = forward_test._or_another_thread()
        assert bool(said) == bool(words)
        assert words in said
        assert here.name not in said


class Inner(nn.Module):
    def forward(self, values):
        return Deeper().fail()


class Deeper:
    def fail(self):
        raise ValueError("deep")


def test_the_layer_that_fails_is_the_last_one_and_no_other_object():
    inner = Inner()
    with pytest.raises(ValueError, match="deep") as caught:
        nn.Sequential(nn.Identity(), inner)(None)
    assert independence_test._innermost(caught.value) is inner
    with pytest.raises(ValueError, match="deep") as caught:
        Deeper().fail()
    assert independence_test._innermost(caught.value) is None
