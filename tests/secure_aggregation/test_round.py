import sys
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from round_tables import Table, agreement, people, plain_sum, ring, stream, vector

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.keyed_streams import key_stream
from dpfedmeta.secure_aggregation import Aborted, Client, Identities, simulated_round
from dpfedmeta.secure_aggregation.crypto import shamir
from dpfedmeta.secure_aggregation.crypto.masks import packed_size
from dpfedmeta.secure_aggregation.crypto.share_dealing import Dealings
from dpfedmeta.secure_aggregation.crypto.unmasking import missing_secrets
from dpfedmeta.secure_aggregation.payloads import Keys, Kind, Masked
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase, header
from dpfedmeta.secure_aggregation.simulated_round import run_round


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("phase", ["KEYS", "SHARES", "AGREE", "MASKED", "CONSENT", "REVEAL"])
def test_the_sum_of_survivors_whenever_somebody_falls_silent(phase, malicious):
    if phase in ("AGREE", "CONSENT") and not malicious:
        pytest.skip("no such phase")
    numbers = agreement(8, malicious=malicious, dropout=0.2)
    found = Table(numbers).through(**{phase: {2}})
    left = [seat for seat in range(8) if seat != 2 or phase in ("CONSENT", "REVEAL")]
    assert found.survivors == tuple(left)
    assert (found.total == plain_sum(left, numbers)).all()


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize(("clients", "silent"), [(3, set()), (4, set()), (6, {2})])
def test_few_silos_have_a_sum_where_as_many_are_gone_as_the_share_allows(clients, silent, malicious):
    numbers = agreement(clients, malicious=malicious, adversarial=0.05, dropout=0.2)
    found = Table(numbers).through(MASKED=silent)
    left = [seat for seat in range(clients) if seat not in silent]
    assert (found.total == plain_sum(left, numbers)).all()
    with pytest.raises(Aborted):
        Table(numbers).through(MASKED=silent | {0})


@pytest.mark.parametrize("malicious", [False, True])
def test_somebody_falls_silent_in_every_phase(malicious):
    numbers = ring(20, 14, 8, 14, malicious=malicious)
    found = Table(numbers).through(KEYS={0}, SHARES={7}, MASKED={11, 15}, CONSENT={3}, REVEAL={9})
    left = [seat for seat in range(20) if seat not in {0, 7, 11, 15}]
    assert (found.total == plain_sum(left, numbers)).all()


@pytest.mark.parametrize("numbers", [agreement(8, malicious=True), agreement(8), ring(9, 4, 3, 9)], ids=repr)
def test_secrets_of_a_client_are_dealt_so_that_the_threshold_gives_them_back_and_one_fewer_does_not(
    numbers, monkeypatch
):
    dealt = []

    split = shamir.split

    def watched(secret, points, threshold, randomness):
        shares = split(secret, points, threshold, randomness)
        dealt.append((secret, dict(zip(points, shares, strict=True))))
        return shares

    monkeypatch.setattr(shamir, "split", watched)
    table = Table(numbers)
    table.phase()
    table.says(0, table.sent[0])
    assert len(dealt) == 2
    assert len({secret for secret, _ in dealt}) == 2
    for secret, shares in dealt:
        held = sorted(shares)
        assert len(held) == numbers.degree
        assert shamir.join({point: shares[point] for point in held[: numbers.threshold]}) == secret
        assert shamir.join({point: shares[point] for point in held[-numbers.threshold :]}) == secret
        assert shamir.join({point: shares[point] for point in held[: numbers.threshold - 1]}) != secret


@pytest.mark.parametrize("bits", [8, 13, 16, 17, 24, 32])
def test_every_modulus(bits):
    numbers = agreement(5, bits=bits, dropout=0.2)
    found = Table(numbers).through(MASKED={4})
    assert (found.total == plain_sum(range(4), numbers)).all()
    assert found.total.max() < 2**bits


