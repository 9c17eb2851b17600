"""Which of several given values holds: levels against each other, for every pair and not for an example."""

import itertools
from dataclasses import replace

import pytest

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.config.dotted_keys import Given
from dpfedmeta.config.load import resolve, resolve_text
from dpfedmeta.config.presets import algorithm_names, displaced, preset_values
from dpfedmeta.core.errors import InputError

LEVELS = (None, 1, 2, 3)  # None: not given
CELLS = {
    "privacy.client.epsilon": ("server.noise_multiplier",),
    "privacy.record.epsilon": ("record.support_noise", "record.query_noise"),
}


def given(**levels):
    """Values by name, each given at its level by a place of its own."""
    values = {name: Given(value=1.5, level=level, where=f"place {level}") for name, level in levels.items() if level}
    return values


def kept(found):
    return {name for name, entry in found.items() if entry.value is not None}


@pytest.mark.parametrize(("target", "noises"), CELLS.items(), ids=CELLS)
def test_of_a_target_and_its_noises_the_strongest_holds(target, noises):
    for levels in itertools.product(LEVELS, repeat=1 + len(noises)):
        values = given(**dict(zip((target, *noises), levels, strict=True)))
        stated, strongest = values.keys() - {target}, max((level or 0 for level in levels[1:]), default=0)
        if not levels[0] or not strongest:
            assert kept(displaced(values)) == values.keys()
        elif levels[0] == strongest:
            with pytest.raises(InputError, match=f"^place {levels[0]}: {target} and {noises[0] if levels[1] else ''}"):
                displaced(values)
        else:
            assert kept(displaced(values)) == ({target} if levels[0] > strongest else stated), levels
        # A null is as if nobody had given it.
        for name in values:
            nulled = {**values, name: replace(values[name], value=None)}
            rest = {other: entry for other, entry in values.items() if other != name}
            try:
                due = kept(displaced(rest))
            except InputError:
                continue
            assert kept(displaced(nulled)) == due


def test_cells_do_not_displace_each_other_and_nothing_that_was_handed_over_changes():
    for target, noise in itertools.permutations(CELLS):
        values = given(**{target: 1, CELLS[noise][0]: 3})
        before = dict(values)
        assert kept(displaced(values)) == values.keys()
        assert values == before


@pytest.mark.parametrize("level", LEVELS)
def test_a_limit_goes_where_a_stronger_target_displaced_its_noise(level):
    for target in LEVELS:
        values = given(**{"privacy.client.epsilon": target, "privacy.client.limit": level})
        gone = {"privacy.client.limit"} if (target or 0) > (level or 9) else set()
        assert kept(displaced(values)) == values.keys() - gone


@pytest.mark.parametrize("window", [None, *((level, size) for level in (1, 2, 3) for size in (2, 3, 9))])
@pytest.mark.parametrize("rounds", [1, 2, 3, 8, 9])
def test_a_shorter_run_shortens_the_window_of_a_weaker_level_alone(rounds, window):
    for level in (1, 2, 3):
        values = {"server.rounds": Given(value=rounds, level=level, where="here")}
        size = ClipSettings().window if window is None else window[1]
        if window is not None:
            values["clip.window"] = Given(value=size, level=window[0], where="there")
        weaker = level > max(0 if window is None else window[0], 1)
        due = max(2, rounds) if weaker and rounds < size else size
        found = displaced(values).get("clip.window")
        assert (size if found is None else found.value) == due


@pytest.mark.parametrize("ways", [1, 2, 5, 6, 20])
def test_a_step_that_grows_does_so_once_and_no_other(ways):
    values = {
        "task.ways": Given(value=ways, level=2, where="here"),
        "meta.lr": Given(value=0.3, level=1, where="preset", grows=True),
        "evaluation.lr": Given(value=0.5, level=1, where="preset", shrinks=True),
        "server.lr": Given(value=0.7, level=1, where="preset"),
    }
    once = displaced(values)
    assert once["meta.lr"].value == pytest.approx(0.3 * max(ways, 5) / 5)
    assert once["evaluation.lr"].value == pytest.approx(0.1 if ways == 1 else 0.5)
    assert once["server.lr"].value == 0.7
    assert displaced(once) == once


@pytest.mark.parametrize("algo", algorithm_names())
def test_a_head_that_predicts_numbers_takes_a_fifth_of_the_step_of_five_classes(algo):
    """With the whole step adaptation made errors of 15 of what had 8 before it, and a run was charged for that."""
    given, numbers = preset_values(algo, "sinusoids"), resolve(algo, "sinusoids", None, {})
    share = 0.2 if "meta.adapt" in given and given["meta.adapt"].value == "head" else 1.0
    for name, found in (("meta.lr", numbers.meta.lr), ("evaluation.lr", numbers.evaluation.lr)):
        assert name not in given or found == pytest.approx(share * given[name].value)
    assert resolve(algo, "sinusoids", None, {"meta.lr": "0.7"}).meta.lr == 0.7


OFFER = "algo: dp-agr\ndataset: omniglot\n"


@pytest.mark.parametrize("missing", ["algo", "dataset"])
def test_a_text_names_its_algorithm_and_its_data(missing):
    text = "".join(line for line in OFFER.splitlines(keepends=True) if not line.startswith(missing))
    with pytest.raises(InputError, match=r"^there: algo or dataset is missing"):
        resolve_text(text, "there")
