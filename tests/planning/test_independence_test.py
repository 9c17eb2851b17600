"""Networks that mix records or clients are refused by what they compute; those that do not are not."""

import random
import re
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from queue import Queue
from threading import Thread

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients
from dpfedmeta.planning.network_trial import independence_test
from dpfedmeta.planning.network_trial.independence_test import check_uncoupled
from dpfedmeta.planning.network_trial.synthetic_clients import RehearsedClients, rehearsal_of
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.tracking.plan_summary import trained_lines
from tests.planning.coupled_networks import HEARD

TASK = load_task("strokes")[0]
SMALL = {"task.ways": 3, "task.shots": 2, "task.queries": 2, "model.width": 6}
OWN = "tests.planning.coupled_networks:"
STEPS, MICRO, EXACT, NOTHING = "dp-agrlr", "dp-agrlr-micro", "dp-agr", "maml"
ALL = {"meta.adapt": "all", "meta.learn": "all", "meta.lr": 0.1}
RECORD_NORM = {"model.norm": "none", "model.features": "raw"}


@pytest.fixture(autouse=True)
def anew():
    """A network that remembers must not have been tried before."""
    check_uncoupled.cache_clear()


def plan_of(algo, name, **given):
    own = {"model.name": f"{OWN}{name}", **SMALL, **RECORD_NORM, **given}
    if algo == "local-dp":
        own["meta.batch"] = 6
    return make_plan(resolve(algo, "strokes", None, {k: str(v) for k, v in own.items()}), TASK)


@cache
def plain(algo, given):
    """Plans are costly: what differs here is the network alone."""
    return rehearsal_of_plan(plan_of(algo, "plain", **dict(given)))


def rehearsal_of_plan(plan):
    return rehearsal_of(plan.settings, plan.network, plan.algorithm, private=plan.private)


def tried(algo, name, **given):
    rehearsal = plain(algo, tuple(given.items()))
    check_uncoupled(replace(rehearsal, network=replace(rehearsal.network, name=f"{OWN}{name}")))


def refused(algo, name, how=tried, **given):
    with pytest.raises(InputError) as caught:
        how(algo, name, **given)
    message = str(caught.value)
    assert f"{OWN}{name}: " in message
    assert "\n" not in message
    return type(caught.value), message


@pytest.mark.parametrize(
    ("algo", "name"),
    [
        (STEPS, "mean_of_batch"),
        (STEPS, "dropout"),
        ("local-dp", "mean_of_batch"),
        (MICRO, "running_attribute"),
        (EXACT, "running_buffer"),
        (NOTHING, "dropout"),
        (NOTHING, "seven_logits"),
    ],
)
def test_no_plan_is_made_for_them(algo, name):
    refused(algo, name, how=plan_of)


@pytest.mark.parametrize("engine", ["auto", "vmap", "opacus"])
@pytest.mark.parametrize("name", ["mean_of_batch", "max_of_batch", "softmax_over_batch", "sorted_batch"])
@pytest.mark.parametrize("adapt", ["head", "all"])
def test_records_that_are_mixed_are_refused(name, engine, adapt):
    given = {"record.engine": engine, **(ALL if adapt == "all" else {})}
    kind, message = refused(STEPS, name, **given)
    assert kind is RefusedPlan
    assert "record-level privacy would not hold" in message
    share = float(re.search(r"by ([\d.e-]+) of its length", message)[1])
    assert 1e-4 < share <= 2.0


@pytest.mark.parametrize("algo", [STEPS, EXACT])
def test_images_are_changed_to_brighter_and_to_black_ones_where_records_stand_together(monkeypatch, algo):
    """A maximum over the batch moves by a brighter image, and a minimum by a black one."""
    rehearsal, asked = plain(algo, ()), []
    monkeypatch.setattr(independence_test, "_try", lambda tried, used, *how: asked.append(how) or True)
    independence_test._try_out(rehearsal)
    assert asked == [(0, 1.0), (1, 1.0)] + [(2, 0.0)] * (not rehearsal.trial.apart)
    assert rehearsal.trial.apart is (algo == EXACT)


