import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.simulation.distributed.coordinator import Deal
from dpfedmeta.simulation.distributed.worker_rank import Job, _add, serve
from tests.simulation.distributed.threads import threads

SHAPE = (2, 3)


def part(offset, number):
    # Overflow included: whole numbers of 64 bits add up modulo 2^64 in any order.
    values = np.full(SHAPE, offset + number * 2**57, dtype=np.int64)
    return values, 1


def slow_part(offset, number):
    time.sleep(0.002 * (number % 5))
    return part(offset, number)


def whose(number):
    time.sleep(0.003)
    return number, threading.current_thread().name


def wrong_at_seven(number):
    if number == 7:
        raise InputError("seven: is wrong; take eight")
    return number


def unlucky(_, number):
    if number == 7:
        raise ZeroDivisionError("seven")
    return np.zeros(SHAPE, dtype=np.int64), 1


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shares", [0, 1, 40])
def test_a_total_is_that_of_one_process_however_it_is_dealt_out(size, shares):
    numbers = [(number,) for number in range(shares)]
    expected, count = InProcess().total(part, (3,), numbers, SHAPE)
    with threads(size) as (ranks, _, _):
        for function in (part, slow_part):
            total, counted = ranks.total(function, (3,), numbers, SHAPE)
            assert np.array_equal(total, expected)
            assert counted == count == shares


def several(number):
    """A chunk of which some clients enter, or none."""
    if number == 7:
        raise InputError("seven: is wrong; take eight")
    return np.full(SHAPE, number, dtype=np.int64), number % 4


@pytest.mark.parametrize("numbers", [(), (3,), (4, 3, 6), (1, 7, 2), (7,)])
def test_a_rank_adds_up_its_chunks_and_the_clients_that_entered_them(numbers):
    """Not the chunks, and nothing of one that failed, which it says."""
    dealt, said, sums = iter([*enumerate((number,) for number in numbers), None]), [], []
    line = SimpleNamespace(ask=lambda words: (said.append(words), next(dealt))[1], added=sums.append)
    _add(line, Job(function=several, common=(), shape=SHAPE), SHAPE)
    added = [number for number in numbers if number != 7]
    assert [total.tolist() for total in sums] == [[sum(added)] * 6 + [sum(number % 4 for number in added)]]
    assert said[0] is None
    assert [place for place, _ in said[1:]] == list(range(len(numbers)))
    assert [failure and failure.words for _, failure in said[1:]] == [
        "seven: is wrong; take eight" if number == 7 else None for number in numbers
    ]


def test_results_come_in_order_and_every_rank_has_some_of_the_work():
    with threads(3) as (ranks, _, codes):
        found = list(ranks.map(whose, [(number,) for number in range(60)]))
        assert [number for number, _ in found] == list(range(60))
        assert len({name for _, name in found}) == 3
        assert list(ranks.map(whose, [])) == []
        assert len(ranks.elsewhere(threading.get_ident)) == 2
        ranks.code = 5
    assert codes == {1: 5, 2: 5}


def test_uneven_work_does_not_wait_for_the_slowest():
    def lame(line):
        ask = line.ask

        def slowly(message):
            time.sleep(0.03)
            return ask(message)

        if line.rank == 1:
            line.ask = slowly
        return serve(line)

    with threads(3, serving=lame) as (ranks, _, _):
        names = [name for _, name in ranks.map(whose, [(number,) for number in range(90)])]
    shares = sorted(names.count(name) for name in set(names))
    assert len(shares) == 3
    assert shares[1] > 2 * shares[0]


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_wrong_on_a_rank_is_said_once_and_the_ranks_go_on(size):
    numbers = [(number,) for number in range(20)]
    with threads(size) as (ranks, _, codes):
        with pytest.raises(InputError, match="seven: is wrong"):
            list(ranks.map(wrong_at_seven, numbers))
        with pytest.raises((RuntimeError, ZeroDivisionError), match="seven"):
            ranks.total(unlucky, (0,), numbers, SHAPE)
        assert ranks.total(part, (0,), numbers, SHAPE)[1] == 20
        assert len(list(ranks.map(whose, numbers))) == 20
        ranks.code = 0
    assert all(code == 0 for code in codes.values())


def test_after_its_end_nothing_is_dealt_out():
    deal = Deal([("one",), ("two",), ("three",)])
    assert deal.take() == (0, ("one",))
    deal.end()
    assert deal.take() is None
    assert list(deal) == []


def test_who_stops_half_way_leaves_the_ranks_in_order():
    with threads(3) as (ranks, _, _):
        for found, _ in ranks.map(whose, [(number,) for number in range(50)]):
            if found == 3:
                break
        assert ranks.total(part, (0,), [(1,)], SHAPE)[1] == 1


def test_an_interruption_drops_the_round_and_ends_the_others():
    with threads(3) as (ranks, _, codes):
        with pytest.raises(KeyboardInterrupt):
            ranks.total(interrupted, (0,), [(number,) for number in range(1000)], SHAPE)
        ranks.code = 130
    assert codes == {1: 130, 2: 130}


def interrupted(_, number):
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    return part(0, number)


def test_a_rank_that_hangs_is_named_within_the_time_out():
    def hang(line):
        if line.rank == 2:
            line.announce()
            line.ask(None)
            time.sleep(2.0)
            return 99
        return serve(line)

    begun = time.monotonic()
    with threads(3, timeout=0.5, serving=hang) as (ranks, _, _):
        with pytest.raises(RuntimeError, match=r"rank 2 is silent .*DPFEDMETA_RANK_TIMEOUT.*can be resumed"):
            ranks.total(slow_part, (0,), [(number,) for number in range(50)], SHAPE)
        # Nothing more is tried, and nothing waits again.
        with pytest.raises(RuntimeError, match="silent"):
            list(ranks.map(whose, [(1,)] * 9))
    assert time.monotonic() - begun < 4.0


def test_the_others_hear_that_rank_0_is_there_while_it_does_something_else():
    with threads(2, timeout=0.4) as (ranks, _, codes):
        time.sleep(1.2)
        assert ranks.total(part, (0,), [(1,), (2,)], SHAPE)[1] == 2
        ranks.code = 0
    assert codes == {1: 0}
