"""Every setting of the schema has a row that says who keeps it among real clients; a dishonest server is tried."""

import importlib.util
import json
import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import get_args

import pytest
import yaml

from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.config.settings import setting_fields, value_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.offers import offered_settings, signed_plan
from dpfedmeta.federation.offers.kept_settings import SETTINGS, Keeper
from dpfedmeta.federation.offers.offered_settings import check_own, check_taken, for_clients
from dpfedmeta.federation.offers.signed_document import MOST_LETTERS
from dpfedmeta.federation.offers.signed_plan import opened_plan
from dpfedmeta.federation.wire_format import Offer, QuestionKind, Said
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.sessions import open_session

TESTS = Path(__file__).parents[1]
# A value that no federation takes, of each setting of which it takes some values alone.
OTHERS = {
    "population.sampler": "check-ins", "population.episodes": "whole", "population.register": "register.jsonl",
    "population.most_shots": 3, "population.own_test": 0.3, "population.dropout": 0.1,
    "population.availability": "diurnal", "population.latency_spread": 0.5, "server.noise": "mine:Noise",
    "server.abort_on_failure": True, "server.timeout": 2.0, "aggregation.mode": "mine:Sum",
    "aggregation.protocol": True, "aggregation.rough": True, "aggregation.dimension": 7, "clip.start": "quantile",
    "clip.own": {"a": 1}, "record.client_ledgers": True, "privacy.spent_before": ("runs/a",),
    "task.support_share": 0.4, "task.most_ways": 7, "task.most_records": 9, "task.balance": "records",
    "model.encoder_weights": "w.safetensors", "track.public_clients": 2, "track.to": ("wandb",),
    "track.wandb": "online", "track.project": "p", "track.entity": "e", "track.group": "g", "track.tags": ("t",),
    "track.model": True, "track.tensorboard": True, "run.name": "mine", "run.dir": "/", "run.noise_seed": 7,
    "run.device": "cuda", "run.chunk": 2, "run.workers": 2, "run.checkpoint_every": 3, "run.keep_checkpoints": 3,
}  # fmt: skip
# Another value, of each setting on which no promise counts.
PUBLIC = {
    "algo": "mine", "dataset": "theirs", "population.records": 600,
    "server.optimizer": "sgd", "server.lr": 0.5, "server.final_lr": 0.1, "server.unit": "raw", "server.beta1": 0.1,
    "server.beta2": 0.3, "server.average": 0.5, "clip.window": 9, "clip.percentile": 50.0, "clip.quantile": 0.3,
    "clip.rate": 0.5, "clip.lowest": 0.1, "clip.highest": 2.0, "model.initial": "strokes", "evaluation.episodes": 9,
    "evaluation.queries": 7, "evaluation.ways": 3, "evaluation.shots": 3, "evaluation.every": 7,
    "evaluation.validation_episodes": 9, "evaluation.adapt": "head", "evaluation.steps": 9, "evaluation.lr": 0.1,
    "run.seed": 9,
}  # fmt: skip
# Where a dishonest server is tried, by what keeps it.
TRIED = {
    "federation.offers.signed_document.check_numbers": "federation/test_kept_settings.py::test_other_numbers_than_those_of_the_settings_are_declined",  # noqa: E501
    "federation.client.training_participation.Joined.vector": "federation/test_kept_settings.py::test_a_message_is_clipped_whatever_a_server_sets",  # noqa: E501
    "federation.offers.plan_limits.PlanLimits.open_rounds": "federation/test_plan_limits_of_clients.py::test_a_server_that_asks_in_every_round_gets_what_the_plan_allows",  # noqa: E501
    "federation.client.client.RealClient.answer": "federation/test_client.py::test_an_old_round_is_declined",
    "federation.offers.signed_plan.SignedPlan.agreement": "federation/test_client.py::test_clients_that_are_told_different_survivors_reveal_nothing",  # noqa: E501
    "federation.client.client_budget.Floors.check": "federation/test_client.py::test_a_plan_below_a_clients_floors_is_declined",  # noqa: E501
    "federation.offers.signed_plan.opened_plan": "federation/test_client.py::test_a_company_that_the_server_picks_is_counted_by_the_client_too",  # noqa: E501
    "federation.client.client_state.row_key": "federation/test_client_state.py::test_the_key_of_rows_is_drawn_once_for_a_home_and_goes_where_it_goes",  # noqa: E501
    "federation.offers.offered_settings.with_own_encoder": "federation/test_encoded_clients.py",
}
ONLY = [name for name, row in SETTINGS.items() if row.only is not None]
MOST = [name for name, row in SETTINGS.items() if row.most is not None]
# Numbers by which a client's own work grows, and sizes of what it reads.
BOUNDED = {
    "evaluation.steps", "meta.division_shots", "meta.divisions", "meta.steps", "model.width", "population.clients",
    "record.micro_queries", "record.micro_shots", "record.micro_ways", "server.buffers", "server.rounds",
    "server.schedule", "task.queries", "task.shift", "task.shots", "task.ways",
}  # fmt: skip


