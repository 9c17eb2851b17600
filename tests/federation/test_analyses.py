"""Analyses of real clients: the numbers of the simulation, charged by who answers, and one answer for one charge."""

import json
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import epsilon_of_discrete, summed_coordinates
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.ledger.ledger import Ledger, read_content
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.analytics.analysis import PendingRelease
from dpfedmeta.analytics.analysis_request import FixedCohort, Request, made, options_of
from dpfedmeta.analytics.client_answers import HeldImages
from dpfedmeta.analytics.execute import Place, begin, resume
from dpfedmeta.analytics.public_context import Ground
from dpfedmeta.analytics.simulated_clients import IdealSums, SimulatedClients
from dpfedmeta.analytics.verification import verify
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import SUMMARY, RunDirectory
from dpfedmeta.core.random.fresh_seeds import secret_of_run
from dpfedmeta.core.random.random_sources import Purpose
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise, epsilon_after, participation
from dpfedmeta.federation.client.local_data import OwnRecords
from dpfedmeta.federation.flower.flower_environment import ROOM_BYTES
from dpfedmeta.federation.offers.signed_analysis import sign_analysis
from dpfedmeta.federation.server import federation_checks, quorum
from dpfedmeta.federation.server.analytics_server import Company
from dpfedmeta.federation.wire_format import Attempt, Offer, Question, Said, opened_answer
from dpfedmeta.federation.wire_format import QuestionKind as Kind
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.rounds.cohort_log import Participations, draw
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from tests.federation.sessions import FailingWire, phase_of
from tests.federation.silos import CLIENTS, MICRO, NOISE
from tests.federation.test_one_dishonest_silo import acts, misdealing

OPTIONS = {"quantile": {"bins": 12}, "histogram": {}, "heavy-hitters": {"length": 12, "most_names": 2}, "gain": {}}
KINDS = [*OPTIONS]


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def trained(silos, tmp_path_factory):
    """A run's weights; nobody has to have learned anything."""
    run = RunDirectory(tmp_path_factory.mktemp("trained"))
    settings = silos.settings("dp-agr", silos.everybody)
    plan = make_plan(settings, load_task(settings.dataset)[0])
    run.weights.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(plan.algorithm.initial(plan.network, 5), run.weights)
    return str(run.path)


def request_of(silos, kind, trained=None, dataset=None, **changes):
    own = OPTIONS[kind] | ({"run": trained} if kind == "gain" else {})
    return Request(
        **{
            "kind": kind, "epsilon": 20.0, "delta": 1e-3, "cohort": float(CLIENTS), "clients": CLIENTS,
            "own": options_of(made(kind, own)), "settings": silos.settings("dp-agr", dataset),
            "run": trained if kind == "gain" else None, "noise_seed": NOISE, "fixed": FixedCohort(dropout=0.2),
            **changes,
        }
    )  # fmt: skip


def company(silos, home, wire=FailingWire, parties=None, **given):
    parties = silos.parties(home) if parties is None else parties
    heard = given.pop("heard", lambda heard: None)
    channel = wire(parties=parties, **given)
    return Company(channel=channel, identity=silos.server, roster=silos.roster, seconds=1.0, wait=0.0, heard=heard)


def asked(silos, home, request, name="asked", **given):
    place = Place(folder=str(home), name=name)
    return begin(request, place, asked_of=company(silos, home, **given).asked_of)


def found(run):
    return run.read_json(SUMMARY)["found"]


def charges(home, number=0):
    path = home / f"client{number}" / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def log_of(home, number=0):
    return (home / f"client{number}" / "log.txt").read_text()


def ideal(silos, request, run, numbers):
    """What the simulation releases where these clients answer, of the same charge."""
    sums = ideal_sums(silos, request, run, numbers)
    analysis, asking = sums.analysis, sums.asking
    released = analysis.released(asking, sums.told, sums, asking.source.generator(Purpose.SERVER_NOISE, 0))
    return json.loads(json.dumps(analysis.result(asking.plan, released)))


