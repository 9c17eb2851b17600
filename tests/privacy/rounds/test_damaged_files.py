"""Files beside a ledger that were damaged, lost or taken from elsewhere are refused, before anything rests on them."""

import json
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.participation_ledger import SpacedLedger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.privacy.rounds.cohort_log import Participations, participations_file, reopen_participations
from dpfedmeta.privacy.rounds.noise_state import keep_noise_state, kept_noise_state
from dpfedmeta.privacy.rounds.round_sum import LEFT_OUT
from dpfedmeta.privacy.rounds.stored_release import StoredRelease, SumDigests, keep_release, load_release
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.training.verification.verify import left_out

PLAN = PrivacyPlan(clients=50, cohort=5, rounds=6, noise_multiplier=2.0, sampler="fixed")
EVENT = PLAN.phases[0].event


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    return RunDirectory(tmp_path)


# Cohorts.


def charges(*numbers, **changes):
    return [Charge(round=number, event=EVENT, inputs="x", **changes) for number in numbers]


def cohorts(run, *rounds, clients=(1, 2)):
    log = Participations(participations_file(run))
    for number in rounds:
        log.record(Cohort(round=number, clients=np.array(clients)))


def reopened(run, events, plan=PLAN, source=None):
    return reopen_participations(run, plan, source or KeyedSource(1), events)


def test_cohorts_are_those_that_the_ledger_charged(run):
    cohorts(run, 0, 1)
    found, remarks = reopened(run, charges(0, 1))
    assert [cohort.clients.tolist() for cohort in found.before(9)] == [[1, 2], [1, 2]]
    assert remarks == []
    for events, why in ((charges(0, 2), "line 2: is not the round"), (charges(1), "line 1: is not the round")):
        with pytest.raises(InputError, match=why):
            reopened(run, events)
    with pytest.raises(InputError, match="line 2: more rounds than the ledger charged"):
        reopened(run, charges())
    # One more than was charged invited nobody.
    assert len(reopened(run, charges(0))[0].before(9)) == 1


def test_cohorts_that_only_the_system_knew_are_not_drawn_anew(run):
    cohorts(run, 0)
    with pytest.raises(InputError, match="line 2: the participants of charged rounds are lost"):
        reopened(run, charges(0, 1), source=OperatingSystemSource())
    found, remarks = reopened(run, charges(0, 1, fresh="00"))
    assert len(found.before(9)) == 2
    assert len(remarks) == 1


def test_cohorts_that_are_drawn_again_keep_the_cap(run):
    plan = replace(PLAN, clients=20, sampler="poisson", max_participations=1)
    cohorts(run, 0, clients=(0, 1, 2, 3))
    found, _ = reopened(run, charges(0, 1, 2, 3), plan)
    drawn = [client for cohort in found.before(9) for client in cohort.clients.tolist()]
    assert 4 < len(drawn) == len(set(drawn))


@pytest.mark.parametrize(
    "line", ["[]", "7", '{"round": 0}', '{"clients": [1]}', '{"round": "x", "clients": [1]}', "{", '{"round": 0, "clie'
             'nts": ["a"]}', '{"round": 0, "clients": [1], "again": 3}'],
)  # fmt: skip
def test_a_cohort_that_is_none_is_named(run, line):
    participations_file(run).write_text(line + "\n")
    with pytest.raises(InputError, match="line 1: damaged"):
        reopened(run, charges(0))
    participations_file(run).write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="cannot be read"):
        reopened(run, charges(0))


@pytest.mark.parametrize(("rounds", "wrong"), [((0, 1), 2), ((0, 2, 4), 3), ((0, 2), None), ((0, 3), None)])
def test_clients_that_joined_too_often_or_too_soon_are_found(run, rounds, wrong):
    """Correlated noise is accounted for as they keep away from each other."""
    apart = {"noise": "toeplitz", "correlation": Correlation(separation=2), "max_participations": 2}
    plan = replace(PLAN, sampler="poisson", **apart)
    cohorts(run, *rounds)
    if wrong is None:
        reopened(run, charges(*rounds), plan)
    else:
        with pytest.raises(InputError, match=f"line {wrong}: client 1 takes part in round {rounds[-1]} again"):
            reopened(run, charges(*rounds), plan)


