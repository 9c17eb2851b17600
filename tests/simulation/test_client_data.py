"""A client whose data cannot be read as the plan expects counts as zero, whoever made the population."""

import io
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from rich.console import Console

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_data import check_some_sound
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.build_data import client_side
from dpfedmeta.training.dry_run import forecast
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.terminal.progress import Terminal
from tests.exact_sums import NoNoise

SHAPE = EpisodeShape(ways=3, shots=2, queries=2)
CLIENTS = 40
SMALL = {"model.width": "4", "server.rounds": "3", "task.ways": "3", "task.shots": "2", "task.queries": "2",
         "clip.window": "2", "population.clients": str(CLIENTS), "population.cohort": "8", "run.workers": "1",
         "privacy.client.delta": "0.001", "evaluation.every": "3", "evaluation.validation_episodes": "2",
         "evaluation.episodes": "2", "run.noise_seed": "3"}  # fmt: skip
SPLIT = {"server.noise_site": "clients", "population.sampler": "fixed"}


class Raising:
    """Reading one client's data fails."""

    def __init__(self, honest, client, error):
        self.honest, self.client, self.error = honest, client, error

    @property
    def clients(self):
        return self.honest.clients

    def episode(self, client):
        if client == self.client:
            raise self.error
        return self.honest.episode(client)


class Answering(Raising):
    """One client's data are something else."""

    def episode(self, client):
        return self.error if client == self.client else self.honest.episode(client)


class Unreadable:
    def __array__(self, *words, **more):
        raise OSError("a broken image file")


class Pairs(list):
    """Item 5 cannot be fetched."""

    def __getitem__(self, number):
        if number == 5:
            raise KeyError("no such row")
        return super().__getitem__(number)


@pytest.fixture(scope="module")
def pairs(tiny_strokes):
    made = VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=CLIENTS, seed=0)
    held = [made.episode(client) for client in range(CLIENTS)]
    return [((e.support_images, e.support_labels), (e.query_images, e.query_labels)) for e in held]


def with_client_5(pair):
    return lambda pairs: from_pairs([*pairs[:5], pair(*pairs[5]), *pairs[6:]], SHAPE)


def spoiled(images, number):
    """One number of them is another one."""
    images = images.clone()
    images.flatten()[-1] = number
    return images