def ideal_sums(silos, request, run, numbers):
    everybody = SimulatedClients(replace(request, settings=silos.settings("dp-agr", silos.everybody)))
    analysis = request.analysis
    content = read_content(run.ledger)
    charge, source = content.charges[-1], secret_of_run(run, NOISE, secure=False)
    cohort = draw(content.plan, source, charge, Participations(None))
    cohort = replace(cohort, clients=np.asarray(numbers, dtype=np.int64), invited=CLIENTS)
    asking = PendingRelease(plan=content.plan, cohort=cohort, source=source.again(charge.again, charge.stream))
    told = analysis.told(asking, everybody.ground)
    return IdealSums(analysis=analysis, asking=asking, told=told, held=everybody.held)


@pytest.mark.parametrize("kind", ["histogram", "heavy-hitters"])
def test_a_server_that_does_not_charge_an_analysis_releases_nothing(silos, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda self, charge: None)
    with pytest.raises(RefusedPlan, match="has no charge for this attempt at round 0, so nothing was released"):
        asked(silos, tmp_path, request_of(silos, kind))
    assert not (tmp_path / "asked" / SUMMARY).exists()
    assert not (tmp_path / "asked" / "statement.txt").exists()


# Two kinds here; the others take the same way to a sum.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in ("quantile", "gain") else kind for kind in KINDS]
)
def test_numbers_are_those_of_the_simulation(silos, tmp_path, trained, kind):
    simulated = request_of(silos, kind, trained, silos.everybody)
    expected = begin(simulated, Place(folder=str(tmp_path), name="simulated"))
    run = asked(silos, tmp_path, request_of(silos, kind, trained))
    assert found(run) == found(expected)
    assert "statement.txt agrees" in verify(run).remarks
    theirs, ours = (read_content(each.ledger) for each in (expected, run))
    assert (theirs.plan, [each.event for each in theirs.charges]) == (ours.plan, [each.event for each in ours.charges])
    sums, learned = ideal_sums(silos, simulated, expected, range(CLIENTS)), (run.secret / "sum.bin").read_bytes()[36:]
    total = np.concatenate([sums.part(index) for index in range(simulated.analysis.form(ours.plan).parts)])
    assert np.array_equal(np.frombuffer(learned, dtype="<u4"), total)
    assert total.any()
    for number in range(CLIENTS):
        assert len(charges(tmp_path, number)) == 1
        assert f"{kind}: one vector under masks" in log_of(tmp_path, number)


@pytest.mark.parametrize("how", ["lost", "late"])
def test_one_that_falls_silent_is_missing_as_in_the_simulation(silos, tmp_path, how):
    gone = silos.roster[2]
    request = request_of(silos, "histogram")
    run = asked(
        silos,
        tmp_path,
        request,
        **{how: lambda who, question: who == gone and phase_of(question) == ProtocolPhase.MASKED},
    )
    assert found(run) == ideal(silos, request, run, [0, 1, 3, 4])
    assert found(run) != ideal(silos, request, run, range(CLIENTS))
    # Who was never asked for its vector is not charged; whose vector never arrived is: it was charged before.
    assert len(charges(tmp_path, 2)) == (how == "late")


def test_an_analysis_whose_sum_hangs_on_a_dishonest_dealer_says_whom_to_leave_out(silos, tmp_path, monkeypatch):
    """One release was asked for, and a second one is for the operator to ask for."""
    acts(monkeypatch, silos, "_ciphertexts", misdealing(0))
    with pytest.raises(InputError, match=r"can have no sum any more .* with a roster that lacks client 2 "):
        asked(silos, tmp_path, request_of(silos, "histogram"))
    assert not (tmp_path / "asked" / SUMMARY).exists()
    assert len(charges(tmp_path, 0)) == 1


