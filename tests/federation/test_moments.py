"""Moments among real clients: the simulation's weights, and a server that changes each public constant of theirs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import flatten
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.federation.client.local_data import OwnRecords
from dpfedmeta.federation.wire_format import Said
from dpfedmeta.learning.algorithms import moments
from dpfedmeta.learning.algorithms.moments_then_gradients import PHASE
from tests.federation.sessions import open_session
from tests.federation.silos import NOISE
from tests.federation.test_encoded_clients import small_lite0  # noqa: F401 -- of all tests here
from tests.federation.test_kept_settings import asked, forged
from tests.federation.test_plan_limits_of_clients import MANY, joined

ENCODED = {"model.encoder": "lite0", "model.encoder_size": "16", "model.name": "metric", "server.rounds": "1"}
# Nobody knows how often real clients fail, so cohorts of phases are sampled.
PHASES = {"server.rounds": "3", "population.sampler": "poisson", "population.cohort": "4"}
CAP, ONCE = {"population.max_participations": "2"}, {"population.max_participations": "1"}
RECORDS = {"meta.own.directions": "8"}
SUMS = {"aggregation.mode": "secure", "aggregation.dropout": "0.2", "meta.own.directions": "8"}


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("moments-agr", {}),
        ("moments-agr", SUMS),
        ("moments-then-gradients", PHASES),
        ("moments-agrlr", RECORDS | {"record.query_noise": "3.0"}),
        ("moments-agrlr-secure", RECORDS | {"aggregation.dropout": "0.2", "meta.own.scale": "10"}),
    ],
    ids=["messages", "sums", "phases", "records", "records under sums"],
)
def test_weights_are_those_of_the_simulation(silos, tmp_path, algo, given):
    given = ENCODED | given | {"run.noise_seed": str(NOISE)}
    expected = silos.simulated(algo, tmp_path, **given)
    run, status = silos.serve(silos.settings(algo, **given), tmp_path)
    assert status == "completed"
    assert run.weights.read_bytes() == expected.weights.read_bytes()
    assert (tmp_path / "client0" / "personal.safetensors").exists()


def test_noise_that_so_few_clients_cannot_draw_is_refused_by_the_plan(silos, tmp_path):
    """It was an error of the random numbers, in round 0."""
    given = ENCODED | RECORDS | {"aggregation.dropout": "0.2"}
    with pytest.raises(RefusedPlan, match=r"share of the noise has a deviation of .* at most 262,144 can be drawn"):
        silos.simulated("moments-agrlr-secure", tmp_path, **given)
    assert not list(tmp_path.glob("**/ledger.jsonl"))


def changed(session, **own):
    """A plan with other constants, whose server states the numbers of the one before."""
    settings = yaml.safe_load(json.loads(session.signed.text)["settings"])
    return forged(session, "meta.own", settings["meta"]["own"] | own)


@pytest.mark.parametrize(
    ("algo", "own", "words"),
    [
        ("moments-agr", {"directions": 65}, "a record has 64 numbers"),
        ("moments-agr", {"directions": "8; rm"}, "meta.own.directions"),
        ("moments-agr", {"constant": 0.0}, "meta.own.constant"),
        ("moments-agr", {"pair_weight": -1.0}, "meta.own.pair_weight"),
        ("moments-agr", {"pair_bound": 3.0}, "meta.own.pair_bound"),
        ("moments-agr", {"scale": 1e6}, "meta.own.scale"),
        ("moments-agr", {"code": "mine:Code"}, "clients run no code"),
        ("moments-agr", {"pairs": 1}, "takes no such setting"),
        ("moments-agr", {"gradient_bound": 1.0}, "takes no such setting"),
        ("dp-agr", {"directions": 8}, "takes no settings of its own"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_constants_beyond_a_methods_own_limits_are_declined(silos, tmp_path, algo, own, words):
    """A server of another program signs such a plan all the same."""
    session = open_session(silos, tmp_path, algo, **(ENCODED if algo == "moments-agr" else {}))
    said, log = asked(session, changed(session, **own))
    assert said is Said.DECLINED
    assert words in log


def test_a_client_declines_more_second_moments_than_sums_carry(silos, tmp_path, monkeypatch):
    session = open_session(silos, tmp_path, "moments-agr", **ENCODED)
    monkeypatch.setattr(moments, "MOST_ENTRIES", 9**2 + 8**2)
    said, log = asked(session, changed(session, directions=9))
    assert said is Said.DECLINED
    assert "181 entries of second moments in a message, and sums carry at most 145; give --meta.own.directions 8" in log


@pytest.mark.parametrize("given", [{}, SUMS], ids=["messages", "sums"])
@pytest.mark.parametrize(
    "own",
    [{"constant": 9.0}, {"pair_bound": 0.1}, {"pair_weight": 100.0}, {"directions": 4}, {"scale": 900.0}],
    ids=str,
)
def test_a_message_is_no_longer_than_its_bound_whatever_constants_a_server_gives(silos, tmp_path, given, own):
    """What a client as a whole is charged for counts on the bound alone."""
    more = {f"meta.own.{name}": str(value) for name, value in own.items()}
    session = open_session(silos, tmp_path, "moments-agr", **ENCODED | given | more)
    side = replace(session.side, message_noise=0.0)
    for bound in (1e-3, 0.05, 30.0):
        for client in range(5):
            (pieces,) = side.bounded_parts(session.model, bound, 0, [client])
            assert sum(float((piece**2).sum()) for piece in pieces) ** 0.5 <= bound * (1 + 1e-6)


def test_a_phase_that_a_server_repeats_is_a_participation_like_any_other(silos, tmp_path):
    """The phase is in the model that the server sends: it may ask for moments in every round, and pays for each."""
    session = open_session(silos, tmp_path, "moments-then-gradients", MANY, **ENCODED | PHASES | CAP)
    said, ask = joined(session, 1)
    assert said is Said.ACCEPTED
    for phase in (0.0, 1.0, 0.0, 0.5, -3.0):
        session.model[PHASE] = torch.tensor([phase])
        side = replace(session.side, message_noise=0.0)
        (message,) = side.sent(session.model, 0.01, 0, [1])
        assert float(message.square().sum().sqrt()) <= 0.01 * (1 + 1e-6)
        assert len(flatten(session.side.form(session.model))) == len(message)
    session.model[PHASE] = torch.zeros(1)
    assert [ask(round_) for round_ in range(3)] == [Said.VECTOR, Said.VECTOR, Said.DECLINED]
    log = (tmp_path / "client1" / "log.txt").read_text()
    assert "participation 2 of 2 allowed" in log


def test_one_participation_over_both_phases_is_the_last(silos, tmp_path):
    session = open_session(silos, tmp_path, "moments-then-gradients", MANY, **ENCODED | PHASES | CAP | ONCE)
    _, ask = joined(session, 0)
    assert [ask(round_) for round_ in range(3)] == [Said.VECTOR, Said.DECLINED, Said.DECLINED]
    _, late = joined(session, 2)
    assert [late(round_) for round_ in (1, 0, 2)] == [Said.VECTOR, Said.DECLINED, Said.DECLINED]


def test_a_client_adapts_to_its_records_and_not_to_the_features_of_their_rotations(tmp_path):
    """With Omniglot's rotations there were 600 images of 150 labels, and no client had a model of its own."""
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "features.npy", values)
    pool = ClassPool(
        path=tmp_path / "features.npy", names=("a", "b"), first=(0, 2), counts=(2, 3), rotations=4, turned=5
    )
    own = OwnRecords(pool=pool, shape=EpisodeShape(ways=2, shots=1, queries=1), clients=1, number=0, seed=0)
    images, labels, names = own.labelled()
    assert np.array_equal(images, values[:5])
    assert (labels.tolist(), names) == ([0, 0, 1, 1, 1], ("a", "b"))
