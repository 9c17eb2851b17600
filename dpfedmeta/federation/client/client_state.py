"""State that a client keeps of one run beside its ledger: noise key, last answer, and survivors it agreed to."""

import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.new_folder import write_folder
from dpfedmeta.core.random.fresh_seeds import FRESH_GENERATOR, FreshSource
from dpfedmeta.core.random.random_sources import GENERATOR, KeyedSource, draw_secret_seed
from dpfedmeta.data.episodes.row_layout import KEY_BYTES
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

_OFFER, _NOISE, _ANSWER, _REVEALED = "plan.bin", "noise.json", "last_answer.bin", "revealed.json"
_BEGUN, _ROWS = "begun.json", "rows.key"
_RUNS, _NAME = "runs", 32
# Decoded records, or their features, for plans of several sizes; and of which records they are.
DECODED, _OF = "images", "of.txt"


# What the streams of an attempt are keyed by: it lies beside its charge, and is asked when noise is drawn, so there is
# no noise without a charge.
FreshOf = Callable[[Attempt], bytes]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Folder of one run at a client, with the state that must survive a restart.

    Attributes:
        folder: Path of the folder.
    """

    folder: Path

    def source(self, given: int | None) -> KeyedSource | FreshSource:
        """The client's noise in this run: with a key of its own, or with the seed `given` in a simulation.

        Raises:
            InputError: The key is damaged.
        """
        seed = _noise_seed(self.folder, given)
        return FreshSource(seed) if given is None else KeyedSource(seed)

    def begin(self, attempt: Attempt) -> None:
        """Note an attempt, before it is charged."""
        replace_file(self.folder / _BEGUN, json.dumps(list(attempt.key)).encode(), SECRET)

    def began(self, attempt: Attempt) -> bool:
        """Return whether this is the folder that the attempt was charged with, rather than a new or older one.

        Another folder has another noise key and no record of the survivors that were agreed to: its answer would be a
        second release for one charge.
        """
        path = self.folder / _BEGUN
        try:
            return bool(json.loads(path.read_bytes()) == list(attempt.key))
        except (OSError, *DAMAGED_JSON):
            return False

    def once(self, attempt: Attempt, asked: str, make: Callable[[], bytes]) -> bytes:
        """Return the kept answer if the question was asked before; else compute it, and keep it before it leaves.

        So a question that is asked again gets the same bytes.

        Args:
            attempt: The round, and which attempt at it; the ledger holds it.
            asked: Digest of the task and the invited clients (`asked_digest`).
            make: Computes the bytes.
        """
        path, name = self.folder / _ANSWER, _mark(attempt.key, asked)
        content = path.read_bytes() if path.exists() else b""
        if content[: len(name)] == name:
            return content[len(name) :]
        made = make()
        replace_file(path, name + made, SECRET)
        return made

    def may_reveal(self, attempt: Attempt, survivors: frozenset[bytes]) -> bool:
        """Return whether to agree to these survivors: to one set for each vector, and again only to the same set.

        Two sums of the same vectors over two sets of clients would reveal a client by their difference. Survivors are
        compared by their identities: keys and lists are fresh in every attempt at the protocol.
        """
        before = self.survivors(attempt)
        if before is not None:
            return before == survivors
        told = {"key": list(attempt.key), "survivors": sorted(identity.hex() for identity in survivors)}
        replace_file(self.folder / _REVEALED, json.dumps(told).encode(), SECRET)
        return True

    def survivors(self, attempt: Attempt) -> frozenset[bytes] | None:
        """Identities of those whose survival was agreed to, for the vector of this attempt; None: no list yet."""
        path = self.folder / _REVEALED
        if not path.exists():
            return None
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["key"] != list(attempt.key):
                return None
            return frozenset(map(bytes.fromhex, before["survivors"]))
        except (OSError, *DAMAGED_JSON) as error:
            raise InputError(f"{path}: damaged; it says which survivors were agreed to; restore a backup") from error


def source_at(source: KeyedSource | FreshSource, attempt: Attempt, fresh_of: FreshOf) -> KeyedSource | FreshSource:
    """The client's noise in one attempt, which is charged.

    Raises:
        Refused: Its charge holds no fresh bytes, which its noise could be made from again.
    """
    fresh = fresh_of(attempt)
    if source.needs_fresh and not fresh:
        raise Refused(
            f"round {attempt.round} was charged without fresh bytes, and its answer is lost; new noise would give a "
            "second answer for one charge"
        )
    return source.again(attempt.again, fresh)


def kept_for(folder: Path, run: bytes) -> Kept:
    """The folder of a run, made where there is none.

    Args:
        folder: The client's own.
        run: Which run.
    """
    inside = folder / _RUNS / run.hex()[:_NAME]
    inside.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Kept(folder=inside)


def row_key(folder: Path) -> bytes:
    """The key of the hashes of a client's rows: drawn once for its home, before any row is read, and never again.

    Args:
        folder: The client's own.

    Raises:
        InputError: The key is damaged.
    """
    path = folder / _ROWS
    if not path.exists():
        replace_file(path, secrets.token_bytes(KEY_BYTES), SECRET)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise InputError(
            f"{path}: damaged; it decides which records are taken together in this home, and has {KEY_BYTES} bytes; "
            "restore it from a backup"
        )
    return key


def _noise_seed(folder: Path, given: int | None) -> int:
    """A key of this run's own: with one key for two runs, two messages could share their noise."""
    path = folder / _NOISE
    if path.exists():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            seed, generator = content["seed"], content["generator"]
        except (OSError, *DAMAGED_JSON) as error:
            raise InputError(f"{path}: the noise key of this run is damaged; restore it from a backup") from error
        # A key of a simulation goes on in streams that it never drew from.
        if generator not in ([GENERATOR] if given is not None else [GENERATOR, FRESH_GENERATOR]):
            raise InputError(
                f"{path}: this noise key is for another generator; continue with the version of dpfedmeta that made it"
            )
        if type(seed) is not int:
            raise InputError(f"{path}: the noise key of this run is damaged; restore it from a backup")
        return seed
    seed, generator = (draw_secret_seed(), FRESH_GENERATOR) if given is None else (given, GENERATOR)
    replace_file(path, json.dumps({"seed": seed, "generator": generator}).encode(), SECRET)
    return seed


