"""The server's loop among real clients: it is charged once, goes on after a kill, and waits for who is not there."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import Ledger, read_content
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.training_participation import Joined
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, ROOM_BYTES
from dpfedmeta.federation.offers.signed_plan import agreement_of
from dpfedmeta.federation.server import federation_checks
from dpfedmeta.federation.server.federation_checks import check_agreements, check_federation, check_length
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.server.training_server import Federation
from dpfedmeta.federation.wire_format import ProtocolStep, Question, QuestionKind
from dpfedmeta.learning.record_dp import micro_episode_gradients
from dpfedmeta.planning.privacy.aggregation import constants_of_the_sum
from dpfedmeta.planning.privacy.masking_graph import masking_graph
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.training.terminal.tables import noise_lines
from dpfedmeta.training.verification.verify import audit
from tests.federation.sessions import FailingWire
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE
from tests.federation.test_faults import wrong_reveals
from tests.seams.trained import Impatient

GIVEN = {**MICRO, "run.noise_seed": str(NOISE)}


class Killed(BaseException):
    """The server's process ends here."""


def killing(after):
    """A wire that kills the server when it has carried so many rounds of questions, before or after the answers."""
    count = [0]

    class Wire(FailingWire):
        def ask(self, questions, seconds):
            count[0] += 1
            if count[0] == after:
                super().ask(questions, seconds)
                raise Killed
            return super().ask(questions, seconds)

    return Wire


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_charged_once(silos, run, home, rounds):
    assert [line["round"] for line in lines_of(run.ledger)[1:-1]] == list(range(rounds))
    assert lines_of(run.ledger)[-1]["closed"]["rounds"] == rounds
    assert "closing line" not in audit(run).unverified
    for number in range(CLIENTS):
        charged = lines_of(home / f"client{number}" / "ledger.jsonl")[1:]
        assert [line["round"] for line in charged] == list(range(rounds))


