"""The facts of a run: whatever plan.json and summary.json state is one, or has a form, and no leaf may be edited."""

import copy
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import complete
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY
from dpfedmeta.data.encoders.encoding import EncoderCard, EncoderFacts
from dpfedmeta.training.results.facts import Described, plan_facts
from dpfedmeta.training.state.how_to_resume import check_simulated, kind_of_clients
from dpfedmeta.training.verification.file_claims import check_facts
from dpfedmeta.training.verification.proven import Proven
from tests.training.described import described
from tests.training.runs.test_snapshot import Writer

ENCODER = EncoderFacts(name="lite0", size=160, licence="Apache-2.0", trained_on="ImageNet", task="strokes", overlap="")
# Numbers that nobody proves, each said to be so (`Proven.unverified`); words have forms.
FREE = (
    "status", "rounds", "seconds", "clients_per_second", "peak_memory_mb", "times", "accuracy", "versions", "made_by",
    "cost", "code",
)  # fmt: skip


@pytest.fixture
def proven(tmp_path, monkeypatch):
    """A run of eight rounds without training; its population and its encoder are described."""
    writer = Writer(tmp_path)
    writer.rounds(8)
    writer.end("completed")
    return writer.run, Proven.of(writer.run, read_content(writer.run.ledger))


def not_here(settings):
    raise InputError(f"{settings.dataset}: is not here")


def facts_of_clients(facts):
    return described(facts.settings, facts.content.plan).population


def leaves(content, place=()):
    """The place of each value that holds no other."""
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from leaves(value, (*place, name))
    elif isinstance(content, list) and content:
        for number, value in enumerate(content):
            yield from leaves(value, (*place, number))
    else:
        yield place


def with_other(content, place):
    """A copy with another value at a place, and what it is."""
    made = copy.deepcopy(content)
    inside = made
    for name in place[:-1]:
        inside = inside[name]
    value = inside[place[-1]]
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value * 0.99 if value else 7
    elif isinstance(value, str):
        other = f"{value} x"
    else:
        other = {"x": 1} if isinstance(value, dict) else ["x"] if isinstance(value, list) else 7
    inside[place[-1]] = other
    return made


@pytest.mark.parametrize("name", [PLAN, SUMMARY])
def test_no_leaf_that_follows_from_the_ledger_may_be_edited_left_out_or_added(proven, name):
    run, facts = proven
    stated, path = run.read_json(name), run.path / name
    check_facts(path, name, stated, facts)
    places = [place for place in leaves(stated) if not place[0].startswith(FREE)]
    assert len(places) > 60
    for place in places:
        with pytest.raises(InputError), complete(path):
            check_facts(path, name, with_other(stated, place), facts)
    for key in {place[0] for place in places}:
        with pytest.raises(InputError), complete(path):
            check_facts(path, name, {each: value for each, value in stated.items() if each != key}, facts)
    for key in ("certified_by", "guarantee", "chosen"):
        with pytest.raises(InputError), complete(path):
            check_facts(path, name, {**stated, key: "an auditor"}, facts)


@pytest.mark.parametrize("kind", ["virtual", "asked", "own"])
def test_what_goes_on_by_the_kind_of_its_clients_finds_it_in_a_plan_that_a_run_writes(proven, kind):
    run, facts = proven
    plan = facts.content.plan
    own = replace(facts_of_clients(facts), kind=kind, form=1 if kind == "virtual" else 0)
    stated = replace(described(facts.settings, plan), population=own)
    run.write_json(PLAN, plan_facts(facts.settings, plan, facts.planned, stated))
    assert kind_of_clients(run) == kind
    refused = pytest.raises(InputError, match="belongs to a federation") if kind == "asked" else nullcontext()
    with refused:
        check_simulated(run)


