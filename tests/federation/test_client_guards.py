"""Decisions of a client one by one: what is left, what a plan must have, what may be charged; all else is allowed."""

import inspect
import math
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.client import client, client_budget
from dpfedmeta.federation.client.client_budget import Floors, Promise, participation
from dpfedmeta.federation.client.client_state import asked_digest
from dpfedmeta.federation.wire_format import Attempt, ProtocolStep, Start
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from tests.federation.sessions import FREE


@pytest.mark.parametrize(("answered", "due"), [((), 0), (((0,),), 1), (((0,), (3,), (1,)), 4), (((2, 1, 7),), 3)])
def test_rounds_to_come_begin_behind_the_latest_that_was_answered(monkeypatch, answered, due):
    seen = []
    monkeypatch.setattr(client_budget, "left", lambda *given: seen.append([*given[4]]) or 7 + len(given[5:]))
    ledger = SimpleNamespace(keys=lambda run: answered if run == "run" else [(8,)])
    assert client_budget.left_of_run(SimpleNamespace(rounds=6), None, ledger, "run", "limits") == 8
    assert seen == [list(range(due, 6))]


@pytest.mark.parametrize(
    ("adversarial", "colluding", "rough", "why"),
    [
        (0.2, 3, False, None),
        (0.19999, 3, False, "withstand 0.19999 of a cohort colluding, but this client demands 0.2"),
        (None, 3, False, "withstand 0 of a cohort colluding"),
        (0.2, 2, False, "counts with 2 colluding clients, who know their own noise, but this client demands 3"),
        (0.3, 4, True, "rounding costs a lot"),
    ],
)
def test_floors_are_met_exactly_or_not(adversarial, colluding, rough, why):
    """Each with the others met; a plan without sums has nobody whom masks or noise would have to withstand."""
    floors = Floors(adversarial=0.2, colluding=3)
    plan = SimpleNamespace(secure=SimpleNamespace(adversarial=adversarial), colluding=colluding)
    with nullcontext() if why is None else pytest.raises(Refused, match=why):
        floors.check(plan, rough=rough)
    floors.check(SimpleNamespace(secure=None, colluding=0), rough=True)


@pytest.mark.parametrize(("given", "fits"), [
    ({"adversarial": 0.0}, True), ({"adversarial": 0.999}, True), ({"adversarial": 1.0}, False),
    ({"adversarial": -0.1}, False), ({"adversarial": math.nan}, False), ({"colluding": 0}, True),
    ({"colluding": -1}, False),
])  # fmt: skip
def test_floors_have_a_range(given, fits):
    with nullcontext() if fits else pytest.raises(InputError, match=f"^{next(iter(given))} = "):
        Floors(**given)


@pytest.mark.parametrize(("given", "fits"), [
    ({"epsilon": 1e-9}, True), ({"epsilon": 0.0}, False), ({"epsilon": math.inf}, False),
    ({"epsilon": 1.0, "delta": 0.0}, False), ({"epsilon": 1.0, "delta": 0.999}, True),
    ({"epsilon": 1.0, "delta": math.nan}, False), ({"participations": 1}, True),
    ({"epsilon": 1.0, "participations": 0}, False),
])  # fmt: skip
def test_a_promise_is_taken_to_the_ends_of_its_range(given, fits):
    with nullcontext() if fits else pytest.raises(InputError):
        Promise(**given)


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize(("rate", "fits"), [(1.0, True), (0.5, False)])
def test_a_ledger_adds_up_whole_support_steps_alone(monkeypatch, unit, rate, fits):
    """Towards a client as a whole it makes no difference which of its records are in a mini-batch."""
    asked = []
    monkeypatch.setattr(client_budget, "spending", lambda *given: asked.append(given) or "cost")
    plan = SimpleNamespace(record=SimpleNamespace(batch_rate=rate), at=lambda round_: ("at", round_), server_sees="sum")
    if unit == "record" and not fits:
        with pytest.raises(Refused, match="samples mini-batches"):
            participation(plan, Promise(epsilon=1.0, unit=unit), 3)
        return
    assert participation(plan, Promise(epsilon=1.0, unit=unit), 3) == "cost"
    assert asked == [(("at", 3), plan.record, "sum", unit)]


