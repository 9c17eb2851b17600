"""Names of classes and clients as people write them, and the split (train, val, test) by a hash of a name."""

import hashlib
import re
import unicodedata
from collections.abc import Hashable, Iterable
from decimal import Decimal

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.missing import is_missing
from dpfedmeta.data.storage.decoded_cache import SPLITS, Split

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?")
# How a spreadsheet shows a long number, of which it keeps 6 or so.
_SHORTENED = re.compile(r"\d(?:[.,]\d+)?[eE]\+(\d{1,3})")
_QUOTES = "'\"`=\u00b4\u2018\u2019\u201c\u201d"
_FEWEST_DIGITS = 11


def missing_classes(names: Iterable[str]) -> set[str]:
    """Return those of all classes that are marks of a missing one; beside another sign (`+`) a sign is a class."""
    found = {*names}
    signs = {name for name in found if not any(map(str.isalnum, name))}
    missing = {name for name in found if is_missing(name)}
    return missing if signs <= missing else missing - signs


def is_shortened(name: str) -> bool:
    """Return whether a name is a long number as spreadsheets shorten it: several numbers became one."""
    found = _SHORTENED.fullmatch(name)
    return found is not None and int(found[1]) + 1 >= _FEWEST_DIGITS


def check_spellings(where: str, names: Iterable[tuple[str, str, str]]) -> None:
    """Refuse two spellings of one client or class: each would be one of its own, in another part perhaps.

    Classes of one letter or sign are what they are: in handwriting `a` and `A` are two.

    Args:
        where: The data, for errors.
        names: (client or class, name, its place in the data).

    Raises:
        InputError: Names both spellings, and where they are.
    """
    places: dict[tuple[str, str], str] = {}
    for what, name, place in names:
        places.setdefault((what, name), place)
    first: dict[tuple[str, Hashable], str] = {}
    problems = []
    for (what, name), place in places.items():
        other = first.setdefault((what, _class_key(name) if what == "class" else _spelled_out(name)), name)
        if other != name:
            show = ascii if unicodedata.normalize("NFKC", other) == unicodedata.normalize("NFKC", name) else repr
            problems.append(f"{what} {show(other)} ({places[what, other]}) and {show(name)} ({place})")
    if problems:
        raise InputError(
            f"{where}: {len(problems)} name(s) in two spellings: {listed(problems)}; each spelling would count as "
            "another one: write them alike; if they are different, give names that differ in more than capitals, "
            "spaces, how an accent is encoded, quotes, or the way a number is written"
        )


def same_class(name: str) -> str:
    """Return one spelling for all spellings of a class."""
    key = _class_key(name)
    return str(key.normalize()) if isinstance(key, Decimal) else str(key)


def _class_key(name: str) -> Hashable:
    one = unicodedata.normalize("NFC", name)
    return one if len(one) == 1 else _spelled_out(name)


def _spelled_out(name: str) -> Hashable:
    """Return what all spellings of a name have in common; of a number its value."""
    seen = (each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) not in ("Cf", "Cc"))
    text = " ".join(unicodedata.normalize("NFKC", "".join(seen).casefold()).split())
    bare = text.lstrip(_QUOTES)
    # As spreadsheets write a number that is to stay a text: '3, ="3".
    text = (bare.rstrip(_QUOTES) if bare != text else text).strip() or text
    return Decimal(text) if _NUMBER.fullmatch(text) else text


def split_of(name: str) -> Split:
    """The split of a class by the SHA-256 of its name, 64 : 16 : 20; the same in every copy of the data."""
    share = _share(name)
    return "train" if share < 0.64 else "val" if share < 0.80 else "test"


def splits_of(names: Iterable[str], least: int) -> dict[str, Split]:
    """The split of every name: `split_of`, unless a part would have fewer than `least` and there are enough for all.

    Then the two limits between the parts move, along the same hashes, as little as gives every part `least`. Nothing
    but names decides.

    Args:
        names: Classes or clients.
        least: How many each part needs.
    """
    ordered = sorted(set(names), key=lambda name: (_share(name), name))
    counts = {split: sum(split_of(name) == split for name in ordered) for split in SPLITS}
    if min(counts.values()) < least and len(ordered) >= 3 * least:
        counts = {split: max(count, least) for split, count in counts.items()}
        for _ in range(sum(counts.values()) - len(ordered)):
            largest = max(SPLITS, key=lambda split: counts[split])
            counts[largest] -= 1
    parts = [split for split in SPLITS for _ in range(counts[split])]
    return dict(zip(ordered, parts, strict=True))


def surely_public(names: Iterable[str]) -> set[str]:
    """Names that train under no number of classes that each part may need: what follows from them alone may be told.

    The limits of `splits_of` move with that number, and so may the part of a name that is near one.
    """
    ordered = sorted(set(names), key=lambda name: (_share(name), name))
    training = sum(split == "train" for split in splits_of(ordered, 1).values())
    return set(ordered[max(training, len(ordered) // 3) :])


def _share(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", errors="surrogateescape")).digest()[:8], "big") / 2.0**64
