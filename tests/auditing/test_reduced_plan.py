"""Small plans of an audit: what is typed goes before every size that the audit would choose."""

from dataclasses import replace

import pytest

from dpfedmeta.auditing.reduced_plan import (
    _BOOKS,
    _SMALL,
    _TARGETS,
    OF_RECORDS,
    audited_settings,
    of_canaries,
)
from dpfedmeta.config.load import resolve

# Another value than the audit's own, wherever there is one that any plan takes.
TYPED = {
    "population.clients": "13", "population.cohort": "5.0", "server.rounds": "3", "model.width": "7", "meta.steps": "4",
    "task.ways": "5", "task.shots": "3", "task.queries": "2", "clip.window": "3", "clip.count_noise": "11.5",
    "run.workers": "3", "evaluation.every": "17", "run.checkpoint_every": "19", "privacy.client.epsilon": "3.5",
    "privacy.client.delta": "1e-07", "privacy.record.epsilon": "2.5", "model.norm": "group", "model.name": "conv4",
}  # fmt: skip


def value_of(settings, name):
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


@pytest.mark.parametrize("as_planned", [False, True])
@pytest.mark.parametrize("name", TYPED)
def test_what_is_typed_is_audited(name, as_planned):
    more = {"population.clients": "99", "population.cohort": "99", name: "1"} if name in _SMALL else {}
    settings = audited_settings(
        "dp-agrlr-micro", "strokes", None, {name: TYPED[name]}, as_planned=as_planned, more=more
    )
    assert str(value_of(settings, name)) == TYPED[name]


def test_what_is_not_typed_is_small_and_has_the_targets_of_the_audit():
    settings = audited_settings("dp-agrlr-micro", "strokes", None, {}, as_planned=False)
    for name, chosen in {**_SMALL, **_BOOKS, **_TARGETS}.items():
        if chosen not in ("null", "[]"):
            found = value_of(settings, name)
            assert type(found)(chosen) == found
    larger = audited_settings("dp-agr", "strokes", None, {}, as_planned=False, more={"model.width": "50"})
    assert larger.model.width == 50


def test_nothing_is_promised_that_the_preset_does_not_promise():
    settings = audited_settings("dp-agr", "strokes", None, {}, as_planned=False)
    assert settings.privacy.client.epsilon == 8.0
    assert settings.privacy.record.epsilon is None


def test_every_size_of_an_audit_is_what_is_known_to_show_most():
    """Each of them is a size at which attacks were measured; a network of records has one direction for a record."""
    assert OF_RECORDS == {
        "model.name": "linear", "model.width": "1", "meta.learn": "all", "meta.adapt": "all", "meta.lr": "0.001",
    }  # fmt: skip
    settings = audited_settings("dp-agrlr-micro", "strokes", None, {}, as_planned=False, more=OF_RECORDS)
    for name, chosen in OF_RECORDS.items():
        assert str(value_of(settings, name)) == chosen


@pytest.mark.parametrize(("canaries", "width"), [(16, 2), (130, 2), (131, 3), (1000, 16)])
def test_a_crowd_of_canaries_has_a_coordinate_for_each_and_takes_part_as_a_whole(canaries, width):
    """Twelve coordinates for each canary, of 784 pixels a hidden unit."""
    assert of_canaries(canaries) == {
        "population.clients": str(canaries), "population.cohort": str(canaries), "server.rounds": "3",
        "model.width": str(width),
    }  # fmt: skip


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro"])
def test_as_planned_an_audit_changes_nothing_but_its_books(algo):
    settings, plain = audited_settings(algo, "strokes", None, {}, as_planned=True), resolve(algo, "strokes")
    assert settings.evaluation.every == 1_000_000
    evaluation = replace(settings.evaluation, every=plain.evaluation.every)
    assert replace(settings, evaluation=evaluation) == plain
