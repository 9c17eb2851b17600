import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.config.dotted_keys import sections
from dpfedmeta.config.learning_settings import MetaSettings
from dpfedmeta.config.load import resolve, resolve_text, to_yaml
from dpfedmeta.config.round_settings import ServerSettings
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.core.errors import InputError


@pytest.fixture(scope="module")
def settings():
    return Settings.preset("dp-agr", "omniglot", epsilon=1.5, rounds=100)


def refusal(build, *positional, **values):
    with pytest.raises(InputError) as caught:
        build(*positional, **values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "name", "value", "said"),
    [
        (ClipSettings, "policy", "windw", "did you mean window?"),
        (MetaSettings, "lr", -1, "greater than 0"),
        (MetaSettings, "lr", "0.3", "valid number"),
        (MetaSettings, "lr", True, "valid number"),
        (MetaSettings, "lr", float("nan"), "finite"),
        (MetaSettings, "steps", 2.0, "valid integer"),
        (MetaSettings, "steps", True, "valid integer"),
        (ServerSettings, "abort_on_failure", "yes", "boolean"),
        (ServerSettings, "rouns", 3, "unknown key; did you mean rounds?"),
    ],
)
def test_a_wrong_value_is_refused_when_a_section_is_built(settings, section, name, value, said):
    place = next(place for place, form in sections(Settings) if form is section)
    direct = refusal(section, **{name: value})
    assert direct.startswith(f"{place}.{name}: ")
    assert said in direct
    if name != "rouns":
        assert repr(value) in direct
        # The same words again wherever it is given.
        assert refusal(dataclasses.replace, getattr(settings, place), **{name: value}) == direct
        preset = refusal(Settings.preset, "dp-agr", "omniglot", {f"{place}.{name}": value})
        assert preset == f"Settings.preset: {direct}"


def test_the_words_are_those_of_the_command_line():
    typed = refusal(resolve, "dp-agr", "omniglot", None, {"clip.policy": "windw"})
    assert typed == f"the command line: {refusal(ClipSettings, policy='windw')}"


def test_a_nested_section_has_its_full_name(settings):
    assert refusal(dataclasses.replace, settings.privacy.client, delta=0.0).startswith("privacy.client.delta: ")
    assert refusal(dataclasses.replace, settings, clip={"policy": "window"}).startswith("clip: ")
    assert "give every value by its name" in refusal(ClipSettings, "window")


def test_settings_without_a_preset_are_not_taken_for_it(settings):
    message = refusal(Settings, algo="dp-agr", dataset="omniglot")
    assert message.startswith("population: missing")
    assert "Settings.preset" in message
    given = {place: getattr(settings, place) for place, _ in sections(Settings)}
    assert Settings(algo="dp-agr", dataset="omniglot", **given) == settings


def test_a_preset_is_what_the_command_line_makes(settings):
    assert settings == resolve("dp-agr", "omniglot", None, {"privacy.client.epsilon": "1.5", "server.rounds": "100"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
    values = {"run.dir": Path("here"), "server.rounds": np.int64(7), "server.schedule": [{"from_round": 3}]}
    made = Settings.preset("dp-agr", Path("task.yaml"), values, noise_multiplier=1)
    assert (made.run.dir, made.server.rounds, made.dataset) == ("here", 7, "task.yaml")
    assert made.server.schedule[0].from_round == 3


@pytest.mark.parametrize(
    ("algo", "ways", "given", "step"),
    [
        ("dp-agr", 20, {}, 24.0), ("maml", 6, {}, 7.2), ("dp-agr-cyclic", 20, {}, 24.0),
        ("dp-agr", 5, {}, 6.0), ("dp-agr", 2, {}, 6.0),  # not measured below five
        ("dp-agr", 20, {"meta.lr": 1.5}, 1.5),  # what is given stays
        ("proto-maml", 20, {}, 0.1), ("dp-agrlr", 20, {}, 0.6),  # its own step, which was not measured at other ways
    ],
)  # fmt: skip
def test_a_preset_has_a_longer_step_for_more_ways(algo, ways, given, step, tmp_path):
    assert Settings.preset(algo, "omniglot", given, ways=ways).meta.lr == pytest.approx(step)
    words = {name: str(value) for name, value in given.items()}
    typed = resolve(algo=algo, dataset="omniglot", command_line={"task.ways": str(ways), **words})
    assert typed.meta.lr == pytest.approx(step)
    # A run's own file says its step: it does not grow again.
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"algo": algo, "task": {"ways": ways}, "meta": {"lr": typed.meta.lr}}))
    assert resolve(algo, "omniglot", file).meta.lr == typed.meta.lr


