"""Refusals and notes that need no PyTorch."""

import warnings

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning import early_checks
from dpfedmeta.planning.early_checks import check_first, check_registered


def test_a_folder_with_the_name_of_a_built_in_task_is_not_passed_over_in_silence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_first(resolve("dp-agr", "strokes"))
    (tmp_path / "strokes").mkdir()
    with pytest.warns(UserWarning, match=r"dataset = strokes: the built-in task; .* give \./strokes"):
        check_first(resolve("dp-agr", "strokes"))


@pytest.mark.parametrize(
    "check",
    [
        *("check_data_folder", "check_protocol", "_check_model", "clip_limits", "check_clip", "_check_episodes"),
        *("check_asked", "algorithm_of", "check_constants", "check_memory", "learned_part", "check_convolutions"),
        *("check_built_in", "check_said"),
    ],
)
def test_each_check_is_made_before_anything_heavy(monkeypatch, check):
    def refuse(*given, **words):
        raise InputError(f"{check} refuses")

    settings = resolve("dp-agr", "omniglot")
    early_checks.check_first(settings)
    monkeypatch.setattr(early_checks, check, refuse)
    with pytest.raises(InputError, match=f"^{check} refuses"):
        early_checks.check_first(settings)


def test_classes_of_every_split_are_looked_at_for_episodes_of_their_own(monkeypatch):
    seen = []
    monkeypatch.setattr(
        early_checks, "check_said", lambda task, splits, shape, split: seen.append((split, shape.shots))
    )
    settings = resolve("dp-agr", "omniglot", None, {"task.shots": "3", "evaluation.shots": "2"})
    early_checks.check_first(settings)
    assert seen == [("train", 3), ("val", 2), ("test", 2)]
    seen.clear()
    early_checks.check_first(settings, simulated=False)
    assert seen == [("val", 2), ("test", 2)]


REGISTERED = {"population.register": "people.jsonl", "run.noise_seed": "null"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, None),
        ({"run.noise_seed": "0"}, "run.noise_seed = 0 makes the run a simulation.*leave out --run.noise_seed"),
        ({"clip.start": "quantile"}, "clip.start = quantile; give --clip.start given --clip.initial"),
        ({"run.noise_seed": "0", "clip.start": "quantile", "population.register": "null"}, None),
    ],
    ids=str,
)
def test_a_register_counts_no_simulation_and_no_analysis(given, words):
    settings = resolve("dp-agr", "strokes", None, REGISTERED | given)
    if words is None:
        check_registered(settings)
    else:
        for check in (check_registered, check_first):
            with pytest.raises(InputError, match=rf"population\.register = people\.jsonl: .*{words}"):
                check(settings)
