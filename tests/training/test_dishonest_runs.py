"""A client that sends more than its clip bound under sums is told of, and honest ones are not, whatever they send."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpfedmeta import Callback
from dpfedmeta.accounting.honest_norm import honest_norm
from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import dimension, flatten, unflatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.planning.caveats import reach
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policy import with_attachment
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.simulation import cohort_sums
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend, SecureSums, added_up
from dpfedmeta.training.build_data import client_side
from dpfedmeta.training.results import round_rows as rows
from dpfedmeta.training.results.round_rows import RELEASED, TOO_LONG, compared
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.verification.verify import audit
from tests.seams.trained import settings_of

SMALL = {
    "model.width": "2", "task.ways": "2", "task.shots": "2", "task.queries": "2", "clip.policy": "constant",
    "population.clients": "600", "population.cohort": "24", "server.rounds": "12", "privacy.client.delta": "1e-4",
    "privacy.client.epsilon": "null", "privacy.record.epsilon": "null", "server.noise_multiplier": "0.8",
    "population.max_participations": "null", "privacy.client.hostile": "0.0",
}  # fmt: skip
SECURE = {"aggregation.mode": "secure", "aggregation.dropout": "0.1", "population.sampler": "fixed"}
MICRO = {"record.micro_shots": "1", "record.micro_queries": "1", "record.query_noise": "1.0"}
MODES = {
    "server": ("dp-agr", {}),
    "attached": ("dp-agr", {"clip.policy": "quantile"}),
    "fixed": ("dp-agr", {"population.sampler": "fixed"}),
    "split": ("dp-agr", {"server.noise_site": "clients", "population.sampler": "fixed"}),
    "shared": ("dp-agrlr-micro", MICRO),
    "stacked": ("dp-agrlr-micro", MICRO | {"server.noise_mode": "stacked"}),
    "check-ins": ("dp-agr", {"population.sampler": "check-ins", "population.cohort": "100"}),
    "correlated": ("dp-agr", {"server.noise": "blt", "server.buffers": "2", "population.max_participations": "1",
                              "population.separation": "12"}),
    "secure": ("dp-agr", SECURE),
    "secure micro": ("dp-agrlr-micro", SECURE | {"record.micro_shots": "1", "record.micro_queries": "1"}),
}  # fmt: skip
WORDS = "a client sends more than its clip bound"
CHANCE, BOUND = 0.05, 0.3
SLOW = {"secure", "secure micro", "shared", "fixed"}


class Aligned(ClientRunner):
    """All clients send the longest message, in one direction."""

    def _longest(self, model, bound):
        form = self.form(model)
        flat = torch.full((dimension(form),), 1.0, dtype=torch.float64)
        return flat * (self.message_bound(bound) / flat.norm()), form

    def _messages(self, model, bound, round_, clients):
        flat, form = self._longest(model, bound)
        deviation = self.message_noise_variance(bound) ** 0.5
        for client in clients:
            own = self.source.generator(Purpose.MESSAGE_NOISE, round_, client).normal(len(flat))
            yield unflatten((flat + deviation * torch.from_numpy(own)).float(), form)

    def bounded_parts(self, model, bound, round_, clients):
        for _ in clients:
            yield [self._longest(model, bound)[0].numpy()] * self.parts


def releases(mode, task):
    """(round, release) of the worst honest clients, by the sampler, the sums and the mechanism of a run."""
    algo, given = MODES[mode]
    plan = make_plan(resolve(algo, "strokes", None, SMALL | given), task)
    source = KeyedSource(5)
    honest = client_side(plan, None, source, torch.device("cpu"))
    side = Aligned(**{name: getattr(honest, name) for name in honest.__dataclass_fields__})
    if plan.privacy.secure is None:
        backend = LocalBackend(clients=side, workers=InProcess())
    else:
        backend = SecureSums(clients=side, workers=InProcess(), added=added_up)
    model = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    state, taken, latest = plan.mechanism.init(with_attachment(model, plan.policy.attachment)), {}, {}
    for round_ in range(plan.privacy.rounds):
        cohort = plan.sampler(round_).draw(round_, taken, source.generator(Purpose.COHORT, round_), latest)
        for client in cohort.clients.tolist():
            taken[client], latest[client] = taken.get(client, 0) + 1, round_
        secret = backend.cohort_sum(model, BOUND, cohort)
        noise = source.generator(Purpose.SERVER_NOISE, round_)
        released, state = plan.mechanism.release(round_, secret, state, noise)
        yield plan, round_, released


def said(plan, round_, released):
    ledger = SimpleNamespace(charges=[])
    return compared(plan, ledger, SimpleNamespace(round=round_, bound=BOUND), released)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if mode in SLOW else []) for mode in MODES]
)
def test_the_worst_honest_clients_are_rarely_told_of(tiny_strokes, monkeypatch, mode):
    """As rarely as is said, and the limit is close: most of their releases reach two thirds of it."""
    monkeypatch.setattr(rows, "honest_norm", partial(honest_norm, chance=CHANCE))
    found = list(releases(mode, tiny_strokes.task))
    alarms = sum(TOO_LONG in said(*each) for each in found)
    assert alarms <= binom(len(found), CHANCE).isf(1e-4)
    # Lengths are added where the sum may follow the noise; here it does not.
    share = 0.5 if mode == "correlated" else 0.66
    near = lambda *given, **named: share * honest_norm(*given, chance=CHANCE, **named)  # noqa: E731
    monkeypatch.setattr(rows, "honest_norm", near)
    assert sum(TOO_LONG in said(*each) for each in found) > len(found) / 2


RUN = SECURE | {
    "server.rounds": "1", "population.clients": "8", "population.cohort": "8", "clip.window": "2",
    "population.max_participations": "null", "server.noise_multiplier": "1.0", "privacy.client.epsilon": "null",
}  # fmt: skip


def with_a_dishonest_client(monkeypatch):
    """Client 2 adds half of the modulus to every other number: no honest one may, and nobody sees it."""
    honest = cohort_sums.rounded_messages

    def sent(clients, model, bound, round_, chunk, source):
        for client, message in zip(chunk, honest(clients, model, bound, round_, chunk, source), strict=True):
            yield message + (2 ** (clients.whole.bits - 1) * (np.arange(len(message)) % 2) if client == 2 else 0)

    monkeypatch.setattr(cohort_sums, "rounded_messages", sent)


def run_of(task_file, folder):
    """(The run, what was said while it went on.)"""
    told, heard = Callback(), []
    told.on_remark = heard.append
    return run_training(settings_of(task_file, folder, "dp-agr", RUN), callbacks=[told])[0], heard


@pytest.mark.parametrize("dishonest", [True, False])
def test_a_dishonest_client_of_a_run_is_told_of(tiny_task_file, tmp_path, monkeypatch, dishonest):
    """In the console and in its row; the run goes on."""
    if dishonest:
        with_a_dishonest_client(monkeypatch)
    run, heard = run_of(tiny_task_file, tmp_path)
    (written,) = run.rounds()
    assert sum(WORDS in line for line in heard) == dishonest
    assert (TOO_LONG in written) == dishonest
    if dishonest:
        norm, honest = written[RELEASED], written[TOO_LONG]
        assert norm >= written["aggregate_norm"]
        assert norm > 1.5 * honest
        assert (
            f"round 0: the released mean has norm {norm:.4g}, but honest clients give at most {honest:.4g}" in heard[0]
        )


@pytest.mark.slow
def test_report_and_books_of_a_run_with_a_dishonest_client_say_so(tiny_task_file, tmp_path, monkeypatch):
    with_a_dishonest_client(monkeypatch)
    run, _ = run_of(tiny_task_file, tmp_path)
    page = write_report(run).read_text()
    assert WORDS in page
    assert "A dishonest client moves the sum of a round by up to " in page
    assert any(TOO_LONG in remark for remark in audit(run).remarks)


def test_nothing_is_said_where_rounds_that_are_done_again_change_later_cohorts(tiny_strokes, monkeypatch):
    monkeypatch.setattr(rows, "honest_norm", lambda *given, **named: 0.0)
    for mode, known in (("server", True), ("correlated", False)):
        plan, round_, released = next(releases(mode, tiny_strokes.task))
        again = SimpleNamespace(charges=[SimpleNamespace(attempt=0), SimpleNamespace(attempt=1)])
        state = SimpleNamespace(round=round_, bound=BOUND)
        assert (TOO_LONG in compared(plan, again, state, released)) == known


def test_how_far_one_client_reaches(tiny_strokes):
    """The farthest corner of what its numbers are read as, through the sum that a run computes."""
    algo, given = MODES["secure"]
    plan = make_plan(resolve(algo, "strokes", None, SMALL | given), tiny_strokes.task)
    whole = plan.privacy.at(0).whole
    model = plan.algorithm.learned(plan.network, plan.algorithm.initial(plan.network, 0))
    side = client_side(plan, None, KeyedSource(5), torch.device("cpu"))
    grid = cohort_sums.grid_of(replace(side), model, BOUND, 0)
    corner = grid.centred(np.full(whole.dimension, 2 ** (whole.bits - 1), dtype=np.int64)).astype(float)
    assert np.linalg.norm(corner) * grid.width / BOUND == pytest.approx(reach(whole))
    assert flatten(grid.read({"rotated": torch.from_numpy(corner)})).norm() <= reach(whole) * BOUND * 1.001