@pytest.mark.parametrize("after", [3, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
def test_a_server_that_was_killed_goes_on_and_charges_once(silos, tmp_path, after):
    settings = silos.settings("dp-agrlr-micro", **GIVEN)
    tmp_path.joinpath("killed").mkdir()
    whole = silos.simulated("dp-agrlr-micro", tmp_path, **MICRO)
    with pytest.raises(Killed):
        wire = killing(after)(parties=silos.parties(tmp_path / "killed"))
        silos.serve(settings, tmp_path / "killed", wire)
    # The same code as before: another module of the user's own would be another input of its rounds.
    again = killing(0)(parties=silos.parties(tmp_path / "killed"))
    run, status = silos.serve(settings, tmp_path / "killed", again)
    assert status == "completed"
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    check_charged_once(silos, run, tmp_path / "killed", 2)
    # Once more: nothing is left to do.
    assert silos.serve(settings, tmp_path / "killed", parties={})[1] == "completed"
    with pytest.raises(InputError, match=r"it began with server\.rounds = 2"):
        silos.serve(silos.settings("dp-agrlr-micro", **GIVEN, **{"server.rounds": "3"}), tmp_path / "killed")


def test_a_server_that_does_not_charge_releases_nothing(silos, tmp_path, monkeypatch):
    """The clients charge for themselves all the same, and send."""
    monkeypatch.setattr(Ledger, "charge", lambda self, charge: None)
    heard = []
    with pytest.raises(RefusedPlan, match="has no charge for this attempt at round 0, so nothing was released"):
        silos.serve(silos.settings("dp-agrlr-micro", **GIVEN), tmp_path, heard=heard.append)
    assert [one.asked for one in heard] == [QuestionKind.PLAN, QuestionKind.VECTOR]
    run = RunDirectory(tmp_path / "run")
    assert not run.weights.exists()
    assert not run.rounds_file.exists() or not run.rounds()


def test_a_real_client_whose_code_adds_less_noise_than_it_is_charged_for_sends_nothing(silos, tmp_path, monkeypatch):
    def weaker(*, total_multiplier, charged_multiplier, denominator):
        del total_multiplier
        return GaussianMechanism(
            total_multiplier=charged_multiplier / 2, charged_multiplier=charged_multiplier / 2, denominator=denominator
        )

    def vector(self, *given):
        with monkeypatch.context() as patch:
            patch.setattr(micro_episode_gradients, "GaussianMechanism", weaker)
            return true(self, *given)

    true, heard = Joined.vector, []
    monkeypatch.setattr(Joined, "vector", vector)
    with pytest.raises(TooFew):
        silos.serve(silos.settings("dp-agrlr-micro", **GIVEN), tmp_path, heard=heard.append)
    answered = {one.asked: one.answered for one in heard}
    assert answered[QuestionKind.PLAN] == CLIENTS
    assert answered[QuestionKind.VECTOR] == 0
    assert "but a participation is charged for" in (tmp_path / "client0" / "log.txt").read_text()


def test_no_round_begins_without_enough_clients(silos, tmp_path):
    settings = silos.settings("dp-agrlr-micro", **GIVEN)
    everybody = silos.parties(tmp_path)
    few = dict(list(everybody.items())[:2])
    with pytest.raises(InputError, match=r"^only 2 of 5 clients are connected after 0 s, and 3 are needed"):
        silos.serve(settings, tmp_path, parties=few, fewest=3, wait=0.0)
    assert len(lines_of(tmp_path / "run" / "ledger.jsonl")) == 1
    heard = []
    _, status = silos.serve(settings, tmp_path, parties=everybody, fewest=3, heard=heard.append)
    assert status == "completed"
    assert [one.asked for one in heard] == [
        QuestionKind.PLAN,
        QuestionKind.VECTOR,
        QuestionKind.VECTOR,
        QuestionKind.MODEL,
    ]
    assert {one.answered for one in heard} == {CLIENTS}


class SlowAtFirst(FailingWire):
    """The plan comes back from one client more each time that it is offered."""

    offers = 0

    def ask(self, questions, seconds):
        self.offers += next(iter(questions.values()))[6] == QuestionKind.PLAN
        answers = super().ask(questions, seconds)
        return answers if self.offers > CLIENTS else dict(list(answers.items())[:1])


def test_no_round_begins_before_slow_clients_have_made_the_plan(silos, tmp_path):
    settings = silos.settings("dp-agrlr-micro", **GIVEN)
    parties = silos.parties(tmp_path)
    with pytest.raises(InputError, match="3 of 5 clients answered the plan within 0 s, and 5 are needed; no round"):
        silos.serve(settings, tmp_path, SlowAtFirst(parties=parties), fewest=CLIENTS, wait=0.0)
    assert len(lines_of(tmp_path / "run" / "ledger.jsonl")) == 1
    heard, wire = [], SlowAtFirst(parties=parties)
    wire.offers = 1
    silos.serve(settings, tmp_path, wire, fewest=CLIENTS, wait=60.0, heard=heard.append)
    # Whoever is silent is asked again inside one question.
    assert [one.asked for one in heard] == [QuestionKind.PLAN] * 2 + [
        QuestionKind.VECTOR,
        QuestionKind.VECTOR,
        QuestionKind.MODEL,
    ]
    assert [one.answered for one in heard if one.asked is QuestionKind.VECTOR] == [CLIENTS] * 2


@pytest.mark.parametrize(("algo", "given"), [("dp-agrlr-micro", MICRO)])
def test_a_server_that_was_killed_while_it_hands_out_does_so_again(silos, tmp_path, algo, given):
    settings = silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)})
    parties = silos.parties(tmp_path)
    with pytest.raises(Killed):
        silos.serve(settings, tmp_path, killing(4)(parties=parties))
    heard = []
    for handed in (["PLAN", "MODEL"], []):
        heard.clear()
        run, status = silos.serve(settings, tmp_path, parties=parties, fewest=CLIENTS, wait=0.0, heard=heard.append)
        assert (status, [one.asked.name for one in heard]) == ("completed", handed)
        assert {one.answered for one in heard} <= {CLIENTS}
    assert not list(run.secret.glob("*.bin"))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), Killed()])
