"""A server, or a client, that tries something: the honest side refuses it with the reason, and releases nothing."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from round_tables import Table, a_round, agreement, people, plain_sum, ring, vector

from dpfedmeta.secure_aggregation import Aborted, Client, Refused, Server
from dpfedmeta.secure_aggregation.crypto import pairwise, shamir
from dpfedmeta.secure_aggregation.crypto.keys import Identity, Pair
from dpfedmeta.secure_aggregation.crypto.share_dealing import certain
from dpfedmeta.secure_aggregation.payloads import (
    Agree,
    Ciphertexts,
    KeyList,
    Keys,
    Kind,
    Reveal,
    ShareList,
    Signatures,
    Survivors,
)
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, SERVER, ProtocolPhase, header, opened, signed
from dpfedmeta.secure_aggregation.round_parameters import VERSION


def refuses(client, method, message, why, *more):
    """A client ends its round, says why, and answers nothing more."""
    with pytest.raises(Aborted, match=why):
        getattr(client, method)(message, *more)
    for again in (lambda: client.share(message), lambda: client.unmask(message), client.advertise):
        with pytest.raises(Aborted, match="asked of a client"):
            again()
    assert client._secrets is None


# What a server says of survivors.


def told_otherwise(malicious, change, *, silent=(5,), numbers=None):
    table = Table(numbers or agreement(8, malicious=malicious)).until(
        ProtocolPhase.CONSENT if malicious else ProtocolPhase.REVEAL, MASKED=set(silent)
    )
    message = table.rewritten(
        0,
        ProtocolPhase.SURVIVORS,
        change,
        lambda body: Survivors.decode(body, table.numbers),
        lambda told, _: told.encode(table.numbers),
    )
    return table, message, ("consent" if malicious else "unmask")


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: Survivors(told.survivors, told.silent | {3}), "seat 3 is said to have survived and to be silent"),
        (lambda told: Survivors(told.survivors | {5}, told.silent), "seat 5 is said to have survived and to be silent"),
        (lambda told: Survivors(told.survivors - {0}, told.silent | {0}), "its own seat is not on the list"),
        (lambda told: Survivors(told.survivors - {4}, told.silent), "seat 4 shared, and is neither"),
        (lambda told: Survivors(told.survivors - {1, 2}, told.silent | {1, 2}), "5 survivors, at least 7 are needed"),
        (lambda told: Survivors(frozenset({0}), frozenset(range(1, 8))), "1 survivors, at least"),
    ],
    ids=["overlap", "overlap too", "itself", "neither", "fewer than V", "alone"],
)
def test_survivors_that_cannot_be(malicious, change, why):
    table, message, method = told_otherwise(malicious, change)
    refuses(table.clients[0], method, message, why)


def test_fewer_survivors_than_the_threshold():
    # V below t: then t counts.
    numbers = ring(8, 7, 6, 4)
    table, message, method = told_otherwise(
        False, lambda told: Survivors(told.survivors - {1, 2, 3}, told.silent | {1, 2, 3}), silent=(), numbers=numbers
    )
    refuses(table.clients[0], method, message, "5 survivors, at least 6")


def test_a_second_unmasking_is_refused():
    # Both kinds of shares of one neighbour give its vector away.
    table = Table(agreement(8)).until(ProtocolPhase.REVEAL)
    decode = lambda body: Survivors.decode(body, table.numbers)  # noqa: E731
    second = table.rewritten(
        0,
        ProtocolPhase.SURVIVORS,
        lambda told: Survivors(told.survivors - {1}, frozenset({1})),
        decode,
        lambda told, _: told.encode(table.numbers),
    )
    table.clients[0].unmask(table.sent[0])
    for message in (second, table.sent[0]):
        with pytest.raises(Aborted, match="next step is done"):
            table.clients[0].unmask(message)


def test_each_neighbour_gives_one_kind_of_share():
    table = Table(agreement(8)).until(ProtocolPhase.REVEAL, MASKED={5})
    body = opened(
        table.round,
        ProtocolPhase.REVEAL,
        0,
        SERVER,
        table.says(0, table.sent[0]),
        Identity(people(8)[0]).public,
        table.bound(0),
    )
    kinds = {seat: kind for seat, kind, _ in Reveal.decode(body).entries}
    assert kinds == {seat: Kind.KEY if seat == 5 else Kind.SEED for seat in range(1, 8)}


# What a server says of keys.


def with_entry(seat, **change):
    """One entry of a list of keys changed: other keys, another signature."""

    def changed(listed):
        entries = []
        for other, body, signature in listed.entries:
            if other == seat:
                keys = replace(
                    Keys.decode(body), **{name: value for name, value in change.items() if name != "signature"}
                )
                body, signature = keys.encoded, change.get("signature", signature)
            entries.append((other, body, signature))
        return KeyList(tuple(entries))

    return changed


def twice(listed):
    return KeyList((listed.entries[0], *listed.entries))


def moved(listed, old, new):
    """Somebody's keys under another seat."""
    return KeyList(tuple(sorted((new if seat == old else seat, *rest) for seat, *rest in listed.entries)))


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_entry(3, mask_key=Pair(b"m" * 32).public), "signature of seat 3 on its keys fails"),
        (with_entry(3, share_key=Pair(b"m" * 32).public), "signature of seat 3 on its keys fails"),
        (with_entry(3, commitment=bytes(32)), "signature of seat 3 on its keys fails"),
        (with_entry(3, signature=bytes(64)), "signature of seat 3 on its keys fails"),
        (with_entry(3, identity=Identity(b"i" * 32).public), "identity of seat 3 is not the listed one"),
        (twice, "named twice"),
        (lambda listed: KeyList(listed.entries[::-1]), "named out of order"),
        (lambda listed: moved(listed, 7, 8), "seat 8 is unknown"),
        (lambda listed: KeyList(tuple(e for e in listed.entries if e[0] in (0, 1))), "at least"),
        (lambda listed: KeyList(()), "at least|not in the list"),
    ],
    ids=["mask key", "share key", "commitment", "signature", "identity", "repeated", "order", "unknown", "few", "none"],
)
def test_keys_that_are_not_what_clients_signed(malicious, change, why):
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase.SHARES)
    message = table.rewritten(0, ProtocolPhase.KEY_LIST, change, KeyList.decode, lambda body, _: body.encode())
    refuses(table.clients[0], "share", message, why)