@pytest.mark.slow
def test_two_thousand_clients_of_32_bits():
    numbers = ring(2000, 2, 2, 2000, bits=32, dimension=3)
    vectors = [np.full(3, 2**32 - 1 - seat, dtype=np.uint64) for seat in range(2000)]
    found = run_round(vectors, agreement=numbers, verify=False)
    assert found.sum.total.tolist() == [sum(2**32 - 1 - seat for seat in range(2000)) % 2**32] * 3


def test_sums_of_32_bits_wrap_only_where_they_should():
    # Sums of a few large values overflow above ten clients where numbers of 32 bits are meant not to wrap.
    numbers = ring(24, 2, 2, 24, bits=32, dimension=3)
    vectors = [np.full(3, 2**32 - 1 - seat, dtype=np.uint64) for seat in range(24)]
    total = run_round(vectors, agreement=numbers, verify=False).sum.total
    assert total.tolist() == [sum(2**32 - 1 - seat for seat in range(24)) % 2**32] * 3
    server = Table(numbers).until(ProtocolPhase.MASKED).server
    for seat in range(2000):
        server._take_masked(seat, Masked(np.full(3, 2**32 - 1 - seat, dtype="<u4")).encode(numbers), b"")
    assert server._masked.tolist() == [sum(2**32 - 1 - seat for seat in range(2000)) % 2**32] * 3


def test_negative_numbers_are_numbers_modulo():
    numbers = agreement(4, adversarial=0.0, dropout=0.0)
    vectors = [np.array([-1, -5, 3, 0, -(2**15)], dtype=np.int64)] * 4
    assert run_round(vectors, agreement=numbers).sum.total.tolist() == [(4 * x) % 2**16 for x in vectors[0].tolist()]


@dataclass(frozen=True)
class KeyedBytes:
    """Reproducible bytes: one stream for each seat."""

    seed: bytes

    def __call__(self, seat):
        return key_stream(sha256(self.seed + seat.to_bytes(8, "big", signed=True)).digest())


def test_worker_processes_change_nothing():
    numbers = ring(12, 6, 3, 9)
    vectors = [vector(seat, numbers) for seat in range(12)]
    silent = {3: ProtocolPhase.MASKED, 5: ProtocolPhase.REVEAL}
    found = run_round(vectors, agreement=numbers, silent=silent, processes=2, randomness=KeyedBytes(b"seed"))
    again = run_round(vectors, agreement=numbers, silent=silent, randomness=KeyedBytes(b"seed"))
    assert (found.sum.total == again.sum.total).all()
    assert (found.sum.total == plain_sum([seat for seat in range(12) if seat != 3], numbers)).all()
    assert found.traffic == again.traffic


def test_what_a_masked_vector_shows_is_uniform():
    # The same vector of zeros ten times: every bit of what leaves the client is a coin.
    numbers, ones = agreement(3, dimension=64, adversarial=0.0, dropout=0.0), 0
    for i in range(10):
        table = Table(numbers, name=f"coin {i}").until(ProtocolPhase.MASKED)
        message = table.clients[0].mask(table.sent[0], np.zeros(64, dtype=np.int64))
        ones += int.from_bytes(message[-64 - packed_size(64, 16) : -64], "big").bit_count()
    tossed = 10 * 64 * 16
    assert abs(ones - tossed / 2) < 5 * (tossed / 4) ** 0.5


def test_masks_differ_in_every_attempt():
    numbers = agreement(4, adversarial=0.0, dropout=0.0)
    front = len(header(Table(numbers).round, ProtocolPhase.MASKED, 0, 1))
    one, two = (Table(numbers, attempt=attempt).until(ProtocolPhase.MASKED) for attempt in (0, 1))
    masked = [table.says(0, table.sent[0])[front:-64] for table in (one, two)]
    assert len(masked[0]) == 10
    assert masked[0] != masked[1]


def test_too_few_survivors_release_nothing():
    numbers = agreement(8, dropout=0.2)
    table = Table(numbers).until(ProtocolPhase.MASKED)
    with pytest.raises(Aborted, match="survivors"):
        table.phase(silent={0, 1, 2})
    for after in (table.server.sum, table.server.close, lambda: table.server.receive(b"")):
        with pytest.raises(Aborted, match="over"):
            after()


