"""Validation errors of pydantic in one sentence: the key, the value and the nearest known key."""

import copy
import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

# What yaml.safe_load raises besides its own errors: on 5,000 digits, on a 99th month, on a thousand brackets.
YAML_ERRORS = (yaml.YAMLError, ValueError, OverflowError, TypeError, AttributeError, LookupError, RecursionError)
# Pydantic's reader of a dataclass of ours, made once: it takes 10 to 30 ms.
adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class _EachKeyOnce(yaml.SafeLoader):
    """PyYAML without its surprises: of a key that stands twice it takes the last, it reads 1:30 as 90 and 010 as 8."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, unless a key is in it twice."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise yaml.YAMLError(f"{key.value} occurs twice, in lines {lines[key.value]} and {line}; keep one")
                lines[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """A number, unless it means another one than it looks like."""
        text = node.value.replace("_", "").lstrip("+-")
        made = self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)
        if ":" in text or re.fullmatch("0[0-9]+", text):
            raise yaml.YAMLError(f"{node.value}: YAML reads this as {made}; write a plain number, or text in quotes")
        return made


for _kind in ("int", "float"):
    _EachKeyOnce.add_constructor(f"tag:yaml.org,2002:{_kind}", _EachKeyOnce.construct_number)


def read_yaml(text: str) -> Any:
    """The content of a YAML text in which no section names a key twice.

    Raises:
        yaml.YAMLError: It is none; of a key that stands twice, says which and where. Further, the other YAML_ERRORS.
    """
    return copy.deepcopy(_parsed(text))  # the caller's own, to change


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Parse once: a command reads its preset and its task several times, and PyYAML takes 20 ms for each."""
    return yaml.load(text, _EachKeyOnce)


def shown(value: object) -> str:
    """A value for an error message; short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def first_problem(error: ValidationError, form: Any, place: str = "") -> str:
    """The first problem as `key: what is wrong, got value`.

    Args:
        error: What pydantic says.
        form: The type that was asked for.
        place: Where it stands in a larger one: `section.`, or the name of a single value.
    """
    problems = error.errors()
    # Of the alternatives of a union, the one that was followed deepest is the one that was meant.
    problem = max((p for p in problems if p["loc"][:1] == problems[0]["loc"][:1]), key=lambda p: len(p["loc"]))
    inner = ".".join(str(part) for part in problem["loc"] if str(part).isidentifier())
    key = f"{place}{inner}" if place.endswith(".") or not place else place
    key = key.removesuffix(".") or "the whole"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key}: unknown key{nearest(key.split('.')[-1], _field_names(form))}"
    if problem["type"] == "unexpected_positional_argument":
        return f"{key}: give every value by its name (name=value), got {shown(problem['input'])}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("dataclass_type", "dataclass_exact_type", "mapping_type", "dict_type"):
        return f"{key}: expected names and values (`name: value`), got {shown(problem['input'])}"
    if problem["type"] == "missing":
        return f"{key}: missing"
    if problem["type"] in _NO_NUMBER and isinstance(problem["input"], str | float):
        whole = problem["type"] != "float_parsing"
        given = problem["input"]
        share = key.endswith("cohort") and str(given).strip().endswith("%")
        remedy = "; write how many clients, no share of them" if share else as_number(given, whole=whole)
        return f"{key}: {_NO_NUMBER[problem['type']]}, got {shown(given)}{remedy}"
    text = f"{key}: {message[0].lower()}{message[1:]}, got {shown(problem['input'])}"
    if problem["type"] == "string_type" and not isinstance(problem["input"], dict | list | type(None)):
        return f"{key}: expected text, got {problem['input']}; write it in quotes"
    words = re.findall("'([^']*)'", problem["ctx"]["expected"]) if problem["type"] == "literal_error" else []
    if not isinstance(problem["input"], str):
        return text
    meant = _OTHER_WORDS.get(problem["input"])
    return text + (f"; did you mean {meant}?" if meant in words else nearest(problem["input"], words))


_NO_NUMBER = {
    "float_parsing": "expected a number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
}
# What other programs call it.
_OTHER_WORDS = {"gpu": "cuda"}
_UNITS = {"%": Decimal("0.01"), "k": Decimal(1000), "m": Decimal(10**6)}


def as_number(given: str | float, *, whole: bool) -> str:
    """'; write 1.5' for 1,5, 3/2, 150% or 400k; nothing where no number can be meant."""
    text = str(given).strip().lower()
    share = re.fullmatch(r"(\d{1,15})/0*([1-9]\d{0,14})", text)
    if share and not whole:
        return f"; write {int(share[1]) / int(share[2]):.6g}"
    unit = _UNITS.get(text[-1:], Decimal(1))
    digits = text[:-1] if text[-1:] in _UNITS else text
    if digits == text and "," not in text:
        return ""
    # 400,000 is a whole number with marks in it, 1,500 may be one, and 1,5 is none.
    marked = re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", digits) is not None
    read = [digits.replace(",", "")] if marked else []
    if not (marked and (whole or digits.count(",") > 1)):
        read.append(digits.replace(",", "."))
    values = [Decimal(each) * unit for each in read if re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?", each)]
    if whole:
        # A share of a number that is not known here is none.
        values = [value for value in values if value == value.to_integral_value() and not text.endswith("%")]
    return f"; write {' or '.join(f'{value.normalize():f}' for value in values)}" if values else ""


def _field_names(form: Any) -> Iterator[str]:
    """Names of the fields of a dataclass and of the dataclasses inside it."""
    if dataclasses.is_dataclass(form):
        for name, kind in get_type_hints(form).items():
            yield name
            yield from _field_names(kind)
    for part in get_args(form):
        yield from _field_names(part)


MOST_LISTED = 10


def listed(entries: Sequence[str]) -> str:
    """Problems in one line: the first of them, and how many more there are."""
    more = len(entries) - MOST_LISTED
    return "; ".join(entries[:MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")


def reasons(why: Sequence[str]) -> str:
    """Reasons in one line, the first of each place; each remedy, behind a semicolon, once and at the end."""
    first, remedies = list[str](), dict[str, None]()
    for what, *others in (words.split("; ") for words in why):
        first.append(what)
        # One row may have several reasons, each of which begins with its place.
        place = what.partition(",")[0]
        remedies |= dict.fromkeys(each for each in others if not each.startswith(f"{place},"))
    return "; ".join([listed(first), *([listed([*remedies])] if remedies else [])])


def counted_words(count: int, what: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' or nothing."""
    close = closest(name, known)
    return f"; did you mean {close}?" if close else ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one is most like, in any case; None: it is like none."""
    by_form = {each.lower().replace("_", "-"): each for each in known}
    close = difflib.get_close_matches(name.lower().replace("_", "-"), list(by_form), n=1, cutoff=0.6)
    return by_form[close[0]] if close else None
