"""The facts of a run: whatever plan.json and summary.json state is one, or has a form, and no leaf may be edited."""

import copy
import json
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import complete
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY
from dpfedmeta.data.encoders.encoding import EncoderCard, EncoderFacts
from dpfedmeta.training.results.facts import plan_facts
from dpfedmeta.training.state.how_to_resume import check_simulated, kind_of_clients
from dpfedmeta.training.verification.file_claims import check_facts
from dpfedmeta.training.verification.proven import Proven
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
def test_what_goes_on_by_the_kind_of_its_clients_finds_it_in_the_ledger(tmp_path, kind):
    writer = Writer(tmp_path, kind=kind)
    assert kind_of_clients(writer.run) == kind
    refused = pytest.raises(InputError, match="belongs to a federation") if kind == "asked" else nullcontext()
    with refused:
        check_simulated(writer.run)


def test_what_is_said_of_the_data_is_what_the_ledger_holds_here_and_elsewhere(proven, monkeypatch):
    """However consistent, and whether or not task and encoder are here: nobody looks at them."""
    run, facts = proven
    monkeypatch.setattr("dpfedmeta.config.dataset_names.task_of", not_here)
    held = facts.content.identity
    said = replace(facts.described, encoder=ENCODER, task=replace(facts.described.task, name="ours", own=True))
    content = replace(facts.content, identity=replace(held, described=json.loads(json.dumps(asdict(said)))))
    model = replace(facts.settings.model, encoder="lite0", initial="a/run")
    elsewhere = replace(facts, content=content, settings=replace(facts.settings, model=model))
    stated = json.loads(json.dumps(elsewhere.facts(PLAN)))
    assert stated["begins_with"] == (
        "encoder lite0 at 160 pixels (Apache-2.0; trained on ImageNet); begins with the body of a/run (taken as "
        "public); no guarantee covers the data it was learned from"
    )
    assert any(caution.startswith("ours: the images of its validation") for caution in stated["cautions"])
    check_facts(run.path / PLAN, PLAN, stated, elsewhere)
    for other in (
        replace(said, population=replace(said.population, kind="asked", form=0)),
        replace(said, population=replace(said.population, form=0, images=400)),
        replace(said, population=replace(said.population, records=7)),
        replace(said, encoder=replace(ENCODER, licence="every guarantee covers it")),
        replace(said, encoder=None),
        replace(said, task=replace(said.task, own=False)),
        replace(said, task=replace(said.task, records=1)),
    ):
        forged = plan_facts(elsewhere.settings, content.plan, facts.planned, other)
        with pytest.raises(InputError, match="states"), complete(run.path / PLAN):
            check_facts(run.path / PLAN, PLAN, json.loads(json.dumps(forged)), elsewhere)


def test_the_number_of_clients_in_a_description_is_the_plans(proven):
    _, facts = proven
    held = facts.content.identity.described
    described = {**held, "population": {**held["population"], "clients": 10**6}}
    other = replace(facts.content, identity=replace(facts.content.identity, described=described))
    assert replace(facts, content=other).described == facts.described


@pytest.mark.parametrize("place", [("population",), ("task",), ("encoder",), ("population", "form")])
def test_a_ledger_whose_description_lacks_something_is_refused_in_a_line(proven, place):
    _, facts = proven
    described = copy.deepcopy(dict(facts.content.identity.described))
    inside = described
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = 99
    content = replace(facts.content, identity=replace(facts.content.identity, described=described))
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 1: identity\.described: incomplete"):
        replace(facts, content=content).facts(SUMMARY)


@pytest.mark.parametrize("key", ["licence", "trained_on"])
@pytest.mark.parametrize("words", ["no promise needed", "Guaranteed private", "a\nb", "<i>", "x" * 201])
def test_a_card_claims_no_privacy(key, words):
    """Else the pages of its runs would be refused, after the training."""
    given = {"licence": "CC0", "trained_on": "nothing", "features": 3, "digest": ""} | {"mean": (0.0,) * 3}
    EncoderCard(**given, deviation=(1.0,) * 3)
    with pytest.raises(InputError, match=f"the card of an encoder: {key} = "):
        EncoderCard(**given | {key: words}, deviation=(1.0,) * 3)
