"""Missing values of tables: public words for them, a public constant in their place, a column that says where."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, nearest

FloatRows = npt.NDArray[np.float64]
# So that nobody's plan has a client compare each value with a book.
_MOST_WORDS, _LONGEST_WORD = 100, 40
_SHOWN = 10
# A number that many rows share, and others of which there are enough to have a spread.
_FEWEST_SHARED, _SHARED, _FEWEST_OTHERS = 4, 0.02, 8
OWNER_WORDS = (
    "does it say whose a row is (a person, a site, a device)? Then call it client: without that, clients are "
    "simulated, and nothing is promised to those people"
)
"""Question about a column whose values recur."""
# Fewer values are those of a yes or no.
_FEWEST_OWNERS = 3
# As pandas, R, SAS, SQL and people write it; in any case but None, since `none` is a class of some data.
_MISSING = frozenset(
    (
        *("<na>", "n/a", "na", "n.a.", "nan", "-nan", "nat", "null", "(null)", "[null]", "<null>", "\\n", "(blank)"),
        *("missing", "<missing>", "missing value", "not available", "undefined", "1.#ind", "1.#qnan", "-1.#ind"),
        *("-1.#qnan", "#n/a", "#na", "#nv", "#n/d", "#n/b", "#getting_data"),
    )
)
# Errors of spreadsheets in any language (#REF!, #NAME?), and dashes, dots and the like alone.
_MARK = re.compile(r"#[\w/ ]+[!?]|[-\u2010-\u2015\u2212.?*_/~\s]+")


@dataclass(frozen=True, kw_only=True)
class MissingValues:
    """Key `missing` of a task file: values of a vector's columns that say that nothing was measured.

    All of it is public. So each row is read by itself: no mean of other rows takes the place of what is missing.

    Attributes:
        values: As they are written, in all columns. A number is meant however it is written; "" is a blank, and NaN.
        columns: Further ones of single columns, by name: a cholesterol of 0.
        replaced_by: What the network sees in their place, once numbers are standardised: one for all columns, or one
            for each. Of a record's form (`in_raw`) in the columns' own units instead.
        indicators: Names of the columns that get a further one, 1 where the value is missing, else 0; None: all do.
    """

    values: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced_by: tuple[float, ...] = (0.0,)
    indicators: tuple[str, ...] | None = None

    def added(self, features: int) -> int:
        """Number of indicators."""
        return features if self.indicators is None else len(self.indicators)

    def in_raw(self, features: int, mean: Sequence[float], deviation: Sequence[float]) -> MissingValues:
        """The same with what stands in the place of a missing value before it is standardised.

        Args:
            features: Columns of a table.
            mean: As in a task file.
            deviation: Likewise.
        """
        centre, spread = np.asarray(mean or (0.0,)), np.asarray(deviation or (1.0,))
        raw = np.broadcast_to(np.asarray(self.replaced_by) * spread + centre, (features,))
        return replace(self, replaced_by=tuple(raw.tolist()))

    def absent(self, rows: Sequence[Sequence[object]] | FloatRows, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """[n, columns], which values are missing.

        Args:
            rows: [n, columns], as they are written, or numbers.
            names: Of the columns.
        """
        found = np.zeros((len(rows), len(names)), dtype=np.bool_)
        for place, name in enumerate(names):
            words = _Words.of((*self.values, *self.columns.get(name, ())))
            if isinstance(rows, np.ndarray) and rows.dtype.kind == "f":
                found[:, place] = np.isin(rows[:, place], words.numbers) | (np.isnan(rows[:, place]) & words.blank)
            else:
                found[:, place] = [words.hold(row[place]) for row in rows]
        return found

    def filled(self, numbers: FloatRows, absent: npt.NDArray[np.bool_], names: Sequence[str]) -> FloatRows:
        """[n, columns + indicators], of a record's form: constants in the place of what is missing, and where it was.

        Args:
            numbers: [n, columns]; whatever stands where one is missing.
            absent: As of `absent`.
            names: Of the columns.
        """
        marked = names if self.indicators is None else self.indicators
        shown = absent[:, [names.index(name) for name in marked]]
        return np.column_stack([np.where(absent, np.asarray(self.replaced_by), numbers), shown])

    def measured(self, records: npt.NDArray[Any], names: Sequence[str]) -> npt.NDArray[Any]:
        """The numbers of `filled` records, without indicators, and without what these say is missing."""
        marked = names if self.indicators is None else self.indicators
        held = np.ones((len(records), len(names)), dtype=np.bool_)
        held[:, [names.index(name) for name in marked]] = records[:, len(names) : len(names) + len(marked)] == 0
        return records[:, : len(names)][held]

    def check(self, where: str, features: int) -> None:
        """Check that it can be meant, whatever the columns are called.

        Raises:
            InputError: Says which key cannot.
        """
        words = [*self.values, *(word for own in self.columns.values() for word in own)]
        if not words or len(words) > _MOST_WORDS:
            raise InputError(f'{where}: missing.values: expected 1 to {_MOST_WORDS} values; write ["?", "", -999]')
        for word in words:
            if len(word) > _LONGEST_WORD or not all(map(str.isprintable, word)):
                raise InputError(f"{where}: missing.values: {word[:_LONGEST_WORD]!r}: too long, or cannot be printed")
        if len(self.replaced_by) not in (1, features):
            raise InputError(f"{where}: missing.replaced_by: expected 1 value for all columns, or {features}")
        if self.indicators is not None and len({*self.indicators}) < len(self.indicators):
            raise InputError(f"{where}: missing.indicators: a column stands there twice")

    def check_names(self, where: str, names: Sequence[str]) -> None:
        """Check that all columns that it names are there.

        Raises:
            InputError: Says which are not.
        """
        given = dict.fromkeys([*self.columns, *(self.indicators or ())])
        odd = [f"{name}{nearest(name, names)}" for name in given if name not in names]
        if odd:
            raise InputError(f"{where}: missing: no column {listed(odd)}; the columns are {', '.join(names)}")


def names_of(columns: Sequence[str], features: int) -> list[str]:
    """Names of columns; those of arrays are 1, 2, ..."""
    return [*columns] or [str(number) for number in range(1, features + 1)]


def _quoted(word: str) -> str:
    return word if number_of(word) is not None and not isnan(float(word)) else json.dumps(word)


def _as_list(shown: Iterable[str]) -> str:
    return f"[{', '.join(shown)}]"


def key_as_a_whole(
    known: MissingValues | None, more: Iterable[str] = (), single: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Key `missing` of a task file as a whole, with what it says already: two of them would replace each other.

    Args:
        known: What it says already.
        more: Further words for what is missing, in all columns.
        single: Further ones of single columns.
    """
    before, single = known or MissingValues(indicators=None), single or {}
    values = [*before.values, *(word for word in more if word not in before.values)]
    own = {name: [*before.columns.get(name, ()), *single.get(name, ())] for name in {**before.columns, **single}}
    found = {"values": _as_list(map(_quoted, values))} if values else {}
    if own:
        shown = (f"{_as_key(name)}: {_as_list(map(_quoted, words))}" for name, words in own.items())
        found["columns"] = f"{{{', '.join(shown)}}}"
    if before.replaced_by != (0.0,):
        found["replaced_by"] = _as_list(f"{each:g}" for each in before.replaced_by)
    if before.indicators is not None:
        found["indicators"] = _as_list(map(_as_key, before.indicators))
    alone = found.keys() == {"values"}
    return f"missing: {found['values'] if alone else '{' + ', '.join(f'{k}: {v}' for k, v in found.items()) + '}'}"