def test_below_the_fewest_nothing_is_released_and_going_on_is_not_charged(silos, tmp_path):
    gone = silos.roster[:2]
    with pytest.raises(InputError, match="too few of 5 clients answered"):
        asked(
            silos, tmp_path, request_of(silos, "quantile"),
            lost=lambda who, question: who in gone and phase_of(question) == ProtocolPhase.SHARES,
        )  # fmt: skip
    path = tmp_path / "asked"
    assert not (path / SUMMARY).exists()
    assert not (path / "statement.txt").exists()
    run = resume(path, asked_of=company(silos, tmp_path).asked_of)
    assert found(run) == ideal(silos, request_of(silos, "quantile"), run, range(CLIENTS))
    assert len(read_content(run.ledger).charges) == 1
    assert [len(charges(tmp_path, number)) for number in range(CLIENTS)] == [1] * CLIENTS


class Killed(BaseException):
    """The server's process ends here."""


@pytest.mark.parametrize("after", [1, 3, 6, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4, 5))])
def test_a_server_that_was_killed_goes_on_with_the_same_answers(silos, tmp_path, after):
    count = [0]

    class Wire(FailingWire):
        def ask(self, questions, seconds):
            came = super().ask(questions, seconds)
            count[0] += 1
            if count[0] == after:
                raise Killed
            return came

    request = request_of(silos, "histogram")
    with pytest.raises(Killed):
        asked(silos, tmp_path, request, wire=Wire)
    run = resume(tmp_path / "asked", asked_of=company(silos, tmp_path).asked_of)
    assert found(run) == ideal(silos, request, run, range(CLIENTS))
    assert len(read_content(run.ledger).charges) == 1
    assert [len(charges(tmp_path, number)) for number in range(CLIENTS)] == [1] * CLIENTS


def test_a_second_sum_of_other_survivors_is_never_given(silos, tmp_path, monkeypatch):
    """Killed with the sum in hand but not on disk; then a client is missing: the difference would be its answer."""
    monkeypatch.setattr(
        "dpfedmeta.federation.server.analytics_server.replace_file", lambda *given: (_ for _ in ()).throw(Killed)
    )
    with pytest.raises(Killed):
        asked(silos, tmp_path, request_of(silos, "histogram"))
    monkeypatch.undo()
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    few = {who: party for who, party in silos.parties(tmp_path).items() if who != silos.roster[4]}
    with pytest.raises(InputError, match="nothing is released"):
        resume(tmp_path / "asked", asked_of=company(silos, tmp_path, parties=few).asked_of)
    assert "other survivors were agreed to already" in log_of(tmp_path)
    run = resume(tmp_path / "asked", asked_of=company(silos, tmp_path).asked_of)
    assert found(run) == ideal(silos, request_of(silos, "histogram"), run, range(CLIENTS))


def test_what_was_learned_is_read_and_not_asked_again(silos, tmp_path, monkeypatch):
    """Killed between the statement and the summary: the same bytes, from nobody."""
    run = asked(silos, tmp_path, request_of(silos, "quantile"))
    before, text = found(run), (run.path / "statement.txt").read_bytes()
    (run.path / SUMMARY).unlink()
    nobody = company(silos, tmp_path, parties={})
    again = resume(run.path, asked_of=replace(nobody, fewest=0).asked_of)
    assert (found(again), (run.path / "statement.txt").read_bytes()) == (before, text)
    assert (run.secret / "sum.bin").stat().st_mode & 0o077 == 0


