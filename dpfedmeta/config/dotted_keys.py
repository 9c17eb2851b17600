"""Tables of settings by dotted names: what there is, what was given and where, and the table that comes of it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import adapter_of, closest, first_problem, listed, shown

Form = TypeVar("Form")

SHORT_FORMS: Mapping[str, str] = {
    "rounds": "server.rounds",
    "clients": "population.clients",
    "cohort": "population.cohort",
    "aggregation": "aggregation.mode",
    "noise-multiplier": "server.noise_multiplier",
    "window": "clip.window",
    "percentile": "clip.percentile",
    "clip": "clip.initial",
    "ways": "task.ways",
    "shots": "task.shots",
    "order": "meta.order",
    "seed": "run.seed",
    "device": "run.device",
    "wandb": "track.wandb",
    "epsilon": "privacy.client.epsilon",
    "delta": "privacy.client.delta",
}

# Settings that are lists; on the command line in YAML: '[{from_round: 100, noise_scale: 0.8}]'.
LISTS = ("server.schedule", "track.tags", "privacy.spent_before")
# Settings of members of the user's own: any key below these.
OPEN = ("clip.own.", "meta.own.")
# Nobody nests settings so deep; a section of YAML may hold itself.
_DEEPEST = 30


@dataclass(frozen=True, kw_only=True)
class Given:
    """Value of a setting, and where it was given.

    Attributes:
        value: The value.
        level: The higher, the stronger: 1 preset, 2 file, 3 command line or Python.
        where: The same for error messages.
        grows: A preset's step that was chosen at 5 ways: with more it is as much longer (see `presets.displaced`).
        shrinks: A preset's step of a head: for numbers to predict, which are one output, it is a fifth.
    """

    value: Any
    level: int
    where: str
    grows: bool = False
    shrinks: bool = False


@cache  # a command asks some hundred times, and a table's annotations never change
def _hints(form: type) -> dict[str, Any]:
    return get_type_hints(form, include_extras=True)


def sections(form: type) -> Iterator[tuple[str, type]]:
    """(name, table) of the tables inside a table."""
    for name, kind in _hints(form).items():
        if dataclasses.is_dataclass(kind):
            yield name, kind  # type: ignore[misc]


def dotted_fields(form: type, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, annotation, default) of every entry."""
    hints, inner = _hints(form), dict(sections(form))
    for entry in dataclasses.fields(form):
        name = f"{prefix}{entry.name}"
        if entry.name in inner:
            yield from dotted_fields(inner[entry.name], f"{name}.")
        else:
            made = entry.default_factory
            yield name, hints[entry.name], entry.default if made is dataclasses.MISSING else made()


def flattened(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of nested sections.

    Raises:
        InputError: A key below those of a member of the user's own is no text, or holds a dot.
    """
    for key, value in content.items():
        own = prefix.startswith(OPEN)
        if own:
            _check_key(prefix, key)
        if prefix.count(".") > _DEEPEST:
            raise InputError(f"{shown(prefix)}: holds more than {_DEEPEST} levels, or itself; write it flatter")
        if isinstance(value, dict) and (value or not (own or f"{prefix}{key}." in OPEN)):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_key(prefix: str, key: object) -> None:
    """Refuse a key of one's own that its dotted name would not give back."""
    if not isinstance(key, str) or "." in key:
        raise InputError(f"{prefix}{key}: keys of your own are texts without a dot; name it otherwise")


def check_known(form: type, given: Mapping[str, Given]) -> None:
    """Refuse names that the table does not have.

    Raises:
        InputError: Names all of them, each with the nearest that the table has.
    """
    known = [name for name, _, _ in dotted_fields(form)]
    unknown = {name: entry for name, entry in given.items() if name not in known and not name.startswith(OPEN)}
    if unknown:
        words = [f"{name}: {_why_unknown(name, entry.value, known)}" for name, entry in unknown.items()]
        raise InputError(f"{next(iter(unknown.values())).where}: {listed(words)}")


def _why_unknown(name: str, value: Any, known: Sequence[str]) -> str:
    inside = [each for each in known if each.startswith(f"{name}.")]
    if inside:
        held = "nothing" if value is None else shown(value)
        return (
            f"is a section, and holds {held}; write its keys below it ({', '.join(inside[:2])}, ...), or leave it out"
        )
    return f"unknown key{_meant(name, known)}"


def _meant(name: str, known: Sequence[str]) -> str:
    """Words of a guess by the full name of a setting, its last part or its short form; or nothing."""
    spelled: dict[str, list[str]] = {each: [each] for each in known}
    for each in known:
        section, _, last = each.rpartition(".")
        if section:
            spelled.setdefault(last, []).append(each)
    spelled |= {form: [setting] for form, setting in SHORT_FORMS.items()}
    close = closest(name, spelled)
    return f"; did you mean {' or '.join(spelled[close])}?" if close else ""


def check_alone(form: type, name: str, entry: Given) -> None:
    """Check one value that was written in Python, where text is text and a truth value no number.

    Raises:
        InputError: Names the key and the value.
    """
    if name in LISTS or name.startswith(OPEN):
        return
    annotation = next(annotation for known, annotation, _ in dotted_fields(form) if known == name)
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True)).validate_python(entry.value)
    except ValidationError as error:
        raise InputError(f"{entry.where}: {first_problem(error, None, name)}") from None


