import dataclasses
import math
import re

import pytest
import yaml

from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.load import describe, resolve, to_yaml
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.core.errors import InputError

CLIENT, NOISE = "privacy.client.epsilon", "server.noise_multiplier"
RECORD, SUPPORT, QUERY = "privacy.record.epsilon", "record.support_noise", "record.query_noise"


def read(settings, name):
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def nested(flat):
    content = {}
    for name, value in flat.items():
        *sections, key = name.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return content


@pytest.fixture
def settle(tmp_path):
    """Settings from a preset, a file and a command line."""

    def made(algo="dp-agrlr-micro", file=None, line=None, dataset="omniglot"):
        path = None
        if file is not None:
            path = tmp_path / "settings.yaml"
            path.write_text(file if isinstance(file, str) else yaml.safe_dump(nested(file)))
        return resolve(algo, dataset, path, line)

    return made


def refusal(settle, **given):
    with pytest.raises(InputError) as caught:
        settle(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_command_line_is_stronger_than_the_file_and_the_file_than_the_preset(settle):
    name = "server.lr"
    default, preset = {field: value for field, _, value in setting_fields()}[name], read(settle(), name)
    assert preset != default
    assert read(settle(file={name: 0.125}), name) == 0.125
    assert read(settle(file={name: 0.125}, line={name: "0.25"}), name) == 0.25
    assert read(settle(line={name: "0.25"}), name) == 0.25


def test_other_keys_keep_their_level(settle):
    settings = settle(file={"server.rounds": 7}, line={"server.beta1": "0.5"})
    assert (settings.server.rounds, settings.server.beta1, settings.server.lr) == (7, 0.5, settle().server.lr)


def test_a_preset_may_depend_on_the_data_set(settle):
    assert settle(dataset="strokes").population.cohort != settle(dataset="omniglot").population.cohort


def test_algo_and_dataset_may_stand_in_the_file(settle):
    settings = settle(algo=None, dataset=None, file={"algo": "maml", "dataset": "strokes"})
    assert (settings.algo, settings.dataset) == ("maml", "strokes")
    assert settle(algo="dp-agr", dataset=None, file={"algo": "maml", "dataset": "strokes"}).algo == "dp-agr"
    assert "--algo and --dataset are needed" in refusal(settle, algo=None, file={"server.rounds": 3})


@pytest.mark.parametrize(
    ("target", "noises"), [(CLIENT, (NOISE,)), (RECORD, (SUPPORT,)), (RECORD, (QUERY,)), (RECORD, (SUPPORT, QUERY))]
)
@pytest.mark.parametrize("level", ["file", "line"])
def test_a_stronger_noise_displaces_a_target_and_back(settle, target, noises, level):
    noise_given = dict.fromkeys(noises, "2.5" if level == "line" else 2.5)
    assert read(settle(), target) is not None
    settings = settle(**{level: noise_given})
    assert read(settings, target) is None
    assert all(read(settings, noise) == 2.5 for noise in noises)
    settings = settle(file=noise_given if level == "file" else {noises[0]: 1.0}, line={target: "3"})
    assert read(settings, target) == 3.0
    assert all(read(settings, noise) is None for noise in noises)


@pytest.mark.parametrize(("target", "noise"), [(CLIENT, NOISE), (RECORD, SUPPORT), (RECORD, QUERY)])
def test_noise_and_target_at_one_level_are_an_error(settle, target, noise):
    for given in ({"file": {target: 1.0, noise: 1.0}}, {"line": {target: "1", noise: "1"}}):
        message = refusal(settle, **given)
        assert all(part in message for part in (target, noise, "both given"))
    assert "settings.yaml" in refusal(settle, file={target: 1.0, noise: 1.0})


def test_a_null_is_not_given(settle):
    assert read(settle(file={CLIENT: 2.0, NOISE: None}), CLIENT) == 2.0
    assert read(settle(line={CLIENT: "null", NOISE: "1.5"}), NOISE) == 1.5


def test_the_cells_do_not_displace_each_other(settle):
    settings = settle(line={NOISE: "1.0"})
    assert read(settings, RECORD) == read(settle(), RECORD)
    assert read(settle(line={SUPPORT: "9"}), CLIENT) == read(settle(), CLIENT)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("server.rouns", "server.rounds"), ("serve.rounds", "server.rounds"), ("clip.initail", "clip.initial")],
)
def test_an_unknown_key_names_the_nearest_and_where_it_stood(settle, key, meant):
    for given, where in (({"file": {key: 1}}, "settings.yaml"), ({"line": {key: "1"}}, "the command line")):
        message = refusal(settle, **given)
        assert f"{key}: unknown key; did you mean {meant}?" in message
        assert where in message