def test_a_sum_is_kept_for_its_own_attempt_alone(silos, tmp_path):
    request = request_of(silos, "histogram")
    run = asked(silos, tmp_path, request)
    content = read_content(run.ledger)
    charge, source = content.charges[-1], secret_of_run(run, NOISE, secure=False)
    cohort = draw(content.plan, source, charge, Participations(None))
    asking = PendingRelease(plan=content.plan, cohort=cohort, source=source.again(charge.again, charge.stream))
    nobody = replace(company(silos, tmp_path, parties={}), fewest=0).asked_of(request)
    told = request.analysis.told(asking, nobody.ground)
    assert nobody.sums(request.analysis, asking, told, run).entered == CLIENTS
    later = replace(asking, cohort=replace(cohort, again=(1, 7)))
    with pytest.raises(InputError, match="too few"):
        nobody.sums(request.analysis, later, told, run)


def test_asked_twice_is_charged_twice_and_beyond_the_promise_declined(silos, tmp_path):
    """The client counts what the accountant counts: twice is met exactly, and a third time declined with the offer."""
    request, heard = request_of(silos, "quantile"), []
    plan = request.planned()
    twice = Promise(unit="client", epsilon=two_of(plan, 2), delta=1e-3)
    parties = silos.parties(tmp_path, promise=twice)
    for name in ("a", "b"):
        asked(silos, tmp_path, request, name, parties=parties)
    with pytest.raises(InputError, match="nothing is released"):
        asked(silos, tmp_path, request, "c", parties=parties, heard=heard.append)
    assert heard[-1].declined == CLIENTS
    assert [len(charges(tmp_path, number)) for number in range(CLIENTS)] == [2] * CLIENTS
    assert "the promise is used up" in log_of(tmp_path)
    assert found(RunDirectory(tmp_path / "a")) == found(RunDirectory(tmp_path / "b"))


def two_of(plan, times):
    """Epsilon of so many analyses like this one towards the server: their mus in squares, and their coordinates."""
    mu = participation(plan, Promise(unit="client", participations=1), 0).mus["client"]

    def at(delta):
        return gaussian_epsilon(mu * times**0.5, delta)

    (each,) = summed_coordinates(plan.phases)
    delta = 1e-3 - times * surplus(plan.phases)
    return epsilon_of_discrete(at, delta, at(delta), [replace(each, count=times * each.count)])


def test_a_client_counts_what_the_plan_promises_towards_the_server(silos):
    for kind in ("quantile", "histogram"):
        plan = request_of(silos, kind).planned()
        server = guarantees(plan)[1]
        assert epsilon_after(plan, Promise(unit="client", epsilon=1.0, delta=server.delta), 1) == server.epsilon
        # The noise that the clients are sure to make covers less than what everybody faces.
        assert server.epsilon > guarantees(plan)[0].epsilon
        assert guarantees(plan)[0].adjacency == "replace-one"


def test_names_are_promised_to_nobody_who_counts_epsilon(silos, tmp_path):
    parties = silos.parties(tmp_path, promise=Promise(epsilon=1000.0))
    with pytest.raises(InputError, match="nothing is released"):
        asked(silos, tmp_path, request_of(silos, "heavy-hitters"), parties=parties)
    assert "a single round would cost epsilon inf" in log_of(tmp_path)
    assert not charges(tmp_path)


def test_the_log_says_what_left(silos, tmp_path):
    lines = []
    parties = silos.parties(tmp_path) | {silos.roster[0]: silos.client(0, tmp_path, say=lines.append)}
    asked(silos, tmp_path, request_of(silos, "histogram"), parties=parties)
    text = "\n".join(lines)
    for words in (
        "offered: an analysis of run", "histogram: 5 of 5 clients are asked once",
        "each says how many images it holds, of how many classes", "the server sees the sum of the cohort's answers",
        "(client, public): epsilon ", "the answer would cost epsilon ",
        "one vector of 77 whole numbers under masks, once, with this client's share of the noise",
        "histogram: one vector under masks, ", "bytes left this machine (77 whole numbers:",
    ):  # fmt: skip
        assert words in text, words


