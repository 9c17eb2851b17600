import pytest
import yaml

from dpfedmeta.config import SHORT_FORMS, algorithm_names, describe, resolve, setting_fields, to_yaml
from dpfedmeta.errors import InputError


def write(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("algo", algorithm_names())
def test_resolved_settings_read_back_as_the_same_run(algo, tmp_path):
    settings = resolve(algo, "omniglot", None, {"server.lr": "1e-4", "run.name": "12"})
    assert settings.server.lr == 1e-4
    assert settings.run.name == "12"
    (tmp_path / "config.yaml").write_text(to_yaml(settings))
    assert resolve(None, None, tmp_path / "config.yaml") == settings


def test_the_command_line_is_stronger_than_the_file_and_the_file_than_the_preset(tmp_path):
    preset = resolve("dp-agr", "omniglot").server.rounds
    file = write(tmp_path / "f.yaml", {"server": {"rounds": preset + 1, "lr": 0.5}})
    assert resolve("dp-agr", "omniglot", file).server.rounds == preset + 1
    both = resolve("dp-agr", "omniglot", file, {"server.rounds": str(preset + 2)})
    assert (both.server.rounds, both.server.lr) == (preset + 2, 0.5)


def test_a_preset_may_differ_by_data_set():
    assert resolve("dp-agrlr", "strokes").server.rounds != resolve("dp-agrlr", "omniglot").server.rounds


def test_the_stronger_of_noise_and_target_displaces_the_other(tmp_path):
    by_noise = resolve("dp-agr", "omniglot", None, {"server.noise_multiplier": "1.0"})
    assert (by_noise.server.noise_multiplier, by_noise.privacy.client.epsilon) == (1.0, None)
    file = write(tmp_path / "f.yaml", {"server": {"noise_multiplier": 1.0}})
    by_target = resolve("dp-agr", "omniglot", file, {"privacy.client.epsilon": "2"})
    assert (by_target.server.noise_multiplier, by_target.privacy.client.epsilon) == (None, 2.0)
    record = resolve("dp-agrlr", "omniglot", None, {"record.query_noise": "2"})
    assert record.privacy.record.epsilon is None
    assert record.privacy.client.epsilon == 1.5


def test_noise_and_target_at_the_same_level_are_an_error():
    with pytest.raises(InputError, match="both given"):
        resolve("dp-agr", "omniglot", None, {"server.noise_multiplier": "1", "privacy.client.epsilon": "1"})


BAD = [
    ({"clip.windw": "3"}, "did you mean clip.window"),
    ({"server.rounds": "-3"}, "server.rounds: .*greater than or equal to 1, got -3"),
    ({"server.rounds": "many"}, "server.rounds: .*valid integer"),
    ({"server.lr": ".nan"}, "server.lr: .*finite"),
    ({"server.lr": ".inf"}, "server.lr: .*finite"),
    ({"server.lr": "0"}, "server.lr: .*greater than 0"),
    ({"clip.policy": "best"}, "clip.policy: .*'constant'"),
    ({"meta.order": "3"}, "meta.order"),
    ({"privacy.client.delta": "1"}, "privacy.client.delta: .*less than 1"),
    ({"privacy.client.epsilon": "0"}, "privacy.client.epsilon"),
    ({"population.clients": "1.5"}, "population.clients"),
    ({"server.lr": "[1, 2]"}, "single value"),
    ({"server.lr": "{"}, "cannot read the value"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_a_wrong_value_names_its_key_and_what_would_be_right(given, message):
    with pytest.raises(InputError, match=message):
        resolve("dp-agr", "omniglot", None, given)


@pytest.mark.parametrize("content", ["[1, 2]", "server: {lr: [}", "server:\n  lrr: 1", "\x00"])
def test_a_wrong_file_is_named(tmp_path, content):
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(InputError, match=r"bad\.yaml"):
        resolve("dp-agr", "omniglot", tmp_path / "bad.yaml")


def test_missing_and_unknown_names_say_what_is_known():
    with pytest.raises(InputError, match="--algo and --dataset are needed"):
        resolve(None, "omniglot")
    with pytest.raises(InputError, match=r"did you mean dp-agr.*known are"):
        resolve("dp-agrr", "omniglot")
    with pytest.raises(InputError, match="cannot be read"):
        resolve("maml", "omniglot", tmp := __import__("pathlib").Path("/nowhere.yaml"))
    assert tmp


def test_short_forms_name_settings_and_help_describes_each_of_them():
    names = {name for name, _, _ in setting_fields()}
    assert set(SHORT_FORMS.values()) <= names
    text = describe()
    assert all(f"--{name}" in text for name in names - {"algo", "dataset"})
