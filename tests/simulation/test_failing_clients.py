"""Clients that fail: none of it reduces noise, changes a denominator, stops the run or touches another contribution."""

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation import cohort_sums
from dpfedmeta.simulation.availability import Availability
from dpfedmeta.simulation.backend import RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.verification.verify import left_out
from tests.exact_sums import NoNoise

SMALL = {"model.width": "4", "server.rounds": "3", "task.ways": "3", "task.shots": "2", "task.queries": "2",
         "clip.window": "2", "population.clients": "1000", "population.cohort": "12"}  # fmt: skip


def images_of(value):
    return lambda e: replace(e, query_images=torch.full_like(e.query_images, value))


HOSTILE = {
    "nan": images_of(math.nan),
    "inf": images_of(math.inf),
    "norm 1e30": images_of(1e30),
    "empty": lambda e: replace(e, support_images=e.support_images[:0], support_labels=e.support_labels[:0]),
    "no query": lambda e: replace(e, query_images=e.query_images[:0], query_labels=e.query_labels[:0]),
    "one record less": lambda e: replace(e, query_images=e.query_images[1:], query_labels=e.query_labels[1:]),
    "wrong shape": lambda e: replace(e, support_images=e.support_images[:, :, :-1]),
    "wrong dtype": lambda e: replace(e, support_images=e.support_images.to(torch.uint8)),
    "float labels": lambda e: replace(e, query_labels=e.query_labels.float()),
    "label out of range": lambda e: replace(e, query_labels=e.query_labels + 7),
    "negative label": lambda e: replace(e, support_labels=e.support_labels - 1),
}


class Hostile:
    """A population in which one client is another one than it should be."""

    def __init__(self, honest, client, change):
        self.honest, self.client, self.change = honest, client, change

    def episode(self, client):
        episode = self.honest.episode(client)
        return self.change(episode) if client == self.client else episode


def made(tiny_strokes, algo):
    algo, _, divisions = algo.partition(" in ")
    given = {**SMALL, "meta.divisions": divisions or "1"}
    plan = make_plan(resolve(algo, "strokes", None, given), tiny_strokes.task)
    side = ClientRunner(
        network=plan.network, weights_seed=0,
        population=VirtualPopulation(pool=tiny_strokes.train, shape=plan.shape, clients=1000, seed=0),
        algorithm=plan.algorithm, message_clip_ratio=plan.message_clip_ratio, engine="auto",
        source=KeyedSource(1), device=torch.device("cpu"), attachment=plan.policy.attachment,
    )  # fmt: skip
    return plan, side, learned_part(plan.network, initial_weights(plan.network, 0))


def sum_over(side, model, *clients):
    cohort = Cohort(round=0, clients=np.array(clients, dtype=np.int64))
    return LocalBackend(clients=side, workers=InProcess()).cohort_sum(model, 0.3, cohort)


@pytest.fixture(scope="module")
def side_of(tiny_strokes):
    """(plan, clients, model) of an algorithm; nobody changes them."""
    return cache(partial(made, tiny_strokes))


@pytest.fixture(scope="module")
def sums_of(side_of):
    """The sums with client 2 and without it, where nobody is hostile."""

    @cache
    def sums(algo):
        _, side, model = side_of(algo)
        return sum_over(side, model, 2, 1, 3), sum_over(side, model, 1, 3)

    return sums


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agr in 3", "dp-agrlr-micro", "dp-agrlr", "dp-aqc"])
@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_client_touches_no_other_contribution_and_no_noise(side_of, sums_of, algo, how):
    plan, side, model = side_of(algo)
    honest, without = sums_of(algo)
    # First: what is shared by a chunk is often taken from there.
    hostile = sum_over(replace(side, population=Hostile(side.population, 2, HOSTILE[how])), model, 2, 1, 3)
    assert hostile.sensitivity == honest.sensitivity
    moved = torch.cat([(hostile.value[n] - without.value[n]).flatten() for n in model])
    assert torch.isfinite(moved).all()
    own = math.sqrt(side.message_noise_variance(0.3)) * (math.sqrt(len(moved)) + 10)
    assert float(moved.norm()) <= side.message_bound(0.3) * (1 + 1e-5) + own
    # In shared mode a message that was thrown away brings no noise: the server adds it.
    if hostile.noise_variance == without.noise_variance:
        assert float(moved.norm()) <= (0 if plan.algorithm.releases else side.message_bound(0.3) * (1 + 1e-5)) + 1e-5
    else:
        assert hostile.noise_variance == honest.noise_variance
    generator = KeyedSource(4).generator(Purpose.SERVER_NOISE, 0)
    released = plan.mechanism.at(0).release(hostile, generator)
    assert released.noise_deviation == pytest.approx(
        plan.privacy.at(0).total_noise * hostile.sensitivity / plan.privacy.cohort
    )


