"""Questions of a server and what it remembers of the answers, with clients that say what a test wants."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dpfedmeta.federation.server.client_requests import ClientRequests, Told
from dpfedmeta.federation.server.quorum import TooFew, all_are_asked, check_willing, offer_until_answered
from dpfedmeta.federation.wire_format import Attempt, Question, QuestionKind, Said, answer
from dpfedmeta.secure_aggregation.crypto.keys import Identity

SERVER = Identity(bytes(31) + b"\1")
CLIENTS = [Identity(bytes([number + 1]) * 32) for number in range(4)]
SIGNED = SimpleNamespace(
    run=bytes(32), digest=bytes(32), signature=bytes(64), text=b"a plan",
    privacy=SimpleNamespace(cohort=2.0, at=lambda round_: SimpleNamespace(whole=SimpleNamespace(fewest=lambda n: 2))),
)  # fmt: skip
PLAN, VECTOR = QuestionKind.PLAN, QuestionKind.VECTOR
SOUND = {PLAN: Said.ACCEPTED, VECTOR: Said.VECTOR}


class Wire:
    """Clients that accept and answer, but for those to whom `says` gives something else."""

    def __init__(self):
        self.asked, self.says = [], {}

    def present(self):
        return [client.public for client in CLIENTS]

    def ask(self, messages, seconds):
        came = {}
        for number, client in enumerate(CLIENTS):
            if client.public not in messages:
                continue
            message = messages[client.public]
            question = Question.opened(message, SERVER.public, client.public)
            self.asked.append((question.asked.name, number))
            said = self.says.get((question.asked, number), "sound")
            if said == "nothing":
                continue
            kind = Said.DECLINED if said == "declined" else SOUND[question.asked]
            whole = answer(kind, message, b"" if said == "declined" else b"body", client)
            came[client.public] = whole[:-1] if said == "unsound" else whole
        return came


@pytest.fixture
def heard():
    return []


@pytest.fixture
def asking(heard):
    return ClientRequests(
        channel=Wire(), signed=SIGNED, server=SERVER, roster=[each.public for each in CLIENTS], seconds=1.0,
        heard=heard.append,
    )  # fmt: skip


def round_of(asking, number, again=()):
    asking.channel.asked.clear()
    return asking.ask(VECTOR, Attempt(run=SIGNED.run, round=number, again=again), dict.fromkeys(range(4), b"task"))


def test_asking_again_stays_within_the_time_of_one_question(asking):
    """Those that are silent are asked again, nobody else, and all of it takes `seconds` at most."""
    round_of(asking, 0)
    honest, waited = asking.channel.ask, []

    def ask(messages, seconds):
        waited.append((len(messages), seconds))
        return honest(messages, seconds)

    asking.channel.says[VECTOR, 2] = "nothing"
    asking.channel.ask = ask
    assert set(round_of(asking, 1)) == {0, 1, 3}
    assert [count for count, _ in waited] == [4, 1, 1]
    assert sum(seconds for _, seconds in waited) == pytest.approx(asking.seconds)


def test_who_is_left_out_is_not_there(asking):
    asking.left_out |= {2}
    assert asking.there == {0, 1, 3}


def test_a_plan_is_offered_once_to_whoever_accepts_it(asking):
    assert set(round_of(asking, 0)) == {0, 1, 2, 3}
    assert asking.channel.asked == [("PLAN", n) for n in range(4)] + [("VECTOR", n) for n in range(4)]
    round_of(asking, 1)
    assert asking.channel.asked == [("VECTOR", n) for n in range(4)]


@pytest.mark.parametrize("said", ["declined", "unsound", "nothing"])
def test_who_does_not_accept_the_plan_is_asked_nothing_else_and_is_offered_it_again(asking, said):
    asking.channel.says[PLAN, 2] = said
    assert set(round_of(asking, 0)) == {0, 1, 3}
    assert ("VECTOR", 2) not in asking.channel.asked
    del asking.channel.says[PLAN, 2]
    assert set(round_of(asking, 1)) == {0, 1, 2, 3}
    assert asking.channel.asked[0] == ("PLAN", 2)


@pytest.mark.parametrize(("said", "offered"), [("declined", True), ("unsound", False), ("nothing", False)])
def test_who_declines_a_round_may_have_been_started_again_and_is_offered_the_plan_anew(asking, said, offered):
    round_of(asking, 0)
    asking.channel.says[VECTOR, 1] = said
    assert set(round_of(asking, 1)) == {0, 2, 3}
    assert asking.declining == (set() if said == "nothing" else {1})
    asking.channel.says.clear()
    assert set(round_of(asking, 2)) == {0, 1, 2, 3}
    assert (asking.channel.asked[0] == ("PLAN", 1)) == offered
    # Another round, or another attempt at it, forgets who declined.
    assert asking.declining == set()


def test_every_question_is_counted_as_it_went(asking, heard):
    round_of(asking, 0)
    asking.channel.says |= {(VECTOR, 0): "declined", (VECTOR, 1): "unsound", (VECTOR, 3): "nothing"}
    round_of(asking, 5)
    found = heard[-1]
    assert (found.asked, found.round, found.clients) == (VECTOR, 5, 4)
    assert (found.answered, found.declined, found.unsound, found.absent) == (1, 1, 1, 1)


def test_a_plan_is_offered_until_enough_answered_unless_too_few_are_willing(asking):
    asking.channel.says |= {(PLAN, 0): "declined", (PLAN, 1): "declined"}
    offer_until_answered(asking, 4, 0.0)
    assert asking.declining == {0, 1}
    asking.channel.says[PLAN, 2] = "declined"
    asking._accepted.clear()
    asking._declining.clear()
    # All four answered, which is enough; that three declined leaves too few for any round.
    with pytest.raises(TooFew, match="3 of 4 clients declined, and a round needs 2"):
        offer_until_answered(asking, 4, 0.0)


def test_who_declined_is_not_offered_the_plan_in_every_look(asking):
    asking.channel.says[PLAN, 0] = "declined"
    asking.offer(asking.channel.present())
    asking.channel.asked.clear()
    asking.offer(asking.channel.present())
    assert asking.channel.asked == []


OTHERS = {
    "round": Attempt(run=SIGNED.run, round=4, again=(1, 7)), "count": Attempt(run=SIGNED.run, round=3, again=(2, 7)),
    "mark": Attempt(run=SIGNED.run, round=3, again=(1, 8)), "first": Attempt(run=SIGNED.run, round=3),
}  # fmt: skip


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_whom_clients_were_told_of_is_kept_for_that_attempt(tmp_path, other, killed):
    """Of another attempt the vectors are others, so its survivors may be."""
    told, attempt = Told(path=tmp_path / "told.json"), Attempt(run=SIGNED.run, round=3, again=(1, 7))
    assert told.survivors(attempt) is None
    told.note(attempt, iter([2, 0]))
    told = Told(path=tmp_path / "told.json") if killed else told
    assert told.survivors(attempt) == {0, 2}
    assert told.survivors(OTHERS[other]) is None
    told.note(OTHERS[other], [1])
    assert (told.survivors(attempt), told.survivors(OTHERS[other])) == (None, {1})


def test_attempts_are_numbered_on_disk(tmp_path):
    """Whatever a clock says, and however often the server is started again; survivors stay beside the number."""
    path, attempt = tmp_path / "told.json", Attempt(run=SIGNED.run, round=3)
    assert [Told(path=path).next_protocol() for _ in range(3)] == [1, 2, 3]
    told = Told(path=path)
    told.note(attempt, [2, 0])
    assert (told.next_protocol(), Told(path=path).next_protocol()) == (4, 5)
    assert Told(path=path).survivors(attempt) == {0, 2}
    (tmp_path / "full").mkdir()
    full = Told(path=tmp_path / "full" / "none" / "told.json")
    # Without a disk there is no number, and none is used twice.
    with pytest.raises(OSError):
        full.next_protocol()


def test_a_sound_answer_takes_back_a_decline(asking):
    """A client that was started again inside a round lost its keys: it declines once, and is there again."""
    round_of(asking, 0)
    asking.channel.says[VECTOR, 1] = "declined"
    round_of(asking, 1)
    assert asking.declining == {1}
    asking.channel.says.clear()
    round_of(asking, 1)
    assert asking.declining == set()
    asking.channel.says |= {(VECTOR, 1): "unsound", (VECTOR, 2): "nothing"}
    round_of(asking, 1)
    assert asking.declining == {1}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("declined", range(5))
def test_a_round_is_begun_where_exactly_as_many_are_left_as_it_needs(declined, whole):
    """Of a sum, the fewest survivors of the cohort that is asked; of messages, one."""
    fewest = SimpleNamespace(fewest=lambda cohort: cohort - 1) if whole else None
    privacy = SimpleNamespace(cohort=3.0, at=lambda round_: SimpleNamespace(whole=fewest))
    asking = SimpleNamespace(
        signed=SimpleNamespace(privacy=privacy), declining=frozenset(range(declined)), roster=[b"a", b"b", b"c", b"d"]
    )
    needed = 2 if whole else 1
    with (
        nullcontext()
        if 4 - declined >= needed
        else pytest.raises(TooFew, match=f"{declined} of 4 clients declined, and a round needs {needed};")
    ):
        check_willing(asking)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("cohort", [3.0, 4.0])
def test_all_are_asked_where_no_coin_and_no_choice_leaves_one_out(fixed, cohort):
    privacy = SimpleNamespace(sampling=SimpleNamespace(fixed_size=fixed), cohort=cohort, clients=4)
    asking = SimpleNamespace(signed=SimpleNamespace(privacy=privacy))
    assert all_are_asked(asking) == (fixed and cohort == 4)


def test_who_answered_the_plan_is_counted_once_whatever_it_said(asking):
    asking.channel.says |= {(PLAN, 1): "declined", (PLAN, 2): "nothing"}
    asking.offer(asking.channel.present())
    assert (asking.declining, asking.answering) == ({1}, 3)
    # One that declines a round has answered the plan, and is counted no second time.
    asking.channel.says = {(VECTOR, 0): "unsound", (PLAN, 1): "declined"}
    round_of(asking, 0)
    assert asking.declining == {0, 1}
    assert asking.answering == 4