def _check_plain(name: str, entry: Given, value: Any, depth: int = 0, *, listed: bool = False) -> None:
    """Refuse what config.yaml could not hold as it is: a run is resumed and verified from that file.

    Mappings inside lists are no sections, so any key stands in them.
    """
    if depth > _DEEPEST:
        raise InputError(f"{entry.where}: {name}: holds more than {_DEEPEST} levels, or itself; write it flatter")
    if type(value) is dict:
        for key, inner in value.items():
            if not listed:
                _check_key(f"{name}.", key)
            _check_plain(name if listed else f"{name}.{key}", entry, inner, depth + 1, listed=listed)
    elif type(value) in (list, tuple):
        for inner in value:
            _check_plain(name, entry, inner, depth + 1, listed=True)
    elif type(value) not in (str, bytes, bool, int, float, type(None)):
        raise InputError(
            f"{entry.where}: {name}: expected numbers, texts, truth values, None, lists or mappings of Python, got "
            f"{type(value).__name__}"
        )


def built(form: type[Form], plain: Mapping[str, Any], given: Mapping[str, Given]) -> Form:
    """The table.

    Args:
        form: Its type.
        plain: Entries that are not dotted.
        given: Dotted names, all known.

    Raises:
        InputError: Names the key, the value and where it was given.
    """
    nested: dict[str, Any] = {**plain, **{name: {} for name, _ in sections(form)}}
    annotations = {name: annotation for name, annotation, _ in dotted_fields(form)}
    for name, entry in given.items():
        *above, key = name.split(".")
        place = nested
        for section in above:
            place = place.setdefault(section, {})
        if f"{name}.".startswith(OPEN):
            _check_plain(name, entry, entry.value)
        if name.startswith(OPEN):
            place[key] = entry.value
        else:
            place[key] = _whole(_not_a_truth_value(name, entry, annotations[name]), annotations[name])
    try:
        # Not strictly: YAML reads `1e-4` as text.
        made: Form = adapter_of(form).validate_python(nested, strict=False)
    except ValidationError as error:
        name = ".".join(str(part) for part in error.errors()[0]["loc"])
        where = next((e.where for n, e in given.items() if f"{name}.".startswith(f"{n}.")), "the settings")
        raise InputError(f"{where}: {first_problem(error, form)}") from error
    return made


def _not_a_truth_value(name: str, entry: Given, annotation: Any) -> Any:
    """YAML reads on, off, yes and no as truth values; where none is wanted, `off` is the word."""
    kinds = set(_alternatives(annotation))
    if not isinstance(entry.value, bool) or bool in kinds:
        return entry.value
    if entry.value is False and "off" in kinds:
        return "off"
    words = sorted(kind for kind in kinds if isinstance(kind, str))
    wanted = f"expected {' or '.join(words)}" if words else "a truth value (on, off, yes, no) has no meaning here"
    raise InputError(f"{entry.where}: {name}: {wanted}, got {str(entry.value).lower()}")


def _whole(value: Any, annotation: Any) -> Any:
    """Convert a value such as 1e6, which YAML reads as text, to an integer where a setting takes one."""
    kinds = set(_alternatives(annotation))
    if int not in kinds or isinstance(value, bool) or not isinstance(value, str | float):
        return value
    try:
        number = Decimal(value) if isinstance(value, str) else Decimal(repr(value))
    except InvalidOperation:
        return value
    # No digits that nobody typed: a number of a million digits is a mistake.
    return (
        int(number) if number.is_finite() and abs(number) < 10**40 and number == number.to_integral_value() else value
    )


def takes_text(form: type, name: str) -> bool:
    """Return whether a setting is text, whatever it looks like: YAML reads `timm:` as a section, 2024 as a number."""
    kinds = {
        kind for known, annotation, _ in dotted_fields(form) if known == name for kind in _alternatives(annotation)
    }
    words = any(isinstance(kind, str) for kind in kinds)
    return str in kinds and not words and Ellipsis not in kinds and {dict, Any}.isdisjoint(kinds)


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The types and words that an annotation is made of."""
    parts = get_args(annotation)
    for part in parts:
        yield from _alternatives(part)
    if not parts:
        yield annotation
