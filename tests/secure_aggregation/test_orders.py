"""Messages that come in any order, and lists that are written in one: what is sent is read by whoever gets it."""

import itertools
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from round_tables import Table, agreement, plain_sum

from dpfedmeta.secure_aggregation.crypto.pairwise import bound_to_sharers
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted
from dpfedmeta.secure_aggregation.payloads import Agree, Ciphertexts, ShareList
from dpfedmeta.secure_aggregation.protocol_messages import SERVER, ProtocolPhase, opened


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("order", ["backwards", "first last", 1, 2])
def test_whoever_answers_first_the_sum_is_the_same(order, malicious):
    table, other = Table(agreement(9, malicious=malicious)), Table(agreement(9, malicious=malicious))
    silent = {ProtocolPhase.MASKED: {4}}
    while table.sent:
        assert other.server.phase is table.server.phase
        other.phase(silent=silent.get(other.server.phase, ()))
        seats = [seat for seat in table.sent if seat not in silent.get(table.server.phase, ())]
        if order == "backwards":
            seats.reverse()
        elif order == "first last":
            seats = [*seats[1:], seats[0]]
        else:
            random.Random(order).shuffle(seats)
        for seat in seats:
            assert table.server.receive(table.says(seat, table.sent[seat])) == seat
        table.sent = table.server.close()
        # Nor does what the server sends, or whom it sends first, say who was quick.
        assert [*table.sent.items()] == sorted(other.sent.items())
    found = table.server.sum()
    assert found.survivors == (0, 1, 2, 3, 5, 6, 7, 8)
    assert (found.total == plain_sum(found.survivors, table.numbers)).all()


@pytest.mark.parametrize("liars", [(1, 8), (8, 16), (3, 17)])
def test_who_cannot_use_shares_of_several_names_them_in_ascending_order(liars):
    """Sets of numbers have an order of their own: 8 comes before 1 there."""
    table = Table(agreement(18, malicious=True)).until(ProtocolPhase.AGREE)

    def changed(body):
        entries = tuple(
            dealt._replace(sealed=bytes(len(dealt.sealed))) if dealt.seat in liars else dealt
            for dealt in body.sealed.entries
        )
        return ShareList(body.sharers, Ciphertexts(entries))

    numbers = table.numbers
    message = table.rewritten(
        0,
        ProtocolPhase.SHARE_LIST,
        changed,
        lambda body: ShareList.decode(body, numbers),
        lambda body, numbers: body.encode(numbers),
    )
    answer = table.clients[0].agree(message)
    key = table.round.identities.keys[0]
    body = opened(table.round, ProtocolPhase.AGREE, 0, SERVER, answer, key, table.server._bound)
    assert Agree.decode(body).rejected == liars


def test_lists_of_sharers_are_bound_whichever_order_they_have():
    assert len({bound_to_sharers(b"bound", seats) for seats in itertools.permutations((300, 2, 17))}) == 1
    assert bound_to_sharers(b"bound", (300, 2)) != bound_to_sharers(b"bound", (300, 17))


@pytest.mark.parametrize(
    ("silent", "rejecting", "enough"),
    [((), 3, True), ((), 4, False), ((1,), 2, True), ((1,), 3, False), ((1, 2), 1, True), ((1, 2), 2, False)],
)
def test_shares_can_be_used_by_those_alone_who_signed_that_they_shared(silent, rejecting, enough):
    """Of nine holders of seat 0's shares, those count who signed the list and can open them; six are needed."""
    table = Table(agreement(10, malicious=True, adversarial=0.1)).until(ProtocolPhase.AGREE)
    assert table.numbers.threshold == 6
    for seat, message in table.sent.items():
        if seat not in silent:
            table.server.receive(table.says(seat, message))
    for seat in range(10 - rejecting, 10):
        table.server._dealings.rejected[seat] = frozenset({0})
    if enough:
        assert {*table.server.close()} == {*range(10)} - {*silent}
        return
    with pytest.raises(Aborted, match=r"^5 neighbours with usable shares of seat 0, at least 6 are needed$"):
        table.server.close()
