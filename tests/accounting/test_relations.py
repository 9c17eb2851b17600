"""Relations of a record: each cell by a slow computation written apart, and each row of the table by random data."""

import hashlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon
from dpfedmeta.accounting.events.record_layer import RecordLayer, default_relation, holding
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees, record_public, stated
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.relations.legend import relation_rows
from dpfedmeta.accounting.relations.relations import RELATIONS, MomentBlocks
from dpfedmeta.core.errors import RefusedPlan

PARTS = RecordLayer(support_noise=None, query_noise=1.6, support_steps=1, support_records=1, query_records=10,
                    parts="micro-episodes", rows=True)  # fmt: skip
STEPS = RecordLayer(support_noise=3.0, query_noise=1.9, support_steps=4, support_records=25, query_records=25,
                    rows=True)  # fmt: skip
UPDATE = replace(STEPS, query_noise=None, query_records=1)
OWN = replace(PARTS, own_terms=True)
SUMMED = replace(PARTS, query_noise=None, of_sum=True)
BATCHES = replace(UPDATE, batch_rate=0.2)
PLAN = PrivacyPlan(clients=2000, cohort=100, rounds=6, noise_multiplier=0.8, noise_mode="stacked", max_participations=2)
SUM = replace(PLAN, server_sees="sum", noise_multiplier=4.0,
              secure=SecureRounds(bits=20, dimension=100, parts=10, adversarial=0.05))  # fmt: skip
ALL = tuple(RELATIONS)
ORDER = [("zero-out", "in-place"), ("zero-out", "row-deleted"), ("row-deleted", "row-exchanged-same-label"),
         ("row-exchanged-same-label", "row-exchanged"), ("row-relabelled", "row-exchanged")]  # fmt: skip


def with_relation(plan, relation):
    """For this relation; in-place is of slots, since a row has no place of its own."""
    slots = relation == "in-place" and plan.record is not None
    return replace(plan, relation=relation, record=replace(plan.record, rows=False) if slots else plan.record)


def test_the_numbers_of_a_record_at_two_and_a_half():
    plan = calibrate(replace(PLAN, record=PARTS, max_participations=1), Targets(record_epsilon=2.5))
    found = guarantees(plan)[2].relations
    due = {"zero-out": 2.5, "row-deleted": 5.54, "row-relabelled": 12.86, "row-exchanged": 12.86,
           "row-exchanged-same-label": 12.86}  # fmt: skip
    assert found == {name: pytest.approx(value, abs=0.005) for name, value in due.items()}
    slots = guarantees(with_relation(plan, "in-place"))[2].relations
    assert slots == {"zero-out": found["zero-out"], "in-place": found["row-deleted"]}
    steps = guarantees(calibrate(replace(PLAN, record=STEPS, max_participations=1), Targets(record_epsilon=2.5)))[2]
    # Balanced roles: an exchange under one label is sqrt(8) of what zero-out moves.
    assert steps.relations["row-exchanged-same-label"] == pytest.approx(
        gaussian_epsilon(math.sqrt(8) / guarantees_mu(2.5), 1e-5), rel=1e-6
    )
    assert steps.relations["row-exchanged"] == pytest.approx(12.86, abs=0.005)


def guarantees_mu(epsilon):
    """1/mu of a Gaussian release with this epsilon, by halving."""
    low, high = 1e-3, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_epsilon(1 / middle, 1e-5) > epsilon else (low, middle)
    return low


# The oracle: what each relation does to a client's lists, counted in releases, without the package's table.
GROUPS = {"zero-out": 1, "in-place": 2, "row-deleted": 2, "row-relabelled": 4, "row-exchanged-same-label": 4,
          "row-exchanged": 4}  # fmt: skip
OWN_TERMS = {"zero-out": 1, "in-place": 2, "row-deleted": 1, "row-relabelled": 2, "row-exchanged-same-label": 2,
             "row-exchanged": 2}  # fmt: skip


def roles_of(relation):
    """(support units, query units) of every way in which the old and the new record may fall into roles."""
    if relation == "zero-out":
        return [(1, 0), (0, 1)]
    if relation in ("in-place", "row-deleted"):
        return [(2, 0), (0, 2)]
    ways = []
    for old, new in itertools.product((0, 1), repeat=2):
        units = [0, 0]
        units[old] += 2
        units[new] += 2
        if relation == "row-exchanged-same-label" and old == new:
            units[old] = 2  # one exchange in one list
        ways.append(tuple(units))
    return ways