def test_what_real_clients_cannot_be_asked_is_refused_before_anything(silos, tmp_path, trained):
    micro = silos.settings("dp-agrlr-micro", **MICRO)
    picked = silos.settings("dp-agr", **{"aggregation.company": "picked"})
    for kind, changes, words in (
        ("quantile", {"settings": micro}, "no exact message"),
        ("quantile", {"fixed": None}, "fixed size"),
        *((kind, {"settings": picked, "fixed": FixedCohort(adversarial=0.3)}, "can place 2 colluding ones")
          for kind in ("quantile", "histogram")),
        ("quantile", {"fixed": FixedCohort(dropout=0.4)}, "dropout"),
        ("heavy-hitters", {"fixed": FixedCohort(dropout=0.4)}, "dropout"),
        ("histogram", {"settings": silos.settings("dp-agr", **{"population.clients": "6"})}, "the roster names 5"),
        ("histogram", {"settings": silos.settings("dp-agr", **{"population.cohort": "6"})}, r"population\.cohort = 6"),
        ("histogram", {"settings": silos.settings("dp-agr", **{"server.timeout": "2"})}, r"server\.timeout"),
    ):  # fmt: skip
        with pytest.raises((InputError, RefusedPlan), match=words):
            asked(silos, tmp_path, request_of(silos, kind, trained, **changes))
    assert not (tmp_path / "asked").exists()
    with pytest.raises(InputError, match="0 of 5 clients are connected after 0 s, and 1 are needed"):
        asked(silos, tmp_path, request_of(silos, "histogram"), parties={})
    assert not (tmp_path / "asked").exists()


def test_a_training_counts_what_real_clients_were_asked(silos, tmp_path):
    run = asked(silos, tmp_path, request_of(silos, "quantile"))
    before = {"privacy.spent_before": str(run.path), "run.noise_seed": str(NOISE)}
    task = load_task(str(silos.public))[0]
    counted, alone = (make_plan(silos.settings("dp-agr", **given), task) for given in (before, {}))
    assert counted.privacy.earlier[0].phases == read_content(run.ledger).plan.phases
    assert counted.planned[0].epsilon > alone.planned[0].epsilon


def test_noise_through_the_whole_loop_is_what_is_stated(silos, tmp_path):
    """A client is missing: what its noise would have been is the server's."""
    errors, stated, gone = [], 0.0, silos.roster[1]
    for seed in range(8):
        home = tmp_path / str(seed)
        parties = silos.parties(home, noise_seed=seed)
        request = request_of(silos, "histogram", noise_seed=seed)
        run = asked(silos, home, request, parties=parties, lost=lambda who, question: who == gone)
        released = found(run)
        held = 4 * np.array([0, 0, 0, 1, 0, 0, 0, 0])  # each client has three classes of six images
        assert released["images"].keys() == {
            str(edge) for edge in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
        }
        sizes = np.where(np.array([*map(int, released["images"])]) == 10, 4.0, 0.0)
        errors += [
            *(np.array([*released["labels"].values()]) - held),
            *(np.array([*released["images"].values()]) - sizes),
        ]
        stated = released["deviation"]
    assert abs(np.mean(errors)) < 4 * stated / len(errors) ** 0.5
    assert np.std(errors) == pytest.approx(stated, rel=4 / (2 * len(errors)) ** 0.5)


def test_without_a_seed_nothing_is_asked(silos, tmp_path):
    """Going on would be a second release, and a client answers one."""
    place, there = Place(folder=str(tmp_path), name="asked"), company(silos, tmp_path)
    with pytest.raises(InputError, match="--secure-rng: real clients answer once"):
        begin(request_of(silos, "histogram", noise_seed=None), place, secure_rng=True, asked_of=there.asked_of)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("kind", [Kind.VECTOR, Kind.MODEL])
