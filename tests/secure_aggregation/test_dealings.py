"""Shares as the server counts them: whose fault it is, who still holds what, and what the sum hangs on."""

from types import SimpleNamespace

import pytest

from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.share_dealing import Dealings, Fault, certain
from dpfedmeta.secure_aggregation.crypto.unmasking import missing_secrets
from dpfedmeta.secure_aggregation.payloads import Kind


def dealings(**rejected):
    """Five who dealt to each other; who rejects whom."""
    found = Dealings(dealt={seat: {other: None for other in range(5) if other != seat} for seat in range(5)})
    for holder, dealers in rejected.items():
        found.reject(int(holder[1:]), dealers)
    return found


def test_who_holds_usable_shares_is_there_and_did_not_reject_them():
    found = dealings(_1=(0, 2), _3=(0,))
    assert found.held(0, range(5)) == 2  # 2 and 4
    assert found.held(0, (1, 2, 3)) == 1
    assert found.held(0, (1, 3)) == 0
    assert found.held(2, (0, 1, 4)) == 2
    assert found.held(4, {0, 1, 2, 3}) == 4


def test_nobody_rejects_what_it_does_not_hold_and_nothing_is_noted_then():
    found = dealings()
    for holder, dealers, named in ((1, (0, 1), 1), (1, (9, 0), 9)):
        with pytest.raises(Refused, match=f"seat {holder} rejects shares of seat {named}, of which it holds none"):
            found.reject(holder, dealers)
    assert found.rejected == {}


@pytest.mark.parametrize(
    ("colluding", "rejected", "due"),
    [
        # One against one: either of them.
        (1, {"_1": (0,)}, [(0, 1)]),
        (0, {"_1": (0,)}, [(0,), (1,)]),
        # A dealer whom more reject than may lie together; a holder who rejects more.
        (1, {"_1": (0,), "_2": (0,)}, [(0,)]),
        (2, {"_1": (0,), "_2": (0,)}, [(0, 1), (0, 2)]),
        (1, {"_4": (0, 2)}, [(4,)]),
        (2, {"_4": (0, 2)}, [(0, 4), (2, 4)]),
        # In the order of the dealers, whoever spoke first.
        (3, {"_4": (2, 0), "_1": (3, 0)}, [(0, 1), (0, 4), (2, 4), (3, 1)]),
        (0, {"_4": (0,), "_1": (2,)}, [(0,), (2,), (1,), (4,)]),
        # Both at once: a pair of which one is at fault for certain says nothing more.
        (1, {"_1": (0, 3), "_2": (0,)}, [(0,), (1,)]),
        (1, {"_1": (0,), "_2": (0,), "_4": (3,)}, [(0,), (3, 4)]),
        (1, {"_1": (0,), "_2": (0, 3)}, [(0,), (2,)]),
    ],
)
def test_more_in_dispute_than_may_lie_together_are_at_fault_for_certain(colluding, rejected, due):
    found = dealings(**rejected)
    found.judge(colluding)
    assert [fault.seats for fault in found.faults] == due
    assert certain(found.faults) == {seats[0] for seats in due if len(seats) == 1}


def test_faults_name_the_clients_in_the_words_order():
    found = dealings(_1=(0,), _2=(0,), _4=(3,))
    found.judge(1)
    assert [fault.text() for fault in found.faults] == [
        "seat 0 dealt 2 others shares that are not what it committed to",
        "seat 4 says that the shares of seat 3 are not what that one committed to",
    ]
    many = dealings(_4=(0, 1, 2))
    many.judge(1)
    assert [fault.text("client {}".format) for fault in many.faults] == [
        "client 4 says of 3 others that their shares are not what they committed to"
    ]
    misdealt = dealings()
    misdealt.misdealt(3, Kind.KEY)
    (fault,) = misdealt.faults
    assert fault == Fault(seats=(3,), words=fault.words, named=(3,))
    assert fault.text() == "seat 3 dealt shares of its mask key that do not all give what it showed"


RING = {seat: [(seat - 1) % 5, (seat + 1) % 5] for seat in range(5)}


@pytest.mark.parametrize(
    ("survivors", "due"),
    [
        (range(5), {seat: (Kind.SEED, []) for seat in range(5)}),
        ((0, 1, 2, 3), {0: (Kind.SEED, []), 1: (Kind.SEED, []), 2: (Kind.SEED, []), 3: (Kind.SEED, []),
                        4: (Kind.KEY, [0, 3])}),
        # Seat 3 masked with 2 and 4 alone, and 4 with 3 and 0.
        ((0, 1), {0: (Kind.SEED, []), 1: (Kind.SEED, []), 2: (Kind.KEY, [1]), 4: (Kind.KEY, [0])}),
        ((2,), {1: (Kind.KEY, [2]), 2: (Kind.SEED, []), 3: (Kind.KEY, [2])}),
    ],
)  # fmt: skip
def test_the_sum_hangs_on_seeds_of_survivors_and_on_keys_that_they_masked_with(survivors, due):
    found = dealings()
    found.shares = {(seat, kind): {9: 10 * seat + kind, 2: 7} for seat in range(5) for kind in Kind}
    keys = {seat: SimpleNamespace(seat=seat) for seat in range(5)}
    tasks = list(missing_secrets(found, keys, RING, frozenset(survivors)))
    assert {task.seat: (task.kind, sorted(task.survivors)) for task in tasks} == due
    for task in tasks:
        assert task.keys is keys[task.seat]
        assert all(own is keys[seat] for seat, own in task.survivors.items())
        assert list(task.shares.items()) == [(2, 7), (9, 10 * task.seat + task.kind)]


@pytest.mark.parametrize("dealers", [(8, 1), (1, 8), (16, 8, 9)])
def test_of_several_that_it_holds_nothing_of_the_first_is_named(dealers):
    found = Dealings()
    with pytest.raises(Refused, match=f"^seat 5 rejects shares of seat {min(dealers)}, of which it holds none$"):
        found.reject(5, dealers)
    assert found.rejected == {}
