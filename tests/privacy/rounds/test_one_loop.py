"""Two loops over one object, in threads and in each other: the second is refused before a charge."""

import gc
import threading
import time

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

ROUNDS = 4
REFUSED = "another loop is already going through these rounds"


@pytest.fixture
def private(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=ROUNDS, like={"w": np.zeros(3)}, clip=dp.clip.Constant(initial=1.0),
        promise=dp.Promise(epsilon=6.0, delta=1e-4), run_dir=tmp_path / "mine",
    ) as made:  # fmt: skip
        yield made


def update(client):
    return {"w": np.full(3, client / 400)}


def loop(private, after=0):
    for round_ in private.after(after):
        round_.map(update)
        round_.release()


def charged(private):
    return [charge.round for charge in read_content(private.run.ledger).charges]


def in_a_thread(private):
    found = []

    def second():
        try:
            loop(private)
        except dp.InputError as error:
            found.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    if found:
        raise found[0]


SECOND = {
    "a thread": in_a_thread,
    "nested": loop,
    "after": lambda private: loop(private, private.released),
    "next": lambda private: next(iter(private)),
    "list": list,
}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("way", SECOND)
def test_a_second_loop_is_refused_before_a_charge_and_the_first_goes_on(private, way, at):
    for round_ in private:
        round_.map(update)
        if round_.number == at:
            before = charged(private)
            with pytest.raises(dp.InputError, match=REFUSED):
                SECOND[way](private)
            assert charged(private) == before
        round_.release()
    assert private.ended == "completed"
    private.close()
    assert verify_rounds(RunDirectory(private.run.path)).rounds == ROUNDS
    assert charged(private) == list(range(ROUNDS))


def by_break(private):
    for round_ in private:
        round_.map(update)
        break


def by_an_error(private):
    with pytest.raises(ZeroDivisionError):
        for round_ in private:
            round_.map(update)
            raise ZeroDivisionError


def by_its_close(private):
    iterator = iter(private)
    next(iterator)
    iterator.close()


def by_garbage(private):
    circle = [iter(private)]
    next(circle[0])
    circle.append(circle)
    del circle
    gc.collect()


def by_a_refusal(private):
    iterator = iter(private)
    next(iterator)
    with pytest.raises(dp.InputError, match="was not released"):
        next(iterator)


@pytest.mark.parametrize("left", [by_break, by_an_error, by_its_close, by_garbage, by_a_refusal])
def test_after_a_loop_that_was_left_another_one_goes_on(private, left):
    iter(private)  # nobody goes through it yet
    left(private)
    loop(private)
    assert private.ended == "completed"
    assert charged(private) == list(range(ROUNDS))


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_rounds_that_two_threads_hold_are_charged_and_released_once(private, monkeypatch, apart):
    """Both were handed out, one after the other; a slow disk lies between the look and the write."""
    for name in ("begin", "release"):
        whole = getattr(Journal, name)

        def slow(*given, whole=whole, **named):
            time.sleep(0.05)
            return whole(*given, **named)

        monkeypatch.setattr(Journal, name, slow)
    held, errors = [next(iter(private)), next(iter(private))], []

    def work(round_, shift):
        try:
            time.sleep(shift * apart)
            round_.map(lambda client: {"w": np.full(3, client / 400 + shift)})
            round_.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(round_, shift)) for shift, round_ in enumerate(held)]
    for step in ("start", "join"):
        for thread in threads:
            getattr(thread, step)()
    assert not errors
    assert charged(private) == [0]
    assert private.released == 1
    assert all(np.array_equal(each.release()["w"], held[0].release()["w"]) for each in held)
    private.close()
    verify_rounds(RunDirectory(private.run.path))
