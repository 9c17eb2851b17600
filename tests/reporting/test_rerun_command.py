"""The command of a report makes the run again, also where settings change what a preset says of others."""

import shlex

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.reporting.html import rerun_command
from dpfedmeta.reporting.html.rerun_command import command, settings_shown
from tests.integration.test_foreign_tables import HEAD, rows, table


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"task.ways": 20},
        # The preset's own step: without a word it would grow with the ways.
        {"task.ways": 20, "meta.lr": 6.0},
        # The preset's own method and bound, where an encoder would bring others.
        {"model.encoder": "lite0", "meta.method": "maml", "clip.initial": 0.15},
        {"server.noise_multiplier": 1.0, "server.rounds": 5, "clip.window": 5},
    ],
)
def test_the_command_gives_the_same_settings(values):
    settings = Settings.preset("dp-agr", "cifar-fs", values)
    words = shlex.split(command(settings))
    assert words[:6] == ["dpfedmeta", "train", "--algo", "dp-agr", "--dataset", "cifar-fs"]
    given = dict(word.removeprefix("--").split("=", 1) for word in words[6:])
    assert resolve("dp-agr", "cifar-fs", command_line=given) == settings
    # What the preset says anyway is left out.
    assert len(given) < 20


@pytest.mark.parametrize("given", [{}, {"meta.learn": "body"}, {"model.name": "conv4", "population.clients": "3"}])
def test_data_of_ones_own_are_not_looked_at_and_what_they_decide_is_given(tmp_path, monkeypatch, given):
    """Also where somebody gave what the preset says, and the data something else."""
    path = tmp_path / "table.csv"
    path.write_text(table(HEAD, rows(size=30)))
    own = resolve("dp-agr", str(path), command_line=given)
    words = shlex.split(command(own))
    shown = settings_shown(own)
    path.unlink()
    assert shlex.split(command(own)) == words
    assert settings_shown(own) == shown
    path.write_text(table(HEAD, rows(4, 30)))
    again = resolve("dp-agr", str(path), command_line=dict(word[2:].split("=", 1) for word in words[6:]))
    assert again == own


@pytest.mark.parametrize("seed", [None, "0", "976431"])
def test_every_setting_is_shown_beside_its_preset_but_where_it_lies_and_a_seed_that_may_be_secret(seed):
    given = {"server.rounds": "7", "run.name": "mine", "run.dir": "/home/me", "clip.policy": "constant"}
    settings = resolve("dp-agr", "strokes", None, given | ({} if seed is None else {"run.noise_seed": seed}))
    shown = {each.name: each for each in settings_shown(settings)}
    names = {name for name, _, _ in setting_fields()} - {"algo", "dataset"}
    assert {*shown} == names - {"run.name", "run.dir"}
    preset = resolve("dp-agr", "strokes")
    assert (shown["server.rounds"].value, shown["server.rounds"].preset) == ("7", str(preset.server.rounds))
    assert (shown["clip.policy"].value, shown["clip.policy"].preset) == ("constant", preset.clip.policy)
    assert shown["run.noise_seed"].value == ("secret, drawn" if seed is None else "chosen (a simulation)")
    differ = {name for name, each in shown.items() if each.differs}
    assert differ == {"server.rounds", "clip.policy"} | ({"run.noise_seed"} if seed is not None else set())
    assert seed is None or f"{seed}" not in command(settings).split("--run.noise_seed")[-1] or len(seed) < 2
    assert "noise_seed" not in command(settings)
    assert "/home/me" not in command(settings)


def test_of_an_algorithm_that_is_not_known_here_every_setting_is_given(monkeypatch):
    settings = resolve("dp-agr", "strokes")
    monkeypatch.setattr(rerun_command, "_of_preset", lambda settings, given=None: None)
    words = [word.split("=")[0].removeprefix("--") for word in shlex.split(command(settings))[6:]]
    names = {name for name, _, _ in setting_fields()} - {"algo", "dataset"}
    assert {*words} == names - {"run.name", "run.dir", "run.noise_seed"}
    assert {each.preset for each in settings_shown(settings)} == {None}
    assert not any(each.differs for each in settings_shown(settings))
