"""A client's home and the records whose budget it keeps: neither a new key nor a new home begins a budget anew."""

import errno
import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import end_of_whole_lines, sync_folder
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.data.user_sources.sound_rows import own_digests, pixel_digests, spelled_digests
from dpfedmeta.federation.identity.home_register import (
    LINE,
    WRITTEN,
    Home,
    home_at,
    homes_in,
    note_ledger,
    noted_in,
    open_register,
    read_home,
    take_older,
    write_home,
)
from dpfedmeta.secure_aggregation.crypto.keys import Identity

LEDGER = "ledger.jsonl"
_DIGEST_CHARACTERS = 32
# Of a folder that no key took part from.
_NOBODY = ("",)


def claim(home: Path, data: Path, private: bytes, *, keep: bool = True) -> None:
    """Check that the budget of these records is kept here and nowhere else, and note that it is.

    Records count as those of another home where they lie in a folder or table that it took part with, or where one of
    them is in it: what that record spent would be forgotten. Records of tables are the same where class and numbers
    are, in whichever order their columns stand; images where their pixels are, however they were saved.

    Args:
        home: The client's home.
        data: Its folder of images, or its table.
        private: Its identity.
        keep: Whether to note it; a dry run does not.

    Guarantee:
        On this machine, for this user: over all keys and homes together, a record spends no more than was promised in
        the one home that it belongs to. It says nothing of copies of the records, or of a home, on other machines.

    Raises:
        InputError: The records belong to another home, or this home to another key; says how to go on.
        OSError: The register cannot be read or written.
    """
    identity = Identity(private).public.hex()
    known = _of_identity(home, identity)
    # Before the lock: other clients of this machine answer meanwhile, and a large table takes long.
    listed, found = _digests(data, known.listed if known else "")
    with open_register() as register:
        before = _of_identity(home, identity)
        mine = before or _begun(register, home, identity) or Home(name=secrets.token_hex(16), identities=(identity,))
        mine = _with_images(_with_noted(register, replace(mine, place=str(home.resolve()))), data, listed, found)
        for other in homes_in(register):
            if other.name != mine.name and _share(mine, other):
                raise InputError(_elsewhere(data, other))
        if keep and mine != home_at(home):
            write_home(home, register, mine)
            if before is None and not _ledger_of(home):
                # From here on a home that is gone is one whose spending is not known.
                note_ledger(register, mine, b"")


def name_home(folder: Path) -> None:
    """Give a folder a name in this machine's register, so that an older copy of it is noticed (`ClientRounds`).

    It belongs to no key and to no records: what those spent elsewhere is not looked for.

    Raises:
        OSError: The register cannot be read or written.
    """
    with open_register() as register:
        if home_at(folder) is None:
            mine = Home(name=secrets.token_hex(16), identities=_NOBODY, place=str(folder.resolve()))
            write_home(folder, register, mine)
            note_ledger(register, mine, _ledger_of(folder))


def open_home(home: Path, data: Path, private: bytes, *, accept: bool = False, keep: bool = True) -> str | None:
    """Claim a home and check that it is the newest copy, before anything is answered from it.

    Args:
        home: The client's home.
        data: Its folder of images, or its table.
        private: Its identity.
        accept: Whether an older copy is taken all the same.
        keep: Whether to note anything; a dry run does not.

    Returns:
        What to tell its owner (check_newest).

    Raises:
        InputError: It cannot be claimed, is an older copy, or lies in a run, which may be published.
        OSError: The register cannot be read or written.
    """
    check_outside_runs("--home", home)
    claim(home, data, private, keep=keep)
    return check_newest(home, accept=accept, keep=keep)


def check_newest(home: Path, *, accept: bool = False, keep: bool = True) -> str | None:
    """Check that a home's ledger holds all that was written to it on this machine, before anything is answered.

    Args:
        home: The client's home.
        accept: Whether an older copy is taken all the same: its owner has lowered the limit.
        keep: Whether to note what is accepted; a dry run does not.

    Guarantee:
        (record or client, server): what this machine wrote and the older copy lacks is charged to it again, before it
        is taken; where that is not known, the ledger says so for ever and takes no higher limit (take_older).

    Returns:
        What to tell its owner: an older copy is taken, or this machine never wrote to it, so none could be told.

    Raises:
        InputError: It is an older copy.
        OSError: The register cannot be read or written.
    """
    with open_register() as register:
        older, told = _compared(register, home)
        if not older:
            return told
        mine = home_at(home)
        noted = None if mine is None else noted_in(register / f"{mine.name}{WRITTEN}")
        newest = None if noted is None else noted.copy
        if not accept:
            way = "add --change-limit: this one is taken then, and what is missing is charged again"
            lower = "lower the limit by what the lost rounds may have cost: --epsilon E --change-limit"
            raise InputError(f"{told}. Restore the newest copy, or {lower if newest is None else way}")
        if keep:
            lacks = 0 if noted is None else noted.lines - _lines(home)
            take_older(home / LEDGER, newest, lacks if lacks > 0 else None)
            _note(register, home)
    again = "what is missing is charged again" if newest else "what is missing is counted nowhere"
    return f"{told}; it is taken all the same (--change-limit), and {again}"