def test_whatever_ended_the_server_the_same_command_hands_out_what_is_due(silos, tmp_path, error):
    """The process ends while its page is drawn: all rounds are done, and no client has the model."""
    settings, parties = silos.settings("dp-agrlr-micro", **GIVEN), silos.parties(tmp_path)

    def page(run):
        raise error

    with pytest.raises(type(error)):
        silos.serve(settings, tmp_path, parties=parties, page=page)
    assert not any(party.handed_out for party in parties.values())
    for asked in (["PLAN", "MODEL"], []):
        heard = []
        assert silos.serve(settings, tmp_path, parties=parties, heard=heard.append)[1] == "completed"
        assert [one.asked.name for one in heard] == asked
    assert all(party.handed_out for party in parties.values())


@pytest.mark.parametrize("which", [(2,), (0, 3)])
def test_a_client_that_was_away_gets_the_model_when_it_is_back(silos, tmp_path, which):
    """Its line is down while the model is handed out; the others, which have it, are gone when it is back."""
    settings, parties = silos.settings("dp-agrlr-micro", **GIVEN), silos.parties(tmp_path)
    away = {silos.roster[number] for number in which}
    names, said = [f"clinic-{number}" for number in range(CLIENTS)], []

    class Wire(FailingWire):
        def ask(self, questions, seconds):
            kinds = {Question.opened(each, Identity(silos.server).public, who).asked for who, each in questions.items()}
            there = {who: each for who, each in questions.items() if who not in away or QuestionKind.MODEL not in kinds}
            return super().ask(there, seconds)

    given = {"waiting": said.append, "names": names, "fewest": CLIENTS}
    silos.serve(settings, tmp_path, Wire(parties=parties), **given)
    have = [number for number in range(CLIENTS) if parties[silos.roster[number]].handed_out]
    assert have == [number for number in range(CLIENTS) if number not in which]
    words = ", ".join(f"clinic-{number}" for number in which)
    assert said[-1].endswith(f"type the same command again when the others are connected: {words}")
    back = {who: party for who, party in parties.items() if who in away}
    heard = []
    silos.serve(settings, tmp_path, parties=back, **given, heard=heard.append)
    assert [(one.asked.name, one.clients, one.answered) for one in heard if one.asked is QuestionKind.MODEL] == [
        ("MODEL", len(which), len(which))
    ]
    assert all(party.handed_out for party in parties.values())
    heard.clear()
    silos.serve(settings, tmp_path, parties={}, **given, heard=heard.append)
    assert not heard


def test_a_federation_that_diverged_hands_out_nothing_and_asks_no_further_round(silos, tmp_path):
    given = {**GIVEN, "server.optimizer": "sgd", "server.lr": "1e300"}
    settings, parties, heard = silos.settings("dp-agrlr-micro", **given), silos.parties(tmp_path), []
    for _ in range(2):
        assert silos.serve(settings, tmp_path, parties=parties, heard=heard.append)[1] == "diverged"
    assert [one.asked.name for one in heard] == ["PLAN", "VECTOR"]


def test_a_server_that_is_interrupted_hands_out_nothing_until_it_is_done(silos, tmp_path):
    settings, parties, heard = silos.settings("dp-agrlr-micro", **GIVEN), silos.parties(tmp_path), []
    given = {"parties": parties, "heard": heard.append}
    assert silos.serve(settings, tmp_path, callbacks=[Impatient(1)], **given)[1] == "interrupted"
    assert QuestionKind.MODEL not in {one.asked for one in heard}
    assert not any(party.handed_out for party in parties.values())
    assert silos.serve(settings, tmp_path, **given)[1] == "completed"
    assert heard[-1].asked is QuestionKind.MODEL
    assert all(party.handed_out for party in parties.values())


