"""Which release a ledger holds for which round: of the last course alone, and never two for one charge."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger.charges import Charge, Closing, planned_charge
from dpfedmeta.accounting.ledger.ledger import (
    ABORTED,
    Ledger,
    LedgerContent,
    RunIdentity,
    held_releases,
    read_content,
    released_before,
    spent,
)
from dpfedmeta.accounting.ledger.published import Verified, chain_remark, check_releases, not_verified
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError

PLAN = PrivacyPlan(clients=400, cohort=20.0, rounds=4, noise_multiplier=2.0, client_delta=1e-4)
A, B, C, D = (letter * 64 for letter in "abcd")
HERE = Path("ledger.jsonl")


def content_of(*lines):
    """(round, attempt, release) of a charge; (rounds, release) of a closing line."""
    made = [
        replace(planned_charge(PLAN, line[0]), attempt=line[1], release=line[2])
        if len(line) == 3
        else Closing(rounds=line[0], release=line[1])
        for line in lines
    ]
    return LedgerContent(
        plan=PLAN,
        identity=RunIdentity(),
        charges=tuple(line for line in made if isinstance(line, Charge)),
        heads=tuple(str(place) for place in range(len(made) + 1)),
        lines=(None, *made),
    )


@pytest.mark.parametrize(
    ("lines", "held"),
    [
        ([], {}),
        ([(0, 0, "")], {}),
        ([(0, 0, ""), (1, A)], {1: A}),
        ([(0, 0, ""), (1, 0, A), (2, 0, B), (3, C)], {1: A, 2: B, 3: C}),
        # Round 1 is done anew: what came after its first attempt was given up.
        ([(0, 0, ""), (1, 0, A), (2, 0, B), (1, 1, A)], {1: A}),
        ([(0, 0, ""), (1, 0, A), (2, 0, B), (1, 1, A), (2, 1, C), (3, D)], {1: A, 2: C, 3: D}),
        # A run that was closed and went on.
        ([(0, 0, ""), (1, A), (1, 0, A), (2, B)], {1: A, 2: B}),
        # Interrupted in the middle of a round, which is then done under the same charge.
        ([(0, 0, ""), (1, 0, A), (1, A), (2, 0, B)], {1: A, 2: B}),
    ],
)
def test_a_line_holds_the_release_before_its_round(lines, held):
    assert held_releases(HERE, content_of(*lines)) == held


@pytest.mark.parametrize(
    "lines",
    [
        [(0, 0, ""), (1, 0, A), (1, 1, B)],
        [(0, 0, ""), (1, 0, A), (1, B)],
        [(0, 0, ""), (1, A), (1, B)],
        [(0, 0, ""), (1, A), (1, 0, B)],
        # Round 1 is done anew, on another release of round 0 than before.
        [(0, 0, ""), (1, 0, A), (2, 0, B), (1, 1, C)],
    ],
)
def test_two_releases_for_one_charge_are_refused(lines):
    with pytest.raises(InputError, match="holds two releases before round 1 that were charged once"):
        held_releases(HERE, content_of(*lines))


def test_a_round_that_was_aborted_leaves_the_one_before_it():
    content = content_of((0, 0, ""), (1, 0, A), (2, 0, A), (3, 0, B), (4, B))
    assert released_before(HERE, content) == {0: A, 2: B}
    assert check_releases(HERE, content, [A, ABORTED, B, ABORTED], "rows") == 4
    for wrong in ([A, B, B, ABORTED], [ABORTED, ABORTED, B, ABORTED], [A, ABORTED, B, C], [A, ABORTED, C, ABORTED]):
        with pytest.raises(InputError, match=r"rows: the release of round \d has the digest"):
            check_releases(HERE, content, wrong, "rows")
    # Fewer rows than charges are another matter.
    assert check_releases(HERE, content, [A], "rows") == 1


def test_digests_cost_nothing():
    plain = content_of((0, 0, ""), (1, 0, ""))
    assert spent(PLAN, content_of((0, 0, ""), (1, 0, A), (2, B)).charges) == spent(PLAN, plain.charges)


def test_a_ledger_is_read_as_it_was_until_any_line(tmp_path):
    ledger = Ledger(tmp_path / "l", replace(PLAN, rounds=2))
    for round_, release in ((0, ""), (1, A)):
        ledger.charge(replace(planned_charge(PLAN, round_), release=release))
    for _ in range(2):
        ledger.close(Closing(rounds=2, release=B, weights={"model.safetensors": C}))
    ledger.extend(4)
    ledger.charge(replace(planned_charge(PLAN, 2), release=B))
    content = read_content(tmp_path / "l")
    kinds = [type(line).__name__ for line in content.lines]
    assert kinds == ["NoneType", "Charge", "Charge", "Closing", "NoneType", "Charge"]
    assert content.closing is None
    assert content.lines[3] == Closing(rounds=2, release=B, weights={"model.safetensors": C})
    for place, head in enumerate(content.heads):
        then = content.until(head)
        assert (len(then.heads), then.lines) == (place + 1, content.lines[: place + 1])
        assert len(then.charges) == (0, 1, 2, 2, 2, 3)[place]
        assert (then.closing is not None) == (place == 3)
    assert content.until("another") is content
    places = {(charge.round, charge.attempt): place for place, charge in zip((1, 2, 5), content.charges, strict=True)}
    for key, place in places.items():
        assert Ledger.resume(tmp_path / "l", content, 0).head_of(*key) == ledger.head_of(*key) == content.heads[place]


@pytest.mark.parametrize(
    "line",
    [
        {"closed": {"rounds": 2, "release": A, "weights": {}}},
        {"closed": {"rounds": -1, "release": A, "weights": {}}},
        {"closed": {"rounds": True, "release": A, "weights": {}}},
        {"closed": {"rounds": 1, "release": "no digest", "weights": {}}},
        {"closed": {"rounds": 1, "release": A, "weights": {"model.safetensors": 5}}},
        {"closed": {"rounds": 1, "release": A, "weights": []}} | {"more": 1},
        {"closed": {"rounds": 1, "release": A}},
        {"closed": None},
    ],
    ids=str,
)
def test_a_line_that_closes_no_ledger_is_refused(tmp_path, line):
    ledger = Ledger(tmp_path / "l", PLAN)
    ledger.charge(planned_charge(PLAN, 0))
    ledger._chain.append(line)
    with pytest.raises(InputError, match="not a ledger"):
        read_content(tmp_path / "l")


def test_what_is_not_held_is_said():
    words = "the end (it was stopped, or goes on, so the ledger does not end with a closing"
    assert words in not_verified(content_of((0, 0, "")), "the end")
    assert words in not_verified(content_of((0, 0, ""), (1, A), (1, 0, A)), "the end")
    whole = not_verified(content_of((0, 0, ""), (1, 0, A), (2, B)), "the end", "a thing")
    assert whole.startswith("not verified: a thing; that the noise was drawn as it is charged")
    assert "releases before round 2 (" in not_verified(content_of((0, 0, ""), (1, 0, A), (2, 0, ""), (3, C)), "the end")


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ((), "0 rounds, hash chain intact"),
        ((0,), "1 round, hash chain intact"),
        ((0, 0), "2 rounds, hash chain intact"),
        ((0, 1, 2, 0), "2 rounds, 2 of them repeated and charged again, hash chain intact"),
    ],
)
def test_a_chain_is_said_in_rounds_and_in_what_was_charged_again(attempts, said):
    assert chain_remark([SimpleNamespace(attempt=attempt) for attempt in attempts]) == said


@pytest.mark.parametrize("rounds", [0, 1, 3, 4])
def test_of_rounds_that_may_go_on_all_of_them_are_stated(rounds):
    charges = tuple(planned_charge(PLAN, place) for place in range(rounds))
    cells = spent(PLAN, charges)
    found = Verified(plan=PLAN, charges=charges, guarantees=cells, remarks=(), simulation=None, unverified="")
    assert found.rounds == rounds
    assert found.to_state() == (cells if rounds == 4 else guarantees(PLAN))
    assert found.to_state()[0].epsilon == guarantees(PLAN)[0].epsilon