def test_an_unknown_algorithm_lists_the_known_ones(settle):
    message = refusal(settle, algo="dp-arg")
    assert "did you mean dp-agr" in message
    assert all(name in message for name in algorithm_names())


WRONG = [
    ("server.rounds", "many"), ("server.rounds", "2.5"), ("server.rounds", "0"), ("server.rounds", "-3"),
    ("server.rounds", "null"), ("server.rounds", "true"), ("server.lr", "0"), ("server.lr", "-0.1"),
    ("server.lr", "nan"), ("server.lr", ".nan"), ("server.lr", "inf"), ("server.lr", ".inf"), ("server.lr", "yes"),
    ("server.beta1", "1"), ("server.noise_multiplier", "-1"), ("server.noise_multiplier", "nan"),
    ("population.cohort", "nan"), ("population.clients", "1.5"), ("population.sampler", "poison"),
    ("clip.initial", "0"), ("clip.initial", "inf"), ("clip.policy", "windows"), ("meta.order", "3"),
    ("meta.lr", "nan"), ("privacy.client.epsilon", "0"), ("privacy.client.epsilon", ".inf"),
    ("privacy.client.delta", "0"), ("privacy.client.delta", "1"), ("privacy.record.observer", "me"),
    ("task.ways", "0"), ("task.shots", "0"), ("model.norm", "off"), ("run.seed", "-1"), ("run.device", "tpu"),
    ("evaluation.episodes", "1"), ("track.wandb", "on"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text"), WRONG)
def test_a_wrong_value_names_key_value_and_place(settle, key, text):
    message = refusal(settle, line={key: text})
    assert message.startswith(f"the command line: {key}: ")
    assert str(yaml.safe_load(text)).lower() in message.lower()
    value = yaml.safe_load(text)
    assert f"settings.yaml: {key}: " in refusal(settle, file={key: value})


@pytest.mark.parametrize("text", ["[1, 2]", "{a: 1}"])
def test_a_list_is_not_a_value(settle, text):
    assert "expected a single value" in refusal(settle, line={"server.rounds": text})


def test_text_that_is_no_yaml_is_a_wrong_value(settle):
    assert "cannot read the value" in refusal(settle, line={"server.rounds": "[1"})


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "1E-4"])
def test_exponents_are_numbers(settle, text):
    assert settle(line={"server.lr": text}).server.lr == 1e-4
    assert settle(file=f"server:\n  lr: {text}\n").server.lr == 1e-4


def test_off_is_a_word_although_yaml_reads_a_truth_value(settle):
    assert settle(line={"track.wandb": "off"}).track.wandb == "off"
    assert settle(file="track:\n  wandb: off\n").track.wandb == "off"
    assert settle(line={"track.tensorboard": "on"}).track.tensorboard is True


@pytest.mark.parametrize("name", ["007", "off", "1e3", "2026-01-01", "null"])
def test_names_stay_text(settle, name):
    assert settle(line={"run.name": name}).run.name == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("server: [", "not valid YAML"),
        ("- a", "expected sections"),
        ("", "expected sections"),
        ("server: 3", "server"),
        ("\0", "YAML"),
    ],
)
def test_a_file_that_holds_no_settings(settle, text, reason):
    assert reason in refusal(settle, file=text)


