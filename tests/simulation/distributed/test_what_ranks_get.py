"""What leaves rank 0: client numbers and keys of each rank's own share, the released model, and no seed."""

import pickle
import pickletools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.core.random.random_sources import (
    CLIENT_PURPOSES,
    ClientKeys,
    KeyedSource,
    Purpose,
    _stream_key,
    seeds_stay,
)
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation import cohort_sums as processes
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import LocalBackend, sum_chunk
from dpfedmeta.simulation.distributed import collective
from dpfedmeta.simulation.distributed.worker_rank import Job
from tests.simulation.distributed.threads import threads
from tests.simulation.test_worker_backend import setting

SEED = 0xA1B2C3D4E5F60718293A4B5C6D7E8F90
CLIENTS = tuple(range(300, 700, 23))
ROUND, AGAIN = 4, (2, 9)


def cohort():
    return Cohort(round=ROUND, clients=np.array(CLIENTS, dtype=np.int64), again=AGAIN)


TURNS = threading.Lock()


def one_at_a_time(*words):
    """Ranks are processes; as threads they would share the network that a process keeps."""
    with TURNS:
        return sum_chunk(*words)


@pytest.fixture(scope="module", params=["dp-agr", pytest.param("dp-agrlr-micro", marks=pytest.mark.slow)])
def summed(request, tiny_strokes):
    """(the sum of one process, that of three ranks, what was sent to whom)."""
    _, clients, model = setting(tiny_strokes, request.param)
    clients = replace(clients, source=KeyedSource(SEED))
    alone = LocalBackend(clients=clients, workers=InProcess()).cohort_sum(model, 0.1, cohort())
    with threads(3) as (ranks, wires, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "sum_chunk", one_at_a_time)
        ranked = LocalBackend(clients=clients, workers=ranks).cohort_sum(model, 0.1, cohort())
    return alone, ranked, wires.sent


def test_the_sum_of_ranks_is_that_of_one_process_bit_for_bit(summed):
    alone, ranked, _ = summed
    assert (ranked.noise_variance, ranked.sensitivity) == (alone.noise_variance, alone.sensitivity)
    assert all(torch.equal(ranked.value[name], alone.value[name]) for name in alone.value)


def shares(sent):
    """By rank: (clients, keys) of every share."""
    found = {}
    for rank, content in sent:
        message = pickle.loads(content)
        if isinstance(message, tuple):
            _, (chunk, source) = message
            found.setdefault(rank, []).append((chunk, source))
    return found


def test_a_rank_gets_the_numbers_and_keys_of_its_own_share_alone(summed):
    _, _, sent = summed
    dealt = shares(sent)
    assert dealt, "every share went to rank 0"
    seen = [client for each in dealt.values() for chunk, _ in each for client in chunk]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(CLIENTS)
    for chunk, source in (share for each in dealt.values() for share in each):
        assert type(source) is ClientKeys
        assert source.round == ROUND
        assert [*source.keys] == chunk
        for client in chunk:
            keys = [_stream_key(SEED, purpose, (ROUND, client), AGAIN) for purpose in CLIENT_PURPOSES]
            assert source.keys[client] == b"".join(keys)
    for message in map(pickle.loads, (content for _, content in sent)):
        if isinstance(message, Job):
            clients = message.common[0]
            assert isinstance(clients, ClientRunner)
            assert clients.source == ClientKeys(round=ROUND, keys={})


def numbers_in(content):
    return {argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, int)}


def test_no_message_holds_the_seed_and_an_attempt_to_send_it_is_an_error(summed):
    _, _, sent = summed
    assert all(SEED not in numbers_in(content) for _, content in sent)
    assert all(SEED.to_bytes(16, order) not in content for _, content in sent for order in ("little", "big"))
    source = KeyedSource(SEED)
    assert SEED in numbers_in(pickle.dumps(source))  # the check above can fail
    with seeds_stay(), pytest.raises(RuntimeError, match="secret seed"):
        pickle.dumps([source])
    assert pickle.loads(pickle.dumps(source)) == source


def slowly(_):
    time.sleep(0.005)


def test_an_aggregation_that_sends_the_seed_itself_is_stopped(tiny_strokes):
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    with threads(2) as (ranks, _, codes):
        with pytest.raises(RuntimeError, match="secret seed"):
            list(ranks.map(slowly, [(clients,)] * 20))
        ranks.code = 0
    assert codes == {1: 0}


def test_keys_of_clients_are_their_streams_and_no_others():
    source = KeyedSource(SEED).again(AGAIN)
    keys = source.of_clients(ROUND, [3, 5])
    for purpose in CLIENT_PURPOSES:
        for client in (3, 5):
            mine = keys.generator(purpose, ROUND, client).words(8)
            assert np.array_equal(mine, source.generator(purpose, ROUND, client).words(8))
    for purpose, key in (
        (Purpose.SERVER_NOISE, (ROUND, 3)),
        (Purpose.QUERY_NOISE, (ROUND, 4)),
        (Purpose.ROUNDING, (5, 3)),
    ):
        with pytest.raises(LookupError):
            keys.generator(purpose, *key)
    with pytest.raises(LookupError):
        keys.again((1,))
    assert keys.of_clients(ROUND, [5]).keys == {5: keys.keys[5]}


@pytest.mark.parametrize("length", [0, 100, 100_000])
def test_a_message_of_any_length_arrives_whole(monkeypatch, length):
    wire = []
    pipe = SimpleNamespace(
        send=lambda part, group, group_dst: wire.append(part.clone()),
        recv=lambda part, group, group_src: part.copy_(wire.pop(0)),
    )
    monkeypatch.setattr(collective, "dist", pipe)
    line, message = SimpleNamespace(rank=2, _group=None), bytes(range(256)) * (length // 256 + 1)
    collective.GroupLine._say(line, message, 0)
    assert collective.GroupLine._listen(line, None) == (2, message)
    assert wire == []