def test_its_own_identity_among_the_others():
    table = Table(agreement(8)).until(ProtocolPhase.SHARES)
    mine = KeyList.decode(
        opened(table.round, ProtocolPhase.KEY_LIST, SERVER, 1, table.sent[1], table.round.server)
    ).entries[0]
    assert mine[0] == 0
    message = table.rewritten(
        0,
        ProtocolPhase.KEY_LIST,
        lambda listed: KeyList((mine, *listed.entries)),
        KeyList.decode,
        lambda b, _: b.encode(),
    )
    refuses(table.clients[0], "share", message, "its own seat")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_entry(0, mask_key=bytes(32)), "its own keys are not what it sent"),
        (lambda listed: KeyList(listed.entries[1:]), "its own keys are not in the list"),
        (lambda listed: KeyList(listed.entries[:6]), "6 clients, at least 7"),
    ],
)
def test_a_malicious_server_shows_everybodys_keys(change, why):
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.SHARES)
    message = table.rewritten(0, ProtocolPhase.KEY_LIST, change, KeyList.decode, lambda body, _: body.encode())
    refuses(table.clients[0], "share", message, why)


def test_a_stranger_as_neighbour():
    # The graph follows from the round: a server that prefers other neighbours is found out.
    table = Table(ring(12, 4, 2, 8)).until(ProtocolPhase.SHARES)
    all_keys = {}
    for seat in range(12):
        listed = opened(table.round, ProtocolPhase.KEY_LIST, SERVER, seat, table.sent[seat], table.round.server)
        all_keys |= {entry[0]: entry for entry in KeyList.decode(listed).entries}
    near = {
        entry[0]
        for entry in KeyList.decode(
            opened(table.round, ProtocolPhase.KEY_LIST, SERVER, 0, table.sent[0], table.round.server)
        ).entries
    }
    stranger = next(seat for seat in range(1, 12) if seat not in near)
    change = lambda listed: KeyList(tuple(sorted((*listed.entries, all_keys[stranger]))))  # noqa: E731
    message = table.rewritten(0, ProtocolPhase.KEY_LIST, change, KeyList.decode, lambda body, _: body.encode())
    refuses(table.clients[0], "share", message, f"seat {stranger} is no neighbour")


def test_signatures_are_left_to_a_server_that_follows_only_if_one_says_so():
    change = with_entry(3, mask_key=Pair(b"m" * 32).public)
    for verify, malicious, ends in ((False, False, False), (True, False, True), (False, True, True)):
        table = Table(agreement(8, malicious=malicious), verify=verify).until(ProtocolPhase.SHARES)
        message = table.rewritten(0, ProtocolPhase.KEY_LIST, change, KeyList.decode, lambda body, _: body.encode())
        if ends:
            refuses(table.clients[0], "share", message, "signature of seat 3")
        else:
            assert table.clients[0].share(message)


