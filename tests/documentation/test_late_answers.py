"""What docs/explanation/late-answers.md says of buffered rounds: its table, and the rule of one message."""

import itertools
import math

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from tests.documentation.pages import ROOT

PAGE = (ROOT / "docs/explanation/late-answers.md").read_text()
ROUNDS, RATE, NOISE, DELTA = 300, 0.015, 1.0, 1e-6
LATE = {"nothing": 1, "one round": 2, "two rounds": 3, "four rounds": 5}


@pytest.mark.parametrize("late", LATE)
def test_answers_that_wait_for_each_other_cost_what_the_table_says(late):
    together = LATE[late]
    accountant = PLDAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    sampled = PoissonSampledDpEvent(1 - (1 - RATE) ** together, GaussianDpEvent(NOISE))
    epsilon = accountant.compose(sampled, ROUNDS // together).get_epsilon(DELTA)
    up = math.ceil(100 * epsilon) / 100
    assert f"| {late} | {up:.2f} |" in PAGE


def released(asked, delays, signs, *, one):
    """What a client puts into each release; a message that is lost has no delay."""
    found = [0] * 5
    for round_, delay, sign in zip(asked, delays, signs, strict=True):
        if delay is not None and (not one or not found[round_ + delay]):
            found[round_ + delay] += sign
    return tuple(found)


def largest(asked, *, one):
    """The largest sum of squared differences of two neighbouring clients, over all delays and messages."""
    delays, signs = (itertools.product(values, repeat=len(asked)) for values in ((0, 1, 2, None), (-1, 1)))
    every = {released(asked, delay, sign, one=one) for delay, sign in itertools.product(delays, [*signs])}
    return max(
        sum((x - y) ** 2 for x, y in zip(first, second, strict=True))
        for first, second in itertools.product(every, repeat=2)
    )


@pytest.mark.parametrize("asked", [(0,), (0, 1), (0, 2), (0, 1, 2)])
def test_one_message_of_a_client_in_a_release_costs_what_is_charged(asked):
    assert largest(asked, one=True) == 4 * len(asked)


def test_two_messages_in_one_release_cost_more_than_is_charged():
    assert largest((0, 1), one=False) == 16
    assert "a difference of 4 in one\nrelease is 16, and two charges are 8" in PAGE
