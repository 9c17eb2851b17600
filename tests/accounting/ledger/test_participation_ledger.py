import itertools
import stat

import numpy as np
import pytest

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.ledger.participation_ledger import SpacedLedger
from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.availability import SpacedClients

SPACING = Spacing(participations=2, separation=4)


def test_a_client_rests_between_rounds_and_then_declines_for_good(tmp_path):
    path = tmp_path / "c"
    SpacedLedger(path, SPACING).join(3)
    ledger = SpacedLedger(path, SPACING)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ledger.holds(3)
    assert not ledger.accepts(6)
    with pytest.raises(ValueError, match="too soon"):
        ledger.join(6)
    ledger.join(7, (1, 5))
    assert ledger.holds(7, (1, 5))
    assert not ledger.holds(7)
    assert not SpacedLedger(path, SPACING).accepts(100)


def test_rounds_are_as_far_apart_as_promised_from_whichever_was_joined_last(tmp_path):
    """Asked in any order, and asked again after a restart."""
    chooser, spacing = np.random.default_rng(1), Spacing(participations=4, separation=5)
    joins = 0
    for number in range(12):
        joined = []
        for round_ in chooser.integers(0, 40, size=40).tolist():
            ledger = SpacedLedger(tmp_path / f"{number}", spacing)
            if ledger.accepts(round_):
                ledger.join(round_)
                joined.append(round_)
        assert len(joined) <= 4
        assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(joined))
        joins += len(joined)
    assert joins > 24


def test_another_spacing_and_edited_lines_are_refused(tmp_path):
    path = tmp_path / "c"
    SpacedLedger(path, SPACING).join(3)
    with pytest.raises(InputError, match="was started as"):
        SpacedLedger(path, Spacing(participations=9, separation=4))
    SpacedLedger(path, SPACING).join(7)
    path.write_text(path.read_text().replace('"round": 3', '"round": 0'))
    with pytest.raises(InputError, match="hash chain"):
        SpacedLedger(path, SPACING)


def test_a_server_that_asks_too_soon_gets_no_answer(tmp_path):
    clients = SpacedClients(folder=tmp_path / "clients", spacing=SPACING)

    def asked(round_, again=()):
        cohort = Cohort(round=round_, clients=np.arange(3), again=again)
        return clients.willing(cohort).clients.tolist()

    assert asked(0) == [0, 1, 2]
    # The same round once more is the same answer; a further attempt is one more participation.
    assert asked(0) == [0, 1, 2]
    assert asked(0, (1, 7)) == asked(3) == []
    assert asked(4) == [0, 1, 2]
    assert asked(8) == []