def home_of(data: Path, given: Path | None) -> Path | None:
    """Find the home of these records on this machine, for a look; nothing is noted.

    Args:
        data: A folder of images, or a table.
        given: The home that its owner named; None: none.

    Returns:
        That one, or where these records took part from; None: from nowhere here.

    Raises:
        InputError: They belong to another home than the named one, or no ledger is in theirs.
        OSError: The register cannot be read.
    """
    try:
        listed, found = _digests(data, "")
    except InputError:
        return given  # no record can be known; who reads the data says why
    mine = (None if given is None else home_at(given)) or Home(name="", identities=_NOBODY)
    mine = _with_images(mine, data, listed, found)
    with open_register() as register:
        other = next((each for each in homes_in(register) if each.name != mine.name and _share(mine, each)), None)
    if other is None:
        return given
    if not Path(other.place, LEDGER).exists():
        raise InputError(_elsewhere(data, other))
    if given is not None:
        raise InputError(
            f"--home {given}: these records took part from {other.place}, where what they spent stands; give that one, "
            "or leave --home out"
        )
    return Path(other.place)


def note_answered(home: Path) -> None:
    """Note how far a home's ledger goes, outside of the home, so that an older copy of all of it is noticed.

    Guarantee:
        Of copies of one home that answer at the same time on this machine, one alone passes.

    Raises:
        InputError: Another copy answered meanwhile.
        OSError: The register cannot be written.
    """
    with open_register() as register:
        older, told = _compared(register, home)
        if older:
            raise InputError(f"{told}. Another copy of this home answers on this machine; stop one of them")
        _note(register, home)


def _compared(register: Path, home: Path) -> tuple[bool, str | None]:
    """Return whether the home is an older copy, and words for its owner."""
    mine, content = home_at(home), _ledger_of(home)
    path = None if mine is None else register / f"{mine.name}{WRITTEN}"
    if path is None or not path.exists():
        return False, _unknown_here(home, content)
    noted = noted_in(path)
    if noted is None:
        return True, f"{home}: may be an older copy; {path}, which says how far its ledger went here, is damaged"
    if sha256(content[: noted.size]).hexdigest() == noted.digest:
        return False, None
    return True, (
        f"{home}: is an older copy; on this machine its ledger went on to line {noted.lines}, and this one has "
        f"{_lines(home)}, so what was spent since is missing"
    )


def _note(register: Path, home: Path) -> None:
    mine, content = home_at(home), _ledger_of(home)
    if mine is not None and content:
        note_ledger(register, mine, content)


def _lines(home: Path) -> int:
    return _ledger_of(home).count(LINE)


def _ledger_of(home: Path) -> bytes:
    """Its whole lines: one that a crash tore goes when the next is written."""
    path = home / LEDGER
    content = path.read_bytes() if path.exists() else b""
    return content[: end_of_whole_lines(content)]


def _unknown_here(home: Path, content: bytes) -> str | None:
    charged = sum(b'"round"' in line for line in content.splitlines())
    if not charged:
        return None
    return (
        f"{home}: was not used on this machine before; its ledger counts {charged} answers. If it is a backup, later "
        "ones are missing in it: restore the newest copy, or lower the limit by their cost (--change-limit)"
    )


def rotate(old: bytes, new: bytes, home: Path, following: Path, write: Callable[[], object] = lambda: None) -> None:
    """Let a new key take part from the home of an old one, under the place where the new one looks for it.

    Ended at any moment, the same call with the same keys goes on.

    Args:
        old: The old identity.
        new: The new one.
        home: The old one's home.
        following: Where the new one's is looked for; may be the same, or on another disk.
        write: Writes the new key, once the home knows it and before it moves.

    Raises:
        InputError: There is no such home, it is another key's, or there is something in the place already.
        OSError: The register or the new place cannot be written.
    """
    check_rotation(old, home, following)
    with open_register() as register:
        place, identities = _lies(home, following), (Identity(old).public.hex(), Identity(new).public.hex())
        before = home_at(place) or _begun(register, following, identities[0])
        before = before or Home(name=secrets.token_hex(16), identities=identities[:1])
        known = dict.fromkeys((*before.identities, identities[1]))
        # Both keys may take part from it before it moves: a crash in between loses neither.
        write_home(place, register, replace(before, identities=tuple(known), place=str(following.resolve())))
    write()
    if place != following:
        _move(home, following)
    shutil.rmtree(_leaving(home), ignore_errors=True)