def test_the_graph_is_not_the_servers_choice():
    # Against a malicious server it is drawn from all keys and commitments: any other list gives another graph.
    table = Table(ring(16, 6, 4, 12, malicious=True)).until(ProtocolPhase.SHARES)
    listed = KeyList.decode(opened(table.round, ProtocolPhase.KEY_LIST, SERVER, 0, table.sent[0], table.round.server))
    seeds = {pairwise.graph_seed(table.round, listed), pairwise.graph_seed(table.round, KeyList(listed.entries[1:]))}
    for field in ("mask_key", "share_key", "commitment"):
        seeds.add(pairwise.graph_seed(table.round, with_entry(5, **{field: bytes(32)})(listed)))
    assert len(seeds) == 5
    # And all that follows is bound to the list, so that two who were shown two lists do not understand each other.
    assert pairwise.bound_to(table.round, listed) != pairwise.bound_to(table.round, KeyList(listed.entries[1:]))


# What a server says of shares.


def with_shares(change):
    return lambda told: ShareList(told.sharers, Ciphertexts(tuple(change(list(told.sealed.entries)))))


def with_sharers(change):
    return lambda told: ShareList(frozenset(change(set(told.sharers))), told.sealed)


def without(seat):
    """The list that does not name somebody, and has no shares of it."""
    return lambda told: ShareList(
        told.sharers - {seat}, Ciphertexts(tuple(entry for entry in told.sealed.entries if entry[0] != seat))
    )


def of_sharers(seat, table, change):
    return table.rewritten(
        seat,
        ProtocolPhase.SHARE_LIST,
        change,
        lambda body: ShareList.decode(body, table.numbers),
        lambda told, numbers: told.encode(numbers),
    )


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_shares(lambda e: [e[0]._replace(seat=0), *e]), "shares of seat 0, which is its own"),
        (with_shares(lambda e: [*e, e[0]._replace(seat=8)]), "shares of seat 8, which is not a neighbour"),
        (with_shares(lambda e: [e[0], *e]), "named twice"),
        (with_shares(lambda e: e[:1]), "neighbour 2: its shares are missing"),
        (with_sharers(lambda s: s - {3}), "neighbour 3: it is not on the list of those who shared"),
        (with_sharers(lambda s: s - {0}), "its own seat is not on the list of those who shared"),
        (lambda told: without(1)(without(2)(told)), "6 clients who shared, at least 7"),
    ],
    ids=["itself", "stranger", "repeated", "missing", "unlisted", "not itself", "few"],
)
def test_shares_that_are_not_what_neighbours_sent(malicious, change, why):
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase.AGREE if malicious else ProtocolPhase.MASKED)
    message, more = of_sharers(0, table, change), () if malicious else (vector(0, table.numbers),)
    refuses(table.clients[0], "agree" if malicious else "mask", message, why, *more)


def test_neighbours_too_few_to_mask_with():
    # Of twelve enough shared, but of one's own four neighbours one.
    table = Table(ring(12, 4, 2, 6, malicious=False)).until(ProtocolPhase.MASKED)
    first, second, third, *_ = sorted(table.clients[0]._keys)
    message = of_sharers(0, table, lambda told: without(first)(without(second)(without(third)(told))))
    refuses(table.clients[0], "mask", message, "1 neighbours who shared, at least 2", vector(0, table.numbers))


def test_who_showed_no_keys_did_not_share():
    table = Table(ring(20, 4, 3, 14, malicious=True)).until(ProtocolPhase.AGREE, KEYS={6})
    far = next(seat for seat in range(20) if 6 not in table.clients[seat]._keys and seat != 6)
    message = of_sharers(far, table, with_sharers(lambda sharers: sharers | {6}))
    refuses(table.clients[far], "agree", message, "seat 6 is said to have shared, and its keys are not in the list")


@pytest.mark.parametrize("malicious", [False, True])
def test_a_survivor_shared(malicious):
    """Who shares nothing hides nobody: as a named survivor its mask would be missing in a sum that counts it."""
    table = Table(agreement(8, malicious=malicious, dropout=0.25)).until(
        ProtocolPhase.CONSENT if malicious else ProtocolPhase.REVEAL, SHARES={5}
    )
    for seat, change in (
        (0, lambda told: Survivors(told.survivors | {5}, told.silent)),
        (1, lambda told: Survivors(told.survivors, told.silent | {5})),
    ):
        message = table.rewritten(
            seat,
            ProtocolPhase.SURVIVORS,
            change,
            lambda body: Survivors.decode(body, table.numbers),
            lambda told, numbers: told.encode(numbers),
        )
        refuses(table.clients[seat], "consent" if malicious else "unmask", message, "seat 5 .* never shared")


