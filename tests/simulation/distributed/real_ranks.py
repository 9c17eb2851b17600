"""Ranks as processes over gloo: told of a sum, killed, stopped, and started again over the store of the try before.

    python tests/simulation/distributed/real_ranks.py TASK_FILE FOLDER

This process holds PyTorch and forks, as tests/faults/kills.py does, and keeps the store as torchrun's agent does.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import torch
from own_group import trained  # type: ignore[import-not-found]
from torch._C._distributed_c10d import TCPStore

from dpfedmeta.core.errors import InputError
from dpfedmeta.simulation.distributed.collective import Lost, joined
from dpfedmeta.simulation.distributed.coordinator import Ranks
from dpfedmeta.simulation.distributed.torchrun_env import Launch
from dpfedmeta.simulation.distributed.worker_rank import serve

SHARES = [(number,) for number in range(40)]


def part(number):
    time.sleep(0.002)
    return np.full((2, 50), number, dtype=np.int64), 1


def part_of_the_doomed(number):
    if os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL if os.environ["DOOM"] == "killed" else signal.SIGSTOP)
    return part(number)


def total(ranks, function=part):
    found, count = ranks.total(function, (), SHARES, (2, 50))
    return [int(found.min()), int(found.max()), count]


def echo(words):
    time.sleep(0.002)
    return os.environ["RANK"], words


def echoed(ranks):
    """Whether messages of all sizes come whole, and somebody else sent some: around that of one piece, and above."""
    shares = [(bytes([size % 251]) * size,) for size in (0, 1, *range(3900, 4110, 7), 30_000)]
    found = list(ranks.map(echo, shares))
    return [words for _, words in found] == [words for (words,) in shares] and {"0", "1"} <= {who for who, _ in found}


def summed(line):
    """(whether this rank's buffer is the sum, whether it is still its own)."""
    own = [np.random.default_rng(each).integers(-(2**40), 2**40, 28_192) for each in range(line.size)]
    found = line.added(own[line.rank].copy())
    # Until all have what they should: rank 0 may still read.
    line.announce()
    line.close()
    return [bool((found == sum(own)).all()), float((found == own[line.rank]).mean())]


def rank(number, size, timeout, doom):
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(size), "DOOM": doom}
    begun = time.monotonic()
    try:
        line = joined(Launch(rank=number, size=size, timeout=timeout))
    except InputError as error:
        return str(error)
    if doom == "sums":
        return summed(line)
    if number:
        try:
            return serve(line)
        except Lost as error:
            return f"rank 0 {error}"
    ranks = Ranks(line, timeout)
    try:
        found = total(ranks, part if doom == "none" else part_of_the_doomed)
        assert echoed(ranks)
    except RuntimeError as error:
        found = [str(error), time.monotonic() - begun]
    ranks.close(7)
    return found


def tried(size, timeout=20.0, doom="none"):
    """What each rank of one try has to say; None of one that was killed."""
    ends, found = [], []
    for number in range(size):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, json.dumps(rank(number, size, timeout, doom)).encode())
            os._exit(0)
        os.close(write)
        ends.append((child, read))
    for child, read in ends:
        if doom == "stopped" and child == ends[-1][0]:
            os.kill(child, signal.SIGKILL)
        text = os.fdopen(read).read()
        os.waitpid(child, 0)
        found.append(json.loads(text) if text else None)
    return found


def main():
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    found = {
        "whole": tried(3),
        "sums": tried(3, doom="sums"),
        "killed": tried(3, doom="killed", timeout=4.0),
        "again": tried(2),
        "stopped": tried(3, doom="stopped", timeout=4.0),
        "again3": tried(3),
        "group": trained(*sys.argv[1:]),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