def test_questions_of_a_training_are_no_questions_of_an_analysis(silos, tmp_path, kind):
    client, server = silos.client(0, tmp_path), Identity(silos.server)
    assert offered(silos, client, lambda content: None, request_of(silos, "histogram")) == b""
    (joined,) = client._joined.values()
    question = Question(
        asked=kind, attempt=Attempt(run=bytes(32), round=0), plan=joined.signed.digest, recipient=silos.roster[0],
        body=b"",
    ).signed(server)  # fmt: skip
    assert opened_answer(client.answer(question), Said.VECTOR, question, silos.roster[0]) is None
    assert "belongs to a training run, but this run is an analysis" in log_of(tmp_path)
    assert not charges(tmp_path)


def test_another_attempt_has_noise_of_its_own_and_the_same_one_the_same(silos, tmp_path):
    client = silos.client(0, tmp_path)
    offered(silos, client, lambda content: None, request_of(silos, "histogram"))
    # Nothing is drawn for an attempt that is not charged.
    (joined,) = client._joined.values()
    with pytest.raises(LookupError):
        joined.whole(b"", Attempt(run=bytes(32), round=0), CLIENTS)
    joined = replace(joined, fresh_of=lambda attempt: b"of its charge")
    first, again, other = (
        joined.whole(b"", Attempt(run=bytes(32), round=0, again=key), CLIENTS) for key in ((), (), (1, 7))
    )
    assert np.array_equal(first, again)
    assert (first != other).mean() > 0.5


def signed_of(silos, request):
    plan, task, server = Ground(request).plan, load_task(str(silos.public))[0], Identity(silos.server)
    return sign_analysis(request, request.planned(), plan, task, run=bytes(32), server=server, roster=silos.roster)


def test_a_signed_analysis_holds_no_secret_of_the_server(silos, trained):
    seed = 123456789123
    request = request_of(silos, "gain", trained, noise_seed=seed)
    settings = replace(request.settings, run=replace(request.settings.run, noise_seed=seed))
    text = signed_of(silos, replace(request, settings=settings)).text
    assert str(seed).encode() not in text
    assert str(silos.root).encode() not in text


def offered(silos, client, change, request):
    """What a client says to a server that signs something else than its own program would."""
    server = Identity(silos.server)
    content = json.loads(signed_of(silos, request).text)
    change(content)
    text = json.dumps(content, sort_keys=True).encode()
    offer = Offer(number=0, signature=server.sign(b"dpfedmeta federation analysis" + text), text=text)
    question = Question(
        asked=Kind.PLAN, attempt=Attempt(run=bytes(32), round=0), plan=sha256(text).digest(),
        recipient=silos.roster[0], body=offer.encode(),
    ).signed(server)  # fmt: skip
    return opened_answer(client.answer(question), Said.ACCEPTED, question, silos.roster[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["privacy"].update(noise_multiplier=99.0), "other numbers than this client computes"),
        (lambda content: content.update(request=content["request"].replace("kind: histogram", "kind: os:getcwd")),
         "names code or files"),
        (lambda content: content.update(request=content["request"].replace("names: null", "names: /etc/passwd")),
         "names code or files"),
        (lambda content: content.update(request=content["request"].replace("run: null", "run: /home/another")),
         "names code or files"),
        (lambda content: content.update(request=content["request"].split("---\n")[0]), "names code or files"),
        (lambda content: content.update(request=content["request"].replace("optimizer: adam", "optimizer: os:_exit")),
         "the plan has server.optimizer = os:_exit"),
        (lambda content: content.update(request=content["request"].replace("share: 0.9", "share: 9")), "--share 9"),
        (lambda content: content.update(request=content["request"].replace("dropout: 0.2", "dropout: 0.4")), "dropout"),
        (lambda content: content.update(generator="0"), "the server's plan has generator '0'"),
        (lambda content: content.update(roster=content["roster"][1:]), "does not name each of 5 clients once"),
        (lambda content: content.update(server="00"), "another server"),
        (lambda content: content.update(more=1), "not the plan of a federation"),
    ],
)  # fmt: skip
def test_an_analysis_that_is_not_what_it_says_is_declined(silos, tmp_path, change, reason):
    client = silos.client(0, tmp_path)
    assert offered(silos, client, lambda content: None, request_of(silos, "histogram")) == b""
    assert offered(silos, silos.client(0, tmp_path / "other"), change, request_of(silos, "histogram")) is None
    assert reason in log_of(tmp_path / "other")
    assert not charges(tmp_path / "other")


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_told_is_declined_before_it_is_charged(silos, tmp_path, trained, kind, monkeypatch):
    monkeypatch.setattr(type(request_of(silos, kind, trained).analysis), "told", lambda self, asking, ground: b"abc")
    with pytest.raises(InputError, match="nothing is released"):
        asked(silos, tmp_path, request_of(silos, kind, trained))
    assert "declined: " in log_of(tmp_path)
    assert not charges(tmp_path)