@pytest.mark.parametrize("value", ["", " 3", " null"])
def test_a_section_without_keys_is_said_to_be_one(settle, value):
    message = refusal(settle, file=f"server:{value}\n")
    assert "server: is a section, and holds " in message
    assert "server.rounds" in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("key", "meant"),
    [("epsilon", "privacy.client.epsilon"), ("rouns", "server.rounds"), ("noise-multiplier", NOISE),
     ("most_shots", "population.most_shots"), ("steps", "meta.steps or evaluation.steps"), ("zzz", None)],
)  # fmt: skip
def test_a_short_form_or_a_last_part_leads_to_the_setting(settle, key, meant):
    message = refusal(settle, file=f"{key}: 3\n")
    assert f"{key}: unknown key" in message
    assert message.endswith(f"; did you mean {meant}?" if meant else "unknown key")


@pytest.mark.parametrize(("text", "read"), [("1:30", "90"), ("010", "8"), ("-1:00:00", "-3600"), ("1:30.5", "90.5")])
def test_numbers_that_yaml_reads_as_others_are_refused(settle, text, read):
    """PyYAML follows YAML 1.1, in which 1:30 is ninety and 010 is eight."""
    assert f"{text}: YAML reads this as {read}; write a plain number" in refusal(settle, line={"server.lr": text})
    assert f"{text}: YAML reads this as {read}" in refusal(settle, file=f"server: {{lr: {text}}}\n")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1_000", 1000), ("0x10", 16), ("1e3", 1000)])
def test_other_spellings_of_numbers_are_read(settle, text, number):
    assert settle(line={"run.seed": text}).run.seed == number


@pytest.mark.parametrize("name", ["model.encoder", "model.initial", "track.group"])
@pytest.mark.parametrize("text", ["a:", "2024", "yes", "[a]"])
def test_text_is_text_whatever_it_looks_like(settle, name, text):
    """As `timm:` is no section."""
    assert read(settle(line={name: text}), name) == text


def test_text_that_may_be_null_can_be(settle):
    assert settle(algo="dp-agr", dataset="cifar-fs").model.initial == "textures"
    assert settle(algo="dp-agr", dataset="cifar-fs", line={"model.initial": "null"}).model.initial is None


@pytest.mark.parametrize("name", [CLIENT, "server.rounds", "track.tags"])
def test_an_empty_value_is_no_null(settle, name):
    """It may be a variable of a shell that is not set, and a target that is lost without a word a promise lost."""
    for text in ("", "  "):
        assert f"--{name}: the value is empty" in refusal(settle, line={name: text})


@pytest.mark.parametrize(("text", "dataset"), [("algo: maml", "omniglot"), ("dataset: strokes\nalgo: maml", "strokes")])
def test_a_default_data_set_is_weaker_than_the_file(tmp_path, text, dataset):
    """What account looks at where nothing names data; the file of --config may."""
    (tmp_path / "a.yaml").write_text(text)
    assert resolve(None, None, tmp_path / "a.yaml", default_dataset="omniglot").dataset == dataset


@pytest.mark.parametrize(("text", "shown"), [("dataset: no", "False"), ("dataset: 2024", "2024"), ("algo: 3", "3")])
def test_names_that_yaml_reads_as_other_things_are_named(settle, text, shown):
    key = text.partition(":")[0]
    message = refusal(settle, algo=None, dataset=None, file=f"{text}\n")
    assert f"{key}: expected text, got {shown}; write it in quotes" in message
    assert "run.name: expected text, got 2024-01-01; write it in quotes" in refusal(
        settle, file="run: {name: 2024-01-01}\n"
    )


@pytest.mark.parametrize(("text", "written"), [("1/400000", "2.5e-06"), ("1/0", None), ("a/b", None)])
def test_a_fraction_is_told_as_a_number(settle, text, written):
    message = refusal(settle, line={"privacy.client.delta": text})
    assert message.endswith(f"got {text!r}" + (f"; write {written}" if written else ""))


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.yaml", tmp_path / "binary.yaml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            resolve("maml", "strokes", path)