MISSHAPEN = {
    "one query less": with_client_5(lambda s, q: (s, (q[0][1:], q[1][1:]))),
    "other labels": with_client_5(lambda s, q: (s, (q[0], q[1] + 1))),
    "nothing": with_client_5(lambda s, q: None),
    "three parts": with_client_5(lambda s, q: (s, q, q)),
    "text for labels": with_client_5(lambda s, q: ((s[0], ["a"] * 6), q)),
    "ragged images": with_client_5(lambda s, q: (([[1.0], [2.0, 3.0]], s[1]), q)),
    "images less than labels": with_client_5(lambda s, q: ((s[0][:-1], s[1]), q)),
    "no images": with_client_5(lambda s, q: ((s[0][:0], s[1][:0]), (q[0][:0], q[1][:0]))),
    "an image that breaks": with_client_5(lambda s, q: ((Unreadable(), s[1]), q)),
    "smaller images": with_client_5(lambda s, q: ((s[0][..., 1:], s[1]), (q[0][..., 1:], q[1]))),
    "a support image of NaN": with_client_5(lambda s, q: ((spoiled(s[0], math.nan), s[1]), q)),
    "a query image of NaN": with_client_5(lambda s, q: (s, (spoiled(q[0], math.nan), q[1]))),
    "an infinite query image": with_client_5(lambda s, q: (s, (spoiled(q[0], -math.inf), q[1]))),
    "a pair that is not there": lambda pairs: from_pairs(Pairs(pairs), SHAPE),
    **{
        type(error).__name__: lambda pairs, error=error: Raising(from_pairs(pairs, SHAPE), 5, error)
        for error in (InputError("client 5: 3 records"), ValueError(), TypeError(), IndexError(), KeyError(5),
                      RuntimeError(), OSError(), AttributeError(), ZeroDivisionError(), AssertionError())
    },
    "no episode": lambda pairs: Answering(from_pairs(pairs, SHAPE), 5, None),
    "an episode of lists": lambda pairs: Answering(
        from_pairs(pairs, SHAPE), 5, replace(from_pairs(pairs, SHAPE).episode(5), query_labels=[0, 0, 1, 1, 2, 2])
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def side_of(tiny_strokes):
    """(plan, clients, model) of an algorithm; solving the noise takes longer than a test."""

    @cache
    def planned(algo, given):
        plan = make_plan(resolve(algo, "strokes", None, {**SMALL, **dict(given)}), tiny_strokes.task)
        side = client_side(plan, None, KeyedSource(1), torch.device("cpu"))
        return plan, side, learned_part(plan.network, initial_weights(plan.network, 0))

    def side_of(population, algo, **given):
        plan, side, model = planned(algo, tuple(sorted(given.items())))
        return plan, replace(side, population=population), model

    return side_of


def backend_sum(side, model, *clients, abort=False, round_=0):
    backend = LocalBackend(clients=side, workers=InProcess(), abort_on_failure=abort)
    return backend.cohort_sum(model, 0.3, Cohort(round=round_, clients=np.array(clients, dtype=np.int64)))


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro", "dp-agr side by side"])
@pytest.mark.parametrize("how", MISSHAPEN)
def test_a_client_that_cannot_be_read_counts_as_zero(side_of, pairs, algo, how):
    name, _, together = algo.partition(" ")
    given = {"run.chunk": "4"} if together else {}
    _, side, model = side_of(MISSHAPEN[how](pairs), name, **given)
    if name == "dp-agrlr-micro":
        # Null records, of which there is noise; one of them makes its own micro-episode 0.
        assert backend_sum(side, model, 5).noise_variance == backend_sum(side, model, 1).noise_variance > 0
        (noise,) = replace(side, source=NoNoise()).sent(model, 0.3, 0, [5])
        assert bool(noise.any()) == how.endswith(("image of NaN", "infinite query image"))
        return
    with_it, without = backend_sum(side, model, 5, 1, 2), backend_sum(side, model, 1, 2)
    assert all(torch.allclose(with_it.value[n], without.value[n], atol=1e-5) for n in model)
    assert with_it.noise_variance == without.noise_variance
    assert float(flatten(without.value).norm()) > 1e-3


@pytest.mark.parametrize("how", MISSHAPEN)
def test_what_is_wrong_with_a_client_is_said_of_it_alone(side_of, pairs, how):
    population = MISSHAPEN[how](pairs)
    _, side, _ = side_of(population, "dp-agr")
    assert side.data_form.problem(population, 5)
    assert side.data_form.problem(population, 6) is None


def test_a_client_that_does_not_exist_is_still_an_error(side_of, pairs):
    _, side, model = side_of(from_pairs(pairs, SHAPE), "dp-agr")
    for absent in (CLIENTS, -1):
        with pytest.raises(IndexError, match=f"client {absent} of a population of {CLIENTS}"):
            backend_sum(side, model, 1, absent)


def test_a_full_memory_is_no_property_of_a_client(side_of, pairs):
    _, side, model = side_of(Raising(from_pairs(pairs, SHAPE), 5, MemoryError()), "dp-agr")
    with pytest.raises(MemoryError):
        backend_sum(side, model, 5)


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro"])
def test_a_run_goes_on_over_a_misshapen_client_and_tells_nobody(tiny_task_file, tmp_path, monkeypatch, pairs, algo):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    # Everybody takes part, but a probe of 8 in 40 looks at client 5 as well: 0, 5, 11, ...
    given = {**SMALL, "population.cohort": str(CLIENTS), "run.dir": str(tmp_path), "run.name": "r"}
    settings = resolve(algo, str(tiny_task_file), None, given)
    console = Console(record=True, width=300, file=io.StringIO())
    population = MISSHAPEN["one query less"](pairs)
    run, status = run_training(settings, RunOptions(population=population), [Terminal(console)])
    assert status == "completed"
    said = console.export_text() + "".join(file.read_text() for file in run.path.glob("*.json*"))
    assert not any(word in said for word in ("client 5", "unsound", "misshapen", "support and 5 query"))


def fraction(sum_, deviation):
    """Mean square over the stated variance, and the fourth moment over that of a Gaussian."""
    values = torch.cat([v.flatten() for v in sum_]).double() / deviation
    return float(values.square().mean()), float(values.pow(4).mean()) / 3


@pytest.mark.parametrize("chunk", [{}, {"run.chunk": "4"}])
def test_a_client_without_sound_data_sends_its_share_of_noise_and_counts(side_of, pairs, chunk):
    """Split noise: its share is owed to the sum, and a round must not be aborted by what a client holds."""
    population = MISSHAPEN["one query less"](pairs)
    _, side, model = side_of(population, "dp-agr", **SPLIT, **chunk)
    deviation = side.message_noise * side.message_bound(0.3)
    assert deviation > 0
    sums = [backend_sum(side, model, 5, abort=True, round_=number) for number in range(24)]
    assert all(each.noise_variance == pytest.approx(deviation**2) for each in sums)
    values = [flatten(each.value) for each in sums]
    count = sum(len(each) for each in values)
    square, fourth = fraction(values, deviation)
    assert square == pytest.approx(1.0, abs=5 * math.sqrt(2 / count))
    assert fourth == pytest.approx(1.0, abs=5 * math.sqrt(96 / count) / 3)
    assert abs(float(torch.cat(values).double().mean())) < 5 * deviation / math.sqrt(count)
    # Noise of its own in every round, and not that of its neighbour.
    alike = torch.corrcoef(torch.stack(values)).fill_diagonal_(0).abs().max()
    assert float(alike) < 6 / math.sqrt(len(values[0]))
    three = backend_sum(side, model, 5, 1, 2, abort=True)
    assert three.noise_variance == pytest.approx(3 * deviation**2)
    assert torch.allclose(
        flatten(three.value), values[0] + flatten(backend_sum(side, model, 1, 2).value), atol=1e-4 * deviation + 1e-6
    )


def test_what_a_client_holds_aborts_no_round_of_client_level_algorithms(side_of, pairs, monkeypatch):
    _, side, model = side_of(MISSHAPEN["ValueError"](pairs), "dp-agr", **SPLIT)
    for clients in ((5,), (1, 5), (5, 1, 2)):
        assert side.clipped_sum(model, 0.3, 0, clients)[1] == len(clients)
        backend_sum(side, model, *clients, abort=True)
    # A failure that data cannot cause: a message of another form.
    monkeypatch.setattr(ClientRunner, "_with_own_noise", lambda *words: {})
    with pytest.raises(RoundAborted):
        backend_sum(side, model, 1, abort=True)


class Counting:
    """Sound are only some; remembers who was looked at."""

    def __init__(self, honest, clients, sound):
        self.honest, self.clients, self.sound, self.asked = honest, clients, sound, []

    def episode(self, client):
        self.asked.append(client)
        if client not in self.sound:
            raise ValueError
        return self.honest.episode(0)


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 9, 1000, 400_000])
def test_a_few_clients_spread_over_all_are_looked_at(side_of, pairs, clients):
    honest = from_pairs(pairs, SHAPE)
    plan, side, _ = side_of(honest, "dp-agrlr-micro")
    nobody = Counting(honest, clients, ())
    with pytest.raises(InputError, match="1 x 28 x 28, 3 ways, 2 shots, 2 queries") as refused:
        check_some_sound(nobody, side.data_form, plan.shape)
    assert "\n" not in str(refused.value)
    assert "problems()" in str(refused.value)
    assert len({*nobody.asked}) == len(nobody.asked) == min(8, clients)
    assert {0, clients - 1} <= {*nobody.asked}
    gaps = np.diff([*sorted(nobody.asked)])
    assert clients < 9 or gaps.max() - gaps.min() <= 1
    # One sound client of them is enough, wherever it is: the others' data decide nothing.
    for only in nobody.asked:
        check_some_sound(Counting(honest, clients, (only,)), side.data_form, plan.shape)


