"""Messages that come in any order, and lists that are written in one: what is sent is read by whoever gets it."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from round_tables import Table, agreement, plain_sum

from dpfedmeta.secure_aggregation.payloads import Agree, Ciphertexts, ShareList
from dpfedmeta.secure_aggregation.protocol_messages import SERVER, ProtocolPhase, opened


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("order", ["backwards", "first last", 1, 2])
def test_whoever_answers_first_the_sum_is_the_same(order, malicious):
    table = Table(agreement(9, malicious=malicious))
    silent = {ProtocolPhase.MASKED: {4}}
    while table.sent:
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
