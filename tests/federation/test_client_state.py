"""What a client keeps of a run, by all that it is kept for."""

import itertools

import pytest

from dpfedmeta.federation.client.client_state import asked_digest, forgotten, kept_for
from dpfedmeta.federation.wire_format import Attempt

RUN, OTHER_RUN = bytes(range(32)), bytes(range(1, 33))
FIRST = Attempt(run=RUN, round=3)
QUESTIONS = {
    "usual": (FIRST, "asked"),
    "another round": (Attempt(run=RUN, round=4), "asked"),
    "another attempt": (Attempt(run=RUN, round=3, again=(1, 7)), "asked"),
    "another mark": (Attempt(run=RUN, round=3, again=(1, 8)), "asked"),
    "another question": (FIRST, "other"),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(QUESTIONS, 2)))
def test_a_kept_answer_is_one_to_its_own_question_alone(tmp_path, one, other):
    kept = kept_for(tmp_path, RUN)
    assert kept.once(*QUESTIONS[one], lambda: b"first") == b"first"
    # It is on disk before it leaves, so a client that is started again has it.
    again = kept_for(tmp_path, RUN)
    assert again.once(*QUESTIONS[one], lambda: b"computed again") == b"first"
    assert again.once(*QUESTIONS[other], lambda: b"second") == b"second"


def test_answers_of_two_runs_are_kept_apart(tmp_path):
    assert kept_for(tmp_path, RUN).once(FIRST, "asked", lambda: b"first") == b"first"
    assert kept_for(tmp_path, OTHER_RUN).once(FIRST, "asked", lambda: b"second") == b"second"
    assert kept_for(tmp_path, RUN).once(FIRST, "asked", lambda: b"third") == b"first"


@pytest.mark.parametrize(
    ("charged", "known"),
    [
        ((RUN.hex(), (3,), "asked"), True),
        ((OTHER_RUN.hex(), (3,), "asked"), False),
        ((RUN.hex(), (4,), "asked"), False),
        ((RUN.hex(), (3, 1, 7), "asked"), False),
        ((RUN.hex(), (3,), "other"), False),
    ],
)
def test_an_answer_is_known_by_its_run_attempt_and_question(tmp_path, charged, known):
    kept = kept_for(tmp_path, RUN)
    kept.once(FIRST, "asked", lambda: b"first")
    assert (forgotten(tmp_path, [charged]) is None) == known


def test_what_is_asked_is_the_task_among_these_clients():
    asked = [(b"task", ()), (b"other", ()), (b"task", (0, 1)), (b"task", (0, 2)), (b"task", (0, 1, 2)), (b"task", (1,))]
    assert len({asked_digest(*each) for each in asked}) == len(asked)


def test_what_a_client_keeps_is_for_its_owner_alone(tmp_path):
    kept_for(tmp_path, RUN).once(FIRST, "asked", lambda: b"a vector")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