def looked_at(side_of, pairs, change):
    plan, side, _ = side_of(from_pairs(pairs, SHAPE), "dp-agr")
    with pytest.raises(InputError) as refused:
        check_some_sound(from_pairs([change(*pair) for pair in pairs], SHAPE), side.data_form, plan.shape)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.flatten(1)[:, :20], "all of them hold float32 records of 20, 6 support and 6 query records of 3"),
        (lambda x: torch.nn.functional.pad(x, (2, 2, 2, 2)), "hold float32 records of 1 x 32 x 32, "),
        (lambda x: x * math.nan, "all of them hold images of NaN or infinity; "),
    ],
)
def test_what_all_of_them_hold_is_said(side_of, pairs, change, words):
    assert words in looked_at(side_of, pairs, lambda s, q: ((change(s[0]), s[1]), (change(q[0]), q[1])))


def test_what_is_wrong_with_one_client_is_not_said(side_of, pairs):
    numbers = iter(range(CLIENTS))

    def change(support, query):
        columns = 21 if next(numbers) == 0 else 30
        return tuple((part[0].flatten(1)[:, :columns], part[1]) for part in (support, query))

    said = looked_at(side_of, pairs, change)
    assert "all of them hold" not in said
    assert "21" not in said


@pytest.mark.parametrize("dry", [True, False])
def test_garbage_is_refused_before_anything_is_written(tiny_task_file, tmp_path, pairs, dry):
    small = [((s[0][..., ::2, ::2], s[1]), (q[0][..., ::2, ::2], q[1])) for s, q in pairs]
    settings = resolve("dp-agr", str(tiny_task_file), None, {**SMALL, "run.dir": str(tmp_path), "run.name": "r"})
    with pytest.raises(InputError, match="none of 8 clients"):
        (forecast if dry else run_training)(settings, RunOptions(population=from_pairs(small, SHAPE)))
    assert not (tmp_path / "r").exists()