def test_a_noise_displaces_the_target_of_a_preset():
    assert Settings.preset("dp-agr", "strokes", noise_multiplier=1.0).privacy.client.epsilon is None
    both = refusal(Settings.preset, "dp-agr", "strokes", noise_multiplier=1.0, epsilon=1.0)
    assert both.startswith("Settings.preset: privacy.client.epsilon and server.noise_multiplier are both given")


@pytest.mark.parametrize(
    ("values", "short", "said"),
    [
        (None, {"rouns": 3}, "rouns: no short form; did you mean rounds?"),
        ({"clip.polcy": "window"}, {}, "clip.polcy: unknown key; did you mean clip.policy?"),
        ({"server.rounds": 3}, {"rounds": 4}, "server.rounds is given twice"),
    ],
)
def test_a_name_that_is_none_names_the_nearest(values, short, said):
    assert said in refusal(Settings.preset, "dp-agr", "strokes", values, **short)
    assert "did you mean dp-agr?" in refusal(Settings.preset, "dp-arg", "strokes")


def test_nothing_in_python_names_a_flag():
    for build in (lambda: Settings.preset("dp-arg", "x"), lambda: Settings.preset("maml", "x", rounds="3")):
        assert "--" not in refusal(build)


def test_every_default_is_valid_by_itself():
    for place, form in sections(Settings):
        assert form() == dataclasses.replace(form()), place
    assert len(list(setting_fields())) > 60


class Word(str):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"beta": np.float64(0.5)}, r"clip\.own\.beta: expected numbers, .*, got float64"),
        ({"a": [1, {"b": np.int64(3)}]}, r"clip\.own\.a: expected numbers, .*, got int64"),
        ({"a": (Word("x"),)}, r"clip\.own\.a: expected numbers, .*, got Word"),
        ({"a": object()}, r"clip\.own\.a: expected numbers, .*, got object"),
        ({"a.b": 1}, r"clip\.own\.a\.b: keys of your own are texts without a dot"),
        ({"a": {"b.c": 1}}, r"clip\.own\.a\.b\.c: keys of your own are texts without a dot"),
        ({"a": {3: 1}}, r"clip\.own\.a\.3: keys of your own are texts without a dot"),
    ],
)
def test_own_settings_are_what_a_file_can_hold(value, said):
    with pytest.raises(InputError, match=said):
        Settings.preset("dp-agr", "strokes", {"clip.own": value})


@pytest.mark.parametrize("section", ["clip", "meta"])
def test_own_settings_come_back_from_the_file_as_they_were(tmp_path, section):
    """Also empty ones and such inside others; a run is resumed and verified from its file."""
    own = {"a": {"b": [1, 2.5, {"c": None, "x.y": 2, 3: 4}], "d": {}}, "e": {}, "f": "text", "g": True}
    for values in ({f"{section}.own": own}, {f"{section}.own.{key}": value for key, value in own.items()}):
        settings = Settings.preset("dp-agr", "strokes", values)
        (tmp_path / "config.yaml").write_text(to_yaml(settings))
        assert getattr(resolve(None, None, tmp_path / "config.yaml"), section).own == own


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("&x {a: *x}", "holds more than 30 levels, or itself"),
        ("{a: &x [1, *x]}", "holds more than 30 levels, or itself"),
        ("{a: 2020-01-01}", "clip\\.own\\.a: expected numbers, .*, got date"),
        ("{a: !!set {1}}", "clip\\.own\\.a: expected numbers, .*, got set"),
    ],
)
def test_own_settings_of_a_file_are_what_it_gives_back(own, said):
    with pytest.raises(InputError, match=said):
        resolve_text(f"algo: dp-agr\ndataset: strokes\nclip:\n  own: {own}\n", "f.yaml")
