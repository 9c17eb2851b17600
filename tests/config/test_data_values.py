"""What the data and the encoder decide: over a preset, and over nothing that somebody gave."""

from dataclasses import replace
from importlib import resources
from types import SimpleNamespace

import pytest
import yaml

from dpfedmeta.config import dataset_names
from dpfedmeta.config.dataset_names import encoding_of_run, found_again, shipped_task, with_data_values
from dpfedmeta.config.dotted_keys import Given, flattened
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task

DECIDED = {
    "model.name": "mlp", "population.clients": 77, "population.kind": "natural", "task.ways": 1, "meta.learn": "all",
}  # fmt: skip


def given(level, *names, value="other"):
    return {name: Given(value=value, level=level, where=f"place {level}") for name in names}


@pytest.fixture
def asked(monkeypatch):
    """Data that decide all of these, and how often they were looked at."""
    looked = []

    def values(dataset, given):
        looked.append(dataset)
        return dict(DECIDED)

    monkeypatch.setattr(dataset_names, "_has_own_values", lambda dataset, *, look: dataset == "mine")
    monkeypatch.setattr(dataset_names, "_values", values)
    return looked


def test_data_decide_over_a_preset_and_over_nothing_stronger(asked):
    for name in DECIDED:
        for level in (1, 2, 3):
            before = given(level, name)
            found = with_data_values("mine", before)
            assert {each: entry.value for each, entry in found.items()} == {
                **DECIDED, **({name: "other"} if level > 1 else {})
            }  # fmt: skip
            assert all((entry.level, entry.where) == (1, "mine") for each, entry in found.items() if each != name)
            assert before == given(level, name)  # what was handed over stays
    assert asked == ["mine"] * 15
    assert with_data_values("omniglot", given(1, *DECIDED)) == given(1, *DECIDED)


def test_data_are_not_looked_at_where_all_is_given_that_they_decide(asked):
    everything = given(2, *DECIDED) | given(2, "model.encoder", value=None)
    assert with_data_values("mine", everything) == everything
    assert asked == []
    for name in DECIDED:
        rest = {each: entry for each, entry in everything.items() if each != name}
        assert with_data_values("mine", rest)[name].value == DECIDED[name]
        assert with_data_values("mine", {**everything, **given(1, name)})[name].value == DECIDED[name]
    assert len(asked) == 2 * len(DECIDED)


ENCODER = {"model.encoder": Given(value="lite0", level=2, where="a file")}
PLAIN, STEPS = (
    dict(flattened(yaml.safe_load((resources.files("dpfedmeta.configs") / file).read_text())))
    for file in ("encoder.yaml", "encoder-steps.yaml")
)


@pytest.mark.parametrize(
    ("more", "due", "file"),
    [
        ({}, PLAIN, "encoder.yaml"),
        ({"record.enabled": False}, PLAIN, "encoder.yaml"),
        ({"record.enabled": False, "record.release": "steps"}, PLAIN, "encoder.yaml"),
        ({"record.enabled": True, "record.release": "micro-episodes"}, PLAIN, "encoder.yaml"),
        ({"record.enabled": True, "record.release": "steps"}, STEPS, "encoder-steps.yaml"),
        ({"record.enabled": True}, STEPS, "encoder-steps.yaml"),
    ],
)
def test_features_have_settings_of_their_own_over_those_of_a_preset(more, due, file):
    assert PLAIN != STEPS
    base = {**ENCODER, **{name: Given(value=value, level=2, where="a file") for name, value in more.items()}}
    found = with_data_values("omniglot", {**base, **given(1, *due)})
    assert {name: (found[name].value, found[name].level, found[name].where) for name in due} == {
        name: (value, 1, f"configs/{file}") for name, value in due.items()
    }
    for name in due:
        for level in (2, 3):
            assert with_data_values("omniglot", {**base, **given(level, name)})[name].value == "other"


@pytest.mark.parametrize("entry", [None, Given(value=None, level=3, where="here")])
def test_without_an_encoder_nothing_of_it_holds(entry):
    values = {} if entry is None else {"model.encoder": entry}
    assert with_data_values("omniglot", values) == values


@pytest.mark.parametrize("name", ["model.encoder", "model.encoder_weights", "model.initial"])
def test_a_file_that_somebody_names_is_found_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").touch()
    base = {} if name == "model.initial" else ENCODER
    for value, level, due in (
        ("weights", 2, str(tmp_path / "weights")), ("weights", 3, str(tmp_path / "weights")),
        ("weights", 1, "weights"), ("nothing", 3, "nothing"),
    ):  # fmt: skip
        entry = Given(value=value, level=level, where="here")
        assert with_data_values("omniglot", {**base, name: entry})[name].value == due


def test_data_that_are_there_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("birds", "omniglot"):
        (tmp_path / name).mkdir()
    assert found_again("birds") == str(tmp_path / "birds")
    assert found_again("./omniglot") == str(tmp_path / "omniglot")
    assert [found_again(name) for name in ("omniglot", "gone")] == ["omniglot", "gone"]


@pytest.mark.parametrize("name", ["a" * 300, "/" + "b" * 300 + ".yaml"])
def test_a_name_that_no_disk_holds_is_one_line(name):
    for ask in (found_again, load_task, lambda name: resolve("dp-agr", name)):
        with pytest.raises(InputError, match=r"^dataset = '.{199}\.\.\.: cannot be looked for \(File name too long\)$"):
            ask(name)


@pytest.mark.parametrize("name", ["mini-imagenet", "my-mini", "omniglot"])
def test_an_encoder_that_knows_the_images_is_refused_whatever_their_task_file_is_called(tmp_path, monkeypatch, name):
    """A copy of a shipped task file, for another size or split, has the same images."""
    card = SimpleNamespace(same_images=("mini-imagenet",), trained_on="ImageNet")
    known = SimpleNamespace(name="photographs", card=card)
    monkeypatch.setattr("dpfedmeta.data.encoders.encoding.encoding_of", lambda *given: known)
    dataset = name
    if name == "my-mini":
        for file, called in (("mini-imagenet.yaml", "my-mini.yaml"), ("mini-imagenet-split.csv",) * 2):
            (tmp_path / called).write_text((resources.files("dpfedmeta.tasks") / file).read_text())
        dataset = str(tmp_path / "my-mini.yaml")
    usual = resolve("dp-agr", "omniglot")
    settings = replace(usual, dataset=dataset, model=replace(usual.model, encoder="lite0"))
    assert shipped_task(dataset) == ("omniglot" if name == "omniglot" else "mini-imagenet")
    assert shipped_task("/moved/my-mini.yaml") == "my-mini"
    if name == "omniglot":
        assert encoding_of_run(settings) is known
        return
    with pytest.raises(RefusedPlan, match="the images of mini-imagenet are part of"):
        encoding_of_run(settings)
    accepted = replace(settings, model=replace(settings.model, encoder_overlap="accept"))
    assert encoding_of_run(accepted) is known


def test_weights_of_no_encoder_are_refused():
    settings = resolve("dp-agr", "omniglot", None, {"model.encoder_weights": "w.safetensors"})
    with pytest.raises(InputError, match=r"^model\.encoder_weights = w\.safetensors: name the encoder too"):
        encoding_of_run(settings)
    assert encoding_of_run(resolve("dp-agr", "omniglot")) is None
