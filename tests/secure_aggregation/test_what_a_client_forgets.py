"""What a client still holds after each of its steps: a secret that has been used, or whose round is over, is gone."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from round_tables import Table, a_round, agreement, people

from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation import Identities, Refused, Server
from dpfedmeta.secure_aggregation.client_secrets import ClientStep
from dpfedmeta.secure_aggregation.crypto.keys import Identity, Pair
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase

DRAWN = ("mask key", "key for shares", "seed")
# The first three secrets that a client draws: which of them it holds when the phase is due, by the kind of server.
HELD = {
    False: {"SHARES": {*DRAWN}, "MASKED": {*DRAWN}, "REVEAL": set()},
    True: {
        "SHARES": {*DRAWN}, "AGREE": {*DRAWN}, "MASKED": {"mask key", "seed"}, "CONSENT": set(), "REVEAL": set(),
    },
}  # fmt: skip


def reachable(thing, seen=None):
    """All bytes that are reachable from an object, by its attributes, items and members."""
    seen = {} if seen is None else seen
    if id(thing) in seen:
        return set()
    seen[id(thing)] = thing
    if isinstance(thing, bytes):
        return {thing}
    inner = [*thing.keys(), *thing.values()] if isinstance(thing, dict) else []
    inner += list(thing) if isinstance(thing, list | tuple | set | frozenset) else []
    inner += list(vars(thing).values()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
    return set().union(*(reachable(each, seen) for each in inner))


def noting(table, seat):
    """The bytes that a client draws, as it draws them."""
    client, drawn = table.clients[seat], []
    source = client._randomness

    def read(size):
        drawn.append(source(size))
        return drawn[-1]

    client._randomness = read
    return drawn


def held(client, drawn):
    known = reachable({name: value for name, value in vars(client).items() if name != "_randomness"})
    return {name for name, secret in zip(DRAWN, drawn, strict=False) if secret in known}


@pytest.mark.parametrize("malicious", HELD)
def test_a_secret_is_gone_when_it_was_used(malicious):
    table = Table(agreement(8, malicious=malicious))
    drawn = noting(table, 0)
    table.phase()
    assert len({*drawn[:3]}) == 3
    sealing = set[bytes]()
    for phase, expected in HELD[malicious].items():
        assert table.server.phase is ProtocolPhase[phase]
        assert held(table.clients[0], drawn) == expected, phase
        # Keys that opened the neighbours' shares go with the key that they came from.
        if phase not in ("SHARES", "AGREE" if malicious else "MASKED"):
            assert not sealing & reachable(table.clients[0])
        table.phase()
        if phase == "SHARES":
            channels = table.clients[0]._secrets.channels.values()
            sealing = {key for channel in channels for key in (channel.out, channel.back)}
    assert len(sealing) == 14
    assert table.clients[0]._secrets is None


def test_each_key_of_a_client_has_bytes_of_its_own():
    table = Table(agreement(8))
    drawn = noting(table, 0)
    table.phase()
    shown = table.clients[0]._own
    assert [shown.mask_key, shown.share_key] == [Pair(secret).public for secret in drawn[:2]]


STEPS = [(m, phase) for m, phases in HELD.items() for phase in phases]


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(("malicious", "phase"), STEPS)
def test_whatever_ends_a_step_ends_the_round_and_its_secrets(malicious, phase, error, monkeypatch):
    """A vector that was masked, and whose step failed afterwards, is not masked again."""
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase[phase])
    client = table.clients[0]

    def fails(*given):
        raise error

    monkeypatch.setattr(client, "_signed", fails)
    with pytest.raises(error):
        table.says(0, table.sent[0])
    assert (client.step, client._secrets) == (ClientStep.ABORTED, None)
    assert (client.sharers, client.survivors) == (None, None)
    monkeypatch.undo()
    with pytest.raises(Aborted, match="next step is aborted"):
        table.says(0, table.sent[0])


# Refusals at a server that follows the protocol, and of numbers that are no round.


def test_a_server_has_the_key_of_its_round_and_takes_nothing_after_it():
    numbers = agreement(8)
    with pytest.raises(InputError, match="not the server's key of this round"):
        Server(round_=a_round(numbers), identity=people(8)[0])
    table = Table(numbers).until(ProtocolPhase.REVEAL)
    late = table.says(7, table.sent[7])
    table.phase(silent={7})
    with pytest.raises(Refused, match="no message to send"):
        table.server.receive(late)
    aborted = Table(numbers)
    with pytest.raises(Aborted):
        aborted.phase(silent=set(range(8)))
    for again in (aborted.server.close, aborted.server.sum):
        with pytest.raises(Aborted, match="the round is over"):
            again()


KEYS = {seat: Identity(key).public for seat, key in enumerate(people(8)[:-1])}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**KEYS, 3: KEYS[3][:31]}, "key of seat 3: has 31 bytes"),
        ({**KEYS, 3: KEYS[4]}, "two seats have the same key"),
        ({**KEYS, 8: b"z" * 32}, "seat 8 does not exist"),
        ({seat: key for seat, key in KEYS.items() if seat != 5}, "no key for seat 5"),
    ],
    ids=["size", "twice", "beyond", "missing"],
)
def test_a_roster_is_one_key_for_each_seat(keys, words):
    with pytest.raises(InputError, match=words):
        replace(a_round(agreement(8)), identities=Identities(keys=keys))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": b"r" * 31}, "run: has 31 bytes"),
        ({"server": b"s" * 33}, "server: has 33 bytes"),
        ({"round": -1}, "round = -1"),
        ({"attempt": 2**32}, "attempt = "),
    ],
)
def test_numbers_of_a_round_fit_its_digest(change, words):
    with pytest.raises(InputError, match=words):
        replace(a_round(agreement(8)), **change)
