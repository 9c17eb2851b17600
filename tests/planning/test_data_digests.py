"""A round that is done again shares its noise only with the same data, whoever made the clients."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.params import flatten
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation, clients_digest
from dpfedmeta.planning.data_digests import held_data
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training import loop as training_module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.verification.verify import audit

CLIENTS = 30
TINY = {
    "model.width": "4", "server.rounds": "4", "population.cohort": "6", "population.clients": str(CLIENTS),
    "task.ways": "3", "task.shots": "2", "task.queries": "2", "evaluation.every": "4", "run.workers": "1",
    "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "privacy.client.delta": "0.001",
    "clip.window": "2", "run.checkpoint_every": "9", "run.noise_seed": "3",
}  # fmt: skip
SHAPE = EpisodeShape(ways=3, shots=2, queries=2)


class Killed(BaseException):
    """The process ends here."""


class Digestless:
    """A population that cannot say what its clients hold."""

    def __init__(self, kept):
        self.kept = kept

    @property
    def clients(self):
        return self.kept.clients

    def episode(self, client):
        return self.kept.episode(client)


class Answering(Digestless):
    """One that answers what it is told to."""

    def __init__(self, kept, answer):
        super().__init__(kept)
        self.answer = answer

    def digest(self):
        return self.answer


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def made(tiny_strokes):
    return VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=CLIENTS, seed=0)


@pytest.fixture(scope="module")
def pairs(made):
    held = [made.episode(client) for client in range(CLIENTS)]
    return [((e.support_images, e.support_labels), (e.query_images, e.query_labels)) for e in held]


def changed(pairs):
    """Every client holds other images."""
    return [((1 - si, sl), (1 - qi, ql)) for (si, sl), (qi, ql) in pairs]


def trained(settings, own, console=None, **options):
    return run_training(settings, RunOptions(population=own, **options), [Terminal(console)] if console else [])


def cut(task_file, folder, monkeypatch, own, round_=2, algo="dp-agr"):
    """A run that is killed while the clients of a round compute."""
    whole = LocalBackend.cohort_sum

    def cohort_sum(self, model, bound, cohort):
        found = whole(self, model, bound, cohort)
        if cohort.round == round_:
            raise Killed
        return found

    settings = resolve(algo, str(task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r"})
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "cohort_sum", cohort_sum)
        with pytest.raises(Killed):
            trained(settings, own)
    return RunDirectory(folder / "r")


def go_on(run, own=None, console=None):
    return trained(settings_of_run(run, {}), own, console, resume=run)


def releases(monkeypatch):
    """What leaves every round, by round."""
    kept, whole = [], training_module.step  # type: ignore[attr-defined]

    def step(optimizer, policy, state, released, **words):
        kept.append((state.round, flatten(released.value).double(), released.noise_deviation))
        return whole(optimizer, policy, state, released, **words)

    monkeypatch.setattr(training_module, "step", step)
    return kept


def events(run):
    return [(event.round, event.attempt) for event in read(run.ledger)[1]]


def test_the_same_clients_go_on_and_nothing_is_charged_twice(tiny_task_file, tmp_path, monkeypatch, pairs):
    run = cut(tiny_task_file, tmp_path, monkeypatch, from_pairs(pairs, SHAPE))
    whole, _ = trained(replace(settings_of_run(run, {}), run=replace(settings_of_run(run, {}).run, name="whole")),
                       from_pairs(tuple(pairs), SHAPE))  # fmt: skip
    _, status = go_on(run, from_pairs(list(pairs), SHAPE))
    assert status == "completed"
    assert events(run) == [(number, 0) for number in range(4)]
    assert run.weights.read_bytes() == whole.weights.read_bytes()


def one_image_changed(pairs):
    (images, labels), query = pairs[17]
    other = images.clone()
    other[3, 0, 5, 5] += 1 / 255
    return [*pairs[:17], ((other, labels), query), *pairs[18:]]


def labels_changed(pairs):
    (images, labels), query = pairs[4]
    return [*pairs[:4], ((images, labels.flip(0)), query), *pairs[5:]]


@pytest.mark.parametrize("change", [changed, one_image_changed, labels_changed, lambda pairs: pairs[::-1]])
def test_other_data_are_refused(tiny_task_file, tmp_path, monkeypatch, pairs, change):
    run = cut(tiny_task_file, tmp_path, monkeypatch, from_pairs(pairs, SHAPE), round_=0)
    before = run.ledger.read_bytes()
    with pytest.raises(InputError, match="the clients handed over hold other data") as refused:
        go_on(run, from_pairs(change(pairs), SHAPE))
    assert "\n" not in str(refused.value)
    assert run.ledger.read_bytes() == before


def test_clients_of_the_callers_own_are_not_exchanged_for_those_of_the_data_set(
    tiny_task_file, tmp_path, monkeypatch, pairs
):
    run = cut(tiny_task_file, tmp_path, monkeypatch, from_pairs(pairs, SHAPE), round_=0)
    with pytest.raises(InputError, match="resume it from Python with the same population"):
        go_on(run)
    other = cut(tiny_task_file, tmp_path / "other", monkeypatch, None, round_=0)
    with pytest.raises(InputError, match="resume it without a population of your own"):
        go_on(other, from_pairs(pairs, SHAPE))
    go_on(run, from_pairs(pairs, SHAPE))
    assert events(run)[:2] == [(0, 0), (1, 0)]


def test_without_a_digest_a_round_done_again_has_noise_of_its_own(tiny_task_file, tmp_path, monkeypatch, pairs):
    kept = releases(monkeypatch)
    run = cut(tiny_task_file, tmp_path, monkeypatch, Digestless(from_pairs(pairs, SHAPE)), round_=2)
    assert len(list((run.path / "checkpoint").glob("round-*"))) > 0  # after every round, so a crash costs one
    # The last round before the crash once more, with everybody's data changed.
    for file in (run.path / "checkpoint").iterdir():
        file.unlink()
    console = Console(record=True, width=400, file=io.StringIO())
    go_on(run, Digestless(from_pairs(changed(pairs), SHAPE)), console)
    said = console.export_text()
    assert said.count("it is not known whether these clients still hold the same data") == 1
    # The promise pays for four rounds, three were paid for, so one is left.
    assert events(run) == [(0, 0), (1, 0), (2, 0), (0, 1)]
    first, again = (next(entry for entry in part if entry[0] == 0) for part in (kept[:2], kept[2:]))
    noise = first[2] * len(first[1]) ** 0.5
    assert float((first[1] - again[1]).norm()) == pytest.approx(2**0.5 * noise, rel=0.1)
    audit(run)


def test_a_digest_that_is_gone_or_new_is_no_digest(tiny_task_file, tmp_path, monkeypatch, pairs):
    held = from_pairs(pairs, SHAPE)
    run = cut(tiny_task_file, tmp_path, monkeypatch, Answering(held, "one"), round_=0)
    with pytest.raises(InputError, match="hold other data"):
        go_on(run, Answering(held, "two"))
    go_on(run, Answering(held, None))
    assert events(run)[:2] == [(0, 0), (0, 1)]
    other = cut(tiny_task_file, tmp_path / "other", monkeypatch, Answering(held, None), round_=0)
    go_on(other, Answering(held, "one"))
    assert events(other)[:2] == [(0, 0), (0, 1)]
    with pytest.raises(InputError, match=r"Answering\.digest\(\): gave 7, expected text"):
        clients_digest(Answering(held, 7))


def test_what_is_kept_of_the_data_is_for_the_server_alone(tiny_task_file, tmp_path, monkeypatch, pairs):
    run = cut(tiny_task_file, tmp_path, monkeypatch, from_pairs(pairs, SHAPE), round_=0)
    path = run.secret / "data.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for digest in (value for value in json.loads(path.read_text()).values() if isinstance(value, str)):
        assert not any(digest.encode() in file.read_bytes() for file in run.path.glob("*.json*"))


def test_clients_made_here_have_digests_that_follow_every_field(made, tiny_strokes):
    class Other(VirtualPopulation):
        """May hold anything."""

    pool = tiny_strokes.train
    variants = [made, *(replace(made, **change) for change in (
        {"seed": 1}, {"clients": 29}, {"most_shots": 4}, {"shape": replace(SHAPE, shots=3)},
        {"pool": tiny_strokes.val}, {"pool": replace(pool, flip=True)},
    ))]  # fmt: skip
    digests = [clients_digest(each) for each in variants]
    assert None not in digests
    assert len({*digests}) == len(variants)
    assert clients_digest(replace(made)) == digests[0]
    assert clients_digest(Other(pool=pool, shape=SHAPE, clients=CLIENTS, seed=0)) is None


def test_two_kinds_of_clients_with_equal_fields_differ(tiny_strokes):
    from dpfedmeta.data.populations.disjoint import DisjointPopulation

    words = {"pool": tiny_strokes.train, "shape": SHAPE, "clients": 3, "seed": 0}
    assert clients_digest(DisjointPopulation(**words)) != clients_digest(VirtualPopulation(**words))


def test_the_digest_of_pairs_sees_forms_and_not_their_container(pairs):
    digest = from_pairs(pairs, SHAPE).digest()
    assert digest == from_pairs(tuple((tuple(a), tuple(b)) for a, b in pairs), SHAPE).digest()
    (images, labels), query = pairs[0]
    for first in ((images.double(), labels), (images[:, 0], labels), (images, labels.int()), (images, labels[:-1])):
        assert from_pairs([(first, query), *pairs[1:]], SHAPE).digest() != digest
    broken = from_pairs([(None, query), *pairs[1:]], SHAPE).digest()
    assert broken not in (digest, None)
    assert from_pairs(pairs, replace(SHAPE, queries=1)).digest() != digest
    assert torch.equal(pairs[0][0][0], images)


def test_a_lazy_sequence_has_no_digest(pairs):
    class Lazy:
        def __len__(self):
            return CLIENTS

        def __getitem__(self, number):
            return pairs[number]

    assert clients_digest(from_pairs(Lazy(), SHAPE)) is None


def test_what_numbers_to_predict_are_scaled_by_is_part_of_the_data():
    """It is in no record, and changes every message: a round that is done again with another one needs other noise."""
    train = SimpleNamespace(decoded_digest=lambda: "d0", digest=lambda decoded: f"digest of {decoded}")

    def digest(targets):
        task = SimpleNamespace(targets=targets, source=SimpleNamespace(name="mine"))
        return held_data(SimpleNamespace(train=train, task=task), None).sha256

    usual = TargetRange(centre=50.0, scale=10.0, lowest=0.0, highest=100.0)
    changes = {"centre": 51.0, "scale": 11.0, "lowest": -1.0, "highest": 101.0, "loss": "huber", "huber": 2.0}
    others = [replace(usual, **{name: value}) for name, value in changes.items()]
    assert digest(None) == "digest of d0"
    assert digest(usual) == digest(replace(usual))
    assert len({digest(each) for each in (None, usual, *others)}) == 8