PLACES = {
    "first": (None, True), "same": (("run", (2, 1), 5), False), "later attempt": (("run", (2, 1), 6), False),
    "earlier attempt": (("run", (2, 1), 4), True), "later round": (("run", (3,), 1), False),
    "earlier round": (("run", (1,), 9), True), "another run": (("other", (2, 1), 9), True),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("masked", [False, True])
def test_an_attempt_at_the_protocol_is_begun_once_and_after_those_before(monkeypatch, place, masked):
    """In each a client has fresh keys: in one that is begun twice, its masks would stand for two vectors."""
    before, fits = PLACES[place]
    begun, chargeable = [], []
    opened_round = SimpleNamespace(place=("run", (2, 1), 5), answer=lambda phase, said: b"keys", asked="a", task=b"t")
    monkeypatch.setattr(client, "MaskedRound", lambda *given: begun.append(given) or opened_round)
    own = SimpleNamespace(
        _masked=None if before is None else SimpleNamespace(place=before),
        _private=b"private",
        _chargeable=lambda *given: chargeable.append(given),
    )
    told = []
    joined = SimpleNamespace(signed=SimpleNamespace(masked=masked, run="run", privacy=SimpleNamespace(clients=4)),
                             check=told.append)  # fmt: skip
    start = Start(invited=(0, 2), task=b"task")
    step = ProtocolStep(protocol=5, phase=ProtocolPhase.KEYS, said=start.encode()).encode()
    question = SimpleNamespace(body=step, attempt=Attempt(run=b"r", round=2, again=(1,)))
    if not masked or not fits:
        with pytest.raises(Refused, match="not later than the last one" if masked else "the plan does not use it"):
            client.RealClient._phase(own, joined, question)
        assert begun == chargeable == []
        assert own._masked is None or own._masked.place == before
        return
    assert client.RealClient._phase(own, joined, question) == b"keys"
    assert begun == [(joined, question.attempt, 5, start, b"private")]
    assert chargeable == [(joined, question.attempt, asked_digest(b"task", (0, 2)))]
    assert (told, own._masked) == ([b"task"], opened_round)


@pytest.mark.parametrize("place", [None, ("run", (2, 1), 4), ("run", (2,), 5), ("other", (2, 1), 5)])
def test_a_step_of_an_attempt_that_was_not_begun_is_refused(place):
    own = SimpleNamespace(_masked=None if place is None else SimpleNamespace(place=place))
    joined = SimpleNamespace(signed=SimpleNamespace(masked=True, run="run"))
    step = ProtocolStep(protocol=5, phase=ProtocolPhase.SHARES, said=b"").encode()
    question = SimpleNamespace(body=step, attempt=Attempt(run=b"r", round=2, again=(1,)))
    with pytest.raises(Refused, match="round 2: a step of secure aggregation that this client never began"):
        client.RealClient._phase(own, joined, question)


@pytest.mark.parametrize("new", [False, True])
def test_a_vector_under_masks_is_charged_for_what_was_asked_and_said_to_be_new_or_not(new):
    charged, said = [], []
    masked = SimpleNamespace(
        place=("run", (2,), 5), answer=lambda phase, said: b"four", asked="asked", task=b"task", agreed=True
    )
    own = SimpleNamespace(
        _masked=masked, _charged=lambda *given: charged.append(given) or new, _log=said.append, _ledger="ledger",
        _promise="promise",
    )  # fmt: skip
    joined = SimpleNamespace(signed=SimpleNamespace(masked=True, run="run"), sent_words=lambda *given: given)
    step = ProtocolStep(protocol=5, phase=ProtocolPhase.MASKED, said=b"").encode()
    question = SimpleNamespace(body=step, attempt=Attempt(run=b"r", round=2))
    assert client.RealClient._phase(own, joined, question) == b"four"
    assert charged == [(joined, question.attempt, "asked")]
    ((ledger, promise, attempt, task, what),) = said
    assert (ledger, promise, attempt, task) == ("ledger", "promise", question.attempt, b"task")
    kind = "one vector under masks" if new else "the same vector as before under other masks (asked again)"
    assert what == f"{kind}, 4 bytes"


@pytest.mark.parametrize("agreed", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_a_vector_that_does_not_leave_costs_nothing_or_its_owner_is_told(agreed, new):
    """A server that skips steps gets nothing, and spends nothing of a promise."""
    charged, said = [], []

    def refuses(phase, message):
        raise Refused("a step of phase MASKED, which is not due now")

    masked = SimpleNamespace(place=("run", (2,), 5), answer=refuses, asked="asked", task=b"task", agreed=agreed)
    own = SimpleNamespace(_masked=masked, _charged=lambda *given: charged.append(given) or new, _log=said.append)
    joined = SimpleNamespace(signed=SimpleNamespace(masked=True, run="run"))
    step = ProtocolStep(protocol=5, phase=ProtocolPhase.MASKED, said=b"").encode()
    question = SimpleNamespace(body=step, attempt=Attempt(run=b"r", round=2))
    with pytest.raises(Refused, match="not due now"):
        client.RealClient._phase(own, joined, question)
    assert len(charged) == agreed
    assert said == (["round 2: charged, though no vector leaves this machine; its charge stays"] * (agreed and new))


CHARGES = {
    "new": {"fits": True}, "first of all": {"taken": (), "fits": True},
    "asked again": {"before": "asked", "key": (3,), "fits": False},
    "another question": {"before": "other", "key": (3,), "why": "differs from the one before"},
    "asked again behind a later one": {"before": "asked", "key": (2,), "why": "differs from the one before"},
    "another folder": {"before": "asked", "key": (3,), "began": False, "why": "was charged with another folder"},
    "over": {"key": (2, 1), "why": "round 2 is over: round 3 was answered already"},
    "over in its round": {"taken": [(1,), (3, 2)], "key": (3, 1), "why": "round 3 is over: round 3 was answered"},
    "over in its round, too": {"taken": [(1,), (3, 2)], "key": (3,), "why": "round 3 is over: round 3 was answered"},
    "a further attempt": {"key": (3, 1), "fits": True},
    "one more": {"taken": [(1,), (3, 2)], "key": (3, 3), "fits": True},
    "the last": {"key": (5,), "fits": True},
    "none of the plan": {"key": (6,), "why": "the plan has only 6 rounds"},
    "none of the plan, answered": {"key": (6,), "before": "asked", "why": "the plan has only 6 rounds"},
    "an older ledger": {"forgotten": "answer.bin", "why": "answer.bin left this machine and is missing in it"},
    "spent": {"left": 0, "why": "round 4 would be participation 3 in this run and 9 in all"},
}  # fmt: skip


@pytest.mark.parametrize("case", CHARGES)
def test_each_reason_against_a_charge_alone_is_enough(monkeypatch, case):
    given = {"before": None, "key": (4,), "taken": [(1,), (3,)], "began": True, "forgotten": None, "left": 1}
    given |= {"why": None, "fits": None} | CHARGES[case]
    lefts = []
    monkeypatch.setattr(client, "forgotten", lambda folder, charged: given["forgotten"])
    monkeypatch.setattr(client, "left", lambda *words: lefts.append(words) or given["left"])
    keys = {b"r".hex(): given["taken"]}
    ledger = SimpleNamespace(
        question=lambda run, key: given["before"] if (run, key) == (b"r".hex(), given["key"]) else None,
        keys=keys.get, charged=lambda: (), participations=8,
    )  # fmt: skip
    own = SimpleNamespace(_ledger=ledger, _folder=None, _path="ledger.jsonl", _promise=Promise(participations=8))
    plan = SimpleNamespace(rounds=6)
    kept = SimpleNamespace(began=lambda attempt: given["began"], folder="there")
    joined = SimpleNamespace(signed=SimpleNamespace(run=b"r", privacy=plan), kept=kept, limits=FREE)
    attempt = Attempt(run=b"r", round=given["key"][0], again=given["key"][1:])
    if given["why"] is not None:
        with pytest.raises(Refused, match=given["why"]):
            client.RealClient._chargeable(own, joined, attempt, "asked")
        return
    assert client.RealClient._chargeable(own, joined, attempt, "asked") == given["fits"]
    assert lefts == ([(plan, own._promise, ledger, b"r".hex(), [attempt.round], FREE)] if given["fits"] else [])


@pytest.mark.parametrize("place", [None, 0, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_adapted_where_all_of_it_is_finite_and_whatever_comes_of_it_is_not_said(
    monkeypatch, tmp_path, place, value, fails
):
    adapted, said = [], []

    def adapts(joined, flat):
        adapted.append(flat.tolist())
        if fails:
            raise ValueError("diverged")
        return SimpleNamespace(save=lambda path: None), "0 classes"

    own = SimpleNamespace(_personal=adapts, _log=said.append, _handed_out=False, _folder=tmp_path)
    monkeypatch.setattr(client, "dimension", lambda weights: 3)
    model = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    if place is not None:
        model[place] = value
    question = SimpleNamespace(body=model.tobytes(), recipient=b"")
    joined = SimpleNamespace(signed=SimpleNamespace(initial={}))
    with pytest.raises(Refused, match="not finite") if place is not None else nullcontext():
        assert client.RealClient._adapted(own, joined, question) == b""
    assert adapted == ([] if place is not None else [[1.0, 2.0, 3.0]])
    assert own._handed_out == (place is None)
    failed = "the learned model could not be adapted: ValueError: diverged"
    done = "the learned model, adapted to 0 classes of this client: personal.safetensors"
    assert said == ([] if place is not None else [failed if fails else done])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("most", [0, 1])
def test_a_plan_of_which_no_round_is_allowed_is_refused_with_its_price(monkeypatch, most):
    monkeypatch.setattr(client_budget, "most_participations", lambda plan, promise: most)
    monkeypatch.setattr(client_budget, "epsilon_after", lambda plan, promise, rounds: 1.23456 * rounds)
    with nullcontext() if most else pytest.raises(Refused, match=r"would cost epsilon 1\.24 for \(client, server\)"):
        client_budget.check_allowed(None, Promise(epsilon=1.0, unit="client"))


def test_a_ledger_is_read_again_where_another_process_wrote_it_and_else_is_not(monkeypatch, tmp_path):
    path, read = tmp_path / "ledger.jsonl", []
    path.write_text("begin")
    monkeypatch.setattr(client, "ClientLedger", lambda path, budget: read.append(path.read_text()) or len(read))
    own = SimpleNamespace(_folder=tmp_path, _path=path, _size=5, _promise=SimpleNamespace(budget=int), _ledger=0)
    alone = contextmanager(inspect.unwrap(client.RealClient._alone))
    for written, due in (("", 0), ("mine", 0), ("", 0)):
        with alone(own):
            assert own._ledger == due
            path.write_text(path.read_text() + written)
    # What this process wrote it knows, also where the answer failed.
    with pytest.raises(KeyError), alone(own):
        path.write_text(path.read_text() + "more")
        raise KeyError
    with alone(own):
        assert read == []
    path.write_text(path.read_text() + "theirs")
    for _ in range(2):
        with alone(own):
            assert read == ["beginminemoretheirs"]
            assert own._ledger == 1


@pytest.mark.parametrize("rounds", [(0, 1, 2), (3, 4)])
@pytest.mark.parametrize(("answered", "most"), [(0, 2), (1, 2), (2, 2), (0, 9)])
def test_what_is_left_is_asked_of_the_ledger_with_the_costs_of_the_run(monkeypatch, rounds, answered, most):
    monkeypatch.setattr(client_budget, "most_participations", lambda plan, promise: most)
    monkeypatch.setattr(client_budget, "participation", lambda plan, promise, round_: f"cost of {round_}")
    monkeypatch.setattr(client_budget, "run_cost", lambda plan: f"cost of a run of {plan}")
    monkeypatch.setattr(client_budget, "counted", lambda plan, promise, ledger: promise)
    asked = []
    ledger = SimpleNamespace(
        keys=lambda run: range(answered) if run == "run" else range(99),
        further=lambda costs, *, run, cost: asked.append((costs, run, cost)) or 7,
    )
    # Of these rounds the plan itself leaves out the second.
    limits = SimpleNamespace(open_rounds=lambda ledger, run, rounds: [rounds[0], *rounds[2:]])
    assert client_budget.left("plan", "promise", ledger, "run", rounds, limits) == 7
    due = [f"cost of {round_}" for round_ in (rounds[0], *rounds[2:])][: max(0, most - answered)]
    assert asked == [(due, "run", "cost of a run of plan")]


@pytest.mark.parametrize("sees", ["sum", "messages"])
def test_a_run_costs_what_its_discrete_noise_and_its_rare_events_cost(monkeypatch, sees):
    monkeypatch.setattr(client_budget, "surplus", lambda phases: 0.25 if phases == "phases" else None)
    monkeypatch.setattr(client_budget, "summed_coordinates", lambda phases: iter(["a", "b"]) if phases else None)
    found = client_budget.run_cost(SimpleNamespace(server_sees=sees, phases="phases"))
    assert (found.rare, found.coordinates) == ((0.25, ("a", "b")) if sees == "sum" else (0.0, ()))