def test_two_lists_of_sharers_find_no_two_majorities():
    """A group that is told of itself alone, and of who is called silent later: nobody in it masks, nor do the others.

    It was told one list of survivors with all others, and its sum came off: nothing that was signed said who shared.
    """
    numbers = agreement(12, malicious=True, adversarial=0.1, dropout=0.2)
    table = Table(numbers).until(ProtocolPhase.AGREE)
    told = {seat: of_sharers(seat, table, without(11)) if seat < 6 else table.sent[seat] for seat in range(12)}
    agreed = {seat: Agree.decode(answer_of(table, seat, "agree", told[seat])).signature for seat in range(12)}
    for half in (range(6), range(6, 12)):
        entries = Signatures(tuple((seat, agreed[seat]) for seat in half))
        for seat in half:
            message = signed(
                table.round, ProtocolPhase.AGREED, SERVER, seat, entries.encode(), table.identity, table.bound(seat)
            )
            refuses(table.clients[seat], "mask", message, "6 signatures on the sharers, at least 8", vector(0, numbers))


def answer_of(table, seat, method, message):
    """The body of what a client says."""
    answer = getattr(table.clients[seat], method)(message)
    return answer[len(header(table.round, ProtocolPhase.AGREE, seat, SERVER)) : -64]


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        with_shares(lambda e: [e[0]._replace(sealed=bytes(82)), *e[1:]]),
        with_shares(lambda e: [e[0]._replace(sealed=e[1].sealed), *e[1:]]),
        with_shares(lambda e: [e[0]._replace(seed=bytes(32)), *e[1:]]),
        with_shares(lambda e: [e[0]._replace(key=e[0].seed), *e[1:]]),
    ],
    ids=["forged", "exchanged", "commitment to the seed's", "commitment to the key's"],
)
def test_shares_that_are_none_are_never_revealed_and_the_sum_is_right_all_the_same(malicious, change):
    """They may be their dealer's fault or the server's; the mask of the pair goes into the vector in any case."""
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase.AGREE if malicious else ProtocolPhase.MASKED)
    table.sent[0] = of_sharers(0, table, change)
    table.until(ProtocolPhase.REVEAL)
    body = table.says(0, table.sent[0])
    table.server.receive(body)
    entries = Reveal.decode(body[len(header(table.round, ProtocolPhase.REVEAL, 0, SERVER)) : -64]).entries
    assert [seat for seat, _, _ in entries] == list(range(2, 8))
    for seat in range(1, 8):
        table.server.receive(table.says(seat, table.sent[seat]))
    table.server.close()
    assert (table.server.sum().total == plain_sum(range(8), table.numbers)).all()
    assert [fault.seats for fault in table.server.faults] == [(1, 0)]


def test_its_own_shares_sent_back_do_not_open():
    # One key for both directions would open them.
    table = Table(agreement(8)).until(ProtocolPhase.SHARES)
    own = Ciphertexts.decode(
        table.clients[0].share(table.sent[0])[len(header(table.round, ProtocolPhase.SHARES, 0, 1)) : -64]
    )
    for seat in range(1, 8):
        table.server.receive(table.says(seat, table.sent[seat]))
    body, bound = ShareList(frozenset(range(8)), own).encode(table.numbers), table.bound(0)
    message = signed(table.round, ProtocolPhase.SHARE_LIST, SERVER, 0, body, table.identity, bound)
    table.clients[0].mask(message, vector(0, table.numbers))
    assert table.clients[0]._secrets.rejected == set(range(1, 8))


# Consistency.


def signatures(change):
    return lambda listed: Signatures(tuple(change(list(listed.entries))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (signatures(lambda e: [(e[0][0], bytes(64)), *e[1:]]), "signature of seat 0 on the survivors fails"),
        (signatures(lambda e: [(e[0][0], e[1][1]), *e[1:]]), "signature of seat 0 on the survivors fails"),
        (signatures(lambda e: e[:-1]), "signatures on the survivors, .* are needed"),
        (signatures(lambda e: [*e[:-1], (7, e[-1][1])]), "seat 7 signed the survivors, but does not belong"),
        (signatures(lambda e: [e[0], *e]), "named twice"),
    ],
    ids=["forged", "exchanged", "few", "no survivor", "repeated"],
)
def test_signatures_on_the_survivors(change, why):
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.REVEAL, MASKED={7})
    message = table.rewritten(0, ProtocolPhase.CONSENTS, change, Signatures.decode, lambda body, _: body.encode())
    refuses(table.clients[0], "unmask", message, why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (signatures(lambda e: [(e[0][0], bytes(64)), *e[1:]]), "signature of seat 0 on the sharers fails"),
        (signatures(lambda e: [(e[0][0], e[1][1]), *e[1:]]), "signature of seat 0 on the sharers fails"),
        (signatures(lambda e: e[:-1]), "signatures on the sharers, .* are needed"),
        (signatures(lambda e: [*e[:-1], (7, e[-1][1])]), "seat 7 signed the sharers, but does not belong"),
        (signatures(lambda e: [e[0], *e]), "named twice"),
    ],
    ids=["forged", "exchanged", "few", "no sharer", "repeated"],
)
def test_signatures_on_the_sharers(change, why):
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.MASKED, SHARES={7})
    message = table.rewritten(0, ProtocolPhase.AGREED, change, Signatures.decode, lambda body, _: body.encode())
    refuses(table.clients[0], "mask", message, why, vector(0, table.numbers))