def test_a_gate_that_is_shut_at_first_hides_nothing():
    assert refused(STEPS, "zero_gate")[0] is RefusedPlan
    rehearsal = plain(STEPS, ())
    own = replace(rehearsal.network, name=f"{OWN}zero_gate")
    rehearsal = replace(rehearsal, network=own)
    # The initial weights alone would let it pass.
    clients, episodes, weights = RehearsedClients(rehearsal), rehearsal.episodes(0), rehearsal.weights(0)
    first, moved = (clients(*weights, data) for data in (episodes, rehearsal.changed(episodes, 1, 1.0)))  # type: ignore[call-arg]
    assert all(torch.equal(a[1:], b[1:]) for a, b in zip(first, moved, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, moved, strict=True))


def test_local_training_is_tried_out_too():
    assert refused("local-dp", "mean_of_batch")[0] is RefusedPlan
    tried("local-dp", "layer_norm")


@pytest.mark.parametrize("name", ["running_buffer", "running_attribute", "imprinted", "previous"])
@pytest.mark.parametrize("algo", [STEPS, EXACT, NOTHING])
def test_what_a_network_keeps_reaches_nobody(name, algo):
    kind, message = refused(algo, name)
    lost = {STEPS: "record-level privacy", EXACT: "client-level privacy", NOTHING: "resumed bit for bit"}[algo]
    assert lost in message
    assert kind is (InputError if algo == NOTHING else RefusedPlan)


@pytest.mark.parametrize("name", ["running_buffer", "running_attribute", "imprinted", "previous"])
def test_micro_episodes_that_leak_are_refused(name):
    refused(MICRO, name)


@pytest.mark.parametrize("name", ["batch_norm", "mean_of_batch", "max_of_batch"])
def test_inside_a_micro_episode_and_inside_a_client_records_may_mix(name):
    tried(MICRO, name)
    tried(EXACT, name)
    tried(EXACT, name, **{"run.chunk": 4})


def test_running_statistics_that_training_does_not_read_are_no_coupling_of_clients():
    plan_of(EXACT, "tracking_batch_norm")
    with pytest.raises(RefusedPlan, match="track_running_stats=False"):
        plan_of(MICRO, "tracking_batch_norm")


@pytest.mark.parametrize("algo", [STEPS, MICRO, EXACT, NOTHING, "local-dp", "dp-fedavg"])
@pytest.mark.parametrize("name", ["dropout", "global_noise", "rarely_drawn", "drawn_by_numpy"])
def test_random_numbers_in_forward_are_refused_in_one_line(name, algo):
    _, message = refused(algo, name)
    assert "draws random numbers in forward" in message
    assert f": body.4 ({'Dropout, p = 0.2' if name == 'dropout' else 'Layer'}), so" in message
    assert "take dropout and noise out" in message


@contextmanager
def another_thread(times):
    """It draws, the first times that the network computes, and lives on."""
    asked, done, hear = Queue(), Queue(), count()

    def draw():
        while asked.get():
            random.random()
            done.put(None)

    def ask():
        if next(hear) < times:
            asked.put(True)
            done.get()

    thread = Thread(target=draw, name="heartbeat", daemon=True)
    thread.start()
    HEARD.append(ask)
    try:
        yield
    finally:
        HEARD.clear()
        asked.put(False)
        thread.join()


@pytest.mark.parametrize("times", [1, 2])
def test_what_another_thread_draws_is_not_laid_to_the_network(times):
    with another_thread(times):
        tried(EXACT, "overheard")


def test_where_another_thread_never_stops_it_is_named_too():
    with another_thread(10**9):
        # Threads that other tests left are named beside it.
        assert re.search(
            r"; or another thread of this process \((.*, )?heartbeat\) draws", refused(EXACT, "overheard")[1]
        )


def test_a_network_that_draws_is_refused_whatever_other_threads_do():
    with another_thread(0):
        assert "draws random numbers in forward: body.4" in refused(EXACT, "drawn_by_numpy")[1]


