"""The command of a report makes the run again, also where settings change what a preset says of others."""

import shlex

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.reporting.html.rerun_command import command


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
