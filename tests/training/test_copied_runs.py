"""A run directory that is copied between a charge and its release, or restored: no two releases share their noise.

Noise is what was released minus the exact sum, clients' noise included, so it is measured whoever made it.
"""

import math
import shutil
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import Budget, read
from dpfedmeta.core.files.run_directory import RunDirectory, create
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import Purpose
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.planning.privacy.aggregation import aggregation_of
from dpfedmeta.privacy import integer_mechanism, mechanisms
from dpfedmeta.privacy import matrix_mechanism as correlated
from dpfedmeta.training.build_data import client_side
from dpfedmeta.training.loop import Training
from dpfedmeta.training.tracking.callbacks import JsonLines
from tests.training.test_noise_of_the_loop import FIXED, LOCAL, SPLIT, STEPPING, Blank, NoAccuracy, plan_of

# So few coordinates and so rare: 6 deviations of each statistic.
SURE = 6.0
WAYS = {
    "at the server": ("dp-const", {}),
    # Wide networks: of a narrow one all units may be dead, whatever a client's records are. Its message is the same
    # over other data then, and repeating it with its noise is no other release.
    "at the clients": ("dp-const", {**SPLIT, "model.width": "24"}),
    "shared": ("dp-agrlr-micro", {"privacy.client.hostile": "0.03"}),
    "stacked": ("dp-agrlr-micro", {"server.noise_mode": "stacked", "record.message_clip_ratio": "1.5"}),
    "in every support step": ("dp-agrlr", {**STEPPING, "privacy.client.hostile": "0.03"}),
    "in every local step": ("local-dp", LOCAL),
    "in whole numbers": ("dp-agr-secure", {**FIXED, "population.cohort": "20", "model.width": "24"}),
    "banded": ("dp-agr", {"server.noise": "banded", "population.sampler": "cyclic", "population.separation": "3"}),
    "blt": ("dp-agr", {"server.noise": "blt", "server.buffers": "2"}),
    "toeplitz": ("dp-agr", {"server.noise": "toeplitz"}),
}


class Scribbles(Blank):
    """Clients with images of noise, other ones for every `seed`."""

    def __init__(self, plan, seed):
        super().__init__(plan)
        self.seed = seed

    def episode(self, client):
        coins = torch.Generator().manual_seed(1000 * self.seed + client)
        support, query = self.template.support_images, self.template.query_images
        return replace(
            self.template,
            support_images=torch.rand(support.shape, generator=coins),
            query_images=torch.rand(query.shape, generator=coins),
        )


@dataclass(frozen=True)
class NoNoise:
    """A source whose noise is 0, and whose other coins are the honest ones."""

    honest: Any
    reproducible: bool = True
    needs_fresh: bool = True

    def generator(self, purpose, *key):
        coins = purpose in (Purpose.ROUNDING, Purpose.LOCAL_BATCHES)
        return Quiet(self.honest.generator(purpose, *key)) if coins else Quiet(None)

    def again(self, key, fresh=b""):
        return replace(self, honest=self.honest.again(key, fresh))


@dataclass(frozen=True)
class Quiet:
    honest: Any

    def __getattr__(self, name):
        return getattr(self.honest, name)

    def normal(self, size):
        return np.zeros(size)

    def discrete_normal(self, variance, size):
        return np.zeros(size, dtype=np.int64)


class Crashed(Exception):
    """The process ends between a charge and its release."""


class Until:
    """A backend that ends the process at one round, when it is charged."""

    def __init__(self, backend, round_):
        self.backend, self.round = backend, round_

    def cohort_sum(self, model, bound, cohort):
        if cohort.round == self.round:
            raise Crashed
        return self.backend.cohort_sum(model, bound, cohort)


class Watching:
    """A backend that also says what the sum is without the noise of clients."""

    def __init__(self, backend, doors):
        self.backend, self.doors, self.exact = backend, doors, {}
        self.quiet = replace(backend, clients=replace(backend.clients, source=NoNoise(backend.clients.source)))

    def cohort_sum(self, model, bound, cohort):
        before = len(self.doors)
        self.exact[cohort.round] = flatten(self.quiet.cohort_sum(model, bound, cohort).value).double().numpy()
        del self.doors[before:]
        return self.backend.cohort_sum(model, bound, cohort)


def backend_of(plan, data):
    population = Blank(plan) if data == 0 else Scribbles(plan, data)
    side = client_side(plan, population, FreshSource(11), torch.device("cpu"))
    return aggregation_of(plan.settings).made(plan.settings, side, InProcess())


def training_of(plan, run, backend):
    return Training(
        plan=plan, run=run, backend=backend, workers=InProcess(), validation=NoAccuracy(), source=FreshSource(11),
        trackers=(JsonLines(run.path),), budget=Budget(limits=(math.inf,) * 4),
    )  # fmt: skip


