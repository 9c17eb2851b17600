"""What is written for another process is read back as it was, each field of it by a value of its own.

A field that is left out, or written under another one's name, shows in the copy that differs in this field alone.
"""

import dataclasses
import json
import math

import numpy as np
import pytest

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates
from dpfedmeta.accounting.events.events import Earlier, Event, Phase
from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.ledger.charges import Charge, Closing
from dpfedmeta.accounting.ledger.client_ledger import RunCost
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis_request import FixedCohort, Request
from dpfedmeta.auditing.findings import Finding
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.federation.wire_format import Offer, ProtocolStep, RoundTask, Start
from dpfedmeta.privacy.clip_policies.constant_policy import ConstantState
from dpfedmeta.privacy.rounds.promise import PromisedCell, RoundsRequest
from dpfedmeta.privacy.rounds.stored_release import StoredRelease, keep_release, load_release

SUM = WholeSum(
    bits=20, dimension=8, parts=2, units=11.0, deviation=13.0, least=3, most=9, dropout=0.25, unsure=1
)  # fmt: skip
EVENT = Event(
    sampler="fixed", clients=101, cohort=7.0, rate=0.07, noise=GaussianNoise(multiplier=1.25), largest_cohort=9,
    hostile=2, surplus_probability=1e-9, total_noise=1.5, assured_noise=1.125, message_noise=0.375, support_noise=2.5,
    support_steps=4, query_noise=3.5, whole=SUM, sum_noise=GaussianNoise(multiplier=1.75), slots=6,
)  # fmt: skip
RELEASE = StoredRelease(
    round=3, attempt=2, bound=0.5, sensitivity=0.75, deviation=0.25, values={"a": np.arange(3.0)},
    policy=ConstantState(bound=0.625), following=0.875, head="ab",
)  # fmt: skip
FINDING = Finding(
    unit="record", observer="server", promised=1.5, delta=1e-5, audited=1.25, confidence=0.95, audit="many-runs",
    method="a", runs=11, canaries=12, right=13, second=True,
)  # fmt: skip
REQUEST = Request(
    kind="histogram", epsilon=1.5, delta=1e-6, cohort=40.0, clients=100, own={"share": 0.75}, names="a file",
    run="a run", noise_seed=7, settings=Settings.preset("dp-agr", "strokes"),
    fixed=FixedCohort(dropout=0.125, adversarial=0.0625, colluding=2, hostile=0.25),
)  # fmt: skip
ROUNDS = RoundsRequest(
    clients=100, cohort=10.0, rounds=5, promises=(PromisedCell(epsilon=2.0, delta=1e-6, unit="record"),),
    sampler="cyclic", noise="toeplitz", separation=3, buffers=2, max_participations=4, clip="a", simulation=True,
)  # fmt: skip


def by_json(kind):
    return lambda value, folder: kind.from_json(json.loads(json.dumps(value.as_json())))


def by_text(kind):
    return lambda value, folder: kind.from_text(value.as_text(), "")


def by_bytes(kind, *known):
    return lambda value, folder: kind.decode(value.encode(), *known)


def by_release(value, folder):
    run = RunDirectory(folder)
    keep_release(run, value)
    return load_release(run, value.round, value.policy)


def by_ledger(value, folder):
    Ledger(folder / "ledger", PrivacyPlan(clients=10, cohort=2.0, rounds=1, noise_multiplier=1.0), value)
    return read_content(folder / "ledger").identity


FORMS = [
    (EVENT, by_json(Event)),
    (SUM, lambda value, folder: WholeSum(**json.loads(json.dumps(value.as_json())))),
    (Charge(round=3, event=EVENT, attempt=2, inputs="in", fresh="0a", release="0a" * 32), by_json(Charge)),
    (Closing(rounds=3, release="0a" * 32, weights={"a": "0b" * 32}), by_json(Closing)),
    (Earlier(run="a", head="b", phases=(Phase(event=EVENT, rounds=3),)), by_json(Earlier)),
    (
        RunCost(rare=1e-9, coordinates=(Coordinates(count=3.0, variance=5.0, blended=math.inf),)),
        lambda value, folder: RunCost.from_json(json.loads(json.dumps(value.as_json()))),
    ),
    (FINDING, by_json(Finding)),
    (REQUEST, by_text(Request)),
    (ROUNDS, by_text(RoundsRequest)),
    (RELEASE, by_release),
    (RunIdentity(run="a", config="b: 1\n", secure=True, candidate="c", described={"task": {"records": 7}}), by_ledger),
    (RoundTask(bound=0.75, model=np.arange(3.0)), by_bytes(RoundTask, 3)),
    (ProtocolStep(protocol=3, phase=2, said=b"abc"), by_bytes(ProtocolStep)),
    (Start(invited=(1, 4, 7), task=b"abc"), by_bytes(Start, 9)),
    (Offer(number=5, signature=bytes(range(64)), text=b"abc"), by_bytes(Offer)),
]


# Values of the same kind that a check lets pass.
OTHERS = {
    "release": "0c" * 32, "weights": {"a": "0d" * 32},
    "sampler": "poisson", "unit": "client", "observer": "public", "bits": 19, "cohort": 8.0, "dimension": 4,
    "kind": "quantile",
    "audit": "one-run", "invited": (2, 4, 7), "policy": ConstantState(bound=0.125), "own": {"share": 0.5},
    "settings": Settings.preset("dp-agr", "strokes", {"server.rounds": 7}), "signature": bytes(64), "fresh": "0b",
    "coordinates": (Coordinates(count=3.0, variance=6.0, blended=0.5),), "fixed": FixedCohort(),
    "promises": (PromisedCell(epsilon=2.0, delta=1e-7),), "event": dataclasses.replace(EVENT, clients=102),
    "whole": dataclasses.replace(SUM, unsure=2), "phases": (Phase(event=EVENT, rounds=4),),
}  # fmt: skip


def another(name, value):
    if name in OTHERS:
        return OTHERS[name]
    if name == "noise" and isinstance(value, str):
        return "blt"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.96875
    if isinstance(value, str | bytes):
        return value + value
    if isinstance(value, GaussianNoise):
        return GaussianNoise(multiplier=9.0)
    if isinstance(value, np.ndarray):
        return value + 1.0
    return {key: another(key, one) for key, one in value.items()}


def same(left, right):
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, dict) and any(isinstance(one, np.ndarray) for one in left.values()):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


@pytest.mark.parametrize(
    ("value", "read", "field"),
    [
        pytest.param(value, read, field.name, id=f"{type(value).__name__}-{field.name}")
        for value, read in FORMS
        for field in dataclasses.fields(value)
        # Sums of counts have another range of bits; the digest of a release is that of the other fields.
        if field.name not in ("exact", "digest")
    ],
)
def test_each_field_is_read_as_it_was_written(value, read, field, tmp_path):
    changed = dataclasses.replace(value, **{field: another(field, getattr(value, field))})
    assert not same(getattr(changed, field), getattr(value, field))
    found = read(changed, tmp_path)
    if isinstance(value, StoredRelease):
        # Written and read, it has the digest that keeping it returned.
        changed = keep_release(RunDirectory(tmp_path), changed)
        assert len(changed.digest) == 64
    for each in dataclasses.fields(value):
        assert same(getattr(found, each.name), getattr(changed, each.name)), each.name
