from dataclasses import fields, is_dataclass, replace

import pytest
import yaml

from dpfedmeta.config import load
from dpfedmeta.config.load import offered_text, resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.offers.offered_settings import check_own, for_clients, foreign, form_of
from dpfedmeta.federation.offers.signed_document import checked_names, difference
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

STATED = {"a": 1.0, "b": {"c": [1, 2.5, None], "d": "text", "e": True}}


def test_what_agrees_has_no_difference():
    assert difference(STATED, {"b": STATED["b"], "a": 1.0 + 1e-12}, "privacy") is None


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ({"a": 1.0 + 1e-6}, "privacy.a"),
        ({"a": 0.999}, "privacy.a"),
        ({"a": None}, "privacy.a"),
        ({"b": {**STATED["b"], "c": [1, 2.5001, None]}}, "privacy.b.c"),
        ({"b": {**STATED["b"], "c": [1, 2.5]}}, "privacy.b.c"),
        ({"b": {**STATED["b"], "d": "other"}}, "privacy.b.d"),
        ({"b": {**STATED["b"], "e": 1.5}}, "privacy.b.e"),
        ({"b": {"c": [1, 2.5, None], "d": "text"}}, "privacy.b"),
        ({"more": 1}, "privacy"),
    ],
)
def test_the_first_difference_is_named(other, place):
    found = difference(STATED, {**STATED, **other}, "privacy")
    assert found is not None
    assert found.startswith(place + " = ")


SETTINGS = resolve("dp-agr", "strokes")


def with_text(name, value):
    """The settings with this text in one of them; None: it takes some words only, or no text at all."""
    try:
        return resolve("dp-agr", "strokes", None, {name: value})
    except InputError:
        return None


NAMES = [f"{section.name}.{field.name}" for section in fields(SETTINGS)
         if is_dataclass(inner := getattr(SETTINGS, section.name)) for field in fields(inner)]  # fmt: skip
TAKEN = [name for name in NAMES if with_text(name, "os:system") is not None]


@pytest.mark.parametrize("name", TAKEN)
def test_no_setting_of_a_server_names_code(name):
    """Whichever of them takes package.module:name, today or later."""
    assert foreign(SETTINGS) is None
    assert foreign(with_text(name, "os:system")) == f"{name} = os:system"


@pytest.mark.parametrize(("name", "value"), [("episodes", "whole"), ("own_test", 0.5)])
def test_clients_that_are_only_simulated_are_in_no_plan(name, value):
    check_own(SETTINGS)
    with pytest.raises(Refused, match=rf"population\.{name} = {value}, for simulated clients alone"):
        check_own(replace(SETTINGS, population=replace(SETTINGS.population, **{name: value})))


def test_a_younger_setting_is_sent_only_where_it_changes_something(monkeypatch):
    """A neighbouring version knows no setting of its names, and this one takes what is not said for what it was."""
    younger = {"server.beta1": SETTINGS.server.beta1, "meta.steps": 7}
    monkeypatch.setattr(load, "YOUNGER", younger)
    said = yaml.safe_load(load.offered_text(SETTINGS))
    assert "beta1" not in said["server"]
    assert said["meta"]["steps"] == SETTINGS.meta.steps != 7
    assert load.offered_settings(load.offered_text(SETTINGS), "the plan") == SETTINGS
    usual = replace(SETTINGS, meta=replace(SETTINGS.meta, steps=7))
    assert "steps" not in yaml.safe_load(load.offered_text(usual))["meta"]
    assert load.offered_settings(load.offered_text(usual), "the plan") == usual


def test_the_settings_that_may_name_code_are_among_these():
    assert {
        "aggregation.mode", "clip.policy", "meta.method", "model.name", "record.release", "server.noise",
        "server.optimizer", "model.initial",
    } <= {*TAKEN}  # fmt: skip
    own = replace(SETTINGS, clip=replace(SETTINGS.clip, policy="own"))
    assert foreign(own) == "clip.policy = own"


FORM = {
    "name": "other",
    "image_size": 32,
    "train_rotations": 1,
    "train_flip": True,
    "mean": (0.25,),
    "deviation": (0.125,),
    "pixel_range": (0.0, 4095.0),
}


@pytest.mark.parametrize("field", FORM)
def test_clients_are_told_all_that_makes_records_of_images(tiny_strokes, field):
    task = tiny_strokes.task
    assert getattr(task, field) != FORM[field]
    assert form_of(replace(task, **{field: FORM[field]})) != form_of(task)


ROSTER = tuple(bytes([number]) * 32 for number in range(3))
NAMED = {"run": "ab" * 32, "server": "cd" * 32, "roster": [identity.hex() for identity in ROSTER]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"server": "ce" * 32}, "another server"),
        ({"run": "ab" * 31}, "or names no run"),
        ({"roster": NAMED["roster"][:2]}, "each of 3 clients once"),
        ({"roster": [*NAMED["roster"][:2], NAMED["roster"][0]]}, "each of 3 clients once"),
        ({"roster": [*NAMED["roster"][:2], "00" * 31]}, "each of 3 clients once"),
    ],
)
def test_names_of_other_parties_are_refused(change, why):
    server = bytes.fromhex(NAMED["server"])
    assert checked_names(NAMED, server, 3, masked=True) == ROSTER
    with pytest.raises(Refused, match=why):
        checked_names({**NAMED, **change}, server, 3, masked=True)


# Of each setting that is the server's alone, a value that is nowhere else.
OF_THE_SERVER = {
    "run.noise_seed": "976431976431",
    "run.dir": "/of/the/server/runs",
    "run.name": "of-the-server",
    "run.workers": "7",
    "privacy.spent_before": "[/of/the/server/analysis]",
    "track.tags": "[of-the-server]",
    "track.wandb": "offline",
}


@pytest.mark.parametrize("name", OF_THE_SERVER)
def test_an_offer_says_nothing_that_is_the_server_s_alone(tiny_strokes, name):
    """Its folders, its seed, its trackers and its machine: a client's text is the same whatever they are."""
    plain, own = (resolve("dp-agr", "strokes", None, given) for given in ({}, {name: OF_THE_SERVER[name]}))
    assert own != plain
    task = replace(tiny_strokes.task, name="strokes")
    assert offered_text(for_clients(own, task)) == offered_text(for_clients(plain, task))
