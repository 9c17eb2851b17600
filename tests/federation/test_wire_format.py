"""Messages of a federation as bytes: what is not laid out as it has to be is refused."""

import pytest

from dpfedmeta.federation.wire_format import Start
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused


def test_an_opening_comes_back_as_it_was_sent():
    start = Start(invited=(0, 2, 3), task=b"task")
    assert Start.decode(start.encode(), 4) == start


@pytest.mark.parametrize(
    "invited",
    [(), (2,), (1, 1, 2), (1, 2, 2), (2, 1), (1, 2, 4), (0, 1, 2, 3, 3)],
    ids=["nobody", "one", "first twice", "last twice", "out of order", "unknown", "more than there are"],
)
def test_a_list_of_invited_clients_names_each_once_and_in_order(invited):
    with pytest.raises(Refused, match="invited clients"):
        Start.decode(Start(invited=invited, task=b"task").encode(), 4)


def test_a_list_that_is_cut_short_is_refused():
    whole = Start(invited=(0, 1, 2), task=b"").encode()
    for size in range(len(whole)):
        with pytest.raises(Refused, match="invited clients"):
            Start.decode(whole[:size], 4)
