"""What ranks of one machine cost each other: `python -m benchmarks.ranks`.

Starts 1 to 4 ranks with nothing to compute, so that all the time of a round is spent on telling and adding up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import socket
import statistics
import time
from typing import Any

import numpy as np
import torch

from dpfedmeta.randomness import KeyedSource
from dpfedmeta.ranks.launch import Launch
from dpfedmeta.ranks.line import joined
from dpfedmeta.ranks.rank_zero import Ranks
from dpfedmeta.ranks.serving import serve
from dpfedmeta.workers import InProcess, IntArray, Workers

_CHUNK = 8


def nothing(model: IntArray, round_: int, chunk: list[int], keys: object) -> tuple[IntArray, int]:
    """A chunk that takes no time."""
    return np.zeros(model.size, dtype=np.int64), len(chunk)


def rounds(workers: Workers, size: int, cohort: int, count: int) -> list[float]:
    """Seconds of each round with a model of `size` parameters."""
    model, source, seconds = np.zeros(size, dtype=np.float32), KeyedSource(1), []
    for number in range(count):
        begun = time.perf_counter()
        chunks = (list(range(start, min(start + _CHUNK, cohort))) for start in range(0, cohort, _CHUNK))
        shares = ((chunk, source.of_clients(number, chunk)) for chunk in chunks)
        _, counted = workers.total(nothing, (model, number), shares, (size,))
        assert counted == cohort
        seconds.append(time.perf_counter() - begun)
    return seconds


def measured(rank: int, ranks: int, port: int, sizes: list[int], cohort: int, count: int, found: Any) -> None:
    """One rank."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    launch = Launch(rank=rank, size=ranks)
    line = joined(launch)
    if rank:
        serve(line)
        line.close()
        return
    workers = Ranks(line, launch.timeout)
    found.put({size: statistics.median(rounds(workers, size, cohort, count)) for size in sizes})
    workers.close(0)


def main() -> None:
    """Measure and print JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    options.add_argument("--sizes", type=int, nargs="+", default=[28_000, 1_000_000])
    options.add_argument("--cohort", type=int, default=200)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    context = multiprocessing.get_context("fork")  # PyTorch is there already
    result: dict[str, Any] = {"cohort": given.cohort, "seconds": {}}
    for ranks in given.ranks:
        if ranks == 1:
            alone = {
                size: statistics.median(rounds(InProcess(), size, given.cohort, given.rounds)) for size in given.sizes
            }
            result["seconds"]["1"] = alone
            continue
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        found = context.Queue()
        words = (ranks, port, given.sizes, given.cohort, given.rounds, found)
        started = [context.Process(target=measured, args=(rank, *words)) for rank in range(ranks)]
        for each in started:
            each.start()
        result["seconds"][str(ranks)] = found.get()
        for each in started:
            each.join()
    clients = list(range(1_000_000, 1_000_000 + _CHUNK))
    keys, begun = KeyedSource(1), time.perf_counter()
    for number in range(1000):
        share = keys.of_clients(number, clients)
    result["keys_microseconds_per_client"] = 1e6 * (time.perf_counter() - begun) / 1000 / _CHUNK
    result["bytes_per_client"] = len(pickle.dumps((0, (clients, share)))) / _CHUNK
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