def check_rotation(old: bytes, home: Path, following: Path) -> tuple[str, ...]:
    """Check that `rotate` can give a home to a new key, before anything is written.

    Returns:
        The keys that may take part from it, in hexadecimal: also one that a rotation which was cut off gave to it.

    Raises:
        InputError: There is no such home, it is another key's, or there is something in the place already.
    """
    place = _lies(home, following)
    if not (place / LEDGER).exists():
        raise InputError(
            f"{home}: is not a client's home (it holds no ledger); give the right folder (--home DIR), or make a new "
            "key without --rotate"
        )
    before = home_at(place)
    if before is not None and Identity(old).public.hex() not in before.identities:
        raise InputError(
            f"{place}: is the home of another key ({before.identities[-1][:8]}); give the home of the old key "
            "(--home DIR)"
        )
    if place != following and following.exists():
        raise InputError(f"{following}: exists already; give the new key another name (--out)")
    return () if before is None else before.identities


def _leaving(home: Path) -> Path:
    """Name of a home on its way to another disk: nobody answers from it, and both places cannot go on apart."""
    return home.with_name(f".{home.name}.leaving")


def _lies(home: Path, following: Path) -> Path:
    """The place of a home that is to move, also where that was cut off."""
    places = (home, following, _leaving(home))
    return next((place for place in places if (place / LEDGER).exists()), home)


def _move(home: Path, following: Path) -> None:
    leaving, staged = _leaving(home), following.with_name(f".{following.name}.arriving")
    if home.exists():
        try:
            home.rename(following)
            return sync_folder(following.parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        home.rename(leaving)
    shutil.rmtree(staged, ignore_errors=True)
    try:
        shutil.copytree(leaving, staged)
        for path in (*staged.rglob("*"), staged):
            sync_folder(path)
        staged.rename(following)
    except OSError:
        shutil.rmtree(staged, ignore_errors=True)
        leaving.rename(home)
        raise
    sync_folder(following.parent)


def _elsewhere(data: Path, other: Home) -> str:
    key = other.identities[-1][:8]
    if not Path(other.place, LEDGER).exists():
        return (
            f"{data}: these records took part from {other.place} (key {key}), and no ledger is there now: what they "
            "spent is not known. Restore it from a backup, or give its place (--home DIR) if it was moved"
        )
    return (
        f"{data}: these records took part from {other.place} (key {key}), where what they spent stands; a new key does "
        "not start a new budget. To replace the key: dpfedmeta federate keys --rotate OLD.pem --out NEW.pem, then take "
        "part with the new one; or take part with the old one"
    )


def _share(mine: Home, other: Home) -> bool:
    return bool({*mine.folders} & {*other.folders}) or not {*mine.images}.isdisjoint(other.images)


def _of_identity(home: Path, identity: str) -> Home | None:
    """The home as it is on disk; refused where it belongs to another key."""
    found = home_at(home)
    if found is not None and found.identities == _NOBODY:
        return replace(found, identities=(identity,))
    if found is not None and identity not in found.identities:
        raise InputError(
            f"{home}: is the home of another key ({found.identities[-1][:8]}), with the ledger of its records. "
            "To replace that key: dpfedmeta federate keys --rotate OLD.pem --out NEW.pem; for other data give "
            "another --home"
        )
    return found


def _begun(register: Path, home: Path, identity: str) -> Home | None:
    """A home of this key and place that was noted here, and cut off before anything was answered from it."""
    for each in homes_in(register):
        noted = (register / f"{each.name}{WRITTEN}").exists()
        if each.place == str(home.resolve()) and identity in each.identities and not noted:
            return each
    return None


def _digests(data: Path, known: str) -> tuple[str, frozenset[str]]:
    """(digest of the data's place and contents, digests of all records); of contents that are `known` no pixels.

    A home never forgets a record that it took part with, so those are in it.
    """
    # A copy as arrays has no names of columns.
    held = [*own_digests(data), *(("", digest) for digest in spelled_digests(data))]
    listed = sha256(json.dumps([str(data.resolve()), held, "pixels"]).encode()).hexdigest()
    pixels = [] if listed == known else pixel_digests(data)
    return listed, frozenset(digest[:_DIGEST_CHARACTERS] for digest in (*(each for _, each in held), *pixels))


def _with_noted(register: Path, mine: Home) -> Home:
    """The home with what the register knows of it besides: an older copy forgot records that took part since."""
    path = register / f"{mine.name}.json"
    if not path.exists():
        return mine
    noted = read_home(path)
    return replace(
        mine,
        identities=tuple(dict.fromkeys(filter(None, (*noted.identities, *mine.identities)))),
        folders=tuple(dict.fromkeys((*mine.folders, *noted.folders))),
        images=tuple(sorted({*mine.images, *noted.images})),
    )


def _with_images(home: Home, data: Path, listed: str, found: frozenset[str]) -> Home:
    if listed == home.listed:
        return home
    folders = dict.fromkeys((*home.folders, str(data.resolve())))
    return replace(home, folders=tuple(folders), images=tuple(sorted(found.union(home.images))), listed=listed)
