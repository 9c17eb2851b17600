"""The caller's own function: tried on a few clients before a charge, and known again when stored rounds return."""

import copy
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, end_of_whole_lines
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines

Problem = Callable[[object], str | None]
"""Says why an update would count as zero."""
FUNCTIONS = "functions.jsonl"
# Clients that are looked at before a charge.
FEWEST_TRIED = 8
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def spread_over(clients: int) -> list[int]:
    """The numbers of a few clients, spread over all of them."""
    most = min(FEWEST_TRIED, clients)
    return [number * (clients - 1) // max(most - 1, 1) for number in range(most)]


def on_copies(function: Callable[..., object], given: tuple[object, ...]) -> Callable[[object], object]:
    """The function of a client alone, which is given copies: what one client changes in place no other one sees.

    Raises:
        InputError: Something that is given cannot be copied.
    """
    tuple(map(_copied, given))

    def call(client: object) -> object:
        return function(*map(_copied, given), client)

    return call


def _copied(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        return value.copy()
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update({name: _copied(own) for name, own in value.items()})
        return copied
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise InputError(
            f"PrivateRounds: map: is given a {type(value).__name__}, which cannot be copied, so that a client would go "
            "on from what another one left in it; make it inside the function, or give arrays"
        ) from error


def check_rehearsed(call: Callable[[object], object], client: object, problem: Problem) -> None:
    """Compute the update of a public client.

    Raises:
        Exception: What the caller's function raises, as it is.
        InputError: The update would count as zero, or is zero.
    """
    update: Any = call(client)
    why = problem(update)
    if why is None and not any(bool((value != 0).any()) for value in map(_array, update.values())):
        why = "an update of zeros, from which nothing is learned"
    if why is not None:
        raise InputError(f"PrivateRounds: rehearse: the client that was given sends {why}")


def _array(value: Any) -> Any:
    return value if hasattr(value, "any") else np.asarray(value)


def check_some_work(call: Callable[[object], object], clients: int, problem: Problem) -> None:
    """Refuse a function that seems to fail for everybody: all rounds would be charged for noise alone.

    One client's data decide over the refusal only where all others that are tried fail too; the reason is said only
    where it is the same in all of them, which makes it a property of the function.

    Raises:
        InputError: It fails for all that are tried.
    """
    tried = spread_over(clients)
    problems = {_problem(call, client, problem) for client in tried}
    if None in problems:
        return
    (same,) = problems if len(problems) == 1 else ("",)
    raise InputError(
        f"PrivateRounds: the function given to map sends nothing for any of {len(tried)} clients, picked from all "
        f"{clients:,}{': ' if same else ''}{same}; it was not charged for. Try it on a public or made-up client: "
        "map(..., rehearse=CLIENT) raises its error"
    )


def _problem(call: Callable[[object], object], client: int, problem: Problem) -> str | None:
    """SECRET: why a client's update would count as zero."""
    try:
        return problem(call(client))
    except MemoryError:
        raise
    except Exception as error:
        from dpfedmeta.core.plugins.user_code import raised  # a loop that works needs none of it

        return raised(error)


def code_digest(function: Callable[..., object]) -> str:
    """Digest of a function's code, of that of its own module's functions which it names, and of plain values there.

    Names of installed packages and numbers in arrays are not followed. It says only whether somebody edited the code.
    """
    found, seen = hashlib.sha256(), set[int]()
    for part in _parts(function, seen, getattr(function, "__module__", "")):
        found.update(part.encode())
    return found.hexdigest()


def _parts(value: Any, seen: set[int], module: str) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif id(value) in seen:
        return
    elif isinstance(value, tuple | list):
        for own in value:
            yield from _parts(own, seen, module)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, *value.args, *value.keywords.items()], seen, module)
    elif isinstance(value, MethodType):
        yield from _parts([value.__func__, type(value.__self__)], seen, module)
    elif isinstance(value, CodeType):
        yield value.co_code.hex() + repr((value.co_names, value.co_varnames))
        yield from _parts([*value.co_consts], seen, module)
    elif isinstance(value, FunctionType):
        seen.add(id(value))
        if value.__module__ != module:
            return
        yield from _parts([value.__code__, value.__defaults__, value.__kwdefaults__], seen, module)
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != type(cell)()]
        named = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        yield from _parts([*cells, *named], seen, module)
    elif isinstance(value, type):
        seen.add(id(value))
        if value.__module__ == module:
            yield from _parts([own for _, own in sorted(vars(value).items())], seen, module)
    elif isinstance(value, dict):
        yield from _parts([*value.items()], seen, module)
    elif callable(value) and type(value).__module__ == module:
        yield from _parts(type(value), seen, module)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


