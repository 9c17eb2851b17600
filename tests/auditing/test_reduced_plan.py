"""Small plans of an audit: what is typed goes before every size that the audit would choose."""

import pytest

from dpfedmeta.auditing.reduced_plan import _BOOKS, _SMALL, _TARGETS, audited_settings

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