@pytest.mark.parametrize("name", [PLAN, SUMMARY])
@pytest.mark.parametrize("change", [{"kind": "disjoint"}, {"clients": 4000}, {"own_test": 0.25}])
def test_what_is_said_of_clients_is_of_the_settings_however_consistent(proven, name, change):
    run, facts = proven
    stated = run.read_json(name)
    other = replace(facts_of_clients(facts), **change).as_json()
    key = next(iter(change))
    with pytest.raises(InputError, match=rf"described\.population\.{key}: states"):
        check_facts(run.path / name, name, stated | {"described": stated["described"] | {"population": other}}, facts)


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [
        ("name", "lite4", "begins_with: states 'encoder lite4"),
        ("task", "cifar-fs", "encoder.task: states 'cifar-fs'"),
        ("licence", "every guarantee below covers it", "licence: states"),
        ("trained_on", "nobody; epsilon = 0", "trained_on: states"),
        ("trained_on", "a\nb", "trained_on: states"),
        ("trained_on", "<b>nothing</b>", "trained_on: states"),
        ("overlap", "none", "overlap: states"),
        ("size", "160 pixels", "size: states"),
        ("vouched_by", "us", "incomplete"),
        (None, None, "model.encoder is 'lite0'"),
    ],
)
@pytest.mark.parametrize("here", [False, True])
def test_what_is_said_of_an_encoder_is_made_of_facts(proven, monkeypatch, key, value, due, here):
    """They are compared where the encoder is here, and have forms where it is not."""
    run, facts = proven
    if not here:
        monkeypatch.setattr("dpfedmeta.training.results.facts.task_of", not_here)
    model = replace(facts.settings.model, encoder="lite0", initial="a/run")
    encoded = replace(facts, settings=replace(facts.settings, model=model))
    with_encoder = Described.of(facts_of_clients(facts), encoded.settings, task_of(encoded.settings)[0])
    stated = json.loads(json.dumps(encoded.summary_facts(with_encoder)))
    assert with_encoder.encoder == ENCODER
    assert stated["begins_with"] == (
        "encoder lite0 at 160 pixels (Apache-2.0; trained on ImageNet); begins with the body of a/run (taken as "
        "public); no guarantee covers the data it was learned from"
    )
    path = run.path / SUMMARY
    check_facts(path, SUMMARY, stated, encoded)
    other = None if key is None else stated["described"]["encoder"] | {key: value}
    words = EncoderFacts(**other).words if other and key != "vouched_by" else ""
    begins = stated["begins_with"].replace(ENCODER.words, words)
    forged = stated | {"described": stated["described"] | {"encoder": other}, "begins_with": begins}
    with pytest.raises(InputError, match="begins_with: states|described.encoder" if here else due), complete(path):
        check_facts(path, SUMMARY, forged, encoded)


@pytest.mark.parametrize("key", ["licence", "trained_on"])
@pytest.mark.parametrize("words", ["no promise needed", "Guaranteed private", "a\nb", "<i>", "x" * 201])
def test_a_card_claims_no_privacy(key, words):
    """Else the pages of its runs would be refused, after the training."""
    given = {"licence": "CC0", "trained_on": "nothing", "features": 3, "digest": ""} | {"mean": (0.0,) * 3}
    EncoderCard(**given, deviation=(1.0,) * 3)
    with pytest.raises(InputError, match=f"the card of an encoder: {key} = "):
        EncoderCard(**given | {key: words}, deviation=(1.0,) * 3)


def test_where_the_task_is_not_here_its_cautions_are_made_of_facts_that_the_settings_bound(proven):
    run, facts = proven
    settings = replace(facts.settings, dataset="gone/ours.csv")
    gone, path, plan = replace(facts, settings=settings), run.path / PLAN, facts.content.plan
    plain = described(facts.settings, plan)
    elsewhere = replace(plain, task=replace(plain.task, name="ours", kind="rows", own=True))
    made = json.loads(json.dumps(plan_facts(settings, plan, facts.planned, elsewhere)))
    assert any(caution.startswith("ours: the rows of its validation and test classes") for caution in made["cautions"])
    check_facts(path, PLAN, made, gone)
    for change, said in (
        ({"own": False}, "cautions|own"),
        ({"records": 10**9}, "records: states"),
        ({"records": 1}, "rec"),
    ):
        other = replace(elsewhere, task=replace(elsewhere.task, **change))
        forged = json.loads(json.dumps(plan_facts(settings, plan, facts.planned, other)))
        with pytest.raises(InputError, match=said), complete(path):
            check_facts(path, PLAN, forged, gone)
    with pytest.raises(InputError, match="cautions"):
        check_facts(path, PLAN, made | {"cautions": []}, gone)