def larger(episode):
    return replace(episode, **{name: torch.cat([value] * 9) for name, value in vars(episode).items()})


def test_own_code_that_fails_at_large_clients_ends_no_private_run(tiny_strokes, side_of):
    """Their size is theirs: made-up data of as many records would fail too, and the end of the run would tell of it."""
    own = {**SMALL, "meta.method": "tests.seams.own_learners:FailsAtLarge"}
    algorithm = make_plan(resolve("dp-agr", "strokes", None, own), tiny_strokes.task).algorithm
    _, side, model = side_of("dp-agr")
    side = replace(side, algorithm=algorithm, population=Hostile(side.population, 2, larger))
    (large,) = side.held_by([2])
    assert len(large.support_labels) + len(large.query_labels) > 50
    assert torch.equal(side.clipped_sum(model, 0.3, 0, (2, 1))[0], side.clipped_sum(model, 0.3, 0, (1,))[0])


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr", "dp-agrlr-micro", "dp-aqc"])
def test_made_up_data_have_the_form_of_the_plan(side_of, algo):
    """Data of another form would fail in anybody's code, and each failure would end the run."""
    _, side, _ = side_of(algo)
    assert side.data_form.held(SimpleNamespace(episode=lambda _: side._made_up()), 0) is not None


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agr in 3", "dp-aqc"])
@pytest.mark.parametrize("how", HOSTILE)
def test_data_that_are_not_sound_are_no_failure(side_of, algo, how):
    """Whether a client failed may be seen, what it holds may not: it sends zeros, which enter the sum."""
    _, side, model = side_of(algo)
    poisoned = replace(side, population=Hostile(side.population, 2, HOSTILE[how]))
    _, entered = poisoned.clipped_sum(model, 0.3, 0, [2, 1, 3])
    assert entered == 3
    alone, _ = poisoned.clipped_sum(model, 0.3, 0, [2])
    if not how.startswith("norm") and how != "one record less":
        assert not alone.any()
    cohort = Cohort(round=0, clients=np.array([1, 2, 3]))
    LocalBackend(clients=poisoned, workers=InProcess(), abort_on_failure=True).cohort_sum(model, 0.3, cohort)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"w": torch.zeros(2)},
        "scaled",
        "integers",
        "complex",
        "longer",
        "reshaped",
    ],
)
def test_a_hostile_message_is_thrown_away_by_the_server(side_of, monkeypatch, message):
    _, side, model = side_of("dp-agrlr-micro")
    forged = {
        "scaled": {n: torch.full_like(v, 1e30) for n, v in model.items()},
        "integers": {n: v.to(torch.int64) for n, v in model.items()},
        "complex": {n: v.to(torch.complex64) for n, v in model.items()},
        "longer": {n: torch.full_like(v, 10.0) for n, v in model.items()},
        "reshaped": {n: torch.zeros(v.numel()) for n, v in model.items()},
    }
    sent = forged[message] if isinstance(message, str) else message
    without, honest, number = sum_over(side, model, 1, 3), ClientRunner._clipped_again, iter(range(1, 4))
    monkeypatch.setattr(
        ClientRunner, "_clipped_again", lambda self, m, bound: sent if next(number) == 2 else honest(self, m, bound)
    )
    hostile = sum_over(side, model, 1, 2, 3)
    assert (without.left_out, hostile.left_out) == (0, 1)
    assert hostile.noise_variance == without.noise_variance
    assert all(torch.allclose(hostile.value[n], without.value[n], atol=1e-5) for n in model)