@pytest.mark.parametrize("name", ["tracking_batch_norm", "reseeding"])
def test_what_breaks_where_clients_are_computed_at_once_is_said_without_the_words_of_vmap(name):
    message = refused(EXACT, name, **{"run.chunk": 4})[1]
    assert "vmap" not in message
    assert ("draws random numbers" if name == "reseeding" else "track_running_stats=False") in message


def test_a_network_whose_forward_is_its_own_may_adapt_all_of_itself():
    tried(NOTHING, "unlike", **ALL)
    tried(NOTHING, "frozen_layer", **ALL)


def test_batch_statistics_are_refused_with_where_they_would_do():
    with pytest.raises(RefusedPlan, match=r"track_running_stats=False helps with --record.release micro-episodes only"):
        plan_of(STEPS, "batch_norm")


def test_the_plan_says_what_is_learned_and_what_stays():
    (said,) = trained_lines(plan_of(EXACT, "frozen_layer").settings, TASK)
    assert f"{OWN}frozen_layer: images of 1 x 28 x 28, 3 outputs; " in said
    assert "learns 42 weights (body.4.bias, body.4.weight)" in said
    assert "leaves 21 weights (head) at zero" in said
    assert "keeps 300 weights (body.2.bias, body.2.weight) frozen" in said


def test_other_gradients_for_the_same_records_are_refused():
    assert "gives different gradients for the same records" in refused(NOTHING, "own_noise")[1]


def test_a_random_buffer_is_named_with_what_to_make_of_it():
    message = refused(NOTHING, "random_buffer")[1]
    assert "body.4.projection is a buffer with different values each time" in message
    assert "requires_grad=False" in message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("seven_logits", r"returns \(\d+, 7\) for \d+ images and ways = 3"),
        ("two_results", r"returns tuple, expected a tensor of logits \(12, 3\) for 12 images"),
        ("mapped", "returns dict, expected a tensor of logits"),
        ("body_of_a_mapping", "its body returns dict for 12 images"),
        ("unlike", r"forward is not head\(body\(images\)\): they differ by [\d.]+ of their length"),
        ("infinite", "returns NaN or infinity"),
        ("own_weights", "body.2.bias starts with different values each time for the same run.seed"),
        ("detached", "no gradient reaches the weights that are learned, so every client's message would be 0"),
        ("wrong_size", "RuntimeError: mat1 and mat2"),
        ("failing", r"RuntimeError: no such thing as \d+ features, at .*coupled_networks.py, line \d+\)$"),
        (
            "unbuildable",
            r"factory failed \(ValueError: no network of width 6 at all, at .*_networks.py, line \d+\)$",
        ),
    ],
)
def test_a_network_that_does_not_run_is_named_with_the_reason(name, reason):
    given = {"meta.adapt": "all"} if name == "two_results" else {}
    assert re.search(reason, refused(NOTHING, name, **given)[1])


@pytest.mark.parametrize("engine", ["auto", "vmap", "opacus"])
@pytest.mark.parametrize("name", ["plain", "layer_norm", "group_norm", "mean_of_record", "silent_dropout"])
def test_networks_without_coupling_are_accepted(name, engine):
    tried(STEPS, name, **{"record.engine": engine})
    tried(STEPS, name, **{"record.engine": engine, **ALL})


@pytest.mark.parametrize("algo", [STEPS, MICRO, EXACT, NOTHING, "local-dp", "dp-fedavg"])
def test_a_learned_number_alone_is_a_weight_like_others(algo):
    tried(algo, "scalar", **({} if algo in ("local-dp", "dp-fedavg") else ALL))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("max_norm", r"weight body.4.table.weight \(Embedding\).*; build body.4.table without max_norm = 1$"),
        ("rare_max_norm", "without max_norm = 50$"),
        ("writes_weight", r"forward changes the weight body.4.scale \(Writing\)"),
        ("writes_buffer", r"forward changes the buffer body.4.calls \(Writing\)"),
        ("changes_images", "forward changes the images.*x.sub_"),
    ],
)
def test_a_forward_that_writes_is_refused_with_what_it_writes_into(name, what):
    assert re.search(what, refused(NOTHING, name)[1])


