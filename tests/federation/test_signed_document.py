import itertools
import json
import re
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace

import pytest

from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.config.run_settings import RunSettings, TrackSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import GENERATOR
from dpfedmeta.core.version import __version__
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.offers import signed_analysis, signed_document, signed_plan
from dpfedmeta.federation.offers.offered_settings import check_own, for_clients, foreign, form_of, task_of
from dpfedmeta.federation.offers.signed_document import (
    check_numbers,
    checked_names,
    content_of,
    difference,
    opened_parts,
)
from dpfedmeta.secure_aggregation.crypto.keys import Identity
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
OFFERED = for_clients(SETTINGS, load_task("strokes")[0])


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
    check_own(OFFERED)
    with pytest.raises(Refused, match=rf"the plan has population\.{name} = {value}: is only for simulated clients"):
        check_own(replace(OFFERED, population=replace(OFFERED.population, **{name: value})))


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
    assert to_yaml(for_clients(own, task)) == to_yaml(for_clients(plain, task))


SERVER = Identity(bytes(31) + b"\1")
OFFERS = {"plan": signed_plan.FORM, "analysis": signed_analysis.FORM}
WHOLE = {
    "format": "", "version": __version__, "generator": GENERATOR, "run": "ab" * 32, "server": SERVER.public.hex(),
    "roster": ["cd" * 32], "task": {}, "privacy": {}, "promised": [],
}  # fmt: skip


def text_of(form, **changes):
    content = {**WHOLE, "format": form.format, **dict.fromkeys(form.own, 1), **changes}
    return json.dumps({key: value for key, value in content.items() if value is not GONE}).encode()


GONE = object()
KEYS = [*WHOLE, "clients", "settings", "request"]


@pytest.mark.parametrize("kind", OFFERS)
@pytest.mark.parametrize("key", [*KEYS, "more"])
def test_an_offer_has_all_keys_of_its_kind_and_no_other(kind, key):
    form = OFFERS[kind]
    content_of(text_of(form), form)
    own = key in {*WHOLE, *form.own}
    other = text_of(form, **{key: GONE if own else 1})
    # Another version is for a person to install.
    with pytest.raises(InputError if key in ("format", "generator") else Refused):
        content_of(other, form)


@pytest.mark.parametrize("kind", OFFERS)
@pytest.mark.parametrize(("change", "said"), [
    ({"format": "dpfedmeta federation plan 1"}, "has format 'dpfedmeta federation plan 1', but this client has"),
    ({"generator": "another"}, f"has generator 'another', but this client has {GENERATOR!r}"),
])  # fmt: skip
def test_both_versions_are_named_where_the_form_is_another(kind, change, said):
    with pytest.raises(InputError, match=re.escape(said)) as told:
        content_of(text_of(OFFERS[kind], version="9.9", **change), OFFERS[kind])
    assert "version of dpfedmeta (9.9), or ask its operator to install " + __version__ in str(told.value)


@pytest.mark.parametrize("kind", OFFERS)
@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b"[" * 10**5])
def test_what_is_no_offer_is_refused(kind, content):
    with pytest.raises(Refused, match="this is not the plan of a federation"):
        content_of(content, OFFERS[kind])


@pytest.mark.parametrize("kind", OFFERS)
@pytest.mark.parametrize(
    "change", [{"run": "xy"}, {"run": 1}, {"roster": ["xy"]}, {"roster": ["ab", "x"]}, {"roster": 1}]
)
def test_names_in_an_offer_are_bytes(kind, change):
    with pytest.raises(Refused, match="this is not the plan of a federation"):
        content_of(text_of(OFFERS[kind], **change), OFFERS[kind])


@pytest.mark.parametrize(("signed", "opened"), list(itertools.product(OFFERS, OFFERS)))
def test_a_signature_is_of_one_kind_one_text_and_one_server(signed, opened):
    """A text that is signed as one kind is none of the other, whatever it says of itself."""
    form, other = OFFERS[signed], OFFERS[opened]
    text = text_of(other)
    signature = SERVER.sign(form.mark + text)
    if signed == opened:
        assert opened_parts(other, text, signature, SERVER.public)["run"] == WHOLE["run"]
        with pytest.raises(Refused, match=f"the {opened} is not signed by the server"):
            opened_parts(other, text + b" ", signature, SERVER.public)
        with pytest.raises(Refused, match="is not signed by the server"):
            opened_parts(other, text, signature, Identity(bytes(32)).public)
    else:
        with pytest.raises(Refused, match=f"the {opened} is not signed by the server"):
            opened_parts(other, text, signature, SERVER.public)


