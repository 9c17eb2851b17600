import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import own_words
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.simulation.cohort_sums import check_enough_work
from dpfedmeta.simulation.distributed.consistency_check import (
    _data_digest,
    check_alike,
    check_gpus,
    check_together,
    facts_of,
)
from dpfedmeta.simulation.distributed.torchrun_env import Launch

WORDS = ["train", "--seed", "1", "--algo", "dp-agr", "--cohort=20"]


@pytest.fixture(scope="module")
def facts():
    # Whatever switches this machine has set.
    return replace(facts_of(Launch(rank=0, size=2), WORDS), switches="")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"command": "train, --seed 2"}, r"rank 2 \(there\): another command line: --seed 2; rank 0 has --seed 1, "),
        ({"code": "0123"}, r"rank 2 \(there\): other code of dpfedmeta: 0123; .*same version"),
        (
            {"versions": "torch 1.0"},
            r"rank 2 \(there\): other versions: torch 1.0; rank 0 has Python .*constraints.txt",
        ),
        ({"switches": "MKL_CBWR=AVX"}, r"rank 2 \(there\): other environment variables: MKL_CBWR=AVX; rank 0 has none"),
    ],
)
def test_a_rank_that_differs_is_named_with_what_differs(facts, changed, words):
    other = replace(facts, host="there", machine="another processor", gpu=3)
    check_alike([facts, other, other])
    with pytest.raises(InputError, match=words):
        check_alike([facts, other, replace(other, **changed)])


def test_each_process_of_a_machine_has_a_gpu_of_its_own(facts):
    check_gpus([replace(facts, gpu=number, gpus=2) for number in range(2)])
    with pytest.raises(InputError, match=r"rank 2 .*which has 2 GPUs.*--nproc-per-node"):
        check_gpus([replace(facts, gpu=number, gpus=2) for number in range(3)])


class Elsewhere(InProcess):
    """Two ranks, of which the other answers so."""

    trusted, count = False, 2

    def __init__(self, **answers):
        self.answers = answers

    def elsewhere(self, function, *arguments):
        answer = self.answers.get(function.__name__)
        return [function(*arguments) if answer is None else answer]


def test_other_data_on_a_rank_are_refused_and_other_processors_noted(tiny_strokes, facts):
    def check(workers):
        return check_together(workers, tiny_strokes, None, torch.device("cpu"), lambda: tiny_strokes)

    assert check(InProcess())
    assert check(Elsewhere())
    assert not check(Elsewhere(own_facts=replace(facts, machine="another")))
    with pytest.raises(InputError, match="rank 1: holds other data for tiny"):
        check(Elsewhere(_data_digest="0" * 64))


def test_other_code_of_the_users_own_on_a_rank_is_refused(tiny_strokes, tmp_path, monkeypatch):
    """ReLU on one rank and Tanh on another trained a network that nobody described."""
    (tmp_path / "net_of_mine.py").write_text("from torch.nn import ReLU as Shape\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def check(**answers):
        return check_together(
            Elsewhere(**answers), tiny_strokes, None, torch.device("cpu"), lambda: tiny_strokes, ["net_of_mine"]
        )

    assert check()
    there = own_words(["net_of_mine"])
    (tmp_path / "net_of_mine.py").write_text("from torch.nn import Tanh as Shape\n")
    with pytest.raises(
        InputError, match=r"rank 1: your own code differs: net_of_mine [0-9a-f]+; rank 0 has net_of_mine"
    ):
        check(own_words=there)


def test_the_digest_of_the_data_is_of_all_splits(tiny_strokes):
    pools = (tiny_strokes.train, tiny_strokes.val, tiny_strokes.test)
    assert _data_digest(pools, None, never) != _data_digest((*pools[:2], tiny_strokes.val), None, never)


def never():
    raise AssertionError("the images are there already")


def test_a_machine_without_the_decoded_images_makes_them_or_says_where_they_belong(tiny_strokes, tmp_path):
    pools = (tiny_strokes.train, tiny_strokes.val, tiny_strokes.test)
    absent = tmp_path / "nothing.npy"
    elsewhere = tuple(replace(pool, path=absent) for pool in pools)
    with pytest.raises(InputError, match=r"nothing\.npy: cannot be read .*DPFEDMETA_CACHE"):
        _data_digest(elsewhere, None, lambda: tiny_strokes)
    assert _data_digest(elsewhere, None, lambda: shutil.copy(tiny_strokes.train.path, absent)) == _data_digest(
        pools, None, never
    )


def test_more_ranks_than_chunks_are_refused():
    clients = SimpleNamespace(at_once=False, together=None)  # eight at a time
    check_enough_work(Elsewhere(), clients, 9.0)
    with pytest.raises(InputError, match=r"2 ranks, but a cohort of 8 .* in 1 chunks of 8.*at most 1"):
        check_enough_work(Elsewhere(), clients, 8.0)
    check_enough_work(InProcess(), clients, 1.0)
    one_by_one = SimpleNamespace(at_once=False, together=1)
    check_enough_work(Elsewhere(), one_by_one, 2.0)
    with pytest.raises(InputError, match="2 ranks"):
        check_enough_work(Elsewhere(), one_by_one, 1.0)