def test_a_signature_on_another_list_of_sharers_is_not_taken():
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.AGREE)
    other = table.clients[0].agree(of_sharers(0, table, without(5)))
    with pytest.raises(Refused, match="signature of seat 0 on AGREE fails"):
        table.server.receive(other)
    wrong = Agree(Agree.decode(answer_of(table, 1, "agree", table.sent[1])).signature, ()).encode()
    message = signed(table.round, ProtocolPhase.AGREE, 2, SERVER, wrong, Identity(people(8)[2]), table.server._bound)
    with pytest.raises(Refused, match="seat 2 signed another list of who shared"):
        table.server.receive(message)


def test_two_lists_of_survivors_find_no_two_majorities():
    """Half of the clients are told another list, each long enough: neither half gets signatures enough for its own."""
    numbers = agreement(12, malicious=True, adversarial=0.1, dropout=0.2)
    table = Table(numbers).until(ProtocolPhase.CONSENT)
    decode = lambda body: Survivors.decode(body, numbers)  # noqa: E731
    consents = {}
    for seat in range(12):
        message = table.sent[seat]
        if seat < 6:
            other = lambda told: Survivors(told.survivors - {11}, frozenset({11}))  # noqa: E731
            message = table.rewritten(
                seat, ProtocolPhase.SURVIVORS, other, decode, lambda told, _: told.encode(numbers)
            )
        consents[seat] = table.clients[seat].consent(message)[-64:]
    for half in (range(6), range(6, 12)):
        entries = Signatures(tuple((seat, consents[seat]) for seat in half))
        for seat in half:
            message = signed(
                table.round, ProtocolPhase.CONSENTS, SERVER, seat, entries.encode(), table.identity, table.bound(seat)
            )
            with pytest.raises(Aborted, match="6 signatures on the survivors, at least 8 are needed"):
                table.clients[seat].unmask(message)