def oracle_mu(record, relation):
    """Mu of a participation towards whoever sees the message."""
    if record.own_terms:
        return OWN_TERMS[relation] / record.query_noise
    if record.support_noise is None:
        return min(GROUPS[relation], 2 * record.query_records) / record.query_noise
    worst = 0.0
    for a, b in roles_of(relation):
        squared = a**2 * record.support_steps / record.support_noise**2
        squared += b**2 / record.query_noise**2 if record.query_noise else 0.0
        worst = max(worst, math.sqrt(squared))
    if record.query_noise:
        return min(worst, 2 * record.query_records / record.query_noise)
    return min(worst, 2 * math.sqrt(record.support_steps) * record.support_records / record.support_noise)


def oracle_public_mu(plan, noise, relation):
    record = plan.record
    local = oracle_mu(record, relation)
    if record.own_terms or record.support_noise is None:
        units = (OWN_TERMS if record.own_terms else GROUPS)[relation]
        scale = record.query_to_message_bound if plan.noise_mode == "stacked" else 1.0
        return min(local, min(units / record.query_records * scale, 2.0) / noise)
    worst = 0.0
    for a, b in roles_of(relation):
        support = a * math.sqrt(record.support_steps) / record.support_noise
        query = 0.0
        if b and record.query_noise:
            scale = record.query_to_message_bound if plan.noise_mode == "stacked" else 1.0
            query = min(b / record.query_noise, min(b / record.query_records * scale, 2.0) / noise)
        worst = max(worst, math.sqrt(support**2 + query**2))
    return min(worst, 2.0 / noise, local)


@pytest.mark.parametrize("relation", ALL)
@pytest.mark.parametrize("cap", [1, 3, None])
@pytest.mark.parametrize("phases", [(), (Change(from_round=2, noise_scale=0.5),)], ids=["one", "two"])
@pytest.mark.parametrize(("mode", "record"), [
    (mode, record) for mode in ("stacked", "shared") for record in (
        PARTS, replace(PARTS, query_records=1), STEPS, replace(STEPS, support_noise=30.0), UPDATE, OWN,
        replace(STEPS, query_noise=0.05, support_noise=100.0), replace(PARTS, query_to_message_bound=0.5),
    ) if mode == "stacked" or record is not UPDATE
])  # fmt: skip
def test_the_cells_of_messages_by_a_slow_computation(record, relation, cap, phases, mode):
    plan = replace(PLAN, record=record, max_participations=cap, schedule=phases, noise_mode=mode, hostile=0.0)
    plan = with_relation(plan, relation)
    terms = Terms.of(plan)
    cell = record_server(plan.phases, terms)
    assert cell.adjacency == relation
    if cap is not None:
        due = gaussian_epsilon(math.sqrt(cap) * oracle_mu(record, relation), plan.record_delta)
        assert cell.epsilon == pytest.approx(due, rel=1e-9)
    else:
        assert cell.epsilon >= gaussian_epsilon(oracle_mu(record, relation), plan.record_delta)
    mus = [oracle_public_mu(plan, phase.event.noise.multiplier, relation) for phase in plan.phases]
    rare = sum(phase.rounds * phase.event.surplus_probability for phase in plan.phases)
    due = mixture_epsilon(plan.phases, mus, cap, plan.record_delta - rare, uncapped=0)
    found = {bound.method: bound.epsilon for bound in record_public(plan.phases, terms).bounds}
    assert found["gdp-mixture"] == pytest.approx(due, rel=1e-9)


@pytest.mark.parametrize("relation", ALL)
@pytest.mark.parametrize("parts", [1, 2, 10])
@pytest.mark.parametrize("cap", [1, 3])
def test_the_cell_of_sums_by_a_slow_computation(relation, parts, cap):
    secure = replace(SUM.secure, parts=parts)
    plan = replace(SUM, secure=secure, record=replace(SUMMED, query_records=parts), max_participations=cap)
    plan = with_relation(plan, relation)
    moved = min(GROUPS[relation] / parts, 2.0)
    least = gaussian_epsilon(math.sqrt(cap) * moved / plan.at(0).sum_noise.multiplier, plan.record_delta)
    found = record_server(plan.phases, Terms.of(plan)).bounds[0].epsilon
    # Discrete noise and rare events cost a little more.
    assert least <= found <= 1.01 * least