def test_every_number_that_a_clients_work_grows_with_has_a_limit():
    assert set(MOST) == BOUNDED


def with_value(settings, name, value):
    section, _, key = name.partition(".")
    if not key:
        return replace(settings, **{section: value})
    return replace(settings, **{section: replace(getattr(settings, section), **{key: value})})


def too_much(name):
    most = int(SETTINGS[name].most)
    if name == "server.schedule":
        return [{"from_round": place, "noise_scale": 1.0, "cohort_scale": 1.0} for place in range(most + 1)]
    return most + 1


@pytest.fixture(scope="module")
def honest(silos, tmp_path_factory):
    return open_session(silos, tmp_path_factory.mktemp("honest"), "dp-agr")


def forged(session, name, value):
    """The plan of the session with one setting changed, and signed by its server all the same."""
    content = json.loads(session.signed.text)
    settings = yaml.safe_load(content["settings"])
    section, _, key = name.partition(".")
    place = settings if not key else settings[section]
    place[key or section] = list(value) if isinstance(value, tuple) else value
    return signed_text(session, content | {"settings": yaml.safe_dump(settings)})


def signed_text(session, content):
    text = json.dumps(content, sort_keys=True).encode()
    server = Identity(session.silos.server)
    return replace(session.signed, text=text, signature=server.sign(signed_plan.FORM.mark + text))


def asked(session, offer, number=0):
    """(what a real client says to the offer, its log since then)."""
    client = session.parties[session.silos.roster[number]]
    log = client._folder / "log.txt"
    before = log.read_text() if log.exists() else ""
    body = Offer(number=number, signature=offer.signature, text=offer.text).encode()
    said = client.answer(session.question(number, asked=QuestionKind.PLAN, body=body, plan=offer.digest))
    return Said(said[6]), log.read_text()[len(before) :]


def test_every_setting_of_the_schema_is_on_the_list_and_nothing_else_is():
    assert [name for name, _, _ in setting_fields()] == [*sorted(SETTINGS, key=_place)]
    assert {row.keeper for row in SETTINGS.values()} == {*get_args(Keeper)}
    for name, row in SETTINGS.items():
        assert row.why, name
        assert bool(row.by) == (row.keeper == "client"), name
        assert row.keeper not in ("nobody", "unsent") or len(row.only) == 1, name
        assert not row.simulated or row.keeper == "nobody", name
    assert {*OTHERS} == {*ONLY}
    assert {*PUBLIC} == {name for name, row in SETTINGS.items() if row.keeper == "public"}


def _place(name):
    return [field for field, _, _ in setting_fields()].index(name)


def test_what_keeps_a_setting_is_there_and_is_tried():
    assert {row.by for row in SETTINGS.values()} - {""} == {*TRIED}
    for by, test in TRIED.items():
        module, names = "dpfedmeta", by.split(".")
        while importlib.util.find_spec(f"{module}.{names[0]}"):
            module += f".{names.pop(0)}"
            if not hasattr(importlib.import_module(module), "__path__"):
                break
        assert callable(reduce(getattr, names, importlib.import_module(module)))
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name or 'test_'}", (TESTS / file).read_text(), re.MULTILINE), test


@pytest.mark.parametrize("place", ["server", "client"])
@pytest.mark.parametrize("name", ["server.lr", "population.kind", "task.ways"])
def test_a_setting_without_a_row_is_refused(silos, monkeypatch, name, place):
    """As a new one is, until somebody says who keeps it."""
    settings = silos.settings("dp-agr")
    check_taken(settings)
    offered = for_clients(settings, load_task(settings.dataset)[0])
    check_own(offered)
    monkeypatch.delitem(SETTINGS, name)
    words = rf"{name} = .*: nobody has said yet who keeps it"
    if place == "server":
        with pytest.raises(RefusedPlan, match=f"^{words}"):
            check_taken(settings)
    else:
        with pytest.raises(Refused, match=f"^the plan has {words}"):
            check_own(offered)


@pytest.mark.parametrize("name", ONLY)
def test_other_values_are_refused_by_the_server_and_by_every_client(silos, honest, monkeypatch, name):
    """A dishonest server offers such a plan all the same; nothing is planned for it."""
    settings, row = silos.settings("dp-agr"), SETTINGS[name]
    changed = with_value(settings, name, OTHERS[name])
    if row.keeper == "unsent":
        check_taken(changed)
        sent = for_clients(changed, load_task(settings.dataset)[0])
        assert value_of(sent, name) == row.only[0]
    else:
        with pytest.raises(InputError if row.simulated else RefusedPlan, match=f"^{re.escape(name)} = "):
            check_taken(changed)
    monkeypatch.setattr(signed_plan, "make_plan", None)
    said, log = asked(honest, forged(honest, name, OTHERS[name]))
    assert said is Said.DECLINED
    assert f"declined: the plan has {name} = " in log or "run no code" in log