def _as_key(name: str) -> str:
    return name if re.fullmatch(r"[^\W\d][\w.()%/ -]*", name) else json.dumps(name, ensure_ascii=False)


def remedies(
    odd: Mapping[str, Counter[str]], rows: int, known: MissingValues | None = None, *, owned: bool = True
) -> str:
    """Advice on values that are no numbers.

    Args:
        odd: Of each column that holds such, how often it holds each.
        rows: How many rows there are; one alone does not tell what the column holds.
        known: What the task file says of missing values.
        owned: Whether the data name clients already.
    """
    text, others = _text_and_others(odd, rows)
    owners = [name for name in text if not owned and _recurs(odd[name])]
    said = [
        f"no number anywhere in {listed(names)}: {first}leave it out, or code it as numbers"
        for names, first in ((owners, f"{OWNER_WORDS}. Else "), ([n for n in text if n not in owners], ""))
        if names
    ]
    if any(map(has_comma, others)):
        said.append(COMMA_WORDS)
    if marks := _marks(others, rows):
        said.append(f"if nothing was measured there, write into the task file: {key_as_a_whole(known, marks)}")
    return "; ".join(said or ["write numbers there, or leave these records or this column out"])


def _text_and_others(odd: Mapping[str, Counter[str]], rows: int) -> tuple[list[str], Counter[str]]:
    """Columns that hold no number at all, and what stands in the place of numbers in the others."""
    full = {name for name, words in odd.items() if words.total() == rows > 1}
    text = [name for name in odd if name in full and not all(is_missing(word) or not word for word in odd[name])]
    return text, sum((words for name, words in odd.items() if name not in text), Counter[str]())