@pytest.mark.parametrize("algo", algorithm_names())
@pytest.mark.parametrize("dataset", ["omniglot", "strokes"])
def test_every_preset_resolves_and_survives_its_own_config_file(settle, algo, dataset):
    settings = settle(algo=algo, dataset=dataset)
    assert (settings.algo, settings.dataset) == (algo, dataset)
    assert settle(algo=None, dataset=None, file=to_yaml(settings)) == settings


@pytest.mark.parametrize("given", ["a, b", "[a, b]"])
def test_tags_are_words_with_commas_or_a_list(settle, given):
    assert settle(line={"track.tags": given}).track.tags == ("a", "b")
    assert settle(file=f"track:\n  tags: {given}\n").track.tags == ("a", "b")
    assert Settings.preset("dp-agr", "strokes", {"track.tags": "a, b"}).track.tags == ("a", "b")


def test_a_changed_run_survives_its_own_config_file(settle):
    line = {NOISE: "1.25", QUERY: "3", "server.lr": "1e-5", "run.name": "007", "track.wandb": "off", "run.seed": "12"}
    settings = settle(line=line)
    assert settle(algo=None, dataset=None, file=to_yaml(settings)) == settings
    written = dataclasses.asdict(settings)
    for section, name in (("server", "schedule"), ("track", "tags"), ("track", "to"), ("privacy", "spent_before")):
        written[section][name] = list(written[section][name])  # YAML has no tuples
    assert yaml.safe_load(to_yaml(settings)) == written


def test_every_private_preset_promises_the_defaults_of_the_contract(settle):
    for algo in algorithm_names():
        settings = settle(algo=algo)
        # Two are for populations that are small, or come once.
        assert settings.population.clients == {"dp-agr-checkins": 75_000, "dp-agr-correlated": 10_000}.get(
            algo, 400_000
        )
        # Gradients of prototypes teach most with many classes and one record to adapt on.
        sizes = {"moments-then-gradients": (20, 1, 3)}.get(algo, (5, 5, 5))
        assert (settings.task.ways, settings.task.shots, settings.task.queries) == sizes
        assert settings.evaluation.queries == 15
        assert settings.server.noise_multiplier is None
        others = {"maml": None, "local-dp": None, "dp-agr-correlated": 4.0, "moments-agrlr-secure": None}
        expected = others.get(algo, 1.5)
        assert settings.privacy.client.epsilon == expected
        assert (settings.privacy.client.delta, settings.privacy.record.delta) == (1e-6, 1e-5)
    for algo in ("dp-agrlr", "dp-agrlr-micro"):
        assert settle(algo=algo).privacy.record.epsilon == 2.5
        assert settle(algo=algo).population.max_participations == 1


def test_every_short_form_is_a_setting():
    names = {name for name, _, _ in setting_fields()}
    assert set(SHORT_FORMS.values()) <= names
    assert not set(SHORT_FORMS) & names


def test_help_shows_every_setting_once_with_a_meaning():
    names = [name for name, _, _ in setting_fields() if name not in ("algo", "dataset")]
    lines = describe().splitlines()
    assert [re.match(r"  --(\S+)", line)[1] for line in lines[::2]] == names
    assert all(meaning.strip() for meaning in lines[1::2])
    assert all(f"(--{short})" in describe() for short in SHORT_FORMS)


def test_no_default_is_infinite():
    assert not any(isinstance(value, float) and not math.isfinite(value) for _, _, value in setting_fields())


def test_a_wrong_value_is_of_the_place_that_gave_it_and_not_of_a_name_that_begins_like_it():
    with pytest.raises(InputError, match=r"^the command line: model\.encoder_size: input should be greater"):
        resolve("encoder-agr", "cifar-fs", None, {"model.encoder_size": "4"})