def test_quorums_overlap_in_an_honest_client():
    for clients in range(4, 60):
        numbers = ring(clients, clients - 1, clients - 1, clients - 1, colluding=clients // 4, malicious=True)
        # Two quorums share more clients than collude.
        assert 2 * numbers.quorum - clients > numbers.colluding


# Other rounds, versions, parties.


def test_messages_of_another_round_run_attempt_version_or_recipient():
    table = Table(agreement(8)).until(ProtocolPhase.SHARES)
    message = table.sent[0]
    cases = {
        "run": Table(agreement(8), run=b"s" * 32),
        "round": Table(agreement(8), number=4),
        "attempt": Table(agreement(8), attempt=1),
    }
    for what, elsewhere in cases.items():
        refuses(elsewhere.until(ProtocolPhase.SHARES).clients[0], "share", message, f"another {what}")
    refuses(table.clients[1], "share", message, "another recipient")
    refuses(table.clients[2], "share", message[:4] + (VERSION + 1).to_bytes(2, "big") + message[6:], "another version")
    refuses(table.clients[3], "share", b"XXXX" + table.sent[3][4:], "not a message")
    refuses(table.clients[4], "share", table.sent[4][:60], "cut short")
    refuses(table.clients[5], "share", b"", "cut short")
    refuses(table.clients[6], "share", table.sent[6][:-1] + bytes([table.sent[6][-1] ^ 1]), "signature of the server")


def test_a_header_that_was_rewritten_does_not_verify():
    # The same message dressed up as one of this round: the digest in the signature is of the other.
    old = Table(agreement(8), number=2).until(ProtocolPhase.SHARES)
    new = Table(agreement(8), number=3).until(ProtocolPhase.SHARES)
    front = header(new.round, ProtocolPhase.KEY_LIST, SERVER, 0)
    refuses(new.clients[0], "share", front + old.sent[0][len(front) :], "signature of the server on KEY_LIST fails")


@pytest.mark.parametrize("change", [{"dimension": 6}, {"bits": 17}, {"fewest": 8}, {"dropout": 0.3}])
def test_who_agreed_to_other_numbers_understands_nothing(change):
    table = Table(agreement(8)).until(ProtocolPhase.SHARES)
    numbers = agreement(8, **change)
    stranger = Client(round_=a_round(numbers), seat=0, identity=people(8)[0])
    stranger.advertise()
    refuses(stranger, "share", table.sent[0], "signature of the server")


def test_steps_out_of_order():
    table = Table(agreement(8)).until(ProtocolPhase.MASKED)
    refuses(table.clients[0], "unmask", table.sent[0], "unmask was asked of a client whose next step is mask")
    refuses(table.clients[1], "share", table.sent[1], "share was asked of a client whose next step is mask")
    fresh = Table(agreement(8)).clients[0]
    refuses(fresh, "share", b"", "next step is advertise")


# What clients try on the server.


def test_the_server_accepts_each_message_once_and_only_as_it_was_signed():
    table = Table(agreement(8))
    messages = {seat: table.says(seat, b"") for seat in range(8)}
    table.server.receive(messages[0])
    for message, why in (
        (messages[0], "a second message of seat 0"),
        (messages[1][:-1], "signature|cut"),
        (messages[1] + b"\0", "signature"),
        (messages[1][:100] + bytes([messages[1][100] ^ 4]) + messages[1][101:], "signature|identity"),
        (
            header(table.round, ProtocolPhase.KEYS, 2, EVERYONE)
            + messages[1][len(header(table.round, ProtocolPhase.KEYS, 2, EVERYONE)) :],
            "signature",
        ),
        (header(table.round, ProtocolPhase.KEYS, 9, EVERYONE) + bytes(200), "seat 9 has no message to send"),
        (header(table.round, ProtocolPhase.SHARES, 1, SERVER) + bytes(200), "another phase"),
        (b"", "cut short"),
    ):
        with pytest.raises(Refused, match=why):
            table.server.receive(message)
    for seat in range(1, 8):
        table.server.receive(messages[seat])
    table.sent = table.server.close()
    assert (table.through().total == plain_sum(range(8), table.numbers)).all()


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("phase", ["KEYS", "SHARES", "AGREE", "MASKED", "CONSENT", "REVEAL"])
def test_in_no_phase_a_seat_is_heard_twice(phase, malicious):
    """A vector that is added twice is a sum of one client more, with a mask that nothing takes out."""
    if phase in ("AGREE", "CONSENT") and not malicious:
        pytest.skip("no such phase")
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase[phase])
    for seat, message in table.sent.items():
        said = table.says(seat, message)
        table.server.receive(said)
        with pytest.raises(Refused, match=f"a second message of seat {seat} in phase {phase}"):
            table.server.receive(said)
    table.sent = table.server.close()
    found = table.through()
    assert found.survivors == tuple(range(8))
    assert (found.total == plain_sum(range(8), table.numbers)).all()


def test_who_sends_late_or_again_in_a_later_phase():
    table = Table(agreement(8)).until(ProtocolPhase.MASKED)
    early = [table.says(seat, table.sent[seat]) for seat in range(7)]
    for message in early:
        table.server.receive(message)
    late = table.says(7, table.sent[7])
    table.server.close()
    with pytest.raises(Refused, match="no message to send"):
        table.server.receive(late)
    with pytest.raises(Refused, match="another phase"):
        table.server.receive(early[0])


@pytest.mark.parametrize("key", ["mask_key", "share_key"])
def test_keys_that_agree_on_nothing_secret(key):
    table = Table(agreement(8))
    body = replace(Keys.decode(table.says(1, b"")[-64 - Keys.record.size : -64]), **{key: bytes(32)}).encoded
    message = signed(table.round, ProtocolPhase.KEYS, 1, EVERYONE, body, Identity(people(8)[1]))
    with pytest.raises(Refused, match="no secret can be agreed"):
        table.server.receive(message)


def test_shares_for_others_than_the_neighbours():
    table = Table(ring(12, 4, 2, 8)).until(ProtocolPhase.SHARES)
    honest = table.says(0, table.sent[0])
    listed = Ciphertexts.decode(honest[len(header(table.round, ProtocolPhase.SHARES, 0, SERVER)) : -64])
    last = listed.entries[-1]
    for entries in (listed.entries[1:], (*listed.entries[:-1], last._replace(seat=11 if last.seat != 11 else 10))):
        message = signed(
            table.round,
            ProtocolPhase.SHARES,
            0,
            SERVER,
            Ciphertexts(tuple(sorted(entries))).encode(),
            Identity(people(12)[0]),
            table.bound(0),
        )
        with pytest.raises(Refused, match=r"exactly its neighbours|twice"):
            table.server.receive(message)


def reveal_of(table, seat, change):
    honest = table.says(seat, table.sent[seat])
    front = len(header(table.round, ProtocolPhase.REVEAL, seat, SERVER))
    changed = change(Reveal.decode(honest[front:-64]))
    return signed(
        table.round, ProtocolPhase.REVEAL, seat, SERVER, changed.encode(), Identity(people(8)[seat]), table.bound(seat)
    )


