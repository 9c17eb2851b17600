"""Comparison, before round 0, of everything that all ranks must have in common."""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import own_words
from dpfedmeta.core.provenance import SWITCHES, processor, source_digest, versions
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.populations.population import Population, clients_digest
from dpfedmeta.simulation.distributed.torchrun_env import Launch, launched


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about one rank that are compared between ranks.

    Attributes:
        command: Command line of the rank.
        code: Digest of the package's modules.
        versions: Versions of Python and of the libraries that a result depends on.
        switches: Environment variables that change the computations of these libraries.
        host: Name of its machine.
        machine: Processor of its machine, and the instruction set that PyTorch uses.
        gpu: Number of its GPU, which is torchrun's number of the process on its machine.
        gpus: Number of GPUs of its machine.
    """

    command: str
    code: str
    versions: str
    switches: str
    host: str
    machine: str
    gpu: int
    gpus: int


# By field: what a person calls it, and what to do where it differs.
_SAME = {
    "command": ("another command line", "start all ranks with the same command line, paths included"),
    "code": ("other code of dpfedmeta", "install the same version (or check out the same commit) on every machine"),
    "versions": ("other versions", "install with the same constraints.txt on every machine"),
    "switches": ("other environment variables", "set them to the same values on every machine"),
}


def facts_of(launch: Launch, words: Sequence[str]) -> Facts:
    """Return the facts of this rank."""
    return Facts(
        command=", ".join(_options(words)),
        code=source_digest(),
        versions=", ".join(f"{name} {version}" for name, version in versions().items()),
        switches=", ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(SWITCHES)) or "none",
        host=platform.node(),
        machine=f"{platform.machine()}; {processor()}; {torch.backends.cpu.get_cpu_capability()}",
        gpu=launch.local_rank,
        gpus=torch.cuda.device_count(),
    )


def _options(words: Sequence[str]) -> list[str]:
    """The words with the values behind their names."""
    listed: list[str] = []
    for word in words:
        if word.startswith("--") or not listed or "=" in listed[-1] or " " in listed[-1]:
            listed.append(word)
        else:
            listed[-1] += f" {word}"
    return listed


def check_alike(facts: Sequence[Facts]) -> None:
    """Compare what must be the same with rank 0's.

    Raises:
        InputError: It differs; names the rank, what differs, and both values.
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        for each in fields(Facts):
            mine, its = getattr(first, each.name), getattr(other, each.name)
            if each.name in _SAME and mine != its:
                what, remedy = _SAME[each.name]
                own, others = _apart(str(mine), str(its))
                raise InputError(f"rank {rank} ({other.host}): {what}: {others}; rank 0 has {own}; {remedy}")


def _apart(mine: str, its: str) -> tuple[str, str]:
    """The parts of two lists that differ, at most so long that a line holds them."""
    one, two = mine.split(", "), its.split(", ")
    own, others = ([part for part in a if part not in b] for a, b in ((one, two), (two, one)))
    return ", ".join(own)[:200] or "none of that", ", ".join(others)[:200] or "none of that"


def check_together(
    workers: Workers,
    dataset: Dataset,
    own: Population | None,
    device: torch.device,
    opened: Callable[[], Dataset],
    roots: Sequence[str] = (),
) -> bool:
    """Check that ranks can compute one federation together; return whether all their processors are alike.

    Args:
        workers: The ranks.
        dataset: Data set as rank 0 opened it.
        own: The caller's own clients.
        device: Device that computes clients.
        opened: Function that opened it; a rank whose machine has not decoded these images yet calls it too.
        roots: The user's own modules that clients use.

    Raises:
        InputError: A rank holds other data or none, or another version of the user's own code, or a machine has fewer
            GPUs than processes.
    """
    pools = (dataset.train, dataset.val, dataset.test)
    found = workers.elsewhere(_data_digest, pools, own, opened)
    if not found:
        return True
    _check_own_code(workers, roots)
    mine = _data_digest(pools, own, opened)
    for rank, its in enumerate(found, start=1):
        if its != mine:
            raise InputError(
                f"rank {rank}: holds other data for {dataset.task.name} than rank 0, decoded in "
                f"{dataset.train.path.parent}; put the same files at the same path on every machine (a shared file "
                f"system does), and delete what rank {rank} has decoded"
            )
    facts = [own_facts(), *workers.elsewhere(own_facts)]
    if device.type == "cuda":
        check_gpus(facts)
    return len({each.machine for each in facts}) == 1


def _check_own_code(workers: Workers, roots: Sequence[str]) -> None:
    """Each rank imports the user's modules from its own disk.

    Raises:
        InputError: A rank has other ones than rank 0; names those that differ.
    """
    mine = own_words(roots)
    for rank, its in enumerate(workers.elsewhere(own_words, roots), start=1):
        if its != mine:
            own, others = _apart(mine, its)
            raise InputError(
                f"rank {rank}: your own code differs: {others}; rank 0 has {own}; put the same files at the same "
                "place on every machine"
            )


def own_facts() -> Facts:
    """Return the facts of the calling process."""
    return facts_of(launched() or Launch(rank=0, size=1), sys.argv[1:])


def check_gpus(facts: Sequence[Facts]) -> None:
    """Check that each process has a GPU of its own.

    Raises:
        InputError: A machine has fewer GPUs than processes.
    """
    for rank, each in enumerate(facts):
        if each.gpu >= each.gpus:
            raise InputError(
                f"rank {rank} ({each.host}): is process {each.gpu} of its machine, which has {each.gpus} GPUs; start "
                "one process for each GPU (--nproc-per-node), or compute on CPUs with --run.device cpu"
            )


def _data_digest(pools: tuple[ClassPool, ...], own: Population | None, opened: Callable[[], Dataset]) -> str:
    """SECRET where the images are: of what a rank would compute with; it stays inside of the federation's ranks."""
    if not all(pool.path.exists() for pool in pools):
        opened()
    try:
        decoded = {pool.path: pool.decoded_digest() for pool in pools}
    except OSError as error:
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}), where rank 0 has the decoded images; set "
            "DPFEDMETA_CACHE to the same folder on every machine"
        ) from error
    return " ".join([*(pool.digest(decoded[pool.path]) for pool in pools), str(own and clients_digest(own))])
