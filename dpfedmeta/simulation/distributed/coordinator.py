"""The workers that rank 0 has: itself and the other ranks."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Waited
from typing import Any, TypeVar

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import IntArray, Shape, Summand
from dpfedmeta.simulation.distributed.collective import Collective, Lost
from dpfedmeta.simulation.distributed.torchrun_env import TIMEOUT
from dpfedmeta.simulation.distributed.worker_rank import End, Everywhere, Failed, Job

Share = tuple[object, ...]
T = TypeVar("T")

# After an interruption nobody waits long for others.
_PARTING_SECONDS = 4.0


class Deal:
    """Each share is taken once, by whoever comes; numbered in the order of the list."""

    def __init__(self, shares: Iterable[Share]) -> None:
        self._shares, self._lock = enumerate(shares), threading.Lock()
        self._ended = False

    def take(self) -> tuple[int, Share] | None:
        """(number, share); None: nothing is left."""
        with self._lock:
            found = None if self._ended else next(self._shares, None)
            self._ended = found is None
            return found

    def __iter__(self) -> Iterator[tuple[int, Share]]:
        return iter(self.take, None)

    def end(self) -> None:
        """Whatever is left stays undone."""
        with self._lock:
            self._ended = True


class Ranks:
    """Rank 0 deals out work, and does some of it itself; a thread of its own speaks to the others.

    Guarantee:
        The others get what `map`, `total` and `elsewhere` are called with, a share of it each, and nothing else.
    """

    trusted = False

    def __init__(self, line: Collective, timeout: float) -> None:
        """Over a line whose other ends serve.

        Args:
            line: To them.
            timeout: Seconds after which a silent rank counts as hung.
        """
        self._line, self._timeout = line, timeout
        self.code = 1  # with which the others end
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._lost: Lost | None = None
        self._leaving = False
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Number of ranks, including rank 0."""
        return self._line.size

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """function(*task) for each task, in order; dealt out one by one.

        Raises:
            RuntimeError: A rank is lost, or failed.
            InputError: A rank found something wrong with what was given.
        """
        deal, found = Deal(tasks), _Results()
        job = Job(function=function, common=())
        dealt = self._posted(lambda: self._deal(job, deal, found.keep))
        try:
            for number, share in deal:
                self._check_there(dealt)
                found.keep(number, function(*share))
                yield from found.in_order()
            self._result(dealt)
            yield from found.in_order()
        except BaseException as error:
            self._leave(deal, error)
            raise

    def total(
        self, function: Summand, common: tuple[object, ...], shares: Iterable[tuple[object, ...]], shape: Shape
    ) -> tuple[IntArray, int]:
        """Return the total of `Workers.total`; every rank sends its own sum, once.

        Raises:
            RuntimeError: A rank is lost, or failed.
            InputError: A rank found something wrong with what was given.
        """
        size = int(np.prod(shape))
        deal, own = Deal(shares), np.zeros(size + 1, dtype=np.int64)
        mine: Future[IntArray] = Future()
        job = Job(function=function, common=common, shape=shape)

        def everybody() -> IntArray:
            self._deal(job, deal, _check)
            return self._line.added(mine.result())

        whole = self._posted(everybody)
        try:
            for _, share in deal:
                self._check_there(whole)
                part, count = function(*common, *share)
                own[:size] += part.ravel()
                own[size] += count
            mine.set_result(own)
            total = self._result(whole)
        except BaseException as error:
            self._leave(deal, error)
            if not mine.done():
                mine.set_result(own)  # the others wait for it
            raise
        return total[:size].reshape(shape), int(total[size])

    def elsewhere(self, function: Callable[..., T], *arguments: object) -> list[T]:
        """On every other rank, by its number.

        Raises:
            RuntimeError: A rank is lost, or failed.
            InputError: A rank found something wrong with what was given.
        """

        def everywhere() -> list[T]:
            self._line.announce(Everywhere(function=function, arguments=arguments))
            return self._line.gathered(None)[1:]

        found = self._result(self._posted(everywhere))
        for number, each in enumerate(found, start=1):
            _check(number, each)
        return found

    def close(self, code: int) -> bool:
        """Tell the others to end with this exit code; whether that was possible."""
        try:
            self._result(self._posted(lambda: self._line.announce(End(code=code))))
        except RuntimeError:
            return False
        self._jobs.put(None)
        self._thread.join()
        self._line.close()
        return True

    def _deal(self, job: Job, deal: Deal, keep: Callable[[int, Any], None]) -> None:
        self._line.announce(job)
        waiting: dict[int, int] = {}
        left, wrong = self._line.size - 1, None
        while left:
            try:
                rank, said = self._line.asked()
            except Lost as error:
                raise _named(error, sorted(waiting)) from error
            waiting.pop(rank, None)
            if said is not None:
                number, result = said
                try:
                    keep(number, _of_rank(rank, result))
                except Exception as error:
                    wrong = wrong or error
                    deal.end()
            try:
                dealt = deal.take()
                self._line.answer(rank, dealt)
            except Lost:
                raise
            except Exception as error:  # what cannot be dealt, or cannot be sent
                wrong, dealt = wrong or error, None
                deal.end()
                self._line.answer(rank, None)
            if dealt is None:
                left -= 1
            else:
                waiting[rank] = dealt[0]
        if wrong is not None:
            if job.shape is not None:
                self._line.added(np.zeros(int(np.prod(job.shape)) + 1, dtype=np.int64))
            raise wrong

    def _posted(self, job: Callable[[], T]) -> Future[T]:
        """A job for the thread that speaks."""
        future: Future[T] = Future()

        def run() -> None:
            if self._lost is not None:
                future.set_exception(self._lost)
                return
            try:
                future.set_result(job())
            except Lost as error:
                self._lost = error
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(_PARTING_SECONDS if self._leaving else None)
        except Waited as error:
            self._lost = Lost("the other ranks do not answer")
            raise self._lost from error
        except Lost as error:
            raise Lost(_sentence(error, self._timeout)) from error

    def _check_there(self, future: Future[Any]) -> None:
        """Work that nobody would add up is not begun."""
        if future.done():
            self._result(future)

    def _leave(self, deal: Deal, error: BaseException) -> None:
        """Nothing more is dealt out; what the others have begun they finish, and its result is dropped."""
        deal.end()
        self._leaving = self._leaving or isinstance(error, KeyboardInterrupt)

    def _speak(self) -> None:
        """Run posted jobs one after the other; when there is none, send the other ranks a greeting now and then."""
        while True:
            try:
                job = self._jobs.get(timeout=self._timeout / 4)
            except queue.Empty:
                job = self._posted_greeting()
            if job is None:
                return
            job()

    def _posted_greeting(self) -> Callable[[], None]:
        def greet() -> None:
            try:
                if self._lost is None:
                    self._line.announce(None)
            except Lost as error:
                self._lost = error

        return greet


class _Results:
    """By number, until they are due."""

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}
        self._due = 0

    def keep(self, number: int, result: Any) -> None:
        self._found[number] = _of_rank(0, result)

    def in_order(self) -> Iterator[Any]:
        while self._due in self._found:
            yield self._found.pop(self._due)
            self._due += 1


def _check(number: int, result: Any) -> None:
    _of_rank(number, result)


def _of_rank(rank: int, result: Any) -> Any:
    if isinstance(result, Failed):
        raise (InputError if result.bad_input else RuntimeError)(f"rank {rank}: {result.words}")
    return result


def _named(error: Lost, waiting: list[int]) -> Lost:
    who = f"rank {waiting[0]}" if len(waiting) == 1 else f"one of ranks {', '.join(map(str, waiting))}"
    return Lost(f"{who if waiting else 'another rank'} {error}")


def _sentence(error: Lost, timeout: float) -> str:
    said = str(error)
    who = said if said.startswith(("rank", "one of", "another", "the other")) else f"another rank {said}"
    return f"{who} (after {timeout:g} s at most, {TIMEOUT}); the round was not released, and the run can be resumed"