SECOND = {**ALL, "meta.order": 2}


# PyTorch maps an LSTM by a loop, and says that it is slow.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("algo", "name", "given", "remedy", "instead"),
    [
        (NOTHING, "attention", SECOND, r"4.attention \(MultiheadAttention\).*MATH.*--meta.order 1$", "exact_attention"),
        (NOTHING, "bag", SECOND, r"body.4.table \(EmbeddingBag\).*nn.Embedding.*--meta.order 1$", "embedding"),
        (MICRO, "gru", ALL, r"body.4.layer \(GRU\).*use nn.LSTM$", "lstm"),
    ],
)
def test_a_layer_that_pytorch_cannot_do_is_named_with_what_it_can(algo, name, given, remedy, instead):
    assert re.search(remedy, refused(algo, name, **given)[1])
    tried(algo, instead, **given)
    if given is SECOND:
        tried(algo, name, **{**given, "meta.order": 1})


BUILT_IN = [("conv3-blur", "group"), ("conv4", "group"), ("conv4-strided", "none"), ("linear", "none"), ("mlp", "none")]


@pytest.fixture(scope="module")
def rehearsals():
    """Of every kind; that presets are accepted as they are is tested in test_plan."""
    everything = {algo: plain(algo, tuple(ALL.items())) for algo in (NOTHING, EXACT, MICRO, STEPS)}
    heads = {f"{algo} head": plain(algo, ()) for algo in (STEPS, MICRO)}
    return everything | heads | {algo: plain(algo, ()) for algo in ("dp-fedavg", "local-dp")}


# In the other precision, whose layers are the same, the smallest of the convolutional ones and one without.
PRECISIONS = [
    *((*network, "float32") for network in BUILT_IN),
    *(
        pytest.param(*network, "bfloat16", marks=[] if network[0] in ("conv4-strided", "mlp") else [pytest.mark.slow])
        for network in BUILT_IN
    ),
]


@pytest.mark.parametrize(("name", "norm", "precision"), PRECISIONS)
def test_networks_of_this_package_move_no_bit_of_another_unit(rehearsals, name, norm, precision):
    for rehearsal in rehearsals.values():
        spec = replace(rehearsal.network, name=name, norm=norm, groups=2, width=4, learn="all", precision=precision)
        own = replace(rehearsal, network=spec)
        weights, episodes = own.weights(1), own.episodes(1)
        changed = own.changed(episodes, 2, 1.0)
        first, moved = (RehearsedClients(own)(*weights, data) for data in (episodes, changed))  # type: ignore[call-arg]
        assert all(torch.equal(a[1:], b[1:]) for a, b in zip(first, moved, strict=True))
        assert not any(torch.equal(a[0], b[0]) for a, b in zip(first, moved, strict=True))


def test_a_mistake_in_the_product_itself_is_seen(monkeypatch):
    """A built-in network, and an engine that subtracts the mean over the records from their gradients."""
    settings = resolve(STEPS, "strokes", None, {k: str(v) for k, v in SMALL.items()} | {"model.width": "4"})
    make_plan(settings, TASK)
    check_uncoupled.cache_clear()
    sound = LayeredGradients.__call__

    def mixed(self, *given):
        return {name: value - 0.01 * value.mean(0) for name, value in sound(self, *given).items()}

    monkeypatch.setattr(LayeredGradients, "__call__", mixed)
    with pytest.raises(RefusedPlan, match="moved the gradient of another record"):
        make_plan(settings, TASK)


def test_trying_out_costs_once_and_leaves_the_random_state_alone():
    plan = plan_of(STEPS, "plain")
    assert check_uncoupled.cache_info().misses == 1
    plan_of(STEPS, "plain", **{"server.rounds": 7, "privacy.record.epsilon": 3})
    assert check_uncoupled.cache_info().misses == 1
    check_uncoupled.cache_clear()
    before = torch.get_rng_state()
    check_uncoupled(rehearsal_of_plan(plan))
    assert torch.equal(before, torch.get_rng_state())
