"""The two ways of adding up over a wire, one decision at a time: who is asked, who counts, and what is tried again."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.federation.server import quorum, remote_sums
from dpfedmeta.federation.server.client_requests import Told
from dpfedmeta.federation.server.quorum import TooFew
from dpfedmeta.federation.server.remote_sums import AskedAdder, AskedSums, NoSum, secure_sum, used_up
from dpfedmeta.federation.wire_format import Attempt, ProtocolStep, QuestionKind, RoundTask, Start
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.simulation.backend import AttemptUsedUp

ATTEMPT = Attempt(run=b"r" * 32, round=4, again=(1, 7))
START = Start(invited=(2, 3, 5, 8), task=b"task")


def cohort(*clients):
    return SimpleNamespace(clients=np.array(clients), round=4, again=(1, 7))


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize(("answered", "entered"), [(3, 3), (3, 2), (2, 2), (2, 0), (0, 0)])
def test_a_message_that_does_not_enter_the_sum_is_a_failed_client(monkeypatch, aborts, answered, entered):
    """Whether it never came, or came and is none that an honest client sends."""
    asked, added = [], []
    names = (5, 6, 9)

    def asks(kind, attempt, bodies):
        asked.append((kind, attempt, bodies))
        return dict.fromkeys(names[:answered], b"")

    class Numbers:
        def total(self, messages, size):
            assert len(list(messages)) == answered
            return "sum", entered

    monkeypatch.setattr(remote_sums, "dimension", lambda form: 2)
    monkeypatch.setattr(remote_sums, "_flat", lambda model: np.array([1.0, 2.0], dtype=np.float32))
    monkeypatch.setattr(remote_sums, "_values", lambda answer, size: answer)
    monkeypatch.setattr(remote_sums, "plain_sum", lambda *given: added.append(given) or "found")
    clients = SimpleNamespace(form=lambda model: model, whole_numbers=lambda bound, size: Numbers())
    asking = SimpleNamespace(signed=SimpleNamespace(run=b"r" * 32), ask=asks)
    sums = AskedSums(clients=clients, asking=asking)
    assert sums.cohort_sum("model", 0.5, cohort(*names)) == "found"
    assert added == [(clients, "model", 0.5, ("sum", entered), answered)]
    task = RoundTask(bound=0.5, model=np.array([1.0, 2.0], dtype=np.float32)).encode()
    assert asked == [(QuestionKind.VECTOR, ATTEMPT, dict.fromkeys(names, task))]


class Phases:
    """A server of secure aggregation that goes through two phases; what it gets is noted."""

    def __init__(self, phases=(ProtocolPhase.KEYS, ProtocolPhase.CONSENT), survivors=(0, 2)):
        self.left, self.survivors, self.got = list(phases), survivors, []

    @property
    def phase(self):
        return self.left[0] if self.left else ProtocolPhase.REVEAL

    def receive(self, answer):
        if answer == b"wrong":
            raise Refused("wrong")
        self.got.append(answer)

    def close(self):
        self.left.pop(0)
        return {0: b"said", 2: b"so"} if self.left else {}


@pytest.mark.parametrize("told", [None, {2, 5}, {2, 3, 5, 8}])
@pytest.mark.parametrize("left_out", [set(), {5}, {2, 8}])
def test_an_attempt_is_made_of_those_who_are_told_of_or_else_of_all_but_those_at_fault(told, left_out):
    """Clients agree to one set of survivors of a vector: without one of those that were told nothing is unmasked."""
    asked, noted, server = [], [], Phases()

    def asks(kind, attempt, bodies):
        asked.append((kind, attempt, {number: ProtocolStep.decode(body) for number, body in bodies.items()}))
        return {2: b"of two", 5: b"wrong", 8: b"of eight"}

    kept = SimpleNamespace(survivors=lambda attempt: told, note=lambda *given: noted.append((given[0], [*given[1]])))
    asking = SimpleNamespace(left_out=left_out, told=kept, ask=asks)
    remote_sums._talk(asking, server, ATTEMPT, 9, START)
    (kind, attempt, first), (_, _, second) = asked
    assert (kind, attempt) == (QuestionKind.PHASE, ATTEMPT)
    assert first.keys() == (told if told is not None else {*START.invited} - left_out)
    assert {step.said for step in first.values()} == {START.encode()}
    assert {step.protocol for step in (*first.values(), *second.values())} == {9}
    assert {step.phase for step in first.values()} == {ProtocolPhase.KEYS}
    # By seats: the first and the third of those that are invited.
    assert {number: step.said for number, step in second.items()} == {2: b"said", 5: b"so"}
    assert {step.phase for step in second.values()} == {ProtocolPhase.CONSENT}
    assert server.got == [b"of two", b"of eight"] * 2
    # Noted once, before clients are told; of an attempt that goes on with what was told, nothing is noted anew.
    assert noted == ([] if told is not None else [(ATTEMPT, [2, 5])])


@pytest.fixture
def tried(monkeypatch):
    """Attempts at a sum that end as a test says; (asking, numbers of the attempts)."""

    def make(*endings, protocol=0, faults=()):
        numbers, blamed, ends = [], [], list(endings)
        told = Told(_kept=(protocol, [], []))
        roster = tuple(bytes([number]) for number in range(10))
        channel = SimpleNamespace(present=lambda: roster)
        asking = SimpleNamespace(
            signed="signed",
            told=told,
            left_out=set(),
            blamed=blamed.append,
            roster=roster,
            channel=channel,
            seconds=1.0,
        )

        class Server:
            def __init__(self, *, round_, identity):
                self.faults = [faults[len(numbers) - 1]] if faults else []

            def sum(self):
                return "the sum"

        def talks(asking, server, attempt, number, start):
            ending = ends.pop(0)
            if ending is not None:
                raise Aborted(ending)

        monkeypatch.setattr(remote_sums, "round_of", lambda signed, attempt, number, start: numbers.append(number))
        monkeypatch.setattr(remote_sums, "Server", Server)
        monkeypatch.setattr(remote_sums, "_talk", talks)
        monkeypatch.setattr(remote_sums, "certain", lambda faults: {s for each in faults for s in each.seats[:1]})
        return asking, numbers, blamed

    return make


def fault(*seats):
    return SimpleNamespace(seats=seats, text=lambda name: " or ".join(map(name, seats)) + " lied")


@pytest.mark.parametrize("protocol", [0, 80])
def test_attempts_are_numbered_in_their_order(tried, protocol):
    asking, numbers, _ = tried("one", "two", None, protocol=protocol)
    assert secure_sum(asking, bytes(32), ATTEMPT, START) == "the sum"
    assert numbers == [protocol + 1, protocol + 2, protocol + 3]
    assert asking.told.next_protocol() == protocol + 4


def test_a_sum_is_tried_three_times_without_those_who_were_at_fault_for_sure(tried):
    """By numbers of clients; the operator is told of each fault once, also of that of the last attempt."""
    asking, numbers, blamed = tried("seat 1 is", "two", "seat 3 is gone", faults=[fault(1), fault(0, 2), fault(3, 1)])
    with pytest.raises(NoSum, match=r"^client 8 is gone; client 8 or client 3 lied$"):
        secure_sum(asking, bytes(32), ATTEMPT, START)
    assert len(numbers) == 3
    assert asking.left_out == {3, 2, 8}
    assert [(blame.round, blame.clients) for blame in blamed] == [(4, (3,)), (4, (2, 5)), (4, (8, 3))]
    assert [blame.text(lambda number: f"silo {number}") for blame in blamed] == [
        "silo 3 lied", "silo 2 or silo 5 lied", "silo 8 or silo 3 lied",
    ]  # fmt: skip


@pytest.mark.parametrize("at_fault", [False, True])
@pytest.mark.parametrize(("everybody", "found", "used"), list(itertools.product([False, True], repeat=3)))
def test_a_round_without_a_sum_ends_a_run_only_where_that_is_no_secret(monkeypatch, everybody, found, used, at_fault):
    starts = []

    def sums(asking, identity, attempt, start):
        starts.append((identity, attempt, start))
        if not found:
            raise NoSum("too few")
        return SimpleNamespace(total=np.array([3, 4], dtype=np.uint32), survivors=frozenset({0, 1}))

    monkeypatch.setattr(remote_sums, "secure_sum", sums)
    monkeypatch.setattr(remote_sums, "all_are_asked", lambda asking: everybody)
    monkeypatch.setattr(remote_sums, "used_up", lambda asking, attempt, invited: used)
    asking = SimpleNamespace(
        signed=SimpleNamespace(run=b"r" * 32),
        told=SimpleNamespace(survivors=lambda attempt: frozenset({2, 5})),
        left_out={5} if at_fault else {4},
    )
    adder = AskedAdder(asking=asking, identity=b"k" * 32)
    clients = SimpleNamespace(whole=SimpleNamespace(dimension=2))
    model = {"a": np.array([[1.0]]), "b": np.array([2.0])}
    tasks = [(clients, model, (0.5, 1), 4, [2, 5])]
    raised = pytest.raises(AttemptUsedUp if used else TooFew, match=r"round 4 has no sum \(too few\)")
    with nullcontext() if found or not everybody else raised as error:
        total, entered = adder(clients, None, tasks, cohort(2, 5))
        assert (total.tolist(), entered) == (([3, 4], 2) if found else ([0, 0], 0))
        assert total.dtype == np.int64
    if used and everybody and not found:
        # One that is only away may come back: without a budget for a further attempt the run can wait for it.
        assert isinstance(error.value.otherwise, TooFew) is not at_fault
    task = RoundTask(bound=0.5, model=np.array([1.0, 2.0])).encode()
    assert starts == [(b"k" * 32, ATTEMPT, Start(invited=(2, 5), task=task))]
    # Nobody is invited: nobody is asked.
    assert adder(clients, None, [], cohort())[1] == 0
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("told", "by_another", "left_out", "there", "found"),
    [
        (None, True, {2}, {3, 5, 8}, False),  # nobody was told of survivors: the same question may still have a sum
        ({2, 3, 5, 8}, False, set(), {2, 3, 5, 8}, False),
        ({2, 3, 5, 8}, True, set(), {2, 3, 5, 8}, False),  # all are back
        ({2, 3, 5, 8}, False, set(), {3, 5, 8}, False),  # one may come back
        ({2, 3, 5, 8}, True, set(), {3, 5, 8}, True),
        ({2, 3, 5, 8}, True, set(), {3, 5, 8, 9}, True),
        ({2, 3, 5, 8}, True, set(), {3, 8, 9}, False),  # too few of those who are invited
        ({2, 3, 5, 8}, False, {2}, {3, 5, 8}, True),
        ({2, 3, 5, 8}, False, {2}, {3, 5}, False),
        ({3, 5, 8}, False, {2}, {3, 5, 8}, False),  # it is in no sum anyway
    ],
)
@pytest.mark.parametrize(("enough", "quorum"), [(3, 2), (2, 3)])
def test_an_attempt_is_used_up_once_its_sum_can_never_be(told, by_another, left_out, there, found, enough, quorum):
    asking = SimpleNamespace(
        told=SimpleNamespace(survivors=lambda attempt: told, by_another=by_another),
        left_out=left_out,
        there=frozenset(there),
        signed=SimpleNamespace(agreement=lambda round_, invited: SimpleNamespace(enough=enough, quorum=quorum)),
    )
    assert used_up(asking, ATTEMPT, START.invited) is found


def test_one_at_fault_among_those_that_were_told_of_ends_the_attempts(tried):
    """Clients would mask with it again and again; nothing more is asked."""
    asking, numbers, _ = tried("seat 1 is", None, faults=[fault(1)])
    asking.told.note(ATTEMPT, {2, 3, 5, 8})
    with pytest.raises(NoSum, match="client 3 is"):
        secure_sum(asking, bytes(32), ATTEMPT, START)
    assert len(numbers) == 1
    with pytest.raises(NoSum, match="one that is left out"):
        secure_sum(asking, bytes(32), ATTEMPT, START)
    assert len(numbers) == 1


@pytest.mark.parametrize(("comes_after", "looks"), [(0, 1), (3, 4), (99, 6)])
def test_an_attempt_waits_for_survivors_that_were_told_of(tried, monkeypatch, comes_after, looks):
    """A server that was started again found one of them away for a moment, and charged all a further attempt."""
    asking, numbers, _ = tried(None)
    clock, seen = [0.0], []

    def present():
        seen.append(clock[0])
        return asking.roster if len(seen) > comes_after else asking.roster[:5]

    asking.channel.present = present
    asking.told.note(ATTEMPT, {2, 3, 5, 8})
    sleep = lambda seconds: clock.__setitem__(0, clock[0] + seconds)  # noqa: E731
    monkeypatch.setattr(quorum, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    assert secure_sum(asking, bytes(32), ATTEMPT, START) == "the sum"
    assert (len(seen), len(numbers)) == (looks, 1)