@pytest.mark.parametrize(("algo", "given", "needed"), [("dp-agrlr-micro", MICRO, 1), ("dp-agrlr-secure", SECURE, 4)])
def test_a_plan_that_too_many_decline_charges_nothing(silos, tmp_path, algo, given, needed):
    settings = silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)})
    willing, stingy = (silos.parties(tmp_path / name, promise=promise) for name, promise in (
        ("willing", None), ("stingy", Promise(epsilon=0.001)),
    ))  # fmt: skip
    few = {who: (willing if place < needed - 1 else stingy)[who] for place, who in enumerate(willing)}
    with pytest.raises(InputError, match=f"{CLIENTS + 1 - needed} of 5 clients declined, and a round needs {needed}"):
        silos.serve(settings, tmp_path, parties=few)
    assert len(lines_of(tmp_path / "run" / "ledger.jsonl")) == 1
    enough = {who: (willing if place < needed else stingy)[who] for place, who in enumerate(willing)}
    assert silos.serve(settings, tmp_path, parties=enough)[1] == "completed"


def test_what_is_said_of_the_masks_is_what_the_wire_uses(silos, tmp_path):
    """Of 5 clients a threshold of 3 and not 2; no epsilon depends on it."""
    settings = silos.settings("dp-agrlr-secure", **SECURE, **{"run.noise_seed": str(NOISE)})
    parties = silos.parties(tmp_path)
    run, _ = silos.serve(settings, tmp_path, parties=parties)
    (joined,) = parties[silos.roster[0]]._joined.values()
    used = agreement_of(joined.signed.plan, 0, CLIENTS)
    said = constants_of_the_sum(read_content(run.ledger).plan)
    assert (said["degree"], said["threshold"]) == (used.degree, used.threshold) == (4, 3)
    planned = make_plan(settings, open_dataset(settings.dataset, None, settings.task.ways).task)
    assert masking_graph(planned.privacy).threshold == 2
    assert f"{used.threshold} of which can recover" in " ".join(noise_lines(planned.among_real_clients().privacy))
    assert planned.among_real_clients().planned == planned.planned == guarantees(planned.among_real_clients().privacy)
    assert lines_of(run.ledger)[0]["plan"]["secure"]["malicious"] is True
    assert any("its settings give its plan" in remark for remark in audit(run).remarks)


def test_a_round_without_a_sum_ends_the_run_and_is_made_up_for(silos, tmp_path):
    """It was released as noise, charged to everybody, and the run said "completed"."""
    settings = silos.settings("dp-agrlr-secure", **SECURE, **{"run.noise_seed": str(NOISE)})
    few = {who: party for who, party in silos.parties(tmp_path).items() if who not in silos.roster[:2]}
    with pytest.raises(InputError, match=r"^round 0 has no sum \(3 clients, at least 4 are needed\)"):
        silos.serve(settings, tmp_path, parties=few)
    assert [line["round"] for line in lines_of(tmp_path / "run" / "ledger.jsonl")[1:]] == [0]
    run, status = silos.serve(settings, tmp_path)
    assert status == "completed"
    assert run.weights.read_bytes() == silos.simulated("dp-agrlr-secure", tmp_path, **SECURE).weights.read_bytes()
    check_charged_once(silos, run, tmp_path, 2)