class FunctionNotes:
    """SECRET: digests of the functions and models that rounds were computed with, in the server's own folder."""

    def __init__(self, run: RunDirectory, *, changed: bool = False) -> None:
        """Read those that are there.

        Args:
            run: The run.
            changed: Whether another function may go on.

        Raises:
            InputError: The file is damaged.
        """
        self._path, self._run = run.secret / FUNCTIONS, run.path
        self._told = self._model_told = False
        self._noted: list[tuple[int, str]] = []
        self._models: dict[int, set[str]] = {}
        self._changed, self._since = changed, 0
        content = self._path.read_bytes() if self._path.exists() else b""
        try:
            for line in content[: end_of_whole_lines(content)].decode().splitlines():
                body: Mapping[str, Any] = json.loads(line)
                self._since = len(self._noted) if body.get("changed") else self._since
                self._noted.append((int(body["round"]), str(body["code"])))
                self._models.setdefault(int(body["round"]), set()).add(str(body.get("model", "")))
        except DAMAGED_JSON as error:
            raise InputError(f'{self._path}: damaged: a line is not {{"round": ..., "code": ...}}') from error

    def holds(self, code: str) -> bool:
        """Return whether the function was used in an earlier round, or start."""
        return code in {known for _, known in self._noted}

    def note(self, round_: int, code: str, model: str = "") -> None:
        """Note the function of a round and of those after it, and the digest of the model that it was given."""
        models = self._models.setdefault(round_, set())
        if self.holds(code) and (not model or model in models):
            return
        changed = {"changed": True} if self._changed and self._noted and not self.holds(code) else {}
        given = {"model": model} if model else {}
        append_lines(self._path, [{"round": round_, "code": code, **given, **changed}], SECRET)
        self._noted.append((round_, code))
        models.add(model)

    def tell_model(self, round_: int, model: str) -> None:
        """Say once, on standard error, that a stored round was computed at another model than the one of now."""
        before = self._models.get(round_, set()) - {""}
        if self._model_told or not model or not before or model in before:
            return
        self._model_told = True
        print(
            f"PrivateRounds: {self._run}: the model given to map differs from the one that round {round_} was computed "
            "at (another step size or start?), so its release does not belong to it: stop, and give another run_dir",
            file=sys.stderr,
        )

    def check_same(self, code: str, released: int) -> None:
        """Refuse another function than that of the released rounds, before more is charged.

        Raises:
            InputError: It is another one. Where rounds had several, the digests alone do not tell an edit.
        """
        # Of a round the last: one before it was tried, and released nothing.
        latest = dict(self._noted[self._since :])
        known = {each for round_, each in latest.items() if round_ < released}
        if self._changed or code in known or len(known) != 1:
            return
        raise InputError(
            f"{self._run}: the function given to map is not the one of its rounds so far: released rounds "
            f"({released}) are not done again, and all others would be charged for the edited one. Give another "
            "run_dir, or changed_code=True to PrivateRounds to go on with it from here"
        )

    def tell_stored(self, first: int, released: int, code: str = "", left: int = 0) -> None:
        """Say once, on standard error, that rounds come from disk, and whether the code is theirs.

        Args:
            first: The first of them.
            released: How many rounds are released.
            code: Digest of the function given to `map`; empty: the loop asks clients itself.
            left: How many rounds such a loop charges next.
        """
        if self._told:
            return
        self._told = True
        latest = max((round_ for round_, _ in self._noted if round_ <= first), default=None)
        before = [known for round_, known in self._noted if round_ == latest]
        same = (
            f" If the loop was edited, stop it and give another run_dir: {left} more would be charged." if left else ""
        )
        if code and before:
            same = (
                " The function given to map is the one that they came from."
                if code in before
                else " The function given to map is NOT the one that they came from: give another run_dir."
            )
        rounds = f"round {first} comes" if released == first + 1 else f"rounds {first} to {released - 1} come"
        print(f"PrivateRounds: {self._run}: {rounds} from disk, and nobody is asked.{same}", file=sys.stderr)