def _marks(others: Counter[str], rows: int) -> list[str]:
    """Words that may say that nothing was measured, the most frequent first."""
    marks = {w: n for w, n in others.items() if not has_comma(w) and (is_missing(w) or not w or (n > 1 and rows > 1))}
    return [word for word, _ in Counter(marks).most_common(_SHOWN)]


def _recurs(words: Counter[str]) -> bool:
    """Return True for texts that look like names of owners, most with several rows."""
    return len(words) >= _FEWEST_OWNERS and words.total() >= 2 * len(words)


def look_for_missing(
    rows: Sequence[Sequence[Any]] | FloatRows,
    names: Sequence[str],
    known: MissingValues | None,
    what: str = "records",
    *,
    owned: bool = True,
) -> tuple[FloatRows, npt.NDArray[np.bool_], tuple[str, ...]]:
    """Numbers of a table, and where values are missing or look so, in words for whoever may see the rows.

    Args:
        rows: [n, columns], as they are written, or numbers.
        names: Of the columns.
        known: What the task file says of missing values.
        what: The rows are, in the plural.
        owned: Whether the data name clients already.

    Returns:
        [n, columns], 0 where the task file says that a value is missing, NaN where it is no number; where it says so;
        and the words.
    """
    absent = known.absent(rows, names) if known else np.zeros((len(rows), len(names)), dtype=np.bool_)
    numbers = np.full(absent.shape, np.nan)
    said, odd, far = list[str](), dict[str, Counter[str]](), list[tuple[str, str, str]]()
    for place, name in enumerate(names):
        texts = ["0" if lost else str(row[place]).strip() for row, lost in zip(rows, absent[:, place], strict=True)]
        own = [number_of(text) for text in texts]
        numbers[:, place] = [np.nan if number is None else number for number in own]
        if absent[:, place].any():
            said.append(f"{name} {int(absent[:, place].sum()):,}")
        if none := Counter(text for text, number in zip(texts, own, strict=True) if number is None or isnan(number)):
            odd[name] = none
        far += _far(name, numbers[~absent[:, place], place], what)
    lines = []
    if known is not None:
        marked = (
            "all columns get one that says where"
            if known.indicators is None
            else (f"{len(known.indicators)} get one that says where ({', '.join(known.indicators) or 'none'})")
        )
        some = f" miss something: {', '.join(said)}" if said else " miss anything"
        count = f"{int(absent.any(1).sum()):,}" if said else "none"
        lines.append(f"missing values: of {len(rows):,} {what} {count}{some}; {marked}")
    if odd:
        shown = [
            f"{name} {counts.total():,} ({', '.join(w or 'blank' for w in [*counts][:3])})"
            for name, counts in odd.items()
        ]
        lines.append(
            f"no number in some columns: {listed(shown)}; such records are refused, and null records of a real client; "
            f"{remedies(odd, len(rows), known, owned=owned)}"
        )
    if far:
        columns = {name: [value for own, value, _ in far if own == name] for name, *_ in far}
        marks = _marks(_text_and_others(odd, len(rows))[1], len(rows))
        questions, whole = "; ".join(words for *_, words in far), key_as_a_whole(known, marks, columns)
        lines.append(f"{questions}; if nothing was measured there, write into the task file: {whole}")
    return numbers, absent, tuple(lines)


def far_from_others(names: Sequence[str], numbers: FloatRows, what: str = "records") -> tuple[str, ...]:
    """Questions about numbers of [n, columns] that stand in several rows, far beyond all others of their column."""
    each = (_far(name, own, what) for name, own in zip(names, numbers.T, strict=True))
    return tuple(f"{words}: was nothing measured there?" for found in each for *_, words in found)