@pytest.mark.parametrize("how", ["few", "broken", "failing"])
def test_a_client_with_too_little_answers_as_others_do(silos, tmp_path, monkeypatch, how):
    """Whether a client answers tells nothing of what it holds."""
    (tmp_path / "few" / "only").mkdir(parents=True)
    picture = next(silos.folders[0].glob("*/*.png"))
    (tmp_path / "few" / "only" / picture.name).write_bytes(picture.read_bytes())
    parties, claims = silos.parties(tmp_path), []
    parties[silos.roster[0]] = RealClient(
        tmp_path / "few", silos.keys[0], tmp_path / "client0" / "ledger.jsonl", noise_seed=NOISE,
        server=Identity(silos.server).public, promise=Promise(participations=10), claimed=lambda: claims.append(1),
    )  # fmt: skip
    if how == "broken":
        (tmp_path / "few" / "only" / picture.name).write_bytes(b"no image")
    if how == "failing":
        holdings = HeldImages.holdings

        def failing(self, client):
            if isinstance(self.population, OwnRecords) and client == 0:
                raise ArithmeticError("these images")
            return holdings(self, client)

        monkeypatch.setattr(HeldImages, "holdings", failing)
    heard, kinds = [], ["quantile", "histogram"] if how == "few" else ["histogram"]
    for kind in kinds:
        asked(silos, tmp_path, request_of(silos, kind), kind, parties=parties, heard=heard.append)
    assert {each.answered for each in heard} == {CLIENTS}
    assert log_of(tmp_path).count("ONLY NOISE: ") == (how != "few")
    assert len(charges(tmp_path)) == len(kinds)
    # Images that cannot be read take no part.
    assert len(claims) == (0 if how == "broken" else len(kinds))


@pytest.mark.parametrize("fits", [False, True])
def test_an_answer_that_no_message_holds_is_refused_before_it_is_charged(silos, tmp_path, monkeypatch, fits):
    request = request_of(silos, "histogram")
    form = request.analysis.form(request.planned())
    room = ROOM_BYTES + form.dimension * form.bits // 8
    monkeypatch.setattr(federation_checks, "MOST_BYTES", room - (not fits))
    clients = company(silos, tmp_path).asked_of(request)
    with nullcontext() if fits else pytest.raises(RefusedPlan, match=f"^{form.dimension} numbers are too many for an"):
        clients.check(request.analysis)


def test_who_is_waited_for_is_said(silos, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(quorum, "Heartbeat", lambda *, say: SimpleNamespace(beat=say))
    clients = replace(company(silos, tmp_path, parties={}), waiting=said.append, wait=-1.0)
    with pytest.raises(InputError, match=r"only 0 of 5 clients are connected after -1 s, .*; nothing was started"):
        clients.asked_of(request_of(silos, "histogram")).ready()
    clients = replace(clients, wait=0.01)
    with pytest.raises(InputError, match="nothing was started"):
        clients.asked_of(request_of(silos, "histogram")).ready()
    assert said[0].startswith("0 of 5 clients are connected; waiting for 1")