def _mark(key: tuple[int, ...], asked: str) -> bytes:
    return sha256(f"{key} {asked}".encode()).digest()


def forgotten(folder: Path, charged: Iterable[tuple[str, tuple[int, ...], str]]) -> Path | None:
    """An answer that the ledger knows nothing of: the ledger is an older copy, and forgot what was spent.

    Args:
        folder: The client's own folder.
        charged: (run, attempt at a round, digest of what was asked), of each line of the ledger.
    """
    known = {(run[:_NAME], _mark(key, asked)) for run, key, asked in charged}
    for path in sorted((folder / _RUNS).glob(f"*/{_ANSWER}")):
        with path.open("rb") as file:
            if (path.parent.name, file.read(32)) not in known:
                return path
    return None


def asked_digest(task: bytes, invited: Sequence[int] = ()) -> str:
    """Digest of what a participation is charged for: the task and the invited clients.

    The same noise must never answer another task, or the same task among other clients.
    """
    found = sha256(task)
    found.update(np.asarray(invited, dtype="<i8").tobytes())
    return found.hexdigest()


def copied(ledger: Path) -> Path:
    """Copy a ledger and what is kept of its runs into a new folder, for a look that changes nothing.

    Args:
        ledger: The client's; there may be none yet.

    Returns:
        Where its copy lies.
    """
    folder = Path(tempfile.mkdtemp(prefix="dpfedmeta-dry-run-"))
    if ledger.exists():
        shutil.copy(ledger, folder)
    if (ledger.parent / _ROWS).exists():
        shutil.copy(ledger.parent / _ROWS, folder)
    if (ledger.parent / _RUNS).exists():
        shutil.copytree(ledger.parent / _RUNS, folder / _RUNS)
    return folder / ledger.name


def forget_other_records(folder: Path, records: Iterable[tuple[str, str]]) -> None:
    """Remove decoded copies where records came or went: one that was withdrawn stays nowhere in a home.

    Called as a client starts, before anything is read from them.

    Args:
        folder: Where they lie.
        records: (class, digest) of each record that the client holds now.

    Raises:
        InputError: A folder of this name is there that no client made; it may be the owner's own data.
    """
    mark, gone = folder / _OF, folder.with_name(f".{folder.name}.gone")
    digest = sha256(json.dumps(sorted(records)).encode()).hexdigest()
    # Of a start that was killed while it removed them.
    if gone.exists():
        shutil.rmtree(gone)
    if mark.exists() and mark.read_text(encoding="utf-8") == digest:
        return
    if mark.exists():
        # Under another name at once: half of it, without its mark, would be taken for the owner's own.
        shutil.rmtree(folder.rename(gone))
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder}: there is something already, and a home keeps decoded records in a folder of this name, which "
            "it removes when records come or go; give another --home, or move what is there"
        )
    write_folder(folder, {_OF: digest.encode()}, SECRET)


def keep_offer(kept: Kept, offer: bytes) -> None:
    """So that a client that was started again still knows the plan."""
    replace_file(kept.folder / _OFFER, offer, SECRET)


def kept_offer(folder: Path, run: bytes) -> bytes | None:
    """The plan of a run that the client joined before it was started again."""
    path = folder / _RUNS / run.hex()[:_NAME] / _OFFER
    return path.read_bytes() if path.exists() else None
