"""Ranks as threads of one process: a line in memory that pickles what it carries, as torch.distributed does."""

import pickle
import threading
from contextlib import contextmanager
from queue import Empty, Queue

from dpfedmeta.core.random.random_sources import seeds_stay
from dpfedmeta.simulation.distributed.collective import Lost
from dpfedmeta.simulation.distributed.coordinator import Ranks
from dpfedmeta.simulation.distributed.worker_rank import serve


class Wires:
    def __init__(self, size, timeout):
        self.size, self.timeout = size, timeout
        self.down = [Queue() for _ in range(size)]  # from rank 0
        self.up = [Queue() for _ in range(size)]  # gathered and added
        self.asking = Queue()
        self.sent = []  # (to which rank, bytes)


class ThreadLine:
    def __init__(self, wires, rank):
        self.wires, self.rank, self.size = wires, rank, wires.size

    def _get(self, queue):
        try:
            return queue.get(timeout=self.wires.timeout)
        except Empty:
            raise Lost("is silent") from None

    def _put(self, rank, message):
        with seeds_stay():
            content = pickle.dumps(message)
        self.wires.sent.append((rank, content))
        self.wires.down[rank].put(content)

    def announce(self, message=None):
        if self.rank:
            return pickle.loads(self._get(self.wires.down[self.rank]))
        for rank in range(1, self.size):
            self._put(rank, message)
        return message

    def gathered(self, message):
        if self.rank:
            self.wires.up[self.rank].put(message)
            return []
        return [message, *(self._get(queue) for queue in self.wires.up[1:])]

    def added(self, values):
        if self.rank:
            self.wires.up[self.rank].put(values)
            return values
        return sum((self._get(queue) for queue in self.wires.up[1:]), start=values)

    def ask(self, message):
        self.wires.asking.put((self.rank, message))
        return pickle.loads(self._get(self.wires.down[self.rank]))

    def asked(self):
        return self._get(self.wires.asking)

    def answer(self, rank, message):
        self._put(rank, message)

    def close(self):
        pass


@contextmanager
def threads(size, timeout=20.0, serving=serve):
    """(rank 0's workers, its wires, the others' exit codes once it is over)."""
    wires, codes = Wires(size, timeout), {}

    def other(rank):
        try:
            codes[rank] = serving(ThreadLine(wires, rank))
        except Lost as error:
            codes[rank] = str(error)

    others = [threading.Thread(target=other, args=(rank,), daemon=True) for rank in range(1, size)]
    for each in others:
        each.start()
    ranks = Ranks(ThreadLine(wires, 0), timeout)
    try:
        yield ranks, wires, codes
    finally:
        ranks.close(ranks.code)
        for each in others:
            each.join(timeout)
