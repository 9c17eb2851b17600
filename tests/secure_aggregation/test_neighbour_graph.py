import itertools
import math
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy.stats import hypergeom

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.keyed_streams import key_stream
from dpfedmeta.secure_aggregation import agreed
from dpfedmeta.secure_aggregation.crypto import neighbour_graph as graph
from dpfedmeta.secure_aggregation.crypto.neighbour_graph import (
    fewest_among,
    holds_together,
    log_cut,
    log_disconnected,
    log_hypergeometric,
    most_among,
    neighbours,
    neighbours_of,
    parameters,
)


@pytest.mark.parametrize(
    ("clients", "colluding", "malicious"), [(9, 2, False), (9, 2, True), (6, 4, False), (7, 0, True)]
)
def test_of_a_complete_graph_as_many_stay_as_unmask(clients, colluding, malicious):
    """Each of those who stay has the others who stay as its neighbours."""
    for gone in range(clients):
        found = graph._complete(clients, colluding, gone, malicious)
        enough = (clients - 1 + colluding) // 2 + 1 if malicious else colluding + 1
        due = (clients - 1, max(2, enough))
        assert found == (due if due[1] <= clients - 1 - gone else None)


@pytest.mark.parametrize(
    ("clients", "adversarial", "dropout", "malicious", "known"),
    [
        (1000, 0.33, 0.33, False, (286, 150)),
        (10_000, 0.05, 0.33, False, (86, 29)),
        (1000, 0.05, 0.33, True, (398, 223)),
        (1500, 0.1, 0.2, False, (68, 33)),
    ],
)
def test_known_answers(clients, adversarial, dropout, malicious, known):
    # The first three were published (CCS'20; Google's graph finder); the fourth is the issue's k = 68.
    found = parameters(clients=clients, adversarial=adversarial, dropout=dropout, malicious=malicious)
    assert found == known


def test_a_large_crowd_is_searched_in_leaps(monkeypatch):
    """One degree after the other, as a first version did, looked at 2,400 of them."""
    tried = []

    def counted(*crowd):
        tried.append(crowd)
        return fewest_among(*crowd)

    monkeypatch.setattr(graph, "fewest_among", counted)
    # What that version found.
    assert parameters(clients=10_000, adversarial=0.3, dropout=0.3, malicious=True) == (4822, 3230)
    assert 5 < len(tried) < 100


def conditions(clients, adversarial, dropout, malicious, *, degree):
    """Whether a degree does, by exact rational arithmetic and none of our code; returns the threshold."""
    colluding, silent = math.ceil(clients * adversarial - 1e-9), math.ceil(clients * dropout - 1e-9)
    bad = colluding + silent

    def probability(marked, x):
        return Fraction(comb(marked, x) * comb(clients - marked, degree - x), comb(clients, degree))

    apart = Fraction(clients * (clients - degree - 1), 2)
    if malicious:
        # Of two runs of half the degree each, all that do not collude are silenced.
        apart *= sum(probability(colluding, x) for x in range(max(degree - silent, 0), min(colluding, degree) + 1))
    else:
        for i in range(degree):
            apart *= Fraction(max(bad - i, 0), clients - i)
    if apart >= Fraction(1, 2**41):
        return None

    tail, most = Fraction(0), min(degree, colluding)
    while tail + probability(colluding, most) <= Fraction(1, 2**41 * clients):
        tail += probability(colluding, most)
        most -= 1
    if malicious:
        most = math.ceil((most + degree - 1.25) / 2)
    head, fewest = Fraction(0), 0
    while (head := head + probability(clients - silent, fewest)) < Fraction(1, 2**20 * clients):
        fewest += 1
    return max(2, most + 1) if max(2, most + 1) <= fewest else None


@pytest.mark.parametrize(
    "crowd",
    [
        (120, 0.1, 0.2, False),
        (150, 0.2, 0.1, False),
        (300, 0.05, 0.1, True),
        (200, 0.0, 0.3, False),
        (250, 0.2, 0.2, True),
    ],
)
def test_the_smallest_degree_by_exact_arithmetic(crowd):
    clients, adversarial, dropout, malicious = crowd
    degree, threshold = parameters(clients=clients, adversarial=adversarial, dropout=dropout, malicious=malicious)
    assert conditions(*crowd, degree=degree) == threshold
    for smaller in range(2, degree, 2):
        assert conditions(*crowd, degree=smaller) is None