@pytest.mark.parametrize("phase", [ProtocolPhase.SHARES, ProtocolPhase.MASKED])
def test_a_client_that_is_started_again_inside_a_round_does_not_end_the_run(silos, tmp_path, phase):
    """It lost its keys, so it declines one step; the attempt that follows has a sum, and it is in it."""
    settings = silos.settings("dp-agrlr-secure", **SECURE | {"aggregation.dropout": "0", "run.noise_seed": str(NOISE)})
    parties, gone, heard = silos.parties(tmp_path), silos.roster[2], []

    class Wire(FailingWire):
        def ask(self, questions, seconds):
            asked = Question.opened(questions[gone], Identity(silos.server).public, gone) if gone in questions else None
            of_phase = asked is not None and asked.asked is QuestionKind.PHASE and asked.attempt.round == 0
            if of_phase and int(ProtocolStep.decode(asked.body).phase) == phase and not restarted:
                restarted.append(phase)
                parties[gone] = silos.client(2, tmp_path)
            return super().ask(questions, seconds)

    restarted = []
    run, status = silos.serve(settings, tmp_path, Wire(parties=parties), fewest=CLIENTS, heard=heard.append)
    assert (status, restarted, len(lines_of(run.rounds_file))) == ("completed", [phase], 2)
    assert sum(one.declined for one in heard) == 1


@pytest.mark.parametrize(("cohort", "named"), [("5", True), ("4", False)])
def test_the_operator_is_told_whose_shares_were_wrong(silos, tmp_path, monkeypatch, cohort, named):
    wrong_reveals(2, monkeypatch, silos, lambda shares: (shares[0] ^ 1, shares[1] ^ 1))
    given = SECURE | {"population.cohort": cohort, "aggregation.dropout": "0.2" if named else "0"}
    told, names = [], ["first", "second", "third", "fourth", "fifth"]
    settings = silos.settings("dp-agrlr-secure", **given, **{"run.noise_seed": str(NOISE)})
    run, status = silos.serve(settings, tmp_path, blamed=told.append, names=names)
    assert status == "completed"
    kept = lines_of(run.secret / "faults.jsonl")
    assert {tuple(line["clients"]) for line in kept} == {(2,)}
    # With a sum, each of two rounds names it four times; without one, its only round is not tried again with it.
    assert len(kept) == len(told) == (8 if named else 3)
    assert {(line["round"], line["left_out"]) for line in kept} == ({(0, False), (1, False)} if named else {(0, True)})
    assert any("third revealed another number" in line for line in told) == named
    assert all("third revealed another number" in line["text"] for line in kept)


def test_a_run_ends_when_all_clients_have_kept_their_promise(silos, tmp_path):
    """Rounds of nobody are noise; one is charged before it is known."""
    settings = silos.settings("dp-agrlr-micro", **GIVEN, **{"server.rounds": "6"})
    with pytest.raises(InputError, match=r"^5 of 5 clients declined, and a round needs 1"):
        silos.serve(settings, tmp_path, parties=silos.parties(tmp_path, promise=Promise(participations=2)))
    assert [line["round"] for line in lines_of(tmp_path / "run" / "ledger.jsonl")[1:-1]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("algo", "given", "words"),
    [
        ("dp-agr", {"population.dropout": "0.1"}, r"population\.dropout = 0\.1: is only for simulated clients"),
        ("dp-agr", {"server.timeout": "2"}, r"server\.timeout"),
        ("dp-agr", {"population.episodes": "whole"}, r"population\.episodes = whole: is only for simulated clients"),
        ("dp-agr", {"population.own_test": "0.3"}, r"population\.own_test = 0\.3: is only for simulated clients"),
        ("dp-agr", {"population.register": "r"}, r"population\.register = r: is only for simulated clients"),
        ("dp-agr", {"population.clients": "6"}, "the roster names 5 clients"),
        ("dp-agrlr-secure", {**SECURE, "population.sampler": "poisson"}, "nobody knows how often real clients fail"),
    ],
)
def test_what_real_clients_cannot_be_is_refused(silos, algo, given, words):
    with pytest.raises((InputError, RefusedPlan), match=words):
        check_federation(silos.settings(algo, **given), silos.roster)


def test_a_roster_has_to_be_one(silos):
    settings = silos.settings("dp-agr")
    for roster in ((*silos.roster[:3], silos.roster[0]), (*silos.roster[:3], b"short")):
        with pytest.raises(InputError, match="roster: the 4 identities must all differ"):
            check_federation(settings, roster)