@pytest.mark.parametrize("name", MOST)
def test_more_than_a_client_does_is_refused_before_any_work(silos, honest, monkeypatch, name):
    monkeypatch.setattr(signed_plan, "make_plan", None)
    said, log = asked(honest, forged(honest, name, too_much(name)))
    assert said is Said.DECLINED
    assert f"the plan has {name} = {int(SETTINGS[name].most) + 1:,}: a client of a federation takes at most" in log
    if name != "server.schedule":
        with pytest.raises(InputError, match=f"^{re.escape(name)} = .*: a client of a federation takes at most"):
            check_taken(with_value(silos.settings("dp-agr"), name, too_much(name)))


def test_code_of_the_servers_is_no_value_whatever_the_list_says(honest, monkeypatch):
    monkeypatch.setattr(offered_settings, "_problem", lambda *given, **more: None)
    said, log = asked(honest, forged(honest, "clip.policy", "mine:Policy"))
    assert said is Said.DECLINED
    assert "clients run no code" in log


def test_secure_sums_of_cohorts_of_secret_size_are_refused_on_both_sides(silos):
    settings = silos.settings("dp-agr-secure", **{"population.sampler": "poisson"})
    with pytest.raises(RefusedPlan, match="nobody knows how often real clients fail"):
        check_taken(settings)
    with pytest.raises(Refused, match="nobody knows how often real clients fail"):
        check_own(for_clients(settings, load_task(settings.dataset)[0]))


@pytest.mark.parametrize("name", PUBLIC)
def test_no_number_of_a_plan_follows_from_what_is_public(silos, name):
    settings = for_clients(silos.settings("dp-agr"), task := load_task(str(silos.public))[0])
    changed = with_value(settings, name, PUBLIC[name])
    assert value_of(changed, name) != value_of(settings, name)
    check_own(changed)
    assert constants(make_privacy(changed, task)) == constants(make_privacy(settings, task))


SOLVED = {
    "population.clients": 4, "population.cohort": 3.0, "population.max_participations": 2, "server.rounds": 5,
    "server.noise_multiplier": 0.5, "privacy.client.delta": 0.01, "privacy.record.delta": 0.01,
    "privacy.client.colluding": 2, "privacy.client.epsilon": 3.0, "server.noise_site": "clients",
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_other_numbers_than_those_of_the_settings_are_declined(silos, honest, name):
    """The text states the numbers of one plan, and the settings of another."""
    offer = forged(honest, name, SOLVED[name])
    with pytest.raises(Refused, match=r"states other numbers|two different numbers|is refused here"):
        opened_plan(offer.text, offer.signature, Identity(silos.server).public)


@pytest.mark.parametrize("rounds", [-3, 0, 2.5, True, 10**9])
def test_earlier_releases_take_no_cost_away_and_are_no_bomb(silos, honest, rounds):
    event = honest.plan.privacy.at(0).as_json()
    content = json.loads(honest.signed.text)
    content["privacy"]["earlier"] = [{"run": "a", "head": "b", "phases": [{"rounds": rounds, "event": event}]}]
    said, log = asked(honest, signed_text(honest, content))
    assert said is Said.DECLINED
    assert "earlier r" in log


STEERED = {"meta.lr": 1e6, "meta.order": 1, "meta.adapt": "head", "model.first_gain": 50.0, "clip.initial": 9.0}


@pytest.mark.parametrize(("name", "value"), STEERED.items())
def test_a_message_is_clipped_whatever_a_server_sets(silos, honest, tmp_path, name, value):
    session = open_session(silos, tmp_path, "dp-agr", **{name: str(value)})
    bounded = session.asked(bound=0.25)
    norms = [float(each.square().sum().sqrt()) for each in bounded.value.values()]
    # Five messages of the bound at most.
    assert sum(norm**2 for norm in norms) ** 0.5 <= 5 * 0.25 * (1 + 1e-5)


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "settings name a part of themselves"),
        ("#" * (MOST_LETTERS + 1), "settings have 100,001 letters: a client reads at most 100,000"),
        ("a: 'b", "settings are not valid YAML"),
        (7, "the plan is refused here"),
    ],
    ids=["laughs", "long", "broken", "no text"],
)
def test_settings_that_grow_without_bound_are_not_read(honest, monkeypatch, text, words):
    monkeypatch.setattr(signed_plan, "resolve_text", None)
    content = json.loads(honest.signed.text) | {"settings": text}
    said, log = asked(honest, signed_text(honest, content))
    assert said is Said.DECLINED
    assert words in log