def test_tails_against_scipy():
    for clients, marked, drawn in [(1000, 330, 286), (1500, 150, 68), (50, 45, 20), (30, 2, 25), (10_000, 6700, 86)]:
        x = np.arange(min(marked, drawn) + 1)
        with np.errstate(divide="ignore"):
            assert np.exp(log_hypergeometric(clients, marked, drawn)) == pytest.approx(
                hypergeom.pmf(x, clients, marked, drawn), rel=1e-8
            )
        for probability in (1e-3, 2.0**-41 / clients):
            most = most_among(clients, marked, drawn, probability)
            assert hypergeom.sf(most, clients, marked, drawn) <= probability
            assert most == 0 or hypergeom.sf(most - 1, clients, marked, drawn) > probability
            fewest = fewest_among(clients, marked, drawn, probability)
            assert hypergeom.cdf(fewest, clients, marked, drawn) >= probability * (1 - 1e-9)
            assert fewest == 0 or hypergeom.cdf(fewest - 1, clients, marked, drawn) < probability


@pytest.mark.parametrize("malicious", [False, True])
def test_more_bad_clients_need_more_neighbours(malicious):
    ask = lambda adversarial, dropout: parameters(  # noqa: E731
        clients=400, adversarial=adversarial, dropout=dropout, malicious=malicious
    )[0]
    assert ask(0.02, 0.05) <= ask(0.05, 0.05) <= ask(0.05, 0.15) <= ask(0.1, 0.2)


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("clients", [100, 101, 500])
def test_where_nobody_lies_or_leaves_two_neighbours_are_enough(clients, malicious):
    assert parameters(clients=clients, adversarial=0.0, dropout=0.0, malicious=malicious) == (2, 2)


def test_small_crowds_are_complete():
    assert parameters(clients=10, adversarial=0.2, dropout=0.2, malicious=False) == (9, 3)
    # 2 t > 9 neighbours + 2 who collude
    assert parameters(clients=10, adversarial=0.2, dropout=0.2, malicious=True) == (9, 6)


@pytest.mark.parametrize(
    ("clients", "adversarial", "dropout", "malicious", "why"),
    [
        (1, 0.0, 0.0, False, "2 to"),
        (2, 0.0, 0.0, False, "no graph"),
        (10**7, 0.1, 0.1, False, "2 to"),
        (1000, 0.5, 0.5, False, "stay"),
        (1000, 0.2, 0.45, True, "no graph exists; adversarial \\+ 2 dropout"),
        (1000, 1.0, 0.0, False, "a share"),
        (1000, 0.1, -0.1, False, "a share"),
        (1000, math.nan, 0.1, False, "a share"),
        (12, 0.3, 0.35, True, "no graph|stay"),
        (40, 0.5, 0.49, False, "stay|no graph"),
        (4, 0.5, 0.25, False, "fewer than two honest clients stay"),
    ],
)
def test_crowds_without_a_graph_are_refused(clients, adversarial, dropout, malicious, why):
    with pytest.raises(InputError, match=why):
        parameters(clients=clients, adversarial=adversarial, dropout=dropout, malicious=malicious)


@pytest.mark.parametrize("malicious", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.2])
def test_few_silos_may_miss_as_many_as_are_whole_clients(dropout, malicious):
    """A fifth of three silos is none of them, so every round needs all three: there is nothing to refuse."""
    for clients in range(3, 51):
        found = agreed(
            clients=clients, dimension=5, bits=16, adversarial=0.05, dropout=dropout, malicious=malicious, complete=True
        )
        gone = math.floor(dropout * clients + 1e-9)
        assert found.fewest == clients - gone
        # Those who stay are enough for every secret and for one list, and two honest vectors are always in the sum.
        assert found.threshold <= found.degree - gone
        assert max(found.enough, found.quorum if malicious else 0) <= clients - gone
        assert clients - gone - found.colluding >= 2
        assert not malicious or 2 * found.threshold > found.degree + found.colluding
        # Honest clients sign one list, so no two lists can both have signatures enough.
        assert not malicious or 2 * found.quorum > clients + found.colluding