def test_too_few_clients_to_agree_on_who_survived_are_refused(silos):
    """Six, of whom two may be silent and one lies: two lists could each have supporters. A fifth of six is one."""
    given = SECURE | {"population.clients": "6", "population.cohort": "6"}
    for dropout, refused in (("0.35", True), ("0.2", False), ("0", False)):
        settings = silos.settings("dp-agrlr-secure", **given | {"aggregation.dropout": dropout})
        plan = make_plan(settings, open_dataset(settings.dataset, None, settings.task.ways).task)
        with pytest.raises(RefusedPlan, match="lower aggregation") if refused else nullcontext():
            check_agreements(plan)


# A value that real clients cannot have, of every setting that is of simulated ones.
OF_SIMULATIONS = {
    "population.dropout": 0.1,
    "population.latency_spread": 0.5,
    "server.timeout": 2.0,
    "population.most_shots": 3,
    "population.own_test": 0.3,
    "population.episodes": "whole",
    "population.register": "register.jsonl",
    "record.client_ledgers": True,
}


@pytest.mark.parametrize("name", OF_SIMULATIONS)
def test_each_setting_of_simulated_clients_alone_is_refused(silos, name):
    settings = silos.settings("dp-agr")
    check_federation(settings, silos.roster)
    section, field = name.split(".")
    changed = replace(getattr(settings, section), **{field: OF_SIMULATIONS[name]})
    with pytest.raises(InputError, match=rf"^{name} = {OF_SIMULATIONS[name]}: is only for simulated clients"):
        check_federation(replace(settings, **{section: changed}), silos.roster)


@pytest.mark.parametrize("refused", [None, 4, 5, 6, 7])
def test_every_cohort_that_may_be_invited_has_to_agree(monkeypatch, refused):
    """The smallest, the largest, and one between them alone."""
    asked = []

    def agrees(plan, round_, invited):
        asked.append(invited)
        if invited == refused:
            raise InputError("too few to agree")

    monkeypatch.setattr(federation_checks, "agreement_of", agrees)
    monkeypatch.setattr(federation_checks, "check_company", lambda privacy, company: asked.append(company))
    whole = SimpleNamespace(least=4, most=7)
    privacy = SimpleNamespace(at=lambda round_: SimpleNamespace(whole=whole), secure=object())
    settings = SimpleNamespace(aggregation=SimpleNamespace(company="picked"))
    with nullcontext() if refused is None else pytest.raises(RefusedPlan, match="too few to agree; lower aggregation"):
        check_agreements(SimpleNamespace(privacy=privacy, settings=settings))
    assert asked == ["picked", *range(4, (refused or 7) + 1)]


def test_a_message_that_the_wire_does_not_take_is_refused_before_it_is_charged():
    check_length("few numbers", MOST_BYTES - ROOM_BYTES)
    with pytest.raises(RefusedPlan, match=r"^many: a message of 67,104,769 bytes, and the wire takes 67,108,864$"):
        check_length("many", MOST_BYTES - ROOM_BYTES + 1)


@pytest.mark.parametrize("numbers", [9, MOST_BYTES // 4])
def test_a_network_that_no_message_holds_is_no_plan_of_a_federation(silos, numbers):
    initial = {"w": torch.empty(numbers, device="meta")}
    algorithm = SimpleNamespace(initial=lambda network, seed: initial, learned=lambda network, initial: {})
    plan = SimpleNamespace(
        privacy=SimpleNamespace(clients=CLIENTS, secure=None, at=lambda round_: SimpleNamespace(whole=None)),
        algorithm=algorithm, network=None, settings=SimpleNamespace(run=SimpleNamespace(seed=0)),
    )  # fmt: skip
    federation = Federation(channel=None, identity=silos.server, roster=silos.roster, seconds=1.0)
    with nullcontext() if numbers == 9 else pytest.raises(RefusedPlan, match="16,777,216 weights are too many for a"):
        federation.population(plan)
