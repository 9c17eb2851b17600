"""What ranks of one machine cost each other: `python -m benchmarks.ranks`.

Starts 1 to 4 ranks with nothing to compute, so that all the time of a round is spent on telling and adding up. Then
rank 0 rests while the others ask for one chunk after the other: what it takes to deal out clients. CPU seconds beside
those of the clock tell what ranks cost on a machine that has other work too. `--turns N` compares 2 ranks with 2 worker
processes on N rounds of dp-agr on Omniglot instead, in turns, and compares their sums.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rounds import federation
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess, IntArray, Summand, Workers, keep_freed_memory, open_workers
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.simulation.distributed.collective import GroupLine, joined
from dpfedmeta.simulation.distributed.coordinator import Ranks
from dpfedmeta.simulation.distributed.torchrun_env import Launch
from dpfedmeta.simulation.distributed.worker_rank import serve

CHUNK, MANY = 8, 4000
FORK = multiprocessing.get_context("fork")  # PyTorch is there already


def nothing(model: IntArray, round_: int, chunk: list[int], keys: object) -> tuple[IntArray, int]:
    """A chunk that takes no time."""
    return np.zeros(model.size, dtype=np.int64), len(chunk)


def rest_on_rank_0(model: IntArray, round_: int, chunk: list[int], keys: object) -> tuple[IntArray, int]:
    """Likewise, but rank 0 leaves nearly all chunks to the others."""
    if os.environ["RANK"] == "0":
        time.sleep(0.02)
    return nothing(model, round_, chunk, keys)


def one_round(workers: Workers, function: Summand, size: int, cohort: int, chunk: int, number: int) -> None:
    """Of a model with `size` parameters."""
    source = KeyedSource(1)
    chunks = (list(range(start, min(start + chunk, cohort))) for start in range(0, cohort, chunk))
    shares = ((clients, source.of_clients(number, clients)) for clients in chunks)
    _, counted = workers.total(function, (np.zeros(size, dtype=np.float32), number), shares, (size,))
    assert counted == cohort


def idle_rounds(workers: Workers, size: int, cohort: int, count: int) -> dict[str, float]:
    """Median seconds of a round without work, and CPU seconds of a round on all ranks together."""
    seconds: list[float] = []
    before = cpu_of_all(workers)
    for number in range(count):
        begun = time.perf_counter()
        one_round(workers, nothing, size, cohort, CHUNK, number)
        seconds.append(time.perf_counter() - begun)
    return {"seconds": statistics.median(seconds), "cpu_seconds": (cpu_of_all(workers) - before) / count}


def dealing(workers: Workers, chunk: int) -> dict[str, float]:
    """Microseconds for each client that rank 0 deals out, by the clock and of its own CPU; keys included."""
    begun, cpu = time.perf_counter(), time.process_time()
    one_round(workers, rest_on_rank_0, 1000, MANY, chunk, 0)
    clock, spent = time.perf_counter() - begun, time.process_time() - cpu
    return {"microseconds": 1e6 * clock / MANY, "cpu_microseconds": 1e6 * spent / MANY}


def cpu_of_all(workers: Workers) -> float:
    """Seconds of CPU that all ranks have spent so far."""
    return time.process_time() + sum(workers.elsewhere(time.process_time))


def joined_rank(rank: int, ranks: int, port: int) -> tuple[GroupLine, Launch]:
    """This process as one of the ranks."""
    torch.set_num_threads(1)
    keep_freed_memory()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    launch = Launch(rank=rank, size=ranks)
    return joined(launch), launch


def serving(rank: int, ranks: int, port: int) -> None:
    """Another rank than 0."""
    line, _ = joined_rank(rank, ranks, port)
    serve(line)
    line.close()


def measured(ranks: int, port: int, given: argparse.Namespace, found: Any) -> None:
    """Rank 0."""
    line, launch = joined_rank(0, ranks, port)
    workers = Ranks(line, launch.timeout)
    idle = {size: idle_rounds(workers, size, given.cohort, given.rounds) for size in given.sizes}
    found.put({"idle": idle, "dealing": {chunk: dealing(workers, chunk) for chunk in (CHUNK, 8 * CHUNK)}})
    workers.close(0)


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def communication(given: argparse.Namespace) -> dict[str, Any]:
    """By number of ranks."""
    result: dict[str, Any] = {"cohort": given.cohort, "ranks": {}}
    for ranks in given.ranks:
        if ranks == 1:
            alone = {size: idle_rounds(InProcess(), size, given.cohort, given.rounds) for size in given.sizes}
            result["ranks"]["1"] = {"idle": alone}
            continue
        port, found = free_port(), FORK.Queue()
        started = [FORK.Process(target=serving, args=(rank, ranks, port)) for rank in range(1, ranks)]
        started.append(FORK.Process(target=measured, args=(ranks, port, given, found)))
        for each in started:
            each.start()
        result["ranks"][str(ranks)] = found.get()
        for each in started:
            each.join()
    clients = list(range(1_000_000, 1_000_000 + CHUNK))
    keys, begun = KeyedSource(1), time.process_time()
    for number in range(1000):
        share = keys.of_clients(number, clients)
    result["keys_microseconds_per_client"] = 1e6 * (time.process_time() - begun) / 1000 / CHUNK
    result["bytes_per_client"] = len(pickle.dumps((0, (clients, share)))) / CHUNK
    return result


def cpu_of(process: int) -> float:
    """Seconds of CPU of a process of this machine."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def in_turns(cohort: int, turns: int) -> dict[str, Any]:
    """2 ranks and 2 worker processes on the same rounds, one after the other and then the other way round."""
    port = free_port()
    other = FORK.Process(target=serving, args=(1, 2, port))
    other.start()
    line, launch = joined_rank(0, 2, port)
    ranks = Ranks(line, launch.timeout)
    made = federation("dp-agr", "omniglot", cohort)
    with open_workers(2) as workers:
        kinds: dict[str, Workers] = {"ranks": ranks, "workers": workers}

        def turn(kind: str, number: int) -> tuple[float, float, bytes]:
            backend = LocalBackend(clients=made.clients, workers=kinds[kind])
            people = [os.getpid(), *(int(each.pid or 0) for each in multiprocessing.active_children())]
            people += [int(other.pid or 0)] * (other.pid not in people)
            cpu, begun = sum(map(cpu_of, people)), time.perf_counter()
            found = backend.cohort_sum(made.state.model, made.state.bound, Cohort(round=number, clients=IDS + number))
            seconds = time.perf_counter() - begun
            values = b"".join(value.numpy().tobytes() for value in found.value.values())
            return cohort / seconds, (sum(map(cpu_of, people)) - cpu) / cohort, values

        IDS = np.arange(cohort)
        for kind in kinds:
            turn(kind, 0)  # who comes first waits for data and compiled loops
        rows = []
        for number in range(turns):
            order = sorted(kinds, reverse=bool(number % 2))
            found = {kind: turn(kind, 1 + number) for kind in order}
            assert found["ranks"][2] == found["workers"][2]
            row = {kind: {"clients_per_second": rate, "cpu_seconds": cpu} for kind, (rate, cpu, _) in found.items()}
            row["ratio"] = {
                "clients_per_second": found["ranks"][0] / found["workers"][0],
                "cpu_seconds": found["ranks"][1] / found["workers"][1],
            }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    ranks.close(0)
    other.join()
    return {"cohort": cohort, "equal_sums": True, "turns": rows, "median": medians(rows)}


def medians(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """(lower quartile, median, upper quartile) of each number."""
    return {
        kind: {name: np.quantile([row[kind][name] for row in rows], (0.25, 0.5, 0.75)).tolist() for name in values}
        for kind, values in rows[0].items()
    }


def main() -> None:
    """Measure and print JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    options.add_argument("--sizes", type=int, nargs="+", default=[28_192, 112_005, 1_000_000])
    options.add_argument("--cohort", type=int, default=200)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--turns", type=int, default=0)
    given = options.parse_args()
    result = in_turns(given.cohort, given.turns) if given.turns else communication(given)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