def everybody(round_=0, size=20_000):
    return Cohort(round=round_, clients=np.arange(size, dtype=np.int64))


@pytest.mark.parametrize("pattern", ["independent", "correlated", "diurnal"])
@pytest.mark.parametrize("dropout", [0.05, 0.2, 0.5, 0.8])
def test_the_share_that_drops_out_is_the_setting(pattern, dropout):
    there = Availability(dropout=dropout, pattern=pattern)
    shares = [1 - len(there.answering(everybody(r, 1200), KeyedSource(3)).clients) / 1200 for r in range(240)]
    assert np.mean(shares) == pytest.approx(dropout, abs=0.03 if pattern == "correlated" else 0.01)


def test_patterns_differ_in_who_is_missing():
    source = KeyedSource(5)
    counts = {}
    for pattern in ("independent", "correlated", "diurnal"):
        there = Availability(dropout=0.3, pattern=pattern).answering(everybody(), source).clients
        regions, zones = Counter(there % 10), Counter(there % 24)
        counts[pattern] = (np.ptp([regions[r] for r in range(10)]) / 2000, np.ptp([zones[z] for z in range(24)]) / 833)
    assert counts["independent"][0] < 0.1 > counts["diurnal"][0]
    assert counts["correlated"][0] == 1.0
    assert counts["diurnal"][1] > 0.5 > counts["independent"][1]


def test_stragglers_are_left_out_at_the_timeout():
    slow = Availability(spread=0.5, timeout=1.0)
    assert len(slow.answering(everybody(), KeyedSource(1)).clients) / 20_000 == pytest.approx(0.5, abs=0.02)
    later = replace(slow, timeout=math.exp(0.5 * 2))
    assert len(later.answering(everybody(), KeyedSource(1)).clients) / 20_000 == pytest.approx(0.977, abs=0.01)
    assert len(replace(slow, timeout=None).answering(everybody(), KeyedSource(1)).clients) == 20_000


def test_who_answers_is_repeated_with_the_round_and_drawn_anew_with_another_attempt():
    there, source = Availability(dropout=0.4), KeyedSource(8)
    one, two = (there.answering(everybody(), source).clients for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, there.answering(everybody(), source.again((1, 99))).clients)
    assert not np.array_equal(one, there.answering(everybody(1), source).clients)
    assert len(there.answering(everybody(), OperatingSystemSource()).clients) == pytest.approx(12_000, abs=400)


@pytest.mark.parametrize("given", [{"population.dropout": "0.99"}, {"server.timeout": "0.01"}])
def test_a_run_survives_clients_that_hardly_ever_answer_and_tells_nobody(tiny_task_file, tmp_path, monkeypatch, given):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    values = {**SMALL, **given, "run.dir": str(tmp_path), "run.name": "r", "run.workers": "1", "evaluation.every": "3",
              "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "population.latency_spread": "1.0",
              "privacy.client.delta": "0.0001"}  # fmt: skip
    settings = resolve("dp-agrlr-micro", str(tiny_task_file), None, values)
    run, status = run_training(settings)
    assert status == "completed"
    plain = resolve("dp-agrlr-micro", str(tiny_task_file), None, SMALL | {"privacy.client.delta": "0.0001"})
    assert settings.population.cohort == plain.population.cohort
    assert len({charge.event for charge in read(run.ledger)[1]}) == 1
    rows = run.rounds()
    assert not {"answered", "dropped", "cohort", "failures"} & {key for row in rows for key in row}
    assert len({row["noise_norm_expected"] / row["clip"] for row in rows}) <= 2


