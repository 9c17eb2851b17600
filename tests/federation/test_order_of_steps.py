"""Steps in their order: a charge before its answer, a note before its charge, refusals before a plan is kept."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.federation.client import client, training_participation
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_state import asked_digest
from dpfedmeta.federation.json_log import JsonLog
from dpfedmeta.federation.offers.signed_analysis import SignedAnalysis
from dpfedmeta.federation.offers.signed_plan import SignedPlan
from dpfedmeta.federation.server import training_server
from dpfedmeta.federation.server.training_server import Federation
from dpfedmeta.federation.wire_format import Attempt, Offer, QuestionKind, RoundTask
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.sessions import FREE
from tests.federation.test_locks import Lock

ATTEMPT = Attempt(run=b"r" * 32, round=4, again=(2, 9))


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("cut", [None, "begin"])
def test_an_attempt_is_noted_before_it_is_charged_with_all_that_it_is(monkeypatch, new, cut):
    steps = []

    def begin(attempt):
        steps.append(("begin", attempt))
        if cut:
            raise OSError("the disk is full")

    monkeypatch.setattr(client, "participation", lambda plan, promise, round_: (plan, promise, round_))
    monkeypatch.setattr(client, "run_cost", lambda plan: f"cost of {plan}")
    monkeypatch.setattr(client, "draw_fresh", lambda: "fresh")
    own = SimpleNamespace(
        _chargeable=lambda joined, attempt, asked: steps.append(("may", attempt, asked)) or new,
        _ledger=SimpleNamespace(charge=lambda *given, **named: steps.append(("charge", given, named))),
        _promise="promise",
    )
    signed = SimpleNamespace(run=b"run", privacy="plan")
    joined = SimpleNamespace(signed=signed, kept=SimpleNamespace(begin=begin), limits=FREE)
    due = [("may", ATTEMPT, "asked")]
    if new and cut:
        with pytest.raises(OSError, match="full"):
            RealClient._charged(own, joined, ATTEMPT, "asked")
        due.append(("begin", ATTEMPT))
    else:
        assert RealClient._charged(own, joined, ATTEMPT, "asked") is new
        beside = {"run": b"run".hex(), "question": "asked", "fresh": "fresh", "plan": "plan", "cost": "cost of plan"}
        due += [
            ("begin", ATTEMPT), ("charge", (4, ("plan", "promise", 4), (2, 9)), beside),
        ] if new else []  # fmt: skip
    assert steps == due


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_vector_is_computed_once_it_is_charged_and_told_once_it_is_kept(new, masked):
    steps = []
    body = RoundTask(bound=0.5, model=np.zeros(3, dtype=np.float32)).encode()
    asked = asked_digest(body)

    def once(attempt, digest, make):
        steps.append(("keep", attempt, digest))
        return make()

    own = SimpleNamespace(
        _charged=lambda joined, attempt, digest: steps.append(("charge", attempt, digest)) or new,
        _log=lambda line: steps.append(("log", line)), _ledger="ledger", _promise="promise",
    )  # fmt: skip
    joined = SimpleNamespace(
        signed=SimpleNamespace(masked=masked), dimension=3, kept=SimpleNamespace(once=once),
        vector=lambda task, attempt: steps.append(("compute", task.bound, attempt)) or np.ones(3, dtype=np.float32),
        sent_words=lambda *given: given,
    )  # fmt: skip
    question = SimpleNamespace(body=body, attempt=ATTEMPT)
    if masked:
        with pytest.raises(Refused, match="unmasked vector, but the plan uses secure aggregation"):
            RealClient._vector(own, joined, question)
        assert steps == []
        return
    vector = RealClient._vector(own, joined, question)
    assert np.frombuffer(vector, dtype="<f4").tolist() == [1.0, 1.0, 1.0]
    what = "one vector, 12 bytes" if new else "the same vector as before (asked again)"
    assert [step[0] for step in steps] == ["charge", "keep", "compute", "log"]
    assert steps[:3] == [("charge", ATTEMPT, asked), ("keep", ATTEMPT, asked), ("compute", 0.5, ATTEMPT)]
    assert steps[3][1] == ("ledger", "promise", ATTEMPT, body, what)


JOINS = {
    "fits": {},
    "the last number": {"number": 2, "roster": ()},
    "the first": {"number": 0, "roster": ()},
    "no number": {"number": -1, "why": "this client's number is -1, but the plan has 3 clients"},
    "beyond": {"number": 3, "why": "this client's number is 3, but the plan has 3 clients"},
    "another's": {"roster": (b"me", b"other", b"third"), "why": "lists another client at this client's number"},
    "without a roster": {"roster": ()},
    "used up": {"left": 0, "why": r"the promise is used up \(little\)"},
    "used up in this run": {"left": 0, "answered": [(0,)]},
    "a dry run": {"dry": True, "why": "this is a dry run; nothing is sent"},
    "a dry run of what is used up": {"dry": True, "left": 0, "why": "the promise is used up"},
}


@pytest.mark.parametrize("case", JOINS)
def test_a_plan_is_kept_once_nothing_speaks_against_it(monkeypatch, case):
    given = {"number": 1, "roster": (b"a", b"me", b"c"), "left": 2, "answered": [], "dry": False, "why": None}
    given |= JOINS[case]
    kept, said, lefts, claims = [], [], [], []
    privacy = SimpleNamespace(clients=3)
    signed = SimpleNamespace(privacy=privacy, roster=given["roster"], words=lambda: ["an offer"], run=b"run")
    joined = SimpleNamespace(words=lambda ledger, promise: [f"{ledger} {promise.words}"], kept="place", limits=FREE)
    setups = []
    monkeypatch.setattr(client, "joined_by", lambda signed, own: setups.append(own) or joined)
    monkeypatch.setattr(client, "left_of_run", lambda *words: lefts.append(words) or given["left"])
    monkeypatch.setattr(client, "keep_offer", lambda place, offer: kept.append((place, offer)))

    class Ledger(str):
        def keys(self, run):
            return given["answered"] if run == b"run".hex() else [(9,)]

    own = SimpleNamespace(
        identity=b"me", _images="images", _folder="folder", _promise=SimpleNamespace(words="little"), _noise_seed=5,
        _fresh_of="fresh", _log=said.append, _ledger=Ledger("ledger"), _dry_run=given["dry"],
        _claimed=lambda: claims.append(len(kept)),
    )  # fmt: skip
    offer = Offer(number=max(given["number"], 0), signature=b"s" * 64, text=b"text")
    offer = SimpleNamespace(number=given["number"], encode=offer.encode)
    if given["why"] is not None:
        with pytest.raises(Refused, match=given["why"]):
            RealClient._join(own, signed, offer)
        assert kept == []
        return
    assert RealClient._join(own, signed, offer) is joined
    assert kept == [("place", offer.encode())]
    assert said == ["an offer", "ledger little"]
    (setup,) = setups
    assert (setup.number, setup.images, setup.folder, setup.noise_seed) == (given["number"], "images", "folder", 5)
    assert (setup.promise, setup.fresh_of, setup.log) == (own._promise, "fresh", said.append)
    setup.claimed()
    assert claims == [1]
    assert lefts == ([] if given["answered"] else [(privacy, own._promise, own._ledger, b"run".hex(), FREE)])


OFFERED = Offer(number=1, signature=b"s" * 64, text=b"text")


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("before", "fits"),
    [
        (None, True), (OFFERED, True), (replace(OFFERED, number=2), False), (replace(OFFERED, text=b"other"), False),
        (replace(OFFERED, signature=b"t" * 64), False),
    ],
    ids=["none", "the same", "another number", "another plan", "another signature"],
)  # fmt: skip
@pytest.mark.parametrize("named", [{}, {"plan": b"another"}, {"attempt": SimpleNamespace(run=b"another")}], ids=repr)
def test_a_run_is_joined_again_under_the_offer_that_was_kept_and_under_no_other(
    monkeypatch, joined, before, fits, named
):
    """Under another number a client would be a second one of the cohort: two of its messages in one sum."""
    signed, calls = SimpleNamespace(digest=b"digest", run=b"run"), []
    monkeypatch.setattr(client, "kept_offer", lambda place, run: None if before is None else before.encode())
    monkeypatch.setattr(client, "opened", lambda text, signature, server: calls.append((text, signature)) or signed)
    own = SimpleNamespace(
        _folder="folder", _server="server", _joined={b"digest": "already"} if joined else {},
        _join=lambda signed, offer: calls.append(offer) or "now",
    )  # fmt: skip
    given = {"body": OFFERED.encode(), "plan": b"digest", "attempt": SimpleNamespace(run=b"run"), **named}
    known = joined and before == OFFERED and "plan" not in named
    with nullcontext() if known or (fits and not named) else pytest.raises(Refused):
        assert RealClient._accepted(own, SimpleNamespace(**given)) == b""
    assert calls == ([] if known else [(b"text", b"s" * 64), *([OFFERED] if fits and not named else [])])
    assert own._joined == (
        {b"digest": "now"} if fits and not named and not known else {b"digest": "already"} if joined else {}
    )


@pytest.mark.parametrize("kind", [SignedPlan, SignedAnalysis])
@pytest.mark.parametrize("refused", [None, "floors", "allowed"])
def test_an_offer_is_held_against_the_floors_and_the_promise_before_it_is_looked_at(monkeypatch, kind, refused):
    """A training and an analysis alike."""
    done = []

    def step(name):
        def act(*words, **named):
            done.append((name, *words, *named.values()))
            if name == refused:
                raise Refused(name)
            return name

        return act

    for name, step_of in (("check_allowed", "allowed"), ("join", "plan"), ("join_analysis", "analysis")):
        monkeypatch.setattr(training_participation, name, step(step_of))
    settings = SimpleNamespace(aggregation=SimpleNamespace(rough="rough"))
    signed = kind.__new__(kind)
    object.__setattr__(signed, "plan", SimpleNamespace(settings=settings, privacy="privacy"))
    if kind is SignedAnalysis:  # of a plan it is the plan's own
        object.__setattr__(signed, "privacy", "privacy")
    promise = SimpleNamespace(floors=SimpleNamespace(check=step("floors")))
    own = SimpleNamespace(promise=promise)
    last = "plan" if kind is SignedPlan else "analysis"
    with nullcontext() if refused is None else pytest.raises(Refused, match=refused):
        assert training_participation.joined_by(signed, own) == last
    due = [("floors", "privacy", "rough"), ("allowed", "privacy", promise), (last, signed, own)]
    assert done == due[: {"floors": 1, "allowed": 2, None: 3}[refused]]


@pytest.mark.parametrize("killed", [False, True])
def test_a_plan_lies_beside_a_model_as_long_as_it_is_handed_out(monkeypatch, tmp_path, killed):
    """A server that is killed meanwhile does so again, with the plan that clients joined."""
    kept, asked, there = tmp_path / "secret" / training_server._OFFER, [], [0, 2]
    kept.parent.mkdir()
    kept.write_bytes(b"s" * 64 + b"text")

    def ask(kind, attempt, bodies):
        asked.append((kind, attempt, bodies, kept.read_bytes()))
        if killed:
            raise KeyboardInterrupt
        return dict.fromkeys(there, b"")

    monkeypatch.setattr(training_server, "load_weights", lambda path: {"other": None, "b": 2.0, "a": 1.0})
    monkeypatch.setattr(training_server, "flatten", lambda found: SimpleNamespace(
        float=lambda: SimpleNamespace(numpy=lambda: np.array([*found.values()], dtype=np.float32))))  # fmt: skip
    own = Federation(channel=None, identity=b"k" * 32, roster=(b"a", b"b", b"c"), seconds=1.0)
    own._asking = SimpleNamespace(ask=ask)
    own._signed = SimpleNamespace(signature=b"s" * 64, text=b"text", run=b"r" * 32, initial={"a": 0, "b": 0})
    run = SimpleNamespace(secret=kept.parent, weights="weights")
    if killed:
        with pytest.raises(KeyboardInterrupt):
            own.hand_out(run)
    else:
        own.hand_out(run)
    # Not everybody has it yet.
    assert kept.exists()
    ((kind, attempt, bodies, plan),) = asked
    assert plan == b"s" * 64 + b"text"
    assert (kind, attempt) == (QuestionKind.MODEL, Attempt(run=b"r" * 32, round=0))
    body = np.array([1.0, 2.0], dtype="<f4").tobytes()
    assert bodies == dict.fromkeys(range(3), body)
    there[:] = [1]
    if not killed:
        own.hand_out(run)
        assert asked[1:] == [(kind, attempt, {1: body}, plan)]
    assert kept.exists() == killed


def test_a_line_of_a_log_is_written_under_its_lock():
    held, lock = [], Lock()
    log = JsonLog(lambda line: held.append(lock.depth))
    log._lock = lock
    log.say("a sentence")
    assert held == [1]
    assert not lock.depth