def _far(name: str, numbers: FloatRows, what: str) -> list[tuple[str, str, str]]:
    """(Column, number, question) of a number that stands in several rows, far beyond all others.

    Of one that many rows share the others' middle half is the measure, and most of their gaps: single ones lie far out.
    """
    numbers = numbers[np.isfinite(numbers)]
    values, counts = np.unique(numbers, return_counts=True)
    asked = []
    for value, count, others in ((values[:1], counts[:1], values[1:]), (values[-1:], counts[-1:], values[:-1])):
        if len(others) < 2 or count[0] < 2:
            continue
        gap = float(np.abs(others - value[0]).min())
        nines = re.fullmatch(r"-?9+", f"{value[0]:.0f}") is not None
        wide, shared = (0.5 if nines else 3.0) * float(others[-1] - others[0]), False
        if count[0] >= max(_FEWEST_SHARED, _SHARED * len(numbers)) and len(others) >= _FEWEST_OTHERS:
            low, high = np.quantile(numbers[numbers != value[0]], (0.25, 0.75))
            shared = gap > max(float(high - low), float(np.quantile(np.diff(others), 0.9)))
        if gap > wide or shared:
            words = f"far from all others ({others[0]:g} to {others[-1]:g})"
            asked.append((name, f"{value[0]:g}", f"column {name}: {value[0]:g} in {count[0]:,} {what}, {words}"))
    return asked


def missing_of(given: Any, where: str) -> dict[str, Any]:
    """Key `missing` of a task file as pydantic takes it: a list of values, or a mapping; YAML reads 0 as a number.

    Raises:
        InputError: It is neither.
    """
    said = {"values": given} if isinstance(given, list | tuple) else given
    if not isinstance(said, Mapping):
        raise InputError(
            f'{where}: missing: expected a list, found {given!r}; write missing: ["?", "", -999], or missing: '
            '{values: ["?"], replaced_by: 0, indicators: [chol]}'
        )
    found = dict(said)
    found["values"] = _texts(found.get("values", ()), f"{where}: missing.values")
    if "columns" in found:
        own = found["columns"]
        if not isinstance(own, Mapping):
            raise InputError(f"{where}: missing.columns: expected values by column, as {{chol: [0]}}, found {own!r}")
        found["columns"] = {str(name): _texts(words, f"{where}: missing.columns.{name}") for name, words in own.items()}
    if isinstance(number := found.get("replaced_by"), int | float):
        found["replaced_by"] = (number,)
    if found.get("indicators") == "all":
        found["indicators"] = None
    elif "indicators" in found:
        found["indicators"] = _texts(found["indicators"], f"{where}: missing.indicators")
    return found


def _texts(given: Any, where: str) -> tuple[str, ...]:
    """A list of words as texts; a blank item of YAML is a blank."""
    if not isinstance(given, list | tuple) or any(isinstance(word, bool | list | dict) for word in given):
        raise InputError(f'{where}: expected a list, with words in quotes (["?", "no"]), found {given!r}')
    return tuple("" if word is None else str(word).strip() for word in given)


@dataclass(frozen=True, kw_only=True)
class _Words:
    texts: frozenset[str]
    numbers: tuple[float, ...]
    blank: bool

    @classmethod
    def of(cls, words: Sequence[str]) -> _Words:
        numbers = [number for word in words if (number := number_of(word)) is not None]
        blank = "" in words or any(map(isnan, numbers))
        return cls(texts=frozenset(words), numbers=tuple(n for n in numbers if not isnan(n)), blank=blank)

    def hold(self, value: object) -> bool:
        # As pandas and polars have a missing one.
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            return self.blank
        text = str(value).strip()
        if text in self.texts or (self.blank and not text):
            return True
        number = number_of(text) if self.numbers or self.blank else None
        return number is not None and (number in self.numbers or (self.blank and isnan(number)))


def is_missing(name: str) -> bool:
    """Return whether a name is what programs and people write where one is missing, or where a formula failed."""
    return name == "None" or name.casefold() in _MISSING or _MARK.fullmatch(name) is not None


COMMA_WORDS = "write decimals with a point, 1.5 in place of 1,5"


def has_comma(text: str) -> bool:
    """Return whether this is a number as it is written where a comma stands before its decimals."""
    return re.fullmatch(r"[-+]?\d+,\d+", text.strip()) is not None


def number_of(text: str) -> float | None:
    """The number that is written; None: none is. Python alone reads 1_234 as one, and nobody else writes so."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