def test_messages_that_were_thrown_away_are_counted_for_the_owner_and_nobody_else(
    tiny_task_file, tmp_path, monkeypatch, dpfedmeta
):
    honest = LocalBackend.cohort_sum
    monkeypatch.setattr(
        LocalBackend, "cohort_sum", lambda *given: replace(honest(*given), left_out=3 - 2 * given[3].round)
    )
    given = {**SMALL, "server.rounds": "2", "run.dir": str(tmp_path), "run.name": "r", "run.workers": "1",
             "evaluation.validation_episodes": "2", "evaluation.episodes": "2"}  # fmt: skip
    run, _ = run_training(resolve("dp-agr", str(tiny_task_file), None, given))
    kept = run.secret / LEFT_OUT
    assert kept.stat().st_mode & 0o077 == 0
    assert left_out(run) == {0: 3, 1: 1}
    public = [path for path in run.path.rglob("*") if path.is_file() and run.secret not in path.parents]
    assert not any(b"left_out" in path.read_bytes() for path in public)
    shown = dpfedmeta("account", "--realised", str(run.path))
    assert f"set to 0: 4 in 2 rounds ({kept})" in str(shown)
    kept.write_text("{}\n")
    with pytest.raises(InputError, match=r"left-out\.jsonl: damaged"):
        left_out(run)


@pytest.mark.parametrize("algo", ["dp-agrlr-micro", "dp-agrlr"])
@pytest.mark.parametrize("how", ["empty", "one record less", "wrong shape", "label out of range"])
def test_the_noise_of_a_private_client_that_is_not_sound_is_there(side_of, algo, how):
    """Its message is that of null records; and how much noise a sum has tells nothing of who holds what."""
    _, side, model = side_of(algo)
    poisoned = replace(side, population=Hostile(side.population, 2, HOSTILE[how]))
    unsound = sum_over(poisoned, model, 2, 1, 3)
    assert unsound.noise_variance == pytest.approx(3 * side.message_noise_variance(0.3))
    (exact,) = replace(poisoned, source=NoNoise()).sent(model, 0.3, 0, [2])
    assert not exact.any()
    (noise,) = poisoned.sent(model, 0.3, 0, [2])
    assert float(noise.std()) == pytest.approx(math.sqrt(side.message_noise_variance(0.3)), rel=0.2)


@pytest.mark.parametrize("how", ["empty", "wrong shape"])
def test_a_client_that_is_not_sound_adds_its_share_of_the_noise_of_a_sum(side_of, how):
    _, side, model = side_of("dp-agr")
    noisy = replace(side, message_noise=2.0, population=Hostile(side.population, 2, HOSTILE[how]))
    (sent,) = noisy.sent(model, 0.3, 0, [2])
    assert float(sent.std()) == pytest.approx(math.sqrt(noisy.message_noise_variance(0.3)), rel=0.2)


@pytest.mark.parametrize(("ends", "entered"), [(True, 2), (True, 3), (False, 2)])
def test_a_round_ends_where_one_failed_if_that_was_asked_for(monkeypatch, ends, entered):
    sums = SimpleNamespace(zero=np.zeros)
    clients = SimpleNamespace(form=lambda model: model, whole_numbers=lambda bound, size: sums)
    workers = SimpleNamespace(total=lambda *given: (np.zeros(2), entered))
    monkeypatch.setattr(cohort_sums, "shares_of", lambda *given: (clients, []))
    monkeypatch.setattr(cohort_sums, "plain_sum", lambda *given: "sum")
    backend = LocalBackend(clients=clients, workers=workers, abort_on_failure=ends)
    aborted = ends and entered < 3
    with pytest.raises(RoundAborted) if aborted else nullcontext():
        cohort = Cohort(round=0, clients=np.arange(3))
        assert backend.cohort_sum({"a": torch.zeros(2)}, 1.0, cohort) == "sum"


@pytest.mark.parametrize(("sent", "entered"), [(3, 3), (5, 2), (4, 0)])
def test_messages_that_did_not_enter_are_left_out_by_number(sent, entered):
    numbers = SimpleNamespace(values=lambda total: total)
    clients = SimpleNamespace(
        form=lambda model: model, whole_numbers=lambda bound, size: numbers, message_bound=lambda bound: bound,
        message_noise_variance=lambda bound: 0.0,
    )  # fmt: skip
    found = cohort_sums.plain_sum(clients, {"a": torch.zeros(2)}, 1.0, (torch.zeros(2), entered), sent)
    assert found.left_out + entered == sent
