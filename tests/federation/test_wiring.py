"""What is given to a server or a client reaches whoever uses it, and a federation's names depend on all they are of."""

import inspect
import json
import os
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import SUMMARY
from dpfedmeta.federation import entry_points
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.client import client
from dpfedmeta.federation.entry_points import ClientOptions, ServerOptions, asking_clients, run_client, run_server
from dpfedmeta.federation.flower import flower_channel, flower_client, http_client, superlink
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES
from dpfedmeta.federation.server import analytics_server, federation_checks, status_page, training_server
from dpfedmeta.federation.server.client_requests import TOLD, Heard
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.server.remote_sums import AskedSums
from dpfedmeta.federation.server.training_server import Federation, left_out
from dpfedmeta.federation.wire_format import Attempt, QuestionKind
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.simulation.cohort_sums import SecureSums
from dpfedmeta.training.tracking.callbacks import CallbackFailed

CARDS = [SimpleNamespace(identity=bytes([n]) * 32, name=f"silo {n}") for n in range(3)]
ROSTER, NAMES = [card.identity for card in CARDS], [card.name for card in CARDS]
OPTIONS = ServerOptions(
    keys=Path("keys"), roster=Path("roster"), page=None, seconds=7.0, fewest=2, wait=9.0, data_folder=Path("data")
)


@pytest.fixture
def server(monkeypatch):
    """A server that listens nowhere; (what it says, the wire)."""
    said, wire = [], SimpleNamespace(present=lambda: [])
    monkeypatch.setattr(entry_points, "operator_identity", lambda keys: b"private")
    monkeypatch.setattr(entry_points, "read_invitation", lambda path: None)
    monkeypatch.setattr(federation_checks, "check_federation", lambda settings, roster: None)

    class Listening:
        def __init__(self, *given):
            assert given[:2] == (options_now[0], CARDS)

        __enter__, __exit__ = (lambda self: wire), (lambda self, *ended: None)

    options_now = [OPTIONS]
    monkeypatch.setattr(entry_points, "listening", Listening)
    return SimpleNamespace(said=said, wire=wire, options=options_now)


