"""Each limit at its last value, which is accepted, and at the next one, which is refused."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfedmeta.accounting.calibration import Targets
from dpfedmeta.accounting.events.failure_probability import MOST_MESSAGES, check_population
from dpfedmeta.accounting.events.fit_toeplitz import fit_banded
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.events.participation_pattern import Spacing, joining_rates
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analyses.heavy_hitters import HeavyHitters
from dpfedmeta.analytics.analyses.histogram import Histogram
from dpfedmeta.analytics.analyses.quantile import Quantile
from dpfedmeta.analytics.analysis_request import FixedCohort, Request
from dpfedmeta.auditing.audit_request import MOST_RUNS, AuditRequest
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.client.client_budget import Floors
from dpfedmeta.federation.client.promise_checks import check_floors, check_promise
from dpfedmeta.federation.identity.invitation import checked_address
from dpfedmeta.federation.server.quorum import check_willing
from dpfedmeta.federation.wire_format import Offer, ProtocolStep, RoundTask, Start
from dpfedmeta.privacy.clip_policy import check_window, clip_limits
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.rounds.promise import PromisedCell, RoundsRequest
from dpfedmeta.privacy.samplers.check_ins_sampler import CheckInSampler
from dpfedmeta.privacy.samplers.cyclic_sampler import CyclicSampler
from dpfedmeta.privacy.thresholded_counts import Threshold
from dpfedmeta.secure_aggregation.crypto import neighbour_graph, shamir
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.masks import FEWEST_BITS, MOST_BITS
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_messages import share_of
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Identities, Round
from dpfedmeta.simulation.cohort_sums import check_enough_work
from dpfedmeta.simulation.distributed.torchrun_env import TIMEOUT, launched

PRIME = shamir.PRIME
# Everybody is everybody's neighbour; a server that follows the protocol.
NUMBERS = {
    "clients": 10, "dimension": 5, "bits": 20, "degree": 9, "threshold": 5, "colluding": 1, "fewest": 8,
    "malicious": False,
}  # fmt: skip
ROSTER = {seat: bytes([seat]) * 32 for seat in range(10)}
ROUND = {
    "run": bytes(32), "round": 3, "attempt": 2, "identities": Identities(keys=ROSTER), "server": bytes(32),
    "agreement": Agreement(**NUMBERS),
}  # fmt: skip
LOOP = {"clients": 100, "cohort": 10.0, "rounds": 5, "promises": (PromisedCell(epsilon=2.0, delta=1e-6),)}
ASKED = {"kind": "quantile", "epsilon": 1.0, "delta": 1e-6, "cohort": 40.0, "clients": 100, "own": {}}
PLAN = {"clients": 100, "cohort": 10.0, "rounds": 2, "noise_multiplier": 2.0}


def above(value):
    return math.nextafter(value, math.inf)


def below(value):
    return math.nextafter(value, -math.inf)


def built(made, base, name):
    return lambda value: made(**{**base, name: value})


def start(*invited):
    return Start.decode(Start(invited=invited, task=b"").encode(), 10)


def windowed(window, rounds):
    check_window(SimpleNamespace(window=window), SimpleNamespace(rounds=rounds))


def limits(values):
    lowest, initial, highest = values
    clip_limits(SimpleNamespace(initial=initial, lowest=lowest, highest=highest))


def floors(given):
    adversarial, colluding = given
    plan = SimpleNamespace(secure=SimpleNamespace(adversarial=0.05), colluding=2)
    Floors(adversarial=adversarial, colluding=colluding).check(plan, rough=False)


def willing(declined):
    whole = SimpleNamespace(fewest=lambda invited: 4)
    privacy = SimpleNamespace(at=lambda round_: SimpleNamespace(whole=whole), cohort=5)
    signed = SimpleNamespace(privacy=privacy)
    check_willing(SimpleNamespace(signed=signed, declining=range(declined), roster=range(9)))


def ranks(count):
    clients = SimpleNamespace(at_once=True, device=SimpleNamespace(type="cpu"), chunk=100)
    check_enough_work(SimpleNamespace(count=count, trusted=False), clients, 400)


def turned(parts):
    plan = PrivacyPlan(**PLAN)
    CyclicSampler.check_separation(plan, SimpleNamespace(separation=parts))


def checked_in(rounds):
    settings = Settings.preset("dp-agr", "strokes", {
        "population.sampler": "check-ins", "population.clients": 600, "population.cohort": 60.0,
        "server.rounds": rounds, "privacy.client.delta": 1e-9,
    })  # fmt: skip
    CheckInSampler.check_settings(settings)


def hostile(share):
    return PrivacyPlan(**{**PLAN, "clients": 10, "sampler": "fixed", "noise_site": "clients", "hostile": share}).at(0)


def torchrun(**given):
    environment = {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a", **given}
    return launched(environment)


def seated(seat):
    secret = bytes(31) + b"\1"
    own = Identity(secret).public
    identities = Identities(keys={each: own if each == seat else bytes([each]) * 32 for each in range(10)})
    round_ = Round(**{**ROUND, "identities": identities})
    Client(round_=round_, seat=seat, identity=secret)


def threshold(alone):
    Threshold(noise=ThresholdedNoise(multiplier=2.0, missed=1e-6), names=1, alone=alone)


LIMITS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    # Secure aggregation.
    "bits": (built(Agreement, NUMBERS, "bits"), [FEWEST_BITS, MOST_BITS], [FEWEST_BITS - 1, MOST_BITS + 1]),
    "dimension": (built(Agreement, NUMBERS, "dimension"), [1, 2**31 - 1], [0, 2**31]),
    "threshold": (built(Agreement, NUMBERS, "threshold"), [2, 9], [1, 10]),
    "degree": (built(Agreement, {**NUMBERS, "threshold": 2}, "degree"), [2, 4, 8, 9], [1, 3, 7, 10]),
    "clients of a round": (
        lambda clients: Agreement(**{**NUMBERS, "degree": 8, "clients": clients}),
        [neighbour_graph.MOST_CLIENTS, 10], [neighbour_graph.MOST_CLIENTS + 1, 1],
    ),
    "colluding": (built(Agreement, NUMBERS, "colluding"), [0, 6], [-1, 7]),
    "fewest": (built(Agreement, NUMBERS, "fewest"), [3, 10], [2, 11]),
    "more than half, complete": (built(Agreement, {**NUMBERS, "malicious": True}, "threshold"), [6], [5]),
    "more than half, sparse": (
        built(Agreement, {**NUMBERS, "malicious": True, "degree": 8, "colluding": 3}, "threshold"), [5], [4],
    ),
    "number of a round": (built(Round, ROUND, "round"), [0, 2**32 - 1], [-1, 2**32]),
    "number of an attempt": (built(Round, ROUND, "attempt"), [0, 2**32 - 1], [-1, 2**32]),
    "identities": (lambda keys: Identities(keys=ROSTER).check(keys), [10], [9, 11]),
    "a share of clients": (lambda share: neighbour_graph._counts(10, share, share), [0.0, below(1.0)], [-1e-9, 1.0]),
    "clients of a graph": (
        lambda clients: neighbour_graph._counts(clients, 0.0, 0.0),
        [2, neighbour_graph.MOST_CLIENTS], [1, neighbour_graph.MOST_CLIENTS + 1],
    ),
    "honest clients that stay": (
        lambda silent: neighbour_graph.parameters(
            clients=10, adversarial=0.0, dropout=silent / 10, malicious=False, complete=True
        ),
        [7], [9],
    ),
    "points of shares": (lambda point: shamir.split(1, [point, 5], 2, bytes), [1, PRIME - 1], [0, 5, PRIME]),
    "a secret": (lambda secret: shamir.split(secret, [1, 2], 2, bytes), [0, PRIME - 1], [-1, PRIME]),
    "shares that give it back": (lambda needed: shamir.split(1, [1, 2], needed, bytes), [1, 2], [0, 3]),
    "a share": (lambda share: share_of(share.to_bytes(33, "big")), [0, PRIME - 1], [PRIME]),
    "a seat": (seated, [0, 9], [-1, 10]),
    # The wire.
    "clip bound of a task": (
        lambda bound: RoundTask.decode(RoundTask(bound=bound, model=np.ones(1)).encode(), 1),
        [1e-30, 1e30], [below(1e-30), above(1e30), 0.0, -1.0, math.nan],
    ),
    "invited clients": (lambda invited: start(*invited), [(0, 9), range(10)], [(9,), (0, 10), (3, 3), (4, 3)]),
    "a step": (lambda size: ProtocolStep.decode(bytes(size)), [5], [4]),
    "an offer": (lambda size: Offer.decode(bytes(size)), [4 + 64 + 1], [4 + 64]),
    "a port": (lambda port: checked_address(f"a.example:{port}"), [1, 65535], [0, 65536]),
    # Of clients and servers.
    "floors": (floors, [(0.05, 2)], [(above(0.05), 2), (0.05, 3)]),
    "adversarial": (lambda share: check_floors(share, 0), [0.0, below(1.0)], [-1e-9, 1.0]),
    "colluding of a floor": (lambda number: check_floors(0.0, number), [0], [-1]),
    "epsilon of a promise": (lambda value: check_promise("record", value, 1e-5, None), [5e-324], [0.0, math.inf]),
    "delta of a promise": (lambda value: check_promise("record", 1.0, value, None), [5e-324, below(1.0)], [0.0, 1.0]),
    "participations": (lambda value: check_promise("record", None, 1e-5, value), [1], [0]),
    "clients that decline": (willing, [5], [6]),
    # Plans.
    "epsilon of a target": (lambda value: Targets(client_epsilon=value), [5e-324, 1e308], [0.0, math.inf, math.nan]),
    "a cohort of all": (lambda cohort: check_population(100, cohort, None), [100.0], [above(100.0)]),
    "the largest sum": (
        lambda cohort: check_population(2**40, cohort, None), [MOST_MESSAGES / 2], [above(MOST_MESSAGES / 2)],
    ),
    "bands": (lambda bands: fit_banded(4, bands), [1, 4], [0, 5]),
    "noise": (lambda value: GaussianNoise(multiplier=value), [5e-324, 1e308], [0.0, math.inf, math.nan]),
    "missed names": (lambda value: ThresholdedNoise(multiplier=1.0, missed=value), [0.0, below(1.0)], [-1e-9, 1.0]),
    "a name alone": (threshold, [1e-6, 1e-9], [above(1e-6), 0.0]),
    "clients that rest": (
        lambda cohort: joining_rates(100, cohort, 8, Spacing(participations=8, separation=4)), [25.0], [25.1],
    ),
    "groups of turns": (turned, [10], [11]),
    "hostile clients": (hostile, [0.8], [0.91, 1.0]),
    "rounds of check-ins": (checked_in, [600], [601]),
    "the first clip bound": (
        limits, [(1.0, 1.0, 2.0), (1.0, 2.0, 2.0)], [(1.0, below(1.0), 2.0), (1.0, above(2.0), 2.0), (1.0, 1.0, 1.0)],
    ),
    "a window": (lambda window: windowed(window, 5), [5], [6]),
    "a window of a short run": (lambda window: windowed(window, 1), [2], [3]),
    "charged noise": (
        lambda value: GaussianMechanism(total_multiplier=2.0, charged_multiplier=value, denominator=1.0),
        [2.0, 5e-324], [above(2.0), 0.0],
    ),
    # Loops of one's own.
    "rounds of a loop": (built(RoundsRequest, LOOP, "rounds"), [1], [0, 1.0, True]),
    "rounds between": (built(RoundsRequest, LOOP, "separation"), [1, None], [0, 1.0]),
    "cohort of a loop": (built(RoundsRequest, LOOP, "cohort"), [5e-324], [0.0, math.inf, True]),
    "delta of a loop": (lambda value: PromisedCell(epsilon=1.0, delta=value), [below(1.0)], [1.0, 0.0]),
    # Analyses and audits.
    "names of a client": (lambda number: HeavyHitters(most_names=number), [1, 100], [0, 101]),
    "bytes of a name": (lambda number: HeavyHitters(length=number), [1, 255], [0, 256]),
    "share of a histogram": (lambda share: Histogram(share=share), [5e-324, below(1.0)], [0.0, 1.0]),
    "a quantile": (lambda share: Quantile(quantile=share), [5e-324, below(1.0)], [0.0, 1.0]),
    "bins": (lambda bins: Quantile(bins=bins), [2, 1000], [1, 1001]),
    "edges": (lambda lowest: Quantile(lowest=lowest, highest=1.0), [below(1.0), 5e-324], [1.0, 0.0]),
    "clients that are asked": (built(Request, ASKED, "cohort"), [100.0, 5e-324], [above(100.0), 0.0]),
    "a whole cohort": (built(Request, {**ASKED, "fixed": FixedCohort()}, "cohort"), [40.0], [40.5]),
    "half of very many": (built(Request, {**ASKED, "clients": 2_000_001}, "cohort"), [1_000_000.0], [1_000_001.0]),
    "half of many": (built(Request, {**ASKED, "clients": 2_000_000}, "cohort"), [2_000_000.0], []),
    "confidence": (lambda value: AuditRequest(confidence=value, runs=100), [0.5], [below(0.5), 1.0]),
    "runs of an audit": (lambda runs: AuditRequest(runs=runs), [5, MOST_RUNS], [4, MOST_RUNS + 1]),
    "canaries": (lambda number: AuditRequest(canaries=number), [16], [15]),
    # Several machines.
    "a rank": (lambda rank: torchrun(RANK=str(rank)), [0, 3], [4]),
    "ranks with work": (ranks, [4], [5]),
    "seconds of a launch": (lambda seconds: torchrun(**{TIMEOUT: seconds}), ["5", "1000000"], ["4.99", "1000001"]),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_the_last_value_is_accepted_and_the_next_one_refused(limit):
    made, accepted, refused = LIMITS[limit]
    for value in accepted:
        made(value)
    for value in refused:
        # Each room has errors of its own; a traceback of a wrong type would be none of them.
        with pytest.raises((InputError, Refused, Aborted, ValueError)) as error:
            made(value)
        assert str(error.value)
