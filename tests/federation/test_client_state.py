"""What a client keeps of a run, by all that it is kept for."""

import contextlib
import itertools
import json
import os
import shutil
from types import SimpleNamespace

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.fresh_seeds import FRESH_GENERATOR
from dpfedmeta.core.random.random_sources import GENERATOR
from dpfedmeta.federation.client.client_state import (
    asked_digest,
    copied,
    forget_other_records,
    forgotten,
    kept_for,
    row_key,
    source_at,
)
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

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


DRAWN, GIVEN = FRESH_GENERATOR, GENERATOR


@pytest.mark.parametrize(
    ("given", "generator", "taken"),
    [
        (None, DRAWN, True), (None, GIVEN, True), (None, "another", False), (11, GIVEN, True), (11, DRAWN, False),
        (11, "another", False),
    ],
)  # fmt: skip
def test_a_noise_key_goes_on_in_streams_that_it_may_draw_from(tmp_path, given, generator, taken):
    """In a simulation in those of its seed alone; else, also with the key of a simulation, in fresh ones."""
    kept = kept_for(tmp_path, RUN)
    (kept.folder / "noise.json").write_text(json.dumps({"seed": 5, "generator": generator}))
    if not taken:
        with pytest.raises(InputError, match="this noise key is for another generator"):
            kept.source(given)
        return
    source = kept.source(given)
    assert (source.needs_fresh, source.seed) == (given is None, 5)


@pytest.mark.parametrize("given", [None, 11])
def test_a_noise_key_is_drawn_once_for_a_run_or_is_the_one_of_the_simulation(tmp_path, given):
    first, again, other = (kept_for(tmp_path, run).source(given).seed for run in (RUN, RUN, OTHER_RUN))
    assert first == again
    assert (first == other) == (given is not None)
    assert given in (None, first)


OF_ANOTHER_TYPE = [json.dumps({"seed": seed, "generator": GENERATOR}) for seed in ("1", True, 1.0, None)]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seed": 1}', *OF_ANOTHER_TYPE])
def test_a_damaged_noise_key_is_one_line(tmp_path, content):
    kept = kept_for(tmp_path, RUN)
    (kept.folder / "noise.json").write_text(content)
    with pytest.raises(InputError, match="the noise key of this run is damaged; restore it from a backup"):
        kept.source(None)


@pytest.mark.parametrize("other", QUESTIONS)
def test_a_folder_knows_the_attempt_that_it_began_last(tmp_path, other):
    kept, attempt = kept_for(tmp_path, RUN), QUESTIONS[other][0]
    assert not kept.began(FIRST)
    kept.begin(attempt)
    assert kept.began(FIRST) == (attempt.key == FIRST.key)
    (kept.folder / "begun.json").write_text("{")
    assert not kept.began(attempt)


@pytest.mark.parametrize("other", QUESTIONS)
def test_survivors_are_agreed_to_once_for_each_vector(tmp_path, other):
    """To the same set again, to no other, and for another vector to any."""
    kept, attempt = kept_for(tmp_path, RUN), QUESTIONS[other][0]
    one, more, less = (
        frozenset(each) for each in ((b"a" * 32, b"b" * 32), (b"a" * 32, b"b" * 32, b"c" * 32), (b"a" * 32,))
    )
    assert kept.survivors(FIRST) is None
    assert kept.may_reveal(FIRST, one)
    for again in (kept, kept_for(tmp_path, RUN)):
        assert again.survivors(FIRST) == one
        assert again.may_reveal(FIRST, one)
        assert not again.may_reveal(FIRST, more)
        assert not again.may_reveal(FIRST, less)
    same = attempt.key == FIRST.key
    assert kept.may_reveal(attempt, more) == (not same)
    assert kept.survivors(attempt) == (one if same else more)


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("fresh", [b"", b"fresh"])
def test_noise_is_drawn_with_the_fresh_bytes_of_its_charge(needs, fresh):
    source = SimpleNamespace(needs_fresh=needs, again=lambda *given: given)
    attempt = QUESTIONS["another mark"][0]
    if needs and not fresh:
        with pytest.raises(Refused, match="round 3 was charged without fresh bytes, and its answer is lost"):
            source_at(source, attempt, lambda asked: fresh)
        return
    assert source_at(source, attempt, lambda asked: fresh if asked == attempt else b"another") == ((1, 8), fresh)


def test_the_key_of_rows_is_drawn_once_for_a_home_and_goes_where_it_goes(tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir()
    key = row_key(home)
    assert key == row_key(home) == (home / "rows.key").read_bytes() != row_key(other)
    assert (home / "rows.key").stat().st_mode & 0o777 == 0o600
    # A look that changes nothing sees the same groups.
    assert row_key(copied(home / "ledger.jsonl").parent) == key
    moved = home.rename(tmp_path / "moved")
    assert row_key(moved) == key


def test_a_damaged_key_of_rows_is_no_new_one(tmp_path):
    row_key(tmp_path)
    (tmp_path / "rows.key").write_bytes(b"short")
    with pytest.raises(InputError, match=r"rows\.key: damaged.*restore it from a backup"):
        row_key(tmp_path)


def test_a_folder_that_no_client_made_is_refused_and_never_removed(tmp_path):
    """With --home DIR and --data DIR/images the owner's own images were deleted."""
    own = tmp_path / "images" / "class" / "a.png"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"theirs")
    with pytest.raises(InputError, match="give another --home"):
        forget_other_records(tmp_path / "images", [("class", "0")])
    assert own.read_bytes() == b"theirs"


def test_decoded_copies_go_where_a_record_came_or_went(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    forget_other_records(folder, [("class", "0")])
    (folder / "decoded.npy").write_bytes(b"copy")
    forget_other_records(folder, [("class", "0")])
    assert (folder / "decoded.npy").exists()
    forget_other_records(folder, [("class", "1")])
    assert not (folder / "decoded.npy").exists()


@pytest.mark.parametrize("place", ["os.rename", "os.unlink", "shutil.rmtree", "os.replace"])
@pytest.mark.parametrize("at", range(4))
def test_a_start_that_is_killed_while_records_are_forgotten_is_followed_by_one_that_forgets_them(
    tmp_path, monkeypatch, place, at
):
    """Half of the folder, or one without its mark, was taken for the owner's own, and the home was lost."""
    folder = tmp_path / "images"
    forget_other_records(folder, [("class", "0")])
    (folder / "decoded.npy").write_bytes(b"withdrawn")
    module, name = {"os": os, "shutil": shutil}[place.split(".")[0]], place.split(".")[1]
    real, calls = getattr(module, name), []

    def killed(*given, **more):
        calls.append(given)
        if len(calls) > at:
            raise KeyboardInterrupt
        return real(*given, **more)

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(module, name, killed)
        forget_other_records(folder, [("class", "1")])
    for _ in range(2):
        forget_other_records(folder, [("class", "1")])
    assert [path.name for path in folder.iterdir()] == ["of.txt"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"withdrawn"]