@pytest.mark.parametrize("fewest", [None, 2])
def test_every_option_of_a_server_arrives(server, monkeypatch, fewest):
    given, signature = {}, inspect.signature(training_server.serve)
    monkeypatch.setattr(training_server, "serve", lambda *words, **named: given.update(
        signature.bind(*words, **named).arguments) or ("run", "completed"))  # fmt: skip
    server.options[0] = options = replace(OPTIONS, fewest=fewest)
    settings = SimpleNamespace(run=SimpleNamespace(dir="runs", name="one"))
    say, own = server.said.append, object()
    assert run_server(options, settings, CARDS, callbacks=[own], say=say) == ("run", "completed")
    # A server's randomness is the system's or the settings' seed.
    assert given.keys() == signature.parameters.keys() - {"secure_rng"}
    expected = {
        "settings": settings, "channel": server.wire, "folder": Path("runs/one"), "identity": b"private",
        "roster": ROSTER, "seconds": 7.0, "fewest": 3 if fewest is None else 2, "wait": 9.0,
        "data_folder": Path("data"), "blamed": say, "waiting": say, "names": NAMES,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    progress = given["callbacks"][-1]
    assert given["callbacks"][0] is own
    assert isinstance(progress, status_page.Progress)
    assert given["heard"] == progress.heard
    assert progress._say == say


@pytest.mark.parametrize("fewest", [None, 2])
def test_every_option_of_an_analysis_s_server_arrives(server, monkeypatch, fewest):
    given = {}
    monkeypatch.setattr(analytics_server, "Company", lambda **named: given.update(named) or SimpleNamespace(asked_of=1))
    server.options[0] = options = replace(OPTIONS, fewest=fewest)
    with asking_clients(options, CARDS, server.said.append) as found:
        assert found == 1
    monkeypatch.undo()
    assert given.keys() == {field.name for field in fields(analytics_server.Company)}
    expected = {
        "channel": server.wire, "identity": b"private", "roster": ROSTER, "seconds": 7.0,
        "fewest": 3 if fewest is None else 2, "wait": 9.0, "data_folder": Path("data"),
        "waiting": server.said.append,
    }  # fmt: skip
    assert {name: given[name] for name in expected} == expected
    given["blamed"](SimpleNamespace(text=lambda name: f"{name(2)} did it"))
    assert server.said == ["silo 2 did it"]
    given["heard"](Heard(asked=QuestionKind.PHASE, round=0, clients=10, answered=4, declined=1, unsound=2))
    assert server.said[1] == (
        "phase: 4 of 10 clients answered, 1 declined, 2 sent an invalid answer, 3 did not answer in time"
    )


@pytest.mark.parametrize("address", [None, "elsewhere:1"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_every_option_of_a_client_arrives(monkeypatch, tmp_path, address, dry_run):
    given, wires, claimed, said = {}, {}, [], []
    signature = inspect.signature(client.RealClient.__init__)
    options = ClientOptions(
        data=tmp_path / "images", invitation=tmp_path, identity=tmp_path, home=tmp_path, promise=object(),
        server=address, patience=5.0, dry_run=dry_run, change_limit=not dry_run,
    )  # fmt: skip
    invited = SimpleNamespace(identity=b"server", server="here:2", authority=b"certificate")
    monkeypatch.setattr(entry_points, "read_identity", lambda path: b"mine")
    monkeypatch.setattr(entry_points, "read_invitation", lambda path: invited)
    monkeypatch.setattr(entry_points, "prepare_flower", lambda folder: None)
    monkeypatch.setattr(entry_points, "open_home", lambda *words, **named: claimed.append((*words, named["keep"])))
    monkeypatch.setattr(client, "RealClient", lambda *words, **named: given.update(
        signature.bind(None, *words, **named).arguments) or SimpleNamespace(unfit=None, handed_out=True))  # fmt: skip
    monkeypatch.setattr(http_client, "Wire", lambda **named: wires.update(named))
    attended = []
    monkeypatch.setattr(flower_client, "attend", lambda *words, over, say: attended.append((over(), say)))
    assert run_client(options, said.append) is None
    assert claimed == [(options.home, options.data, b"mine", not dry_run)]
    expected = {"server": b"server", "promise": options.promise, "say": said.append, "dry_run": dry_run}
    expected["change_limit"] = not dry_run
    assert {name: given[name] for name in expected} == expected
    # Asked again for every offer; where the register cannot be read, its owner is told.
    for error in (None, OSError(13, "Permission denied", "homes")):
        again = Mock(side_effect=error)
        monkeypatch.setattr(entry_points, "claim", again)
        given["claimed"]()
        again.assert_called_once_with(options.home, options.data, b"mine", keep=not dry_run)
    assert [line.split(";")[0] for line in said] == ["homes: Permission denied"]
    # Its noise is the system's: only tests choose a seed.
    assert "noise_seed" not in given
    assert {options.data, b"mine", tmp_path / "ledger.jsonl"} <= {each for each in given.values() if each is not None}
    assert wires == {
        "server": address or "here:2", "authority": b"certificate", "private": b"mine", "patience": 5.0,
    }  # fmt: skip
    # A dry run stays until it has answered; the other one ends when the model is handed out.
    assert attended == [(not dry_run, said.append)]


@pytest.fixture
def run_as(monkeypatch, tmp_path):
    """`federate client` with a party that does what a test says while it attends; (result, what was over when)."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(entry_points, "read_identity", lambda path: b"mine")
    invited = SimpleNamespace(identity=b"server", server="here:2", authority=b"certificate")
    monkeypatch.setattr(entry_points, "read_invitation", lambda path: invited)
    monkeypatch.setattr(entry_points, "prepare_flower", lambda folder: None)
    monkeypatch.setattr(http_client, "Wire", lambda **named: None)

    def run(meanwhile=lambda party, home: None, questions=1, told=None, **given):
        party = SimpleNamespace(unfit=None, handed_out=False, answer=lambda question: question)
        monkeypatch.setattr(client, "RealClient", lambda *words, **named: party)
        monkeypatch.setattr(entry_points, "open_home", lambda *words, **named: newest.append((words, named)) or told)
        ends, newest, said = [], [], []

        def attends(counted, wire, *, over, say):
            ends.append(over())
            for _ in range(questions):
                counted.answer(b"a question")
            meanwhile(party, home)
            ends.append(over())

        monkeypatch.setattr(flower_client, "attend", attends)
        options = ClientOptions(
            data=tmp_path, invitation=tmp_path, identity=tmp_path, home=home, promise=object(), **given
        )
        return SimpleNamespace(model=run_client(options, said.append), over=ends, newest=newest, said=said)

    return run


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("handed_out", [False, True])
@pytest.mark.parametrize("questions", [0, 1])
def test_a_client_ends_when_the_model_was_handed_out_and_a_dry_run_when_it_has_answered(
    run_as, stay, dry_run, handed_out, questions
):
    found = run_as(lambda party, home: setattr(party, "handed_out", handed_out), questions, stay=stay, dry_run=dry_run)
    assert found.over == [False, questions > 0 if dry_run else handed_out and not stay]


@pytest.mark.parametrize("stay", [False, True])
def test_what_only_its_owner_can_mend_ends_a_client_that_does_not_stay(run_as, stay):
    seen = []

    def unfit(party, home):
        party.unfit = "install it"
        seen.append(party)

    with pytest.raises(InputError, match="install it"):
        run_as(unfit, stay=stay)
    with pytest.raises(InputError, match="install it"):
        run_as(unfit, stay=stay, dry_run=True, questions=0)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_model_is_said_to_be_there_where_it_was_written_meanwhile(run_as, tmp_path, before, written):
    """One of an earlier run is not that of this one."""
    path = tmp_path / "home" / client.MODEL
    if before:
        path.write_bytes(b"of before")
        os.utime(path, ns=(1, 1))
    found = run_as(lambda party, home: written and (home / client.MODEL).write_bytes(b"new"))
    assert found.model == (path if written else None)


@pytest.mark.parametrize("change_limit", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("told", [None, "an older copy is taken"])
def test_whether_a_home_is_the_newest_is_asked_as_the_client_is_run_and_told(
    run_as, tmp_path, change_limit, dry_run, told
):
    found = run_as(told=told, change_limit=change_limit, dry_run=dry_run)
    assert found.newest == [((tmp_path / "home", tmp_path, b"mine"), {"accept": change_limit, "keep": not dry_run})]
    assert found.said == ([told] if told else [])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("changes", [(1, 1, 0, 1), (0, 0, 1, 0), (0, 0)])
def test_every_answer_that_is_charged_is_noted_before_it_leaves(monkeypatch, tmp_path, changes, kept):
    ledger, noted, left = tmp_path / "ledger.jsonl", [], iter(changes)
    ledger.write_text("begin")
    os.utime(ledger, ns=(1, 1))

    def answers(question):
        if next(left):
            ledger.write_text(ledger.read_text() + "x")
            os.utime(ledger, ns=(len(ledger.read_text()), len(ledger.read_text())))
        return question

    monkeypatch.setattr(entry_points, "note_answered", lambda home: noted.append(ledger.read_text()))
    found = entry_points.Counted(party=SimpleNamespace(answer=answers), home=tmp_path, keep=kept, _written=1)
    for number in range(len(changes)):
        assert found.answer(b"%d" % number) == b"%d" % number
    assert noted == ([f"begin{'x' * (number + 1)}" for number in range(sum(changes))] if kept else [])
    assert found.answered == len(changes)


@pytest.mark.parametrize("port", [None, 0, 77])
def test_a_server_listens_where_it_is_told_or_as_its_invitation_says_and_closes(monkeypatch, port):
    made, folders, closed, said = {}, [], [], []
    monkeypatch.setattr(entry_points, "read_invitation", lambda path: SimpleNamespace(server=f"{path.name}:9443"))
    monkeypatch.setattr(entry_points, "prepare_flower", folders.append)
    monkeypatch.setattr(superlink, "Link", lambda cards, **given: made.update(given, cards=cards) or SimpleNamespace(
        port=5))  # fmt: skip
    monkeypatch.setattr(flower_channel, "link_channel", lambda link: SimpleNamespace(close=lambda: closed.append(1)))
    options = replace(OPTIONS, host="1.2.3.4", port=port)
    with pytest.raises(KeyError), entry_points.listening(options, CARDS, said.append):
        assert not closed
        raise KeyError
    assert closed == [1]
    assert folders == [Path("keys/flower")]
    assert made == {
        "cards": CARDS, "host": "1.2.3.4", "port": 9443 if port is None else port, "most_bytes": MOST_BYTES,
        "certificate": Path("keys/tls.pem"), "key": Path("keys/tls.key"),
    }  # fmt: skip
    assert said == ["listening on 1.2.3.4:5 for 3 clients"]


@pytest.fixture
def federation(monkeypatch, tmp_path):
    """Backends of a federation whose clients need not be asked, by (secure, identity of the run)."""
    offered, named = [], []
    monkeypatch.setattr(training_server, "offer_until_answered", lambda *words: offered.append(words))
    monkeypatch.setattr(training_server, "sign_plan", lambda *words, run, server, roster: named.append(
        (run, server.public, roster)) or SimpleNamespace(run=run, signature=b"s" * 64, text=b"plan"))  # fmt: skip
    (tmp_path / "secret").mkdir()

    def make(secure, run="a"):
        monkeypatch.setattr(training_server, "identity_of", lambda path: SimpleNamespace(run=run))
        own = Federation(
            channel=SimpleNamespace(spec=Channel), identity=b"k" * 32, roster=tuple(ROSTER), seconds=7.0, fewest=2,
            wait=9.0, heard=print, waiting=repr,
        )  # fmt: skip
        plan = SimpleNamespace(privacy=SimpleNamespace(secure=secure))
        made = SimpleNamespace(plan=plan, dataset=SimpleNamespace(task=None), clients="clients", workers="workers")
        where = SimpleNamespace(secret=tmp_path / "secret")
        handed = where.secret / training_server._HANDED
        handed.write_text("[0]")
        backend = own.backend(made, where)
        # The model is due from here on, to all.
        assert (where.secret / training_server._OFFER).read_bytes() == b"s" * 64 + b"plan"
        assert not handed.exists()
        assert offered.pop() == (own.asking, 2, 9.0, repr)
        assert own.asking.told.path == where.secret / TOLD
        assert (own.asking.seconds, own.asking.heard) == (7.0, print)
        return backend, named.pop()

    return make


@pytest.mark.parametrize("secure", [None, object()])
def test_a_federation_adds_up_as_its_settings_say(federation, secure):
    backend, _ = federation(secure)
    assert isinstance(backend, AskedSums if secure is None else SecureSums)
    assert backend.clients == "clients"
    if secure is not None:
        assert (backend.workers, backend.added.identity) == ("workers", b"k" * 32)


def test_no_two_runs_have_one_name(federation):
    """A client's ledger and its noise go by the name of the run."""
    names = [federation(None, run)[1][0] for run in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]
    assert [len(name) for name in names] == [32] * 3


def test_an_analysis_depends_on_each_client_and_on_the_model(monkeypatch):
    """Going on with answers of other clients, or to another model, is another attempt."""

    def digest(roster=tuple(ROSTER), run=None, model=b"model"):
        request = SimpleNamespace(run=run)
        found = analytics_server.RemoteClients(request=request, company=SimpleNamespace(roster=roster))
        found.__dict__["ground"] = SimpleNamespace(model=model)
        return found.digest

    others = [
        digest(),
        digest(roster=ROSTER[::-1]),
        digest(roster=ROSTER[:2]),
        *(digest(roster=[*ROSTER[:n], b"z" * 32, *ROSTER[n + 1 :]]) for n in range(3)),
        digest(run="there"),
        digest(run="there", model=b"other"),
    ]
    assert len({*others}) == len(others)
    assert digest(model=b"other") == digest()


@pytest.mark.parametrize(
    "guard", ["check_federation", "check", "plan", "for_clients", "planned", "check_graph", "agreement_for"]
)
def test_each_guard_alone_ends_an_analysis_before_its_charge(monkeypatch, guard):
    """Whatever could not be asked, signed or agreed on: with all other guards content."""
    asked = []

    def looks(name):
        def look(*given):
            asked.append((name, given))
            if name == guard:
                raise InputError(name)
            return name

        return look

    for name in ("check_federation", "for_clients", "check_graph", "agreement_for"):
        monkeypatch.setattr(analytics_server, name, looks(name))

    class Ground:
        task = "task"
        plan = property(lambda self: looks("plan")())

    request = SimpleNamespace(names=None, settings="settings", planned=looks("planned"))
    found = analytics_server.RemoteClients(request=request, company=SimpleNamespace(roster=ROSTER))
    found.__dict__["ground"] = Ground()
    with pytest.raises(InputError, match=guard):
        found.check(SimpleNamespace(check=looks("check")))
    expected = {
        "check_federation": ("settings", ROSTER), "check": (found.ground,), "plan": (), "planned": (),
        "for_clients": ("settings", "task"), "check_graph": ("planned",), "agreement_for": (request, "planned"),
    }  # fmt: skip
    assert all(given == expected[name] for name, given in asked)


@pytest.mark.parametrize("changes", [{"names": "names.jsonl"}, {"settings": None}])
def test_real_clients_are_asked_of_no_file_of_names(changes):
    request = SimpleNamespace(**{"names": None, "settings": object(), **changes})
    with pytest.raises(InputError, match="--names: is only for simulated clients"):
        analytics_server.RemoteClients(request=request, company=None).check(None)


@pytest.fixture
def summed(monkeypatch, tmp_path):
    """(name of the run, mark of the kept sum) of an analysis; no client is asked."""
    named, questions = [], []

    def signs(request, privacy, plan, task, *, run, server, roster):
        named.append(run)
        return SimpleNamespace(digest=run, roster=roster, server=server.public)

    def adds(asking, identity, attempt, start):
        assert (attempt.run, attempt.round, identity) == (named[-1], 0, b"k" * 32)
        questions.append((asking, attempt.again, start))
        return SimpleNamespace(survivors=(0, 1), total=np.arange(4))

    monkeypatch.setattr(analytics_server, "sign_analysis", signs)
    monkeypatch.setattr(analytics_server, "secure_sum", adds)

    def make(run="a", again=(), clients=(0, 1), told=b"seeds"):
        folder = SimpleNamespace(secret=tmp_path, path=tmp_path)
        monkeypatch.setattr(analytics_server, "identity_of", lambda path: SimpleNamespace(run=run))
        company = analytics_server.Company(channel="wire", identity=b"k" * 32, roster=ROSTER, seconds=7.0, heard=print)
        found = analytics_server.RemoteClients(request=None, company=company)
        found.__dict__["ground"] = SimpleNamespace(plan=None, task=None)
        asking = SimpleNamespace(plan=None, cohort=SimpleNamespace(clients=np.array(clients), again=again))
        analysis = SimpleNamespace(form=lambda plan: SimpleNamespace(length=2))
        sums = found.sums(analysis, asking, told, folder)
        return sums, named[-1], questions

    return make


OTHER_QUESTIONS = {
    "run": {"run": "b"}, "attempt": {"again": (1, 7)}, "cohort": {"clients": (0, 2)}, "order": {"clients": (1, 0)},
    "what is told": {"told": b"others"},
}  # fmt: skip


@pytest.mark.parametrize("other", OTHER_QUESTIONS)
def test_the_sum_of_an_analysis_is_kept_for_its_own_question(summed, other, tmp_path):
    """Another one is asked of the clients anew; the same one is not."""
    first, name, questions = summed()
    again, same, _ = summed()
    assert (again.entered, again.part(1).tolist(), same) == (first.entered, first.part(1).tolist(), name)
    assert (again.entered, again.part(1).tolist()) == (2, [2, 3])
    assert len(questions) == 1
    asking, *_ = questions[0]
    assert (asking.told.path, asking.seconds, asking.heard) == (tmp_path / TOLD, 7.0, print)
    _, named, _ = summed(**OTHER_QUESTIONS[other])
    assert len(questions) == 2
    assert (named == name) == (other != "run")


OF_SERVE = {
    "identity": b"k" * 32, "roster": ROSTER, "seconds": 7.0, "fewest": 2, "wait": 9.0, "data_folder": Path("data"),
    "secure_rng": True, "callbacks": ["own"], "heard": print, "blamed": repr, "names": NAMES, "waiting": str,
    "page": len,
}  # fmt: skip


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_every_option_of_a_training_reaches_the_loop_and_the_clients(monkeypatch, tmp_path, before, status):
    """A run that is there goes on with its own randomness; a model of rounds that are not done is not handed out."""
    ran, handed = [], []
    monkeypatch.setattr(training_server, "check_federation", lambda settings, roster: None)
    monkeypatch.setattr(training_server, "_as_run", lambda settings, folder: ("as run", settings, folder))
    monkeypatch.setattr(training_server, "_kept_settings", lambda run, settings: "kept")
    monkeypatch.setattr(training_server, "run_training", lambda *given: ran.append(given) or ("run", status))
    monkeypatch.setattr(Federation, "hand_out", lambda self, run: handed.append((self, run)))
    monkeypatch.setattr(training_server, "go_on", lambda run, settings_of, train, **given: (
        gone.append((run, given)), train(settings_of()))[1])  # fmt: skip
    gone = []
    if before:
        (tmp_path / "ledger.jsonl").write_text("")
    assert training_server.serve("settings", "wire", tmp_path, **OF_SERVE) == ("run", status)
    ((settings, options, told),) = ran
    assert settings == ("kept" if before else ("as run", "settings", tmp_path))
    own = options.elsewhere
    assert (options.data_folder, options.page, options.secure_rng) == (Path("data"), len, not before)
    assert options.resume == (gone[0][0] if before else None)
    assert not before or (gone[0][0].path, gone[0][1]["page"]) == (tmp_path, len)
    presence = told[-1]
    assert told[:-1] == ("own",)
    assert (presence.federation, presence.fewest, presence.seconds, presence.waiting) == (own, 2, 9.0, str)
    assert (own.channel, own.identity, own.roster, own.seconds) == ("wire", b"k" * 32, tuple(ROSTER), 7.0)
    assert (own.fewest, own.wait, own.heard, own.blamed) == (2, 9.0, print, repr)
    assert (own.names, own.waiting) == (tuple(NAMES), str)
    assert handed == ([(own, "run")] if status == "completed" else [])


@pytest.mark.parametrize("cause", [TooFew("too few"), ValueError("theirs")])
def test_what_the_operator_can_mend_is_said_in_its_own_words(monkeypatch, tmp_path, cause):
    failed = CallbackFailed("callback Presence.on_round raised TooFew: too few; go on with dpfedmeta.train")
    failed.__cause__ = cause

    def fails(*given):
        raise failed

    monkeypatch.setattr(training_server, "check_federation", lambda settings, roster: None)
    monkeypatch.setattr(training_server, "_as_run", lambda settings, folder: settings)
    monkeypatch.setattr(training_server, "run_training", fails)
    with pytest.raises(TooFew if isinstance(cause, TooFew) else CallbackFailed) as raised:
        training_server.serve("settings", "wire", tmp_path, identity=b"k" * 32, roster=ROSTER)
    assert raised.value is (cause if isinstance(cause, TooFew) else failed)


def test_a_model_is_handed_out_under_a_note_that_a_restart_finds(monkeypatch, tmp_path):
    """It lies there until every client has the model; only those that lack it are asked again."""
    asked, said, there = [], [], [0, 2]
    run = SimpleNamespace(secret=tmp_path, weights="weights")
    note, have = tmp_path / training_server._OFFER, tmp_path / training_server._HANDED
    signed = SimpleNamespace(signature=b"s" * 64, text=b"plan", run=b"r" * 32, initial={"b": 0, "a": 0})

    def asks(kind, attempt, bodies):
        asked.append((kind, attempt, bodies, note.read_bytes()))
        return dict.fromkeys(there, b"")

    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0]), "more": torch.tensor([9.0])}
    monkeypatch.setattr(training_server, "load_weights", lambda path: weights)
    own = Federation(channel=None, identity=b"k" * 32, roster=tuple(ROSTER), seconds=7.0, names=tuple(NAMES),
                     waiting=said.append)  # fmt: skip
    own.hand_out(run)
    own._asking, own._signed = SimpleNamespace(ask=asks), signed
    own.hand_out(run)
    # Before there is a plan, and without the note, nothing is due.
    assert asked == []
    note.write_bytes(b"s" * 64 + b"plan")
    own.hand_out(run)
    ((kind, attempt, bodies, noted),) = asked
    assert (kind, attempt) == (QuestionKind.MODEL, Attempt(run=b"r" * 32, round=0))
    # In the order of the plan's weights.
    assert bodies == dict.fromkeys(range(3), np.array([3.0, 1.0, 2.0], dtype="<f4").tobytes())
    assert noted == note.read_bytes() == b"s" * 64 + b"plan"
    assert json.loads(have.read_bytes()) == [0, 2]
    assert said == [
        f"2 of 3 clients have the model; type the same command again when the others are connected: {NAMES[1]}"
    ]
    there[:] = [1]
    own.hand_out(run)
    assert asked[1:] == [(kind, attempt, {1: bodies[1]}, noted)]
    assert not note.exists()
    assert not have.exists()
    assert len(said) == 1


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("everybody", [False, True])
@pytest.mark.parametrize("excluded", [False, True])
def test_who_is_at_fault_is_told_where_that_is_no_secret_and_kept_in_any_case(
    monkeypatch, tmp_path, named, everybody, excluded
):
    told = []
    monkeypatch.setattr(training_server, "all_are_asked", lambda asking: everybody)
    own = Federation(channel=None, identity=b"k" * 32, roster=tuple(ROSTER), seconds=7.0, blamed=told.append,
                     names=tuple(NAMES) if named else ())  # fmt: skip
    blame = SimpleNamespace(round=4, clients=(2,), text=lambda name: f"{name(2)} lied")
    run = SimpleNamespace(secret=tmp_path)
    assert left_out(run) == frozenset()
    own._blame(run, SimpleNamespace(left_out={1, 2} if excluded else {1}), blame)
    who = "silo 2" if named else "client 2"
    (line,) = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert json.loads(line) == {"round": 4, "clients": [2], "text": f"{who} lied", "left_out": excluded}
    assert left_out(run) == ({2} if excluded else set())
    shown = f"{who} lied" + "; left out from now on" * excluded if everybody else "shares of a client were wrong"
    assert told == [f"round 4: {shown} (secret/faults.jsonl)"]


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("have", [None, [1]])
@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_a_server_that_was_killed_while_it_hands_out_asks_again_whoever_is_there(
    monkeypatch, tmp_path, noted, few, have, status
):
    """Under the plan that it signed, and no other."""
    opened, waited, handed = [], [], []

    def waits(*given):
        waited.append(given)
        if few:
            raise TooFew("too few")

    signed = SimpleNamespace(run=b"r" * 32)
    monkeypatch.setattr(training_server, "opened_plan", lambda *given: opened.append(given) or signed)
    monkeypatch.setattr(training_server, "wait_for", waits)
    monkeypatch.setattr(
        Federation, "hand_out", lambda self, run: handed.append((self._signed, self.asking.signed, run))
    )
    run = SimpleNamespace(secret=tmp_path, read_json=lambda name: {SUMMARY: {"status": status}}[name])
    if have is not None:
        (tmp_path / training_server._HANDED).write_text(json.dumps(have))
    if noted:
        (tmp_path / training_server._OFFER).write_bytes(b"s" * 64 + b"plan")
    own = Federation(
        channel="wire", identity=b"k" * 32, roster=tuple(ROSTER), seconds=7.0, fewest=2, wait=9.0, waiting=str
    )
    own.hand_out_again(run)
    if not noted or status != "completed":
        assert opened == waited == handed == []
        return
    assert opened == [(b"plan", b"s" * 64, Identity(b"k" * 32).public)]
    lacking = [identity for number, identity in enumerate(ROSTER) if number not in (have or [])]
    assert waited == [("wire", lacking, len(lacking), 9.0, str)]
    assert handed == [(signed, signed, run)]


