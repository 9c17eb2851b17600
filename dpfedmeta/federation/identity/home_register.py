"""Homes of clients that this machine knows, outside of them: whose budget each keeps, and how far its ledger went."""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.client_ledger import CLIENTS_LEDGER, OLDER
from dpfedmeta.accounting.ledger.hash_chain import START, HashChain, read_chain
from dpfedmeta.accounting.ledger.ledger_register import lineage_folder
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file, whole_lines

HOME = "home.json"
# Beside a home's entry in the register: how far its ledger went on this machine, and behind that line a copy of it.
WRITTEN = ".ledger"
_FOLDER, _LOCK = "homes", ".lock"
LINE = b"\n"


@dataclass(frozen=True, kw_only=True)
class Home:
    """Identities and images that a client's home belongs to.

    It is stored in the home, with a copy in this machine's register.

    Attributes:
        name: 32 hexadecimal digits that no other home has, wherever it is moved.
        identities: Public keys that took part from it, in hexadecimal, the latest last.
        folders: Folders and tables that its records were in.
        images: Digests of every record that it ever took part with.
        listed: Digest of the data's path, classes and contents at the last claim; while it stays the same, `folders`
            and `images` stay as they are.
        place: The home's last place on disk.
    """

    name: str
    identities: tuple[str, ...]
    folders: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    listed: str = ""
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Noted:
    """SECRET: how far a ledger went: its bytes, lines and digest, and itself; None: a note of before has no copy."""

    size: int
    lines: int
    digest: str
    copy: bytes | None


def note_ledger(register: Path, mine: Home, content: bytes) -> None:
    """Note how far a home's ledger goes, with a copy of it."""
    noted = [len(content), content.count(LINE), sha256(content).hexdigest()]
    replace_file(register / f"{mine.name}{WRITTEN}", json.dumps(noted).encode() + LINE + content, SECRET)


def noted_in(path: Path) -> Noted | None:
    """Read such a note; None: it is damaged. It was written whole, so it was cut or edited."""
    try:
        first, _, copy = path.read_bytes().partition(LINE)
        size, lines, digest = json.loads(first)
        found = Noted(size=int(size), lines=int(lines), digest=str(digest), copy=copy or None)
    except DAMAGED_JSON:
        return None
    return found if not copy or sha256(copy).hexdigest() == found.digest else None


def take_older(path: Path, newest: bytes | None, missing: int | None = None) -> None:
    """Append to an older copy of a client's ledger what it lacks, behind a line that says so for ever.

    Args:
        path: The older copy; with `newest` it may be gone.
        newest: The ledger as it went on; None: that is not known.
        missing: Number of lines that the older copy lacks, where no more is known.

    Guarantee:
        (record or client, server): with `newest`, every participation of either copy is counted afterwards, so nothing
        that is stated falls below what was spent. Without it the ledger says so, and takes no higher limit any more.

    Raises:
        InputError: There is no ledger and `newest` is not known, or the older copy is damaged.
    """
    there, _ = whole_lines(path)
    if not there and newest is None:
        raise InputError(f"{path}: is gone, and what it held is not known on this machine; restore it from a backup")
    bodies, head = read_chain(path, CLIENTS_LEDGER, torn=True) if there else ([], START)
    held = Counter(json.dumps(body, sort_keys=True) for body in bodies)
    lacking = list[dict[str, Any]]()
    for text in (newest or b"").decode().splitlines():
        body = {name: value for name, value in json.loads(text).items() if name != "previous"}
        if held[known := json.dumps(body, sort_keys=True)] > 0:
            held[known] -= 1
        else:
            lacking.append(body)
    first = 0 if bodies else 1
    note = {OLDER: {"missing": missing if newest is None else len(lacking), "restored": newest is not None}}
    HashChain(path, head, SECRET, size=there).append_all([*lacking[:first], note, *lacking[first:]])


def home_at(home: Path) -> Home | None:
    """Read what a folder says of itself; None: nothing."""
    path = home / HOME
    return read_home(path) if path.exists() else None


def homes_in(register: Path) -> Iterator[Home]:
    """Read all homes that are known here."""
    for path in sorted(register.glob("*.json")):
        yield read_home(path)


def read_home(path: Path) -> Home:
    """Read one home.

    Raises:
        InputError: The file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        words = {key: str(content[key]) for key in ("name", "listed", "place")}
        lists = {key: tuple(map(str, content[key])) for key in ("identities", "folders", "images")}
        found = Home(**words, **lists)  # type: ignore[arg-type]
        if not found.identities or not found.name:
            raise ValueError("no identity, or no name")
    except (OSError, *DAMAGED_JSON) as error:
        raise InputError(
            f"{path}: damaged; it says which records a client's budget belongs to; restore it from a backup"
        ) from error
    return found


def write_home(home: Path, register: Path, mine: Home) -> None:
    """Write what a home is, in the register and in the home."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = (json.dumps(asdict(mine)) + "\n").encode()
    # The register first: a home that is noted and was never used is refused too often, not too seldom.
    replace_file(register / f"{mine.name}.json", content, SECRET)
    replace_file(home / HOME, content, SECRET)


@contextmanager
def open_register() -> Iterator[Path]:
    """Open this machine's, locked."""
    folder = lineage_folder().parent / _FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(folder / _LOCK, "a", opener=lambda path, flags: os.open(path, flags, SECRET)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