@pytest.fixture
def doors(monkeypatch):
    """(Query, noise that is added, denominator) of every release of the whole program, in order."""
    seen = []
    honest = mechanisms.release_with

    def watched(query, added, **given):
        seen.append((query, added, given["denominator"]))
        return honest(query, added, **given)

    for module in (mechanisms, integer_mechanism, correlated):
        monkeypatch.setattr(module, "release_with", watched)
    return seen


def charged_and_cut_off(plan, folder, at, data=1):
    """A run whose process ended between the charge of round `at` and its release."""
    run = create(folder, "run")
    with pytest.raises(Crashed):
        training_of(plan, run, Until(backend_of(plan, data), at))()
    assert [charge.round for charge in read(run.ledger)[1]] == list(range(at + 1))
    return run


@dataclass(frozen=True, kw_only=True, eq=False)
class Course:
    """What a copy did.

    Attributes:
        noise: By round, what was released less the exact sum; empty where the server adds nothing.
        doors: (what is released, its noise) of every release at clients and server.
        charges: Of its ledger.
        weights: At the end.
    """

    noise: dict
    doors: list
    charges: tuple
    weights: bytes


def gone_on(plan, run, folder, data, doors):
    """A copy of the run that goes on with these data."""
    shutil.copytree(run.path, folder)
    doors.clear()
    backend, copy = Watching(backend_of(plan, data), doors), RunDirectory(folder)
    training_of(plan, copy, backend)()
    of_server = [each for each in doors if each[0].grid or each[2] == plan.privacy.at(0).cohort]
    noise = {
        round_: flatten(query.value).double().numpy() + added - backend.exact[round_]
        for round_, (query, added, _) in zip(sorted(backend.exact), of_server, strict=False)
    }
    found = [(flatten(query.value).double().numpy(), query.sensitivity, added) for query, added, _ in doors]
    return Course(noise=noise, doors=found, charges=read(copy.ledger)[1], weights=copy.weights.read_bytes())


def correlation(one, other):
    """In standard deviations of that of independent noises."""
    return one @ other / (np.linalg.norm(one) * np.linalg.norm(other)) * math.sqrt(len(one))


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_charged_round_release_the_same_or_share_no_noise(tiny_strokes, tmp_path, doors, way):
    """Over the same data bit for bit, without another charge; over other data with noise of its own."""
    algo, given = WAYS[way]
    plan = plan_of(tiny_strokes.task, algo, **{**given, "server.rounds": "2"})
    run = charged_and_cut_off(plan, tmp_path, 1)
    one, same, other = (gone_on(plan, run, tmp_path / f"copy{n}", data, doors) for n, data in enumerate((1, 1, 2)))
    assert one.charges == same.charges == other.charges == read(run.ledger)[1]
    assert one.weights == same.weights != other.weights
    assert set(one.noise) == (set() if way == "in every local step" else {1})
    for round_, noise in one.noise.items():
        assert np.array_equal(noise, same.noise[round_])
        check_apart(plan, noise, other.noise[round_])
    # Nor do any two releases inside, unless they are one and the same.
    for value, bound, added in one.doors:
        for its, its_bound, its_added in other.doors:
            if added.any() and len(value) == len(its) and not (np.array_equal(value, its) and bound == its_bound):
                check_apart(plan, added, its_added)


def check_apart(plan, one, other):
    """Independent noises; with correlated noise both take back that of round 0, and what is fresh is independent."""
    expected = math.hypot(one.std(), other.std())
    if plan.privacy.correlation:
        expected = math.sqrt(2.0) * plan.privacy.at(0).noise.multiplier * 0.7
    else:
        assert abs(correlation(one, other)) < SURE
    assert (one - other).std() == pytest.approx(expected, rel=SURE / math.sqrt(2 * len(one)))


@pytest.mark.parametrize("way", ["at the server", "shared"])
def test_a_run_that_is_restored_to_before_a_charge_draws_another_cohort_and_other_noise(
    tiny_strokes, tmp_path, doors, way
):
    """What it costs is the charge that the backup forgot: a further round, sampled and noised on its own."""
    algo, given = WAYS[way]
    plan = plan_of(tiny_strokes.task, algo, **{**given, "server.rounds": "2"})
    run = charged_and_cut_off(plan, tmp_path, 0)
    lines = run.ledger.read_text().splitlines(keepends=True)
    run.ledger.write_text(lines[0])
    courses = [gone_on(plan, run, tmp_path / f"copy{number}", 1, doors) for number in range(2)]
    cohorts = [(tmp_path / f"copy{number}" / "secret" / "participations.jsonl").read_text() for number in range(2)]
    assert cohorts[0] != cohorts[1]
    assert abs(correlation(courses[0].noise[0], courses[1].noise[0])) < SURE
    assert len({charge.fresh for course in courses for charge in course.charges}) == 4
