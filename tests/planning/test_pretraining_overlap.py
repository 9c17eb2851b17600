"""Weights that learned from the same images are not public, whatever path leads to the images."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.data.task import OwnSource
from dpfedmeta.planning.network_trial import pretraining_overlap as overlap
from dpfedmeta.training.dry_run import forecast
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions

TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "6", "population.clients": "60", "task.ways": "2",
    "task.shots": "1", "task.queries": "1", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "evaluation.queries": "1", "run.workers": "1", "privacy.client.delta": "0.001",
    "clip.window": "2",
}  # fmt: skip
SAME = "these weights were learned from the images of"
UNKNOWN = "it cannot be checked whether"


@pytest.fixture(scope="module", autouse=True)
def own_register(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
        yield


def drawn(folder, seed, blank=False):
    """train|val|test/CLASS/IMAGE; perhaps with an empty page."""
    for split, classes in (("train", 4), ("val", 3), ("test", 3)):
        for number in range(classes):
            where = folder / split / f"{split}{number}"
            where.mkdir(parents=True)
            generator = np.random.default_rng([seed, classes, number, len(split)])
            for image in range(4):
                pixels = generator.integers(0, 256, (20, 20), dtype=np.uint8)
                Image.fromarray(pixels).save(where / f"{image}.png")
            if blank:
                Image.fromarray(np.full((20, 20), 255, np.uint8)).save(where / "page.png")
    return folder


def train(dataset, folder, name, algo="dp-agr", population=None, dry=False, **given):
    settings = resolve(algo, str(dataset), None, {**TINY, "run.dir": str(folder), "run.name": name, **given})
    options = RunOptions(population=population)
    return forecast(settings, options, seconds=0.01) if dry else run_training(settings, options)[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("origins")


@pytest.fixture(scope="module")
def images(place):
    return drawn(place / "pictures", 1, blank=True)


@pytest.fixture(scope="module")
def origin(place, images):
    return train(images, place, "origin", algo="maml")


def accepted(origin, dataset, folder):
    train(dataset, folder, "own", dry=True, **{"model.initial": str(origin.path)})


def refused(origin, dataset, folder, reason=SAME):
    for dry in (True, False):
        with pytest.raises(RefusedPlan, match=reason) as error:
            train(dataset, folder, "own", dry=dry, **{"model.initial": str(origin.path)})
        assert "\n" not in str(error.value)
    assert not (folder / "own").exists()


def task_file(path, source, **changes):
    content = {"name": "mine", "source": {"reader": "folder", "path": str(source)}, "image_size": 20, "channels": 1}
    path.write_text(yaml.safe_dump({**content, **changes}))
    return path


def test_a_symlink_and_a_relative_path(origin, images, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(images)
    refused(origin, tmp_path / "link", tmp_path)
    monkeypatch.chdir(images.parent)
    refused(origin, "pictures", tmp_path)
    refused(origin, task_file(tmp_path / "t.yaml", tmp_path / ".." / tmp_path.name / "link"), tmp_path)


def test_a_copy_under_another_name(origin, images, tmp_path):
    refused(origin, shutil.copytree(images, tmp_path / "holiday"), tmp_path)


@pytest.mark.parametrize("changes", [{"image_size": 16}, {"image_size": 28}, {"train_rotations": 4}])
@pytest.mark.parametrize("copied", [False, True])
def test_another_form_of_the_same_images(origin, images, tmp_path, changes, copied):
    source = shutil.copytree(images, tmp_path / "copy") if copied else images
    refused(origin, task_file(tmp_path / "t.yaml", source, **changes), tmp_path)


@pytest.mark.parametrize("copied", [False, True])
def test_another_split_of_the_same_images(origin, images, tmp_path, copied):
    """What was validation and test data there is held by clients here."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for folder in sorted(images.glob("*/*")):
        if copied:
            shutil.copytree(folder, flat / f"bird-{folder.name}")
        else:
            (flat / f"bird-{folder.name}").symlink_to(folder)
    turned = {"train": "test", "val": "train", "test": "val"}
    names = sorted(folder.name for folder in flat.iterdir())
    lines = [f"{name},{turned[name.removeprefix('bird-').rstrip('0123')]}" for name in names]
    (tmp_path / "s.csv").write_text("\n".join(["class,split", *lines, ""]))
    refused(origin, task_file(tmp_path / "t.yaml", flat, split="s.csv"), tmp_path)


@pytest.mark.parametrize("part", ["train", "val", "test", None])
def test_images_are_looked_for_in_every_part_of_the_others(part, monkeypatch):
    def pool(name, seed):
        images = np.random.default_rng(seed).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
        return SimpleNamespace(images=images, first=[0], counts=[3], path=name)

    others = {
        name: pool(name, 1 if name == part else 2 + number) for number, name in enumerate(("train", "val", "test"))
    }
    monkeypatch.setattr(overlap, "open_task", lambda *given: SimpleNamespace(**others))
    task = SimpleNamespace(form="the same")
    assert overlap.shares_images(pool("mine", 1), (task, {}), (task, {}), None) == (part is not None)


def test_one_shared_image_is_enough_and_an_empty_page_is_none(origin, images, tmp_path):
    other = drawn(tmp_path / "other", 2, blank=True)
    accepted(origin, other, tmp_path)
    # Held-out images are nobody's here.
    held_out = other / "test" / "test0" / "9.png"
    shutil.copy(images / "train" / "train1" / "2.png", held_out)
    accepted(origin, other, tmp_path)
    held_out.unlink()  # in both parts it would be refused for another reason
    shutil.copy(images / "train" / "train1" / "2.png", other / "train" / "train3" / "9.png")
    refused(origin, other, tmp_path)


def test_what_the_origin_kept_is_enough_where_its_images_are_gone(origin, images, tmp_path):
    moved = shutil.copytree(images, tmp_path / "moved")
    first = train(moved, tmp_path, "first", algo="maml")
    shutil.rmtree(moved)
    refused(first, images, tmp_path)
    refused(first, drawn(tmp_path / "other", 9), tmp_path, reason=UNKNOWN)
    same = shutil.copytree(images, tmp_path / "moved")
    refused(first, same, tmp_path)
    # The weights alone, outside of a run, are taken as public.
    shutil.rmtree(moved)
    shutil.copy(first.weights, tmp_path / "public.safetensors")
    train(images, tmp_path, "declared", dry=True, **{"model.initial": str(tmp_path / "public.safetensors")})


def test_another_folder_at_the_origins_relative_path(images, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    shutil.copytree(images, tmp_path / "there" / "pics")
    drawn(tmp_path / "here" / "pics", 3)
    monkeypatch.chdir(tmp_path / "there")
    first = train("pics", tmp_path, "first", algo="maml")
    monkeypatch.chdir(tmp_path / "here")
    # The run remembers the whole path, so nothing else is taken for it.
    accepted(first, drawn(tmp_path / "private", 4), tmp_path)
    refused(first, tmp_path / "there" / "pics", tmp_path)


@pytest.mark.parametrize("then", ["folder /gone", None])
def test_an_origins_settings_that_name_another_place_now_show_nothing(then, tmp_path, monkeypatch):
    mine, its = (OwnSource(reader="folder", path=str(tmp_path / name)) for name in ("mine", "its"))
    kept = SimpleNamespace(own=False, decoded="then", source=then or its.name)
    monkeypatch.setattr(overlap, "_kept", lambda origin: kept)
    monkeypatch.setattr(overlap, "load_task", lambda name: (SimpleNamespace(source=its), {}))
    monkeypatch.setattr(overlap, "shares_images", lambda *given: False)
    words = SimpleNamespace(dataset="pics")
    given = (
        words,
        SimpleNamespace(task=SimpleNamespace(source=mine), train=None),
        SimpleNamespace(own=False, decoded="now"),
    )
    origin = overlap.Origin(path=tmp_path, settings=words)
    with pytest.raises(InputError, match="came from folder /gone") if then else nullcontext():
        assert not overlap._learned_from(origin, *given, None)


def test_a_chain_that_is_broken_is_not_public(origin, images, tmp_path, monkeypatch):
    other = drawn(tmp_path / "other", 5)
    copy = tmp_path / "copied"
    shutil.copytree(origin.path, copy)
    behind = train(other, tmp_path, "behind", algo="maml", **{"model.initial": str(copy)})
    third = drawn(tmp_path / "third", 6)
    accepted(behind, third, tmp_path)
    shutil.rmtree(copy)
    refused(behind, third, tmp_path, reason="it is gone")


def test_without_secrets_images_are_compared_all_the_same(origin, images, tmp_path):
    public = tmp_path / "published"
    shutil.copytree(origin.path, public, ignore=shutil.ignore_patterns("secret"))
    origin = type(origin)(public)
    refused(origin, shutil.copytree(images, tmp_path / "copy"), tmp_path)
    accepted(origin, drawn(tmp_path / "other", 7), tmp_path)


def test_clients_of_the_callers_own_cannot_be_compared(origin, images, tmp_path):
    pool, shape = open_dataset(str(images)).train, EpisodeShape(ways=2, shots=1, queries=1)
    made = VirtualPopulation(pool=pool, shape=shape, clients=60, seed=0)
    held = [made.episode(client) for client in range(60)]
    own = from_pairs([((e.support_images, e.support_labels), (e.query_images, e.query_labels)) for e in held], shape)
    other = drawn(tmp_path / "other", 8)
    first = train(other, tmp_path, "first", algo="maml", population=own)
    refused(first, images, tmp_path, reason="it learned from clients that were handed over in Python")
    with pytest.raises(RefusedPlan, match=SAME):
        train(other, tmp_path, "own", population=own, **{"model.initial": str(first.path)})
    with pytest.raises(RefusedPlan, match="cannot be compared with its images"):
        train(other, tmp_path, "own", population=own, **{"model.initial": str(origin.path)})


def test_images_of_a_generator_are_nobodys(images, tmp_path, tiny_task_file):
    changes = {"image_size": 28, "channels": 1}
    first = train(tiny_task_file, tmp_path, "first", algo="maml")
    accepted(first, task_file(tmp_path / "t.yaml", images, **changes), tmp_path)
