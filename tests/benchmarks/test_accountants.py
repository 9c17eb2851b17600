import random

import pytest

from benchmarks.accountants import agreements, all_settings


def within(row):
    """One percent both ways; other accountants err upwards on their own grids, never downwards."""
    return row.highest <= (0.0 if row.bound else 0.01) and (row.bound or row.lowest >= -0.01)


@pytest.mark.slow
def test_a_few_settings_agree_with_every_other_accountant():
    few = random.Random(1).sample(all_settings(), 4)
    for row in agreements(few):
        assert within(row), row


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimal order is the")  # of Opacus, whose orders end where ours go on
def test_all_settings_agree_with_every_other_accountant():
    assert len(all_settings()) >= 200
    for row in agreements(all_settings()):
        assert within(row), row
