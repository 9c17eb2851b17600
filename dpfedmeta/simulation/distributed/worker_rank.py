"""Work of every rank but rank 0: compute the given jobs. It prints nothing and writes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import Shape
from dpfedmeta.simulation.distributed.collective import Collective


@dataclass(frozen=True, kw_only=True)
class Job:
    """Calls that are dealt out.

    Attributes:
        function: What is called.
        common: What all calls take.
        shape: Of their sum; None: each result goes to rank 0.
    """

    function: Callable[..., Any]
    common: tuple[object, ...]
    shape: Shape | None = None


@dataclass(frozen=True, kw_only=True)
class Everywhere:
    """Call of one function on every rank."""

    function: Callable[..., Any]
    arguments: tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class End:
    """The last message, with the exit code."""

    code: int


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A call that raised."""

    words: str
    bad_input: bool


def failed(error: Exception) -> Failed:
    """Build the message that tells rank 0 of an error."""
    known = isinstance(error, InputError)
    return Failed(words=str(error) if known else f"{type(error).__name__}: {error}", bad_input=known)


def serve(line: Collective) -> int:
    """Until rank 0 ends; the exit code.

    Raises:
        Lost: Rank 0 is gone, or says nothing any more.
    """
    while True:
        message = line.announce()
        if isinstance(message, End):
            return message.code
        if isinstance(message, Everywhere):
            line.gathered(_tried(message.function, message.arguments))
        elif isinstance(message, Job):
            _answer(line, message) if message.shape is None else _add(line, message, message.shape)


def _tried(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return failed(error)


def _answer(line: Collective, job: Job) -> None:
    said: Any = None
    while (dealt := line.ask(said)) is not None:
        number, share = dealt
        said = number, _tried(job.function, (*job.common, *share))


def _add(line: Collective, job: Job, shape: Shape) -> None:
    size = int(np.prod(shape))
    total = np.zeros(size + 1, dtype=np.int64)
    said: Any = None
    while (dealt := line.ask(said)) is not None:
        number, share = dealt
        found = _tried(job.function, (*job.common, *share))
        if isinstance(found, Failed):
            said = number, found
            continue
        said = number, None
        total[:size] += found[0].ravel()
        total[size] += found[1]
    line.added(total)