@pytest.mark.parametrize(
    ("phase", "silent"), [("KEYS", 3), ("SHARES", 3), ("AGREE", 4), ("MASKED", 3), ("CONSENT", 5), ("REVEAL", 6)]
)
def test_survivors_the_threshold_cannot_carry(phase, silent):
    numbers = agreement(10, malicious=True, dropout=0.2)
    with pytest.raises(Aborted, match="at least"):
        Table(numbers).through(**{phase: set(range(silent))})


def test_no_sum_before_its_time():
    table = Table(agreement(4, adversarial=0.0, dropout=0.0)).until(ProtocolPhase.REVEAL)
    with pytest.raises(Aborted, match="no sum before"):
        table.server.sum()


def test_a_client_that_the_server_cannot_connect_is_left_out():
    numbers = ring(12, 4, 4, 6)
    # Whose neighbour falls silent before sharing has fewer than t of them.
    table = Table(numbers).until(ProtocolPhase.SHARES)
    with pytest.raises(Aborted, match="at least"):
        table.phase(silent={0})


def test_keys_and_vectors_that_do_not_fit():
    round_ = Table(agreement(5)).round
    with pytest.raises(InputError, match="31 bytes"):
        Client(round_=round_, seat=0, identity=bytes(31))
    with pytest.raises(InputError, match="another key"):
        Client(round_=round_, seat=0, identity=bytes(32))
    with pytest.raises(InputError, match="seat 5"):
        Client(round_=round_, seat=5, identity=people(5)[0])
    with pytest.raises(InputError, match="33 bytes"):
        Identities(keys={0: bytes(33)})
    with pytest.raises(InputError, match="two seats"):
        Identities(keys={0: bytes(32), 1: bytes(32)})
    table = Table(agreement(5)).until(ProtocolPhase.MASKED)
    for wrong in (np.zeros(4, dtype=np.int64), np.zeros(5), np.zeros((5, 1), dtype=np.int64)):
        with pytest.raises(InputError, match=r"expected .* whole numbers"):
            table.clients[0].mask(table.sent[0], wrong)
    # A mistake of the caller's, before anything was computed: the round goes on.
    assert table.clients[0].mask(table.sent[0], vector(0, table.numbers))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"bits": 7}, "bits"), ({"bits": 33}, "bits"), ({"dimension": 0}, "dimension"), ({"degree": 5}, "degree"),
        ({"degree": 10}, "degree"), ({"threshold": 1}, "threshold"), ({"threshold": 5}, "threshold"),
        ({"fewest": 11}, "fewest"), ({"fewest": 4, "colluding": 3}, "fewest"), ({"colluding": 10}, "colluding"),
        ({"malicious": True, "threshold": 2}, "half"),
        ({"clients": 1, "fewest": 1}, "clients"),
        ({"malicious": True, "degree": 9, "threshold": 6, "colluding": 4}, "half .* 4 who collude"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(change, why):
    numbers = {"clients": 10, "degree": 4, "threshold": 3, "fewest": 8, **change}
    with pytest.raises(InputError, match=why):
        ring(**numbers)


def test_randomness_is_the_callers():
    numbers = agreement(3, adversarial=0.0, dropout=0.0)
    one, two = Table(numbers, name="same"), Table(numbers, name="same")
    assert one.says(0, b"") == two.says(0, b"") != Table(numbers, name="other").says(0, b"")
    assert stream("a")(4) != stream("b")(4)


def test_of_who_fell_silent_the_sum_hangs_on_those_alone_who_masked_with_a_survivor():
    graph = {seat: ((seat - 1) % 6, (seat + 1) % 6) for seat in range(6)}
    dealings = Dealings(dealt={seat: {} for seat in range(6)})
    keys = {seat: Keys(identity=b"", mask_key=b"", share_key=b"", commitment=b"") for seat in range(6)}
    found = list(missing_secrets(dealings, keys, graph, frozenset({3, 4})))
    # Seats 0 and 1 have no neighbour that survived: no mask of theirs is in the sum.
    expected = [(2, Kind.KEY, {3}), (3, Kind.SEED, set()), (4, Kind.SEED, set()), (5, Kind.KEY, {4})]
    assert [(task.seat, task.kind, set(task.survivors)) for task in found] == expected


def test_a_simulation_of_other_people_than_there_are_is_refused():
    numbers = agreement(4)
    vectors = [vector(seat, numbers) for seat in range(4)]
    spoken = ProtocolPhase.MASKED
    for silent in ({4: spoken}, {-1: spoken}, {0: ProtocolPhase.SURVIVORS}, {0: spoken, 1: ProtocolPhase.KEY_LIST}):
        with pytest.raises(InputError, match="silent: seat"):
            run_round(vectors, agreement=numbers, silent=silent)
    for count in (3, 5):
        with pytest.raises(InputError, match=f"got {count} vectors for 4 clients"):
            run_round((vectors * 2)[:count], agreement=numbers)


class Pipe:
    """One end of a pipe, on which all of this was sent."""

    def __init__(self, *came):
        self.came, self.sent = list(came), []

    def recv(self):
        if not self.came:
            raise EOFError
        return self.came.pop(0)

    def send(self, what):
        self.sent.append(what)


def test_a_worker_process_tells_what_it_met_and_goes_on():
    pipe = Pipe(("correct", "no round", b"", "no secrets"), ("answer", ProtocolPhase.KEYS, {}), ("clients",))
    simulated_round._live(pipe)
    # Who has no clients yet takes the question for a correction, which it is not.
    assert [type(each) for each in pipe.sent] == [AttributeError, TypeError, TypeError]


@pytest.mark.parametrize("silent", [{}, {2: ProtocolPhase.SHARES}])
def test_traffic_is_counted_for_each_seat_phase_and_way(silent):
    """Messages of which no two are equally long."""

    class Server:
        phase = ProtocolPhase.KEYS

        def receive(self, message):
            return message[0]

        def close(self):
            if self.phase is not ProtocolPhase.KEYS:
                return {}
            self.phase = ProtocolPhase.SHARES
            return {seat: bytes([seat]) * (10 + seat) for seat in (1, 2, 4)}

    def ask(phase, inbox):
        return [bytes([seat]) * (100 * phase + seat) for seat in inbox]

    found = simulated_round._talk(Server(), (1, 2, 4), silent, ask)
    first, second = ProtocolPhase.KEYS, ProtocolPhase.SHARES
    assert found.down == {first: {1: 0, 2: 0, 4: 0}, second: {1: 11, 2: 12, 4: 14}}
    assert found.up == {
        phase: {seat: 100 * phase + seat for seat in (1, 2, 4) if phase is first or seat not in silent}
        for phase in (first, second)
    }
    assert found.of(4) == 14 + 100 * first + 4 + 100 * second + 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": b"r" * 31}, "run: has 31 bytes, expected 32"),
        ({"run": b"r" * 33}, "run: has 33 bytes, expected 32"),
        ({"server": b"s" * 31}, "server: has 31 bytes, expected 32"),
        ({"server": b"s" * 33}, "server: has 33 bytes, expected 32"),
        ({"round": -1}, r"round = -1: expected 0 to 2\^32 - 1"),
        ({"round": 2**32}, r"round = 4294967296: expected 0 to 2\^32 - 1"),
        ({"attempt": -1}, r"attempt = -1: expected 0 to 2\^32 - 1"),
        ({"attempt": 2**32}, r"attempt = 4294967296: expected 0 to 2\^32 - 1"),
        ({"round": 0}, None),
        ({"round": 2**32 - 1}, None),
        ({"attempt": 0}, None),
        ({"attempt": 2**32 - 1}, None),
    ],
)
def test_places_and_keys_of_a_round_have_their_length_and_range(change, why):
    usual = Table(agreement(4)).round
    if why is None:
        assert len(replace(usual, **change).digest) == 32
        return
    with pytest.raises(InputError, match=f"^{why}$"):
        replace(usual, **change)
