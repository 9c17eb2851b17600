import time
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.federation.server import quorum
from dpfedmeta.federation.server.quorum import Presence, TooFew, attendance, offer_until_answered, wait_for

NAMES = {b"a": "clinic A", b"b": "clinic B", b"c": "clinic C"}


class Steps:
    """The clients that are there, looked at one after the other; says when all were seen."""

    def __init__(self, *steps):
        self.steps, self.seen = list(steps), 0

    def __call__(self):
        self.seen += 1
        return self.steps[min(self.seen, len(self.steps)) - 1]


def lines(*steps, names=NAMES):
    said, present = [], Steps(*steps)
    with attendance(names, present, said.append, seconds=0.001):
        until = time.monotonic() + 10
        while present.seen <= len(steps) and time.monotonic() < until:
            time.sleep(0.002)
    return said


def test_who_came_left_and_is_back_is_said_once():
    assert lines((), (b"a", b"b"), (b"a", b"b"), (b"b",), (b"a", b"b", b"c", b"stranger")) == [
        "connected: clinic A, clinic B; 2 of 3 clients are connected",
        "left: clinic A; 1 of 3 clients are connected",
        "back: clinic A; 3 of 3 clients are connected",
        "connected: clinic C; 3 of 3 clients are connected",
    ]


def test_many_at_once_are_one_line():
    many = {bytes([n]): f"site {n}" for n in range(40)}
    assert lines(tuple(many), names=many) == [
        "connected: site 0, site 1, site 2, site 3, site 4 and 35 more; 40 of 40 clients are connected"
    ]


class There:
    """A channel on which more and more are connected."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def present(self):
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


@pytest.mark.parametrize("strangers", [(), (b"x", b"y", b"z")])
def test_only_those_of_the_roster_are_waited_for(strangers):
    seen = There((b"a", *strangers), (b"a", *strangers), (b"a", b"b", *strangers))
    wait_for(seen, [*NAMES], 2, 10.0)
    assert len(seen.steps) == 1
    with pytest.raises(TooFew, match=r"only 1 of 3 clients are connected after 0 s, and 2 are needed"):
        wait_for(There((b"a", *strangers)), [*NAMES], 2, 0.0)


@pytest.mark.parametrize(("cohort", "fixed", "ends"), [(3, True, True), (2, True, False), (3, False, False)])
def test_a_run_ends_because_many_decline_only_where_all_are_asked(cohort, fixed, ends):
    """Elsewhere everybody who sees that it ended would know something of who was drawn."""
    privacy = SimpleNamespace(
        sampling=SimpleNamespace(fixed_size=fixed),
        cohort=cohort,
        clients=3,
        rounds=5,
        at=lambda round_: SimpleNamespace(whole=None),
    )
    asking = SimpleNamespace(signed=SimpleNamespace(privacy=privacy), declining=frozenset(range(3)), roster=[*NAMES])
    federation = SimpleNamespace(channel=There(tuple(NAMES)), roster=[*NAMES], asking=asking)
    presence = Presence(federation=federation, fewest=3, seconds=0.0)
    if ends:
        with pytest.raises(TooFew, match="3 of 3 clients declined"):
            presence.on_round({"round": 3})
    else:
        presence.on_round({"round": 3})
    # After the last round nobody is needed: clients may have given all that they promised, or have left.
    federation.channel = There(())
    presence.on_round({"round": 4})


class Slow:
    """Clients that make the plan one after the other, each when it is offered again."""

    signed = SimpleNamespace(privacy=PrivacyPlan(clients=3, cohort=3, rounds=1, noise_multiplier=1.0))
    channel, roster, declining = There((b"a", b"b")), [*NAMES], ()

    def __init__(self, *answering):
        self.steps, self.answering, self.offers = list(answering), 0, 0

    def offer(self, to):
        self.offers, self.answering = self.offers + 1, self.steps.pop(0) if self.steps else self.answering


def test_a_plan_is_offered_until_enough_clients_answered(monkeypatch):
    monkeypatch.setattr(quorum, "_LOOK_SECONDS", 0.001)
    asking = Slow(0, 1, 1, 2, 3)
    offer_until_answered(asking, 2, 10.0)
    assert asking.offers == 4
    with pytest.raises(TooFew, match="only 1 of 3 clients answered the plan within 0 s"):
        offer_until_answered(Slow(1), 2, 0.0)
