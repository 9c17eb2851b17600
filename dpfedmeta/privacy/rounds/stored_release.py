"""Releases on disk: one that is stored is returned and never computed again; and digests of the sums behind them."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, end_of_whole_lines, replace_file
from dpfedmeta.core.files.run_directory import RELEASES, RunDirectory, append_lines, safetensors_header
from dpfedmeta.core.params import Params, digest, host
from dpfedmeta.privacy.clip_policies.policy_checks import packed, unpacked
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.rounds.round_sum import form_of
from dpfedmeta.privacy.units import Bounded, ClientUnit, message_of

_FILE = re.compile(r"round-(\d{6,})\.safetensors")
_SUMS = "sums.jsonl"
# What stands before the names of released arrays.
_VALUE = "value/"
_DAMAGE = (SafetensorError, ValidationError, *DAMAGED_JSON)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRelease:
    """PUBLIC: a release, and what the next round goes on from; post-processing of releases.

    Attributes:
        round: The round.
        attempt: The charge that it was computed under.
        bound: Clip bound of the round.
        sensitivity: Largest norm by which one client moved the sum.
        deviation: Standard deviation per coordinate of all noise in it.
        values: The noisy mean, with the numbers that the clip policy asked for.
        policy: State of the clip policy after it.
        following: Clip bound of the next round.
        head: Hash of the line of the ledger that holds its charge.
        digest: Digest of all that is stored of it; empty: it is not stored yet.
    """

    round: int
    attempt: int
    bound: float
    sensitivity: float
    deviation: float
    values: Params
    policy: Any
    following: float
    head: str
    digest: str = ""


def keep_release(run: RunDirectory, release: StoredRelease) -> StoredRelease:
    """Write a release; whole, flushed to disk, before anybody sees it. Return it with its digest."""
    arrays: dict[str, Any] = {}
    policy = packed(asdict(release.policy), arrays)
    arrays |= {_VALUE + name: host(value) for name, value in release.values.items()}
    fields = {
        "round": release.round,
        "attempt": release.attempt,
        "bound": release.bound,
        "sensitivity": release.sensitivity,
        "deviation": release.deviation,
        "policy": policy,
        "following": release.following,
        "head": release.head,
        "names": list(release.values),
    }
    text = json.dumps(fields, sort_keys=True)
    folder = run.path / RELEASES
    folder.mkdir(exist_ok=True)
    kept = replace(release, digest=_digest(arrays, text))
    replace_file(_path(run, release.round), save(arrays, {"release": text, "digest": kept.digest}))
    return kept


def load_release(run: RunDirectory, round_: int, policy: Any | None = None) -> StoredRelease:
    """Read a release. No code is run from it: arrays and JSON only.

    Args:
        run: The run.
        round_: The round.
        policy: A state of the clip policy, for its form; None: its state is not needed.

    Raises:
        InputError: Missing or damaged.
    """
    path = _path(run, round_)
    try:
        content = path.read_bytes()
        metadata = safetensors_header(BytesIO(content))["__metadata__"]
        text, arrays = metadata["release"], load(content)
        if metadata["digest"] != _digest(arrays, text):
            raise InputError(f"{path}: damaged: it does not have the digest that it states")
        fields = json.loads(text)
        values = {name: arrays[_VALUE + name] for name in fields["names"]}
        held = unpacked(fields["policy"], arrays)
        state = held if policy is None else TypeAdapter(type(policy)).validate_python(held)
        found = StoredRelease(
            round=int(fields["round"]),
            attempt=int(fields["attempt"]),
            bound=float(fields["bound"]),
            sensitivity=float(fields["sensitivity"]),
            deviation=float(fields["deviation"]),
            values=cast(Params, values),
            policy=state,
            following=float(fields["following"]),
            head=str(fields["head"]),
            digest=metadata["digest"],
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except _DAMAGE as error:
        raise InputError(f"{path}: damaged: not a release of this run ({type(error).__name__})") from error
    if found.round != round_ or not found.following > 0 or math.isnan(found.bound):
        raise InputError(f"{path}: damaged: not the release of round {round_}")
    return found


def stored_rounds(run: RunDirectory) -> int:
    """Return how many rounds, from the first, have a stored release.

    Raises:
        InputError: One is missing among them.
    """
    folder = run.path / RELEASES
    matches = (_FILE.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ()))
    rounds = sorted(int(match[1]) for match in matches if match)
    for due, found in enumerate(rounds):
        if found != due:
            raise InputError(f"{_path(run, due)}: is missing, and later releases are there; restore it from a backup")
    return len(rounds)


def form_of_release(release: StoredRelease) -> Params:
    """Names and shapes of the updates behind a release, as zeros."""
    return form_of({name: host(value) for name, value in release.values.items() if name != ATTACHED})


class SumDigests:
    """SECRET: digests of the exact sums that releases were computed from, on disk before the release is.

    They lie beside the key of the noise, with which the sums follow from the releases anyway.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Read those that are there.

        Raises:
            InputError: The file is damaged.
        """
        self._path = run.secret / _SUMS
        self._known: dict[tuple[int, int], set[str]] = {}
        content = self._path.read_bytes() if self._path.exists() else b""
        try:
            for line in content[: end_of_whole_lines(content)].decode().splitlines():
                body = json.loads(line)
                self._note(int(body["round"]), int(body["attempt"]), str(body["sum"]))
        except DAMAGED_JSON as error:
            raise InputError(f'{self._path}: damaged: a line is not {{"round": ..., "sum": ...}}') from error

    def of(self, round_: int, attempt: int) -> set[str]:
        """Return the digests of an attempt; with more than one it is used up."""
        return self._known.get((round_, attempt), set())

    def used_up(self, round_: int) -> int:
        """Return how many attempts at a round came to two different sums."""
        return sum(len(found) > 1 for (known, _), found in self._known.items() if known == round_)

    def keep(self, round_: int, attempt: int, query: Bounded[ClientUnit, Params]) -> bool:
        """Write the digest of a sum, if it is new; return whether it is the only one of its attempt."""
        total = hashlib.sha256()
        for piece in message_of(query):
            total.update(len(piece).to_bytes(8, "little"))
            total.update(piece)
        found = total.hexdigest()
        if found not in self.of(round_, attempt):
            append_lines(self._path, [{"round": round_, "attempt": attempt, "sum": found}], SECRET)
            self._note(round_, attempt, found)
        return len(self.of(round_, attempt)) == 1

    def _note(self, round_: int, attempt: int, found: str) -> None:
        self._known.setdefault((round_, attempt), set()).add(found)


def _path(run: RunDirectory, round_: int) -> Path:
    return run.path / RELEASES / f"round-{round_:06d}.safetensors"


def _digest(arrays: dict[str, np.ndarray[Any, Any]], text: str) -> str:
    return hashlib.sha256(f"{digest(cast(Params, arrays))} {text}".encode()).hexdigest()
