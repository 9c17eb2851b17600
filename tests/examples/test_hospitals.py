"""The hospitals of examples/hospitals: no image in two of them, and one form of data for all trainings."""

import importlib.util
import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfedmeta.cli.arguments import given_settings
from dpfedmeta.cli.commands.train_command import options_of
from dpfedmeta.config.load import resolve
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.client.local_data import open_records

FOLDER = Path(__file__).parents[2] / "examples" / "hospitals"


def loaded(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"hospitals_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def images_of(pool):
    places = (first + n for first, count in zip(pool.first, pool.counts, strict=True) for n in range(count))
    return sorted(np.asarray(pool.images[place]).tobytes() for place in places)


@pytest.fixture
def few(tiny_strokes):
    """Ten training classes of a benchmark, and little else."""
    pool = tiny_strokes.train
    return replace(
        tiny_strokes, train=replace(pool, names=pool.names[:10], first=pool.first[:10], counts=pool.counts[:10])
    )


def test_every_image_of_a_training_class_is_in_one_hospital(few, tmp_path, monkeypatch):
    held = loaded("split", monkeypatch).write_hospitals(few, tmp_path / "data", 3, 0)
    assert sorted(len(classes) for classes in held.values()) == [3, 3, 4]
    assert sorted(name for classes in held.values() for name in classes) == sorted(few.train.names)
    made = open_dataset(str(tmp_path / "data" / "hospitals.yaml"))
    assert set(made.train.clients) == set(held)
    for client in held:
        own = {made.train.names[n].split("/")[-1] for n, name in enumerate(made.train.clients) if name == client}
        assert own == {name.split("/")[-1] for name in held[client]}
    assert images_of(made.train) == images_of(few.train)


def test_each_alone_and_all_in_one_place_hold_the_same_images(few, tmp_path, monkeypatch):
    held = loaded("split", monkeypatch).write_hospitals(few, tmp_path / "data", 3, 0)
    alone = [open_dataset(str(tmp_path / "data" / f"alone-{name}.yaml")) for name in held]
    together = open_dataset(str(tmp_path / "data" / "together.yaml"))
    assert sum(each.train.size for each in alone) == together.train.size == few.train.size
    for each in (*alone, together):
        assert images_of(each.test) == images_of(few.test)
    # And a real client's folder.
    client = open_records(
        tmp_path / "data" / "images" / "train" / "hospital-1", together.task, (), tmp_path / "decoded"
    )
    assert client.size == alone[0].train.size


def test_hospitals_are_never_written_over_something(few, tmp_path, monkeypatch):
    (tmp_path / "kept.txt").write_text("")
    with pytest.raises(SystemExit, match="there is something already"):
        loaded("split", monkeypatch).write_hospitals(few, tmp_path, 3, 0)


def test_the_federation_keeps_its_promise_and_its_peers_have_its_network(few, tmp_path, monkeypatch):
    compare, data = loaded("compare", monkeypatch), tmp_path / "data"
    loaded("split", monkeypatch).write_hospitals(few, data, 5, 0)
    options = Namespace(rounds=None, alone_rounds=3, together_rounds=3)
    found = {each.name: each.words for each in compare.trainings(data, options)}
    alone = {f"alone-hospital-{n}" for n in range(1, 6)}
    assert set(found) == {"federation", "federation-without-noise", "together"} | alone
    for words in found.values():
        assert set(compare.NETWORK) <= set(words)
    made, settings = options_of(), []
    for name in ("federation", "federation-without-noise"):
        options, _ = made.parse_known_args(found[name])
        settings.append(resolve(None, options.dataset, options.config, given_settings(made, found[name])))
    federation, quiet = settings
    assert (federation.privacy.record.epsilon, quiet.privacy.record.epsilon) == (2.5, None)
    assert quiet.server.noise_multiplier == 0.0015
    assert replace(federation, privacy=quiet.privacy, server=quiet.server) == quiet
    assert replace(quiet.server, noise_multiplier=None) == federation.server
    assert federation.aggregation.mode == "secure"


def test_a_table_shows_what_the_runs_reached(tmp_path, monkeypatch):
    compare = loaded("compare", monkeypatch)
    folder = tmp_path / "federation"
    folder.mkdir()
    summary = {"accuracy": {"mean": 0.5, "ci95": 0.01}, "accuracy_untrained": {"mean": 0.25, "ci95": 0.02}}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / compare.SPENT).write_text("90")
    shown = compare.table(tmp_path, [compare.Training(name="federation", words=())])
    assert shown.splitlines()[-1] == "| federation | 50.0% ± 1.0 | 25.0% ± 2.0 | 1.5 |"
