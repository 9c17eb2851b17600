"""Communication between ranks over torch.distributed: objects from rank 0, answers to it, and sums."""

import os
import pickle
import secrets
import struct
import time
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import seeds_stay
from dpfedmeta.core.worker_pool import IntArray
from dpfedmeta.simulation.distributed.torchrun_env import TIMEOUT, Launch

# A message between two ranks: who sends it, how long it is, and as much of it as there is room for; then the rest.
_HEAD = struct.Struct("<qq")
_PIECE = 4096
_ROOM = _PIECE - _HEAD.size
# Tag of what is added up, beside messages.
_SUMS = 1


class Lost(RuntimeError):
    """Another rank is gone, or says nothing any more."""


class Collective(Protocol):
    """The calls of one rank; all but `ask`, `answer`, `asked` and `tell` are made by all ranks together."""

    @property
    def rank(self) -> int:
        """Rank of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def announce(self, message: Any = None) -> Any:
        """Rank 0's message, on all ranks."""
        ...

    def gathered(self, message: Any) -> list[Any]:
        """On rank 0 everybody's messages by rank; nothing on the others."""
        ...

    def added(self, values: IntArray) -> IntArray:
        """On rank 0 everybody's sum; the others keep their own values, and learn of nobody else's."""
        ...

    def ask(self, message: Any) -> Any:
        """To rank 0, and its answer."""
        ...

    def asked(self) -> tuple[int, Any]:
        """On rank 0: (who asks, what it says)."""
        ...

    def answer(self, rank: int, message: Any) -> None:
        """On rank 0: to the one that asked."""
        ...

    def close(self) -> None:
        """Nothing is said after it."""
        ...


class GroupLine:
    """Over a process group with the backend gloo.

    Guarantee:
        No secret seed is sent (random_sources.seeds_stay).
    """

    def __init__(self, group: dist.ProcessGroup, *, own: bool) -> None:
        self._group, self._own = group, own
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def announce(self, message: Any = None) -> Any:
        """By broadcast."""
        box = [message]
        with seeds_stay(), _heard():
            dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]

    def gathered(self, message: Any) -> list[Any]:
        """By gather."""
        box: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with seeds_stay(), _heard():
            dist.gather_object(message, box, group=self._group, group_dst=0)
        return box or []

    def added(self, values: IntArray) -> IntArray:
        """Point to point, in whole numbers: exact in any order.

        Guarantee:
            What a rank sends goes to rank 0 alone. A reduction of gloo leaves parts of the exact sum of all clients in
            the memory of every rank.
        """
        tensor = torch.from_numpy(values)
        with _heard():
            if self.rank:
                dist.send(tensor, group=self._group, group_dst=0, tag=_SUMS)
                return values
            part = torch.empty_like(tensor)
            for rank in range(1, self.size):
                dist.recv(part, group=self._group, group_src=rank, tag=_SUMS)
                tensor += part
        return values

    def ask(self, message: Any) -> Any:
        """Point to point."""
        with seeds_stay(), _heard():
            self._say(message, 0)
            return self._listen(0)[1]

    def asked(self) -> tuple[int, Any]:
        """Whoever comes first."""
        with _heard():
            return self._listen(None)

    def answer(self, rank: int, message: Any) -> None:
        """Point to point."""
        with seeds_stay(), _heard():
            self._say(message, rank)

    def _say(self, message: Any, rank: int) -> None:
        """In one piece if it is small: what is sent costs by the piece, not by the byte."""
        content = pickle.dumps(message)
        piece = bytearray(_PIECE)
        _HEAD.pack_into(piece, 0, self.rank, len(content))
        piece[_HEAD.size : _HEAD.size + len(content[:_ROOM])] = content[:_ROOM]
        for part in (piece, bytearray(content[_ROOM:])):
            if part:
                dist.send(torch.frombuffer(part, dtype=torch.uint8), group=self._group, group_dst=rank)

    def _listen(self, rank: int | None) -> tuple[int, Any]:
        """(who, what) of a rank, or of any."""
        piece = torch.empty(_PIECE, dtype=torch.uint8)
        dist.recv(piece, group=self._group, group_src=rank)
        sender, length = _HEAD.unpack_from(piece.numpy().data)
        content = piece.numpy()[_HEAD.size : _HEAD.size + length].tobytes()
        if length > _ROOM:
            rest = torch.empty(length - _ROOM, dtype=torch.uint8)
            dist.recv(rest, group=self._group, group_src=sender)
            content += rest.numpy().tobytes()
        return sender, pickle.loads(content)

    def close(self) -> None:
        """The group of a caller stays as it was."""
        if self._own:
            dist.destroy_process_group()


class _heard:
    """Context manager that turns communication errors of torch.distributed into `Lost`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, Lost) and "gloo" in str(error):
            raise Lost("is silent" if "imed out" in str(error) else "is gone") from error


def joined(launch: Launch) -> GroupLine:
    """Meet the other ranks where the environment says.

    Raises:
        InputError: They do not come.
    """
    patience = timedelta(seconds=launch.timeout)
    try:
        if dist.is_initialized():
            return GroupLine(dist.new_group(backend="gloo", timeout=patience), own=False)
        store, rank, size = next(rendezvous("env://", timeout=patience))
        store = PrefixStore(_this_try(store, rank, size, launch.timeout), store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR', 'MASTER_ADDR')}:{os.environ.get('MASTER_PORT', 'MASTER_PORT')}"
        raise InputError(
            f"rank {launch.rank} of {launch.size} did not reach the others at {where} "
            f"({str(error).splitlines()[0][:120]}); start with torchrun, all machines with the same --rdzv-endpoint; "
            f"{TIMEOUT} sets how many seconds it waits"
        ) from error
    whole = dist.group.WORLD
    assert whole is not None
    return GroupLine(whole, own=True)


def _this_try(store: Store, rank: int, size: int, seconds: float) -> str:
    """A prefix that the ranks of this try agree on, and no other try has.

    torchrun keeps its store over restarts, and with it where the processes of earlier tries listened; how many restarts
    there were, machines that came later count otherwise. So each rank leaves a word that nobody else has; rank 0
    answers every word that it sees, also of processes that are gone, until all ranks have taken up the answer.
    """
    until = time.monotonic() + seconds
    name, word = secrets.token_hex(16), secrets.token_hex(16)
    if rank:
        store.set(f"dpfedmeta/word/{rank}", word)
        store.wait([f"dpfedmeta/try/{word}"], timedelta(seconds=seconds))
        name = store.get(f"dpfedmeta/try/{word}").decode()
        store.set(f"dpfedmeta/{name}/here/{rank}", "")
        return f"dpfedmeta/{name}"
    missing = set(range(1, size))
    while missing:
        for each in sorted(missing):
            if store.check([f"dpfedmeta/word/{each}"]):
                store.set(f"dpfedmeta/try/{store.get(f'dpfedmeta/word/{each}').decode()}", name)
        missing = {each for each in missing if not store.check([f"dpfedmeta/{name}/here/{each}"])}
        if missing and time.monotonic() > until:
            raise ValueError(f"rank {min(missing)} did not come within {seconds:g} s")
        time.sleep(0.01)
    return f"dpfedmeta/{name}"