def test_shares_of_the_other_kind_are_not_taken():
    table = Table(agreement(8)).until(ProtocolPhase.REVEAL, MASKED={5})
    other = lambda told: Reveal(tuple((seat, Kind(1 - kind), share) for seat, kind, share in told.entries))  # noqa: E731
    with pytest.raises(Refused, match="did not reveal what it was asked for"):
        table.server.receive(reveal_of(table, 0, other))


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(("silent", "what"), [((), "the seed"), ((1,), "the mask key")])
def test_a_wrong_share_is_its_holders_and_left_out(silent, what, malicious):
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase.REVEAL, MASKED=set(silent))
    wrong = lambda told: Reveal(tuple((s, k, (v + (s == 1)) % shamir.PRIME) for s, k, v in told.entries))  # noqa: E731
    table.server.receive(reveal_of(table, 0, wrong))
    for seat in range(1, 8):
        if seat not in silent:
            table.server.receive(table.says(seat, table.sent[seat]))
    table.server.close()
    left = [seat for seat in range(8) if seat not in silent]
    assert (table.server.sum().total == plain_sum(left, table.numbers)).all()
    (fault,) = table.server.faults
    assert fault.seats == (0,)
    assert fault.text() == f"seat 0 revealed another number than its share of {what} of seat 1"


@pytest.mark.parametrize("silent", [(), (2,)], ids=["seed", "mask key"])
def test_shares_of_another_secret_end_the_round_and_name_their_dealer(monkeypatch, silent):
    """All on one polynomial, and through a secret that the dealer never showed."""
    misdealing(monkeypatch, 2, lambda place, share: (share + 1) % shamir.PRIME)
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.REVEAL, MASKED=set(silent))
    table.phase()
    with pytest.raises(Aborted, match="of seat 2 do not give what it showed"):
        table.server.sum()
    assert certain(table.server.faults) == {2}


def test_a_commitment_to_a_share_is_to_all_of_its_place():
    """Change anything, and it is another one: a share in another's place would pass as right."""
    common = {"bound": b"b" * 32, "dealer": 1, "holder": 2, "kind": Kind.SEED, "share": 7}
    others = {"bound": b"c" * 32, "dealer": 3, "holder": 3, "kind": Kind.KEY, "share": 8}
    changed = [pairwise.share_commitment(**{**common, name: value}) for name, value in others.items()]
    swapped = pairwise.share_commitment(**{**common, "dealer": 2, "holder": 1})
    assert len({pairwise.share_commitment(**common), swapped, *changed}) == 7


@pytest.mark.parametrize("malicious", [False, True])
def test_a_share_that_is_kept_back(malicious):
    table = Table(agreement(8, malicious=malicious)).until(ProtocolPhase.REVEAL)
    fewer = lambda told: Reveal(told.entries[1:])  # noqa: E731
    table.server.receive(reveal_of(table, 0, fewer))
    for seat in range(1, 8):
        table.server.receive(table.says(seat, table.sent[seat]))
    table.server.close()
    assert (table.server.sum().total == plain_sum(range(8), table.numbers)).all()
    (fault,) = table.server.faults
    # Who signed that it has the shares of all keeps one back; else it may never have been dealt.
    assert fault.seats == ((0,) if malicious else (1, 0))
    assert fault.text() == "seat 0 kept back its share of the seed of seat 1"


def test_fewer_right_shares_than_give_a_secret():
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.REVEAL)
    wrong = lambda told: Reveal(tuple((s, k, (v + (s == 7)) % shamir.PRIME) for s, k, v in told.entries))  # noqa: E731
    for seat in range(8):
        message = reveal_of(table, seat, wrong) if seat < 4 else table.says(seat, table.sent[seat])
        table.server.receive(message)
    table.server.close()
    for _ in range(2):
        with pytest.raises(Aborted, match="3 right shares of the seed of seat 7, at least 5 are needed"):
            table.server.sum()
    assert certain(table.server.faults) == {0, 1, 2, 3}


def misdealing(monkeypatch, dealer, change):
    """A dealer whose shares, by their place among all, are others than its secrets give; it commits to these."""
    split = shamir.split

    def splitting(secret, points, threshold, randomness):
        return [change(place, share) for place, share in enumerate(split(secret, points, threshold, randomness))]

    dealt = Client._ciphertexts

    def dealing(self, secrets):
        if self._seat != dealer:
            return dealt(self, secrets)
        with monkeypatch.context() as patched:
            patched.setattr(shamir, "split", splitting)
            return dealt(self, secrets)

    monkeypatch.setattr(Client, "_ciphertexts", dealing)