@pytest.mark.parametrize(("clients", "degree", "colluding", "silent"), [(11, 4, 2, 2), (11, 4, 3, 2), (12, 4, 1, 3)])
def test_how_often_a_server_that_knows_the_graph_can_cut_it(clients, degree, colluding, silent):
    """All places where colluding clients may sit, and all choices of silent ones: never more often than is bounded."""
    rows = [set(row) for row in neighbours(bytes(32), clients, degree).tolist()]

    def whole(left):
        reached, new = set(), {min(left)}
        while new:
            reached |= new
            new = {other for seat in new for other in rows[seat] & left} - reached
        return reached == left

    seats = frozenset(range(clients))
    chosen = [frozenset(bad) for bad in combinations(seats, colluding)]
    cut = [any(not whole(seats - bad - {*more}) for more in combinations(seats - bad, silent)) for bad in chosen]
    share, bound = sum(cut) / len(chosen), math.exp(log_cut(clients, degree, colluding, silent))
    assert 0 < share <= bound
    # One more neighbour on either side than all who may be missing: certain, whoever is chosen.
    assert log_cut(clients, colluding + silent + 1, colluding, silent) == -math.inf
    assert log_cut(clients, clients - 1, colluding, clients - colluding) == -math.inf


@pytest.mark.parametrize(
    ("crowd", "known", "before"),
    [
        ((1000, 0.05, 0.33), (398, 223), (398, 223)),
        ((100, 0.05, 0.2), (44, 25), (44, 25)),
        ((1000, 0.05, 0.1), (134, 83), (78, 52)),
        ((1500, 0.05, 0.2), (354, 203), (164, 100)),
        ((10_000, 0.05, 0.33), (3580, 1925), (746, 420)),
    ],
)
def test_silence_of_the_servers_choice_needs_more_neighbours(crowd, known, before):
    """The numbers of docs/secure-aggregation.md, and what silence that does not depend on the graph needed."""
    clients, adversarial, dropout = crowd
    found = parameters(clients=clients, adversarial=adversarial, dropout=dropout, malicious=True)
    assert found == known
    colluding, silent = math.ceil(adversarial * clients - 1e-9), math.ceil(dropout * clients - 1e-9)
    assert holds_together(clients, found[0], colluding, silent)
    assert holds_together(clients, before[0], colluding, silent) == (before == known)


def test_complete_graphs_against_a_malicious_server():
    """2 t > k + c: of the two secrets of a client one stays hidden, whatever its honest neighbours are told."""
    for clients in range(3, 100):
        for adversarial, dropout in itertools.product((0.0, 0.05, 0.2, 0.3), (0.0, 0.1, 0.3)):
            try:
                degree, threshold = parameters(
                    clients=clients, adversarial=adversarial, dropout=dropout, malicious=True, complete=True
                )
            except InputError:
                continue
            assert 2 * threshold > degree + math.ceil(adversarial * clients - 1e-9)


def test_fewer_survivors_than_the_graph_was_made_for_are_refused():
    numbers = {"clients": 200, "dimension": 5, "bits": 16, "adversarial": 0.05, "dropout": 0.1, "malicious": True}
    assert agreed(**numbers).fewest == 180
    with pytest.raises(InputError, match="reports 80 of them as silent"):
        agreed(**numbers, fewest=120)
    assert agreed(**numbers | {"malicious": False}, fewest=120).fewest == 120


def test_a_bound_of_nothing_bad_is_nothing():
    assert log_disconnected(100, 10, 4, 5) == -math.inf
    assert log_disconnected(100, 10, 4, 6) > -math.inf


@pytest.mark.parametrize(("clients", "degree"), [(11, 10), (50, 6), (13, 12), (200, 44)])
def test_the_graph_is_regular_and_mutual(clients, degree):
    rows = neighbours(b"s" * 32, clients, degree)
    assert rows.shape == (clients, degree)
    edges = {(u, v) for u in range(clients) for v in rows[u].tolist()}
    assert len(edges) == clients * degree
    assert all((v, u) in edges and u != v for u, v in edges)
    assert [neighbours_of(seat, b"s" * 32, clients, degree).tolist() for seat in range(clients)] == rows.tolist()


def test_every_neighbour_is_as_likely_as_another():
    # 2,000 seeds: how often seat 1 is a neighbour of seat 0 among 20 of degree 4; 4/19 expected.
    among = sum(1 in neighbours_of(0, seed.to_bytes(32, "big"), 20, 4) for seed in range(2000))
    assert abs(among - 2000 * 4 / 19) < 5 * math.sqrt(2000 * 4 / 19 * 15 / 19)


@pytest.mark.parametrize("clients", [5, 100])
def test_the_order_of_a_ring_is_that_of_these_words(clients):
    """By hashlib and numpy: both sides would agree on another order, too."""
    read = key_stream(sha256(b"dpfedmeta secure aggregation ring" + b"seed").digest())
    words = np.frombuffer(read(8 * clients), dtype="<u8")
    assert graph._order(b"seed", clients).tolist() == sorted(range(clients), key=words.__getitem__)
    assert graph._order(b"seed", clients).tolist() != graph._order(b"feed", clients).tolist()