def test_a_client_s_ledger_has_rounds(tmp_path):
    spacing = Spacing(participations=2, separation=1)
    ledger = SpacedLedger(tmp_path / "ledger", spacing)
    ledger._chain.append({"no": "round"})
    with pytest.raises(InputError, match="lacks its round"):
        SpacedLedger(tmp_path / "ledger", spacing)


# What a mechanism remembers.


STATE = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(1, dtype=np.int64)}
INITIAL = {name: np.zeros_like(value) for name, value in STATE.items()}
HEAD = "ab" * 32


def state_file(run):
    return next((run.path / "secret").rglob("round-*.safetensors"))


def rewritten(run, state=STATE, **words):
    known = {"head": HEAD, "digest": "0"}
    save_file(state, state_file(run), {**known, **words})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda run: state_file(run).unlink(), "no readable state"),
        (lambda run: state_file(run).write_bytes(b"short"), "no readable state"),
        (lambda run: rewritten(run, {"a": STATE["a"]}), "not the state of this run's mechanism"),
        (lambda run: rewritten(run, {**STATE, "a": STATE["a"].T.copy()}), "not the state of this run's mechanism"),
        (lambda run: rewritten(run, head="cd" * 32), "noise of another run, or of another attempt"),
        (lambda run: rewritten(run), "its digest does not match"),
    ],
    ids=["lost", "cut", "less", "form", "head", "digest"],
)
def test_noise_that_is_not_the_planned_one_ends_the_run(run, damage, why):
    keep_noise_state(run, 3, STATE, HEAD)
    kept = kept_noise_state(run, 3, INITIAL, HEAD)
    assert all(np.array_equal(kept[name], value) for name, value in STATE.items())
    damage(run)
    with pytest.raises(InputError, match=why):
        kept_noise_state(run, 3, INITIAL, HEAD)
    # Before the first round nothing was remembered, and a mechanism without a state needs none.
    assert kept_noise_state(run, 0, INITIAL, HEAD) is INITIAL
    assert kept_noise_state(run, 3, {}, HEAD) == {}


# Releases.


@dataclass(frozen=True)
class Policy:
    bound: float = 1.0


def release(number=0, **changes):
    usual = {
        "round": number, "attempt": 0, "bound": 1.0, "sensitivity": 1.0, "deviation": 2.0, "policy": Policy(),
        "values": {"w": torch.ones(2)}, "following": 1.5, "head": HEAD,
    }  # fmt: skip
    return StoredRelease(**(usual | changes))


def test_a_stored_release_is_its_own_rounds(run):
    keep_release(run, release())
    path = next((run.path / "releases").iterdir())
    content = path.read_bytes()
    (path.parent / "round-000001.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not the release of round 1"):
        load_release(run, 1)
    for damaged, why in (
        (content[:-1] + bytes([content[-1] ^ 1]), "damaged"),
        (content.replace(b"following", b"folloving"), "damaged"),
        (b"", "damaged"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=why):
            load_release(run, 0)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_release(run, 0)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(StoredRelease) if field.name not in ("values", "digest")] + ["names"]
)
def test_a_stored_release_is_known_by_every_number_that_it_states(run, name):
    """What it was charged as, its bound and its noise stand beside its arrays, and are changed without them."""
    keep_release(run, release())
    path = next((run.path / "releases").iterdir())
    with safe_open(path, framework="np") as file:
        metadata, arrays = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    stated = json.loads(metadata["release"])
    other = {"policy": {"bound": 2.0}, "head": "0" * 64, "names": ["w", "w"]}.get(name, 3)
    assert stated[name] != other
    save_file(arrays, path, {**metadata, "release": json.dumps({**stated, name: other}, sort_keys=True)})
    with pytest.raises(InputError, match="does not have the digest that it states"):
        load_release(run, 0)


@pytest.mark.parametrize("changes", [{"following": 0.0}, {"following": -1.0}, {"bound": float("nan")}])
def test_a_bound_that_is_none_is_not_gone_on_with(run, changes):
    keep_release(run, release(**changes))
    with pytest.raises(InputError, match="not the release of round 0"):
        load_release(run, 0)


@pytest.mark.parametrize("line", ["7", "{}", '{"round": 0}', '{"round": 0, "attempt": "x", "sum": 1}', "no"])
def test_lists_of_numbers_alone(run, line):
    (run.secret / "sums.jsonl").write_text(line + "\n")
    (run.secret / LEFT_OUT).write_text(line + "\n")
    for read in (SumDigests, left_out):
        with pytest.raises(InputError, match="damaged: a line is not"):
            read(run)