def test_shares_off_their_polynomial_are_their_dealers(monkeypatch):
    """One of seven is found where t is five; that the first t do not fit says who dealt them."""
    misdealing(monkeypatch, 2, lambda place, share: (share + (place == 0)) % shamir.PRIME)
    table = Table(agreement(8, malicious=True))
    assert (table.through().total == plain_sum(range(8), table.numbers)).all()
    (fault,) = table.server.faults
    assert fault.seats == (2,)
    assert fault.text() == "seat 2 dealt shares of its seed that do not all give what it showed"


@pytest.mark.parametrize(("silent", "what"), [((), "seed"), ((2,), "mask key")])
def test_shares_that_give_nothing_end_the_round_and_name_their_dealer(monkeypatch, silent, what):
    misdealing(monkeypatch, 2, lambda place, share: (share + place**6) % shamir.PRIME)
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.REVEAL, MASKED=set(silent))
    table.phase()
    for _ in range(2):
        with pytest.raises(Aborted, match=f"shares of the {what} of seat 2 do not give what it showed"):
            table.server.sum()
    assert certain(table.server.faults) == {2}


def test_a_dealer_of_no_shares_is_named_before_anybody_masks(monkeypatch):
    monkeypatch.setattr(pairwise.ShareKeys, "sealed", sealed_wrong(2, pairwise.ShareKeys.sealed))
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.AGREE)
    with pytest.raises(Aborted, match="0 neighbours with usable shares of seat 2, at least 5 are needed"):
        table.phase()
    (fault,) = table.server.faults
    assert fault.seats == (2,)
    assert fault.text() == "seat 2 dealt 7 others shares that are not what it committed to"


@pytest.mark.parametrize(("silent", "held"), [({0}, 5), ({0, 1}, 4)])
def test_shares_count_with_those_who_signed_who_shared_alone(monkeypatch, silent, held):
    """Of seven neighbours one holds a share that it cannot use; who signed no list reveals nothing later."""
    monkeypatch.setattr(pairwise.ShareKeys, "sealed", sealed_wrong(2, pairwise.ShareKeys.sealed, holders=(7,)))
    table = Table(agreement(8, malicious=True)).until(ProtocolPhase.AGREE)
    if held == 5:
        table.phase(silent=silent)
        assert table.server.phase is ProtocolPhase.MASKED
    else:
        with pytest.raises(Aborted, match=f"{held} neighbours with usable shares of seat 2, at least 5 are needed"):
            table.phase(silent=silent)


def sealed_wrong(dealer, sealed, holders=range(8)):
    def sealing(self, round_, seat, other, content):
        return sealed(self, round_, seat, other, bytes(66) if seat == dealer and other in holders else content)

    return sealing


def test_who_blames_everybody_is_named_itself():
    """More than may collude are not all wrong; of one who is blamed by one it is not known which of the two lies."""
    table = Table(agreement(8, malicious=True, adversarial=0.15)).until(ProtocolPhase.AGREE)
    assert table.numbers.colluding == 2
    for seat, blames in ((0, (1, 2, 3)), (4, (5,))):
        honest = Agree.decode(answer_of(table, seat, "agree", table.sent[seat]))
        body = Agree(honest.signature, blames).encode()
        table.server.receive(
            signed(table.round, ProtocolPhase.AGREE, seat, SERVER, body, Identity(people(8)[seat]), table.server._bound)
        )
    nobody = Agree(Agree.decode(answer_of(table, 5, "agree", table.sent[5])).signature, (5,)).encode()
    message = signed(table.round, ProtocolPhase.AGREE, 5, SERVER, nobody, Identity(people(8)[5]), table.server._bound)
    with pytest.raises(Refused, match="seat 5 rejects shares of seat 5, of which it holds none"):
        table.server.receive(message)
    for seat in (1, 2, 3, 6, 7):
        table.server.receive(table.says(seat, table.sent[seat]))
    table.sent = table.server.close()
    assert [fault.seats for fault in table.server.faults] == [(0,), (5, 4)]
    assert certain(table.server.faults) == {0}


@pytest.mark.parametrize(("shared", "threshold", "kept"), [
    (range(6), 2, range(6)), (range(1, 6), 2, ()), (range(1, 6), 1, range(1, 6)), ((0, 1, 3), 1, (0, 1)),
])  # fmt: skip
def test_whoever_is_left_has_enough_neighbours_among_those_that_are_left(shared, threshold, kept):
    """Six in a ring: who is left out takes its neighbours along."""
    server = SimpleNamespace(
        _dealings=SimpleNamespace(dealt=dict.fromkeys(shared)),
        _graph={seat: [(seat - 1) % 6, (seat + 1) % 6] for seat in range(6)},
        _agreement=SimpleNamespace(threshold=threshold),
    )
    around = Server._well_connected(server)
    assert sorted(around) == [*kept]
    assert all(len(others) >= threshold and {*others} <= around.keys() for others in around.values())