KINDS = {"parts": PARTS, "steps": STEPS, "update": UPDATE, "own": OWN, "sum": SUMMED, "batches": BATCHES, "none": None}


def plan_with(name):
    return replace(SUM if name == "sum" else PLAN, record=KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_which_relations_hold(name):
    plan = plan_with(name)
    rows = tuple(each for each in ALL if each != "in-place")
    expected = ALL if plan.record is None else rows[:2] if name == "batches" else rows
    for cell in guarantees(plan)[2:]:
        assert tuple(cell.relations) == expected
        assert cell.relations["zero-out"] == cell.epsilon
    assert all(cell.relations == {} for cell in guarantees(plan)[:2])
    if plan.record is None:
        assert all(len(set(cell.relations.values())) == 1 for cell in guarantees(plan)[2:])
        return
    without = replace(plan, record=replace(plan.record, rows=False))
    assert tuple(guarantees(without)[2].relations) == holding(without.record) == ("zero-out", "in-place")
    assert (default_relation(plan.record), default_relation(without.record)) == ("row-deleted", "zero-out")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("observer", [2, 3])
def test_a_relation_that_allows_more_costs_no_less(name, observer):
    found = guarantees(plan_with(name))[observer].relations
    for less, more in ORDER:
        if {less, more} <= found.keys():
            assert found[less] <= found[more]
    # Less noise, more participations, a smaller delta: each costs every relation more.
    plan = plan_with(name)
    for other in (replace(plan, max_participations=3), replace(plan, record_delta=1e-7)):
        worse = guarantees(other)[observer].relations
        assert all(worse[each] >= found[each] for each in found)


@pytest.mark.parametrize("name", KINDS)
def test_every_relation_of_a_plan_is_its_cell_where_that_relation_is_asked_for(name):
    plan = plan_with(name)
    together = guarantees(plan)
    for relation in holding(plan.record):
        alone = guarantees(with_relation(plan, relation))
        for place in (2, 3):
            assert (alone[place].adjacency, alone[place].epsilon) == (relation, together[place].relations[relation])
            assert alone[place].relations == together[place].relations
        assert alone[:2] == together[:2]


@pytest.mark.parametrize(
    ("name", "relation"),
    [
        (n, r)
        for n in KINDS
        if n != "none"
        for r in ("zero-out", "row-deleted", "row-exchanged")
        if r in holding(KINDS[n])
    ],
)
def test_the_noise_is_solved_for_the_relation_that_is_asked_for(name, relation):
    quiet = replace(with_relation(plan_with(name), relation), noise_multiplier=0.0)
    plan = calibrate(quiet, Targets(record_epsilon=2.5))
    cell = guarantees(plan)[2]
    assert cell.adjacency == relation
    assert 2.49 < cell.epsilon <= 2.5
    assert cell.epsilon == cell.relations[relation]
    if name != "sum":
        public = calibrate(quiet, Targets(record_epsilon=0.9, record_observer="public"))
        assert guarantees(public)[3].epsilon <= 0.9


@pytest.mark.parametrize(("record", "relation", "use"), [
    (replace(PARTS, rows=False), "row-deleted", "zero-out"),
    (replace(STEPS, rows=False), "row-exchanged", "zero-out"),
    (BATCHES, "row-exchanged", "row-deleted"),
    (PARTS, "removed", "one of zero-out"),
])  # fmt: skip
def test_a_relation_that_does_not_hold_is_refused_in_a_line(record, relation, use):
    with pytest.raises(RefusedPlan, match=use) as refused:
        replace(PLAN, record=record, relation=relation)
    assert "\n" not in str(refused.value)
    assert f"relation = {relation}: " in str(refused.value)


@pytest.mark.parametrize("name", ["parts", "steps", "own", "sum", "batches", "none"])
@pytest.mark.parametrize("rows", [False, True])
def test_a_ledger_restores_relation_and_rows(name, rows):
    plan = plan_with(name)
    if plan.record is not None:
        plan = replace(plan, record=replace(plan.record, rows=rows))
    for relation in holding(plan.record):
        one = with_relation(plan, relation)
        again = plan_of(constants(one))
        assert again == one
        assert stated(again.phases, Terms.of(again)) == guarantees(one)


# The table itself: clients of random rows, the rule of the hash, and the worst that a search finds.


class Client:
    """Rows (label, value) with a hash that decides group, role and order; gradients of the worst kind, all random."""

    def __init__(self, seed):
        self.seed = seed

    def hash_of(self, row, salt):
        return int.from_bytes(hashlib.blake2b(repr((self.seed, salt, *row)).encode(), digest_size=6).digest(), "big")

    def unit(self, *numbers):
        """A direction that follows from these numbers, +e or -e: another one is opposite half of the time."""
        return np.array([1.0 if self.hash_of(numbers, 4) % 2 else -1.0])

    def parts(self, rows, groups=3):
        total = np.zeros(1)
        for group in range(groups):
            own = sorted(row for row in rows if self.hash_of(row, 1) % groups == group)
            flat = [number for row in own for number in row]
            total += self.unit(5, *flat) if own else 0.0
        return total

    def steps(self, rows, most=2):
        """(support sum, query sum): of each role and label the first rows by hash, each its own gradient."""
        sums = [np.zeros(1), np.zeros(1)]
        for role, label in itertools.product((0, 1), {row[0] for row in rows}):
            own = [row for row in rows if row[0] == label and self.hash_of(row, 2) % 2 == role]
            for row in sorted(own, key=lambda row: self.hash_of(row, 3))[:most]:
                sums[role] += self.unit(6, *row)
        return sums

    def own(self, rows, records=3):
        total = sum((self.unit(7, *row) for row in rows), np.zeros(1))
        return total * min(1.0, records / max(np.linalg.norm(total), 1e-300))


def neighbours(rows, place, fresh):
    label = rows[place][0]
    rest = [row for number, row in enumerate(rows) if number != place]
    yield "row-deleted", rest
    yield "row-relabelled", [*rest, (1 - label, rows[place][1])]
    yield "row-exchanged-same-label", [*rest, (label, fresh)]
    yield "row-exchanged", [*rest, (1 - label, fresh)]
    yield "row-exchanged", [*rest, (label, fresh)]


def test_a_search_over_random_rows_finds_no_more_than_the_table_says_and_reaches_it():
    """A planted 2 for 4 is found: the largest change that comes up is the one that is stated."""
    largest = dict.fromkeys(itertools.product(("parts", "own"), ALL), 0.0)
    roles = {relation: set() for relation in ALL}
    for seed in range(1500):
        client, draw = Client(seed), np.random.default_rng(seed)
        rows = [(int(draw.integers(2)), number) for number in range(int(draw.integers(6, 16)))]
        for relation, other in neighbours(rows, int(draw.integers(len(rows))), 100 + seed):
            for kind in ("parts", "own"):
                before, after = getattr(client, kind)(rows), getattr(client, kind)(other)
                largest[kind, relation] = max(largest[kind, relation], float(np.linalg.norm(before - after)))
            moved = [float(np.abs(a - b)[0]) for a, b in zip(client.steps(rows), client.steps(other), strict=True)]
            roles[relation].add(tuple(round(value) for value in moved))
    for relation in ALL[2:]:
        table = RELATIONS[relation].moves
        assert largest["parts", relation] == table["parts"][0][1]
        assert largest["own", relation] == table["rows"][0][1]
        cases = table["steps"]
        assert set(cases) <= roles[relation]
        assert all(any(a <= x and b <= y for x, y in cases) for a, b in roles[relation])


def terms_of(relation, own):
    """(Terms that come, terms that go) of each block of moments: vectors z, vectors u of pairs, (label, z)."""
    z, other, u, v, w, x = own
    comes = {
        "zero-out": ([], [], []),
        "in-place": ([other], [u], [(0, other)]),
        "row-deleted": ([], [u], []),
        "row-relabelled": ([z], [u, w], [(1, z)]),
        "row-exchanged-same-label": ([other], [u, w], [(0, other)]),
        "row-exchanged": ([other], [u, w], [(1, other)]),
    }[relation]
    goes = ([z], [v] if relation in ("zero-out", "in-place", "row-deleted") else [v, x], [(0, z)])
    return comes, goes


def squared_move(relation, own, blocks):
    apart, (comes, goes) = 0.0, terms_of(relation, own)
    for place, most in ((0, 1.0), (1, blocks.pairs)):
        matrix = sum((np.outer(each, each) for each in comes[place]), np.zeros((6, 6)))
        matrix = matrix - sum((np.outer(each, each) for each in goes[place]), np.zeros((6, 6)))
        apart += float(np.square(most * matrix).sum())
    sums = np.zeros((2, 6))
    for sign, given in ((1, comes[2]), (-1, goes[2])):
        for label, each in given:
            sums[label] += sign * blocks.labels * each
    return apart + float(np.square(sums).sum())


@pytest.mark.parametrize("relation", ALL)
@pytest.mark.parametrize(
    "blocks",
    [
        MomentBlocks(pairs=1.5),
        MomentBlocks(pairs=0.3, radius=0.9),
        MomentBlocks(pairs=1.0, labels=0.7, radius=0.8),
        MomentBlocks(labels=1.0),
        MomentBlocks(labels=3.0, radius=0.95),
    ],
    ids=str,
)
def test_moments_move_by_no_more_than_their_blocks_say_and_by_as_much(relation, blocks):
    """Random terms of the greatest lengths, and the worst ones by hand."""
    due, rng, found = blocks.moved(relation) * blocks.unit, np.random.default_rng(0), []
    constant = math.sqrt(1.0 - blocks.radius**2)

    def record(direction):
        return np.array([*(blocks.radius * direction), constant])

    axes, worst = np.eye(5), [np.eye(6)[2], np.eye(6)[3], np.eye(6)[2], np.eye(6)[3]]
    for _ in range(2000):
        drawn = rng.normal(size=(6, 5))
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        pairs = [np.array([*each, 0.0]) for each in drawn[2:]]
        found.append(squared_move(relation, [record(drawn[0]), record(drawn[1]), *pairs], blocks))
    # Two records whose product is 0 are worst for squares, and opposite ones for sums of one label.
    for product in (0.0, -(blocks.labels**2) / 2.0):
        turned = max(-1.0, (product - constant**2) / blocks.radius**2)
        other = record(np.array([turned, math.sqrt(1.0 - turned**2), 0.0, 0.0, 0.0]))
        # Any other row may be one of the same label.
        relations = {relation, "row-exchanged-same-label"} if relation == "row-exchanged" else {relation}
        found += [squared_move(how, [record(axes[0]), other, *worst], blocks) for how in relations]
    assert due * (1 - 1e-9) < math.sqrt(max(found)) <= due * (1 + 1e-12)
    assert replace(PARTS, blocks=blocks).moved(relation) == blocks.moved(relation)


def test_relations_that_differ_towards_one_observer_have_a_line_each():
    """One line says that a record may differ in any way only where both epsilons are the same in all."""
    plan = replace(PLAN, record=PARTS)
    server, public = (cell for cell in guarantees(plan) if cell.unit == "record")
    same = dict.fromkeys(server.relations, 1.0)
    for one, other in ((same, public.relations), (server.relations, same)):
        cells = [replace(server, relations=one), replace(public, relations=other)]
        assert len(relation_rows(cells)) == len(same) > 1
    assert len(relation_rows([replace(server, relations=same), replace(public, relations=same)])) == 1


def test_no_relation_of_any_release_costs_nothing():
    """A stated 0 would be a promise that nothing moves."""
    for relation, kinds in RELATIONS.items():
        assert all(max(case) > 0 for cases in kinds.moves.values() for case in cases), relation
        for blocks in (MomentBlocks(pairs=0.01), MomentBlocks(labels=0.01, radius=0.1), MomentBlocks(target=0.01)):
            assert blocks.moved(relation) > 0, (relation, blocks)
    with pytest.raises(RefusedPlan, match="labels stand in none"):
        MomentBlocks()


@pytest.mark.parametrize("length", [0.01, 0.4, math.sqrt(0.5), 0.8, 0.9, 0.95, 0.999, 1.0])
def test_another_number_to_predict_moves_the_squares_by_the_most_that_a_search_finds(length):
    s, t = np.meshgrid(*(np.linspace(-length, length, 801),) * 2)
    found = max(
        float(((p + s**2) ** 2 + (p + t**2) ** 2 - 2.0 * (p + s * t) ** 2).max())
        for p in np.linspace(0.0, 1.0 - length**2, 5)
    )
    assert MomentBlocks.of_number(length) == pytest.approx(found, rel=1e-4)
    assert found <= MomentBlocks.of_number(length) * (1 + 1e-12) <= 2.0 * (1 + 1e-12)