@pytest.mark.parametrize("version", [__version__, "9.9"])
@pytest.mark.parametrize("same", [False, True])
def test_numbers_that_are_others_here_are_named_with_the_version_that_wrote_them(monkeypatch, version, same):
    monkeypatch.setattr(signed_document, "constants", lambda own: own)
    own = {"noise_multiplier": 2.0, "clients": 5}
    content = {"privacy": own | ({} if same else {"noise_multiplier": 3.0}), "version": version}
    with nullcontext() if same else pytest.raises(Refused, match="than this client computes from its settings") as told:
        check_numbers(signed_plan.FORM, own, content, "settings")
    if not same:
        assert "privacy.noise_multiplier = 3.0, but here 2.0" in str(told.value)
        assert ("(version 9.9 there" in str(told.value)) == (version == "9.9")


def test_what_is_signed_is_what_is_said_and_comes_back(monkeypatch, tiny_strokes):
    plan = PrivacyPlan(clients=3, cohort=3, rounds=2, noise_multiplier=2.0)
    parts = signed_document.signed_parts(
        signed_plan.FORM, SERVER, replace(tiny_strokes.task, name="n"), run=b"r" * 32, roster=[b"a" * 32, b"b" * 32],
        privacy=plan, promised=guarantees(plan), clients=3, settings="s",
    )  # fmt: skip
    content = opened_parts(signed_plan.FORM, parts["text"], parts["signature"], SERVER.public)
    assert (parts["run"], parts["server"], parts["roster"]) == (b"r" * 32, SERVER.public, (b"a" * 32, b"b" * 32))
    assert (content["run"], content["server"]) == ((b"r" * 32).hex(), SERVER.public.hex())
    assert content["roster"] == [(b"a" * 32).hex(), (b"b" * 32).hex()]
    assert (content["clients"], content["settings"], content["version"]) == (3, "s", __version__)
    assert content["promised"] == json.loads(json.dumps([cell.as_json() for cell in guarantees(plan)]))
    check_numbers(signed_plan.FORM, plan, content, "settings")
    with pytest.raises(Refused):
        check_numbers(signed_plan.FORM, replace(plan, noise_multiplier=2.001), content, "settings")


USUAL = {"name": "other", "image_size": 8, "channels": 1, "train_rotations": 1, "train_flip": False, "mean": [],
         "deviation": []}  # fmt: skip


@pytest.mark.parametrize("key", USUAL)
def test_records_have_a_whole_form_in_an_offer(key):
    assert task_of({"task": USUAL}).image_size == 8
    with pytest.raises(Refused, match="says other things of the records than their form"):
        task_of({"task": {name: value for name, value in USUAL.items() if name != key}})


@pytest.mark.parametrize("more", ["source", "split", "encoding", "shared_classes", "path", "more"])
def test_an_offer_says_no_more_of_the_records_than_their_form(more):
    for content in (USUAL | {more: None}, [USUAL], None):
        with pytest.raises(Refused, match="says other things of the records than their form"):
            task_of({"task": content})


VECTORS = USUAL | {"image_size": None, "channels": None, "features": 3}


@pytest.mark.parametrize(("columns", "said"), [
    (["a", "b", "c"], None), ([], None), (["a", "b"], "names 2 columns"), (["a", "b", "b"], "names 3 columns"),
    (["a", "b", "c", "d"], "names 4 columns"), (["a", "b", " "], "columns by characters"),
    (["a", "b", "c\x07"], "columns by characters"), (["a\n", "b", "c"], "columns by characters"),
])  # fmt: skip
def test_columns_are_names_of_each_number_once(columns, said):
    content = {"task": VECTORS | {"columns": columns}}
    with nullcontext() if said is None else pytest.raises(Refused, match=said):
        assert task_of(content).features == 3


def test_of_a_run_clients_are_told_the_seed_and_the_precision_and_no_more(tiny_strokes):
    given = {"run.seed": "7", "run.name": "mine", "run.device": "auto", "track.tags": "[a]"}
    found = for_clients(resolve("dp-agr", "strokes", None, given), replace(tiny_strokes.task, name="theirs"))
    assert found.run == RunSettings(seed=7, precision=found.run.precision, device="cpu", dir="", name="federation")
    assert (found.dataset, found.track, found.privacy.spent_before) == ("theirs", TrackSettings(), ())


@pytest.mark.parametrize(("value", "why"), [
    ({"model": {"encoder_weights": "w.st"}}, "model.encoder_weights = w.st"),
    ({"model": {"initial": "w.st"}}, "model.initial = w.st"),
])  # fmt: skip
def test_files_of_the_server_are_named_whichever_setting_they_are_in(value, why):
    ((section, fields_),) = value.items()
    settings = replace(SETTINGS, **{section: replace(getattr(SETTINGS, section), **fields_)})
    assert foreign(settings).startswith(why)
    with pytest.raises(Refused, match="clients run no code and read no files that the server names"):
        check_own(settings)