@pytest.mark.parametrize("run", ["a", "b"])
def test_an_analysis_has_a_name_that_no_training_has(monkeypatch, federation, tmp_path, run):
    """Clients keep what they answered by it: of two runs with one identity each has its own."""
    named = []

    class Signed(Exception):
        pass

    def sign(*words, run, server, roster):
        named.append((run, server.public, roster))
        raise Signed

    monkeypatch.setattr(analytics_server, "identity_of", lambda path: SimpleNamespace(run=run))
    monkeypatch.setattr(analytics_server, "sign_analysis", sign)
    company = analytics_server.Company(channel=None, identity=b"k" * 32, roster=tuple(ROSTER))
    own = analytics_server.RemoteClients(request=SimpleNamespace(), company=company)
    vars(own)["ground"] = SimpleNamespace(plan=None, task=None)
    with pytest.raises(Signed):
        own.sums(None, SimpleNamespace(cohort=None, plan=None), b"", SimpleNamespace(secret=tmp_path))
    _, (training, server, roster) = federation(None, run)
    assert named == [(sha256(b"dpfedmeta analysis" + run.encode()).digest(), server, tuple(ROSTER))]
    assert (training, roster) == (sha256(b"dpfedmeta federation" + run.encode()).digest(), tuple(ROSTER))
