"""Columns of a table: found by name, which are ours, which are features, and which became features by accident."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import listed, nearest
from dpfedmeta.data.missing import COMMA_WORDS, OWNER_WORDS, has_comma, number_of

TARGET = "target"
"""Column of numbers to predict, in the place of classes."""
OWNERS = ("client", "class", TARGET, "split")
# Other words for our columns. None of them is taken for ours: that is the owner's to say.
_MEANT: Mapping[str, tuple[str, ...]] = {
    "client": (
        *("client", "user", "subject", "patient", "participant", "person", "speaker", "writer", "owner", "individual"),
        *("center", "centre", "site", "hospital", "clinic", "ward", "institution", "practice", "school", "student"),
        *("device", "phone", "wearer", "mrn", "household", "account", "customer", "member", "employee", "session"),
        *("group", "cohort", "case", "silo", "node", "worker", "annotator", "author"),
    ),
    "class": ("class", "label", "target", "category", "klass"),
    "split": ("split", "partition", "subset", "fold"),
    "path": ("path", "file", "filename", "filepath", "imagepath", "imagefile"),
    "tokens": ("token", "tokenid"),
}
_ENDINGS = ("", "s", "es", "id", "ids", "name", "names", "number", "no", "nr", "idx", "index", "code")
_NUMBERING = (
    "",
    "index",
    "idx",
    "id",
    "uuid",
    "rowname",
    "rownames",
    "rowid",
    "row",
    "rowindex",
    "rownumber",
    "rownum",
)
_FEWEST_ROWS, _FEWEST_CLASSES = 8, 5
# Correlation of a column with the numbers to predict from which it is asked about.
_ALIKE = 0.98
# A column that names owners has some of them, each with several rows; two values are those of a yes or no.
_FEWEST_OWNERS, _FEWEST_OWNED = 3, 4
# How much larger than a quarter of all columns one may be.
_UNLIKE = 10.0
# Public deviations between a column's mean and the task's, where it is asked about; those of a constant column; and how
# much smaller or larger its spread may be.
_FAR, _FAR_CONSTANT, _SPREAD = 5.0, 1.5, 10.0
# Two groups of a column, of which one may be in another unit: the least share of each, numbers that differ in each, how
# much wider than a deviation of either the gap is, by how much deviations may differ, and how much larger one group is
# (a mile is 1.6 km); all in logarithms. The last: how much of the smaller group classes must leave untold.
_GROUP, _DIFFERING, _GAP, _ALIKE_SPREAD, _LARGER, _TOLD = 0.1, 5, 3.0, 2.0, 1.5, 0.5


def meant(name: str) -> str | None:
    """The column of ours that a name is a near miss of: another case, a plural, a swapped or lost letter, a synonym."""
    plain = re.sub(r"[\W_]+", "", name.lower())
    if name in _MEANT:
        return None
    for ours, words in _MEANT.items():
        stems = {word.removesuffix("s") for word in (*words, ours)} | {*words, ours}
        if plain in {stem + ending for stem in stems for ending in _ENDINGS} or _mistyped(plain, ours):
            return ours
    return None


def _mistyped(plain: str, ours: str) -> bool:
    """Two neighbours swapped, or one letter lost or doubled."""
    swapped = {ours[:i] + ours[i + 1] + ours[i] + ours[i + 2 :] for i in range(len(ours) - 1)}
    lost = {ours[:i] + ours[i + 1 :] for i in range(len(ours))} if len(ours) > len("path") else set()
    doubled = {ours[: i + 1] + ours[i:] for i in range(len(ours))}
    return plain in swapped | lost | doubled


def check_columns(path: Path, names: Sequence[str]) -> None:
    """Refuse columns that would become features by accident: numberings of rows, and near misses of our own names.

    Raises:
        InputError: Names all of them, with what was meant.
    """
    problems = []
    for place, name in enumerate(names, start=1):
        ours = None if name == TARGET and "class" not in names else meant(name)
        if _numbers_rows(name):
            shown = f"column {name}" if name else f"column {place} (it has no name)"
            problems.append(f"{shown}: a numbering of the rows, as pandas writes its index; write with index=False")
        elif ours is not None:
            problems.append(f"column {name}: unknown; did you mean {ours}?")
    if problems:
        raise InputError(
            f"{path}: {listed(problems)}; each would be a feature that reveals the row, the client or the class: "
            "remove it, or correct its name; if it is a measurement, give it another name"
        )


def _numbers_rows(name: str) -> bool:
    plain = re.sub(r"[\W_]+", "", name.lower())
    return plain in _NUMBERING or re.fullmatch(r"(unnamed|(index)?level)\d+(level\d+)?", plain) is not None


def has_names(given: object) -> bool:
    """Return whether records say which number is which: a table, a mapping, or a list of mappings."""
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        return True
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], Mapping)


def by_name(given: Any) -> dict[str, Any]:
    """Each column by its name, of a table (pandas, polars), a mapping, or a list of mappings of single records.

    Raises:
        InputError: A name stands twice, records have other names, or nothing is found by a name.
    """
    if isinstance(given, Sequence) and not isinstance(given, Mapping):
        if len({tuple(sorted(map(str, each))) if isinstance(each, Mapping) else None for each in given}) != 1:
            raise InputError("records: not all have the same names")
        return {str(name): [each[name] for each in given] for name in given[0]}
    keys = [*(given if isinstance(given, Mapping) else given.columns)]
    if twice := [name for name, count in Counter(map(str, keys)).items() if count > 1]:
        raise InputError(f"records: column {twice[0]}: named twice; leave one of them out")
    try:
        return {str(key): given[key] for key in keys}
    except TypeError:
        kind = type(given).__name__
        raise InputError(f"records: a {kind} gives no column by its name; hand over a table (.collect())") from None


def in_public_order(where: str, held: Mapping[str, Any], columns: Sequence[str], whose: str) -> list[Any]:
    """Columns by their public names, in the order of these; our own columns are left out.

    Args:
        where: The records, for errors.
        held: Each column by its name.
        columns: The public names.
        whose: These are, for errors.

    Raises:
        InputError: Others are there, some are missing, or they are of several lengths.
    """
    odd = [f"{name}: unknown{nearest(name, columns)}" for name in held if name not in {*columns, *OWNERS}]
    odd += [f"{name}: missing" for name in columns if name not in held]
    if odd:
        raise InputError(f"{where}: column {listed(odd)}; {whose} are {', '.join(columns) or 'not known'}")
    lengths = {name: int(np.asarray(held[name]).size) for name in columns}
    if len({*lengths.values()}) > 1:
        raise InputError(f"{where}: columns of different lengths: {lengths}")
    return [held[name] for name in columns]


def numbers_of(where: str, names: Sequence[str], held: Sequence[Any]) -> npt.NDArray[np.float64]:
    """[n, columns] of columns as people hand them in.

    Raises:
        InputError: A column has a mask, or not all of it are numbers; names all that are none.
    """
    made, odd = [], list[tuple[int, str, str]]()
    for name, values in zip(names, held, strict=True):
        if np.ma.is_masked(values):
            raise InputError(f"{where}: column {name}: has a mask, under which numbers are missing; leave those out")
        given = np.asarray(values).reshape(-1)
        # Dates would be numbers of nanoseconds.
        own = (given.astype(str) if given.dtype.kind in "mM" else given).tolist()
        numbers = [_number(value) for value in own] if given.dtype.kind not in "fiu" else own
        odd += [(place, name, str(own[place])) for place, number in enumerate(numbers) if number is None]
        made.append(numbers)
    if odd:
        said = [f"record {place + 1}, column {name}: {text!r:.42} is not a number" for place, name, text in sorted(odd)]
        commas = any(has_comma(text) for *_, text in odd)
        remedy = COMMA_WORDS if commas else "leave these records out, or write numbers"
        raise InputError(f"{where}: {len(odd)} value(s) are not numbers: {listed(said)}; {remedy}")
    return np.array(made, dtype=np.float64).T


def _number(value: Any) -> float | None:
    try:
        return number_of(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def check_same_rows(records: Any, targets: Any) -> None:
    """Refuse records and targets whose rows have other names, or stand in another order.

    Raises:
        InputError: They do; or targets name their rows, and records are an array, which has them by place.
    """
    held, own = _row_names(records), _row_names(targets)
    if held is not None and own is not None and held != own:
        raise InputError("records and targets name their rows otherwise (index), so they do not belong together")
    if held is None and own is not None and own != [*range(len(own))]:
        raise InputError(
            "targets name their rows (index) and records have them by place; hand over targets.to_numpy(), in the "
            "order of the records"
        )


def _row_names(part: Any) -> list[Any] | None:
    """The index of a table, a series, or a mapping of series (pandas); None: rows have no names."""
    one: Any = next(iter(part.values()), None) if isinstance(part, Mapping) else part
    return [*one.index] if hasattr(one, "to_numpy") and hasattr(one, "index") else None


def feature_words(columns: Sequence[str], owners: Sequence[str]) -> str:
    """Which columns are features, and how many, in words."""
    shown = ", ".join(columns if len(columns) <= 6 else (*columns[:3], "...", *columns[-2:]))
    taken = ", ".join(name for name in OWNERS if name in owners)
    return f"{len(columns)} feature{'' if len(columns) == 1 else 's'}: {shown} (all columns but {taken})"


def telling_columns(columns: Sequence[str], records: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Warnings of columns that alone tell the class, or that grow with the row.

    Args:
        columns: Names of the features.
        records: [n, features]: public records where it is shown to anybody but their owner.
        labels: Class of each.
    """
    if len(records) < _FEWEST_ROWS:
        return ()
    said = []
    steps = np.diff(records, axis=0)
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    for number, name in enumerate(columns):
        if (steps[:, number] > 0).all() or (steps[:, number] < 0).all():
            said.append(f"column {name} grows or falls with every row: is it a numbering?")
        elif len(names) >= _FEWEST_CLASSES and len(records) >= 2 * len(names) and _tells(records[:, number], codes):
            said.append(f"column {name} alone tells the class: is it another name of the class?")
    return tuple(said)


def target_columns(columns: Sequence[str], records: Any, targets: Any) -> tuple[str, ...]:
    """Warnings of columns that are the number to predict, or nearly.

    Args:
        columns: Names of the features.
        records: [n, features], as of `telling_columns`; NaN where a value is missing.
        targets: [n], numbers to predict.
    """
    said = []
    for number, name in enumerate(columns):
        known = np.isfinite(records[:, number]) & np.isfinite(targets)
        own, due = records[known, number], targets[known]
        if len(own) < _FEWEST_ROWS or not (own.std() and due.std()):
            continue
        alike = abs(float(np.corrcoef(own, due)[0, 1]))
        if alike >= _ALIKE:
            said.append(f"column {name} is nearly the number to predict (correlation {alike:.3f}): is it known before?")
    return tuple(said)


def constant_columns(columns: Sequence[str], records: Any) -> tuple[str, ...]:
    """SECRET: columns in which all records have one number, which says nothing; as of `telling_columns`, NaN left out.

    Args:
        columns: Names of the features.
        records: [n, features].
    """
    if len(records) < _FEWEST_ROWS:
        return ()
    held = [values[np.isfinite(values)] for values in np.asarray(records, dtype=np.float64).T]
    same = [f"{name} ({own[0]:g})" for name, own in zip(columns, held, strict=True) if len({*own.tolist()}) == 1]
    return (f"column(s) with one number in all records, which tell nothing: {listed(same)}",) if same else ()


def owning_columns(columns: Sequence[str], records: Any) -> tuple[str, ...]:
    """Question about columns whose values look like names of owners: few whole numbers, each with several rows.

    Args:
        columns: Names of the features.
        records: [n, features], as of `telling_columns`; of data that name no clients.
    """
    found = []
    for number, name in enumerate(columns):
        # Some rows may lack an owner.
        values, counts = np.unique(records[np.isfinite(records[:, number]), number], return_counts=True)
        whole = bool((values == np.round(values)).all())
        if whole and len(values) >= _FEWEST_OWNERS and counts.min() >= _FEWEST_OWNED:
            found.append(f"{name} ({len(values)} values)")
    if not found:
        return ()
    return (f"column(s) of few whole numbers, each in several rows: {listed(found)}; {OWNER_WORDS}",)


def unlike_columns(
    columns: Sequence[str], records: Any, mean: Sequence[float], deviation: Sequence[float]
) -> tuple[str, ...]:
    """Warning of columns that would drown others, since a network sees them in another unit.

    Args:
        columns: Names of the features.
        records: [n, features], as of `telling_columns`.
        mean: As in the task file.
        deviation: Likewise.
    """
    if {len(mean or columns), len(deviation or columns)} != {records.shape[1]}:
        return ()  # the task file is of another table, which is refused where the records are opened
    seen = np.abs((records - np.asarray(mean or (0.0,))) / np.asarray(deviation or (1.0,)))
    known = np.isfinite(seen)
    size = np.where(known, seen, 0.0).sum(0) / np.maximum(1, known.sum(0))
    held = np.flatnonzero(size > 0)
    if len(held) < 2:
        return ()
    small, large = held[np.argmin(size[held])], held[np.argmax(size[held])]
    if size[large] <= _UNLIKE * np.quantile(size[held], 0.25):
        return ()
    return (
        f"columns differ in scale: a network sees {columns[large]} as numbers of about {size[large]:.2g} and "
        f"{columns[small]} of {size[small]:.2g}, so the large ones decide; write mean: and deviation: into the task "
        f"file, {len(columns)} public constants each (from a textbook, never from private records)",
    )


def _tells(values: Any, codes: Any) -> bool:
    """Return whether the value ranges of the classes are disjoint."""
    ordered = codes[np.lexsort((codes, values))]
    runs = 1 + int((np.diff(ordered) != 0).sum())
    lowest: dict[float, set[int]] = {}
    for value, code in zip(values.tolist(), codes.tolist(), strict=True):
        lowest.setdefault(value, set()).add(code)
    return runs == len(np.unique(codes)) and all(len(found) == 1 for found in lowest.values())


def other_units(
    columns: Sequence[str], records: Any, mean: Sequence[float], deviation: Sequence[float]
) -> tuple[str, ...]:
    """SECRET: questions about columns that look as if they held another unit than the task's, or were not measured.

    Args:
        columns: Names of the first features; of arrays none: their places.
        records: [n, features], as of `telling_columns`; NaN where a value is missing.
        mean: As in the task file; without, nothing is known.
        deviation: Likewise.
    """
    said, width = [], records.shape[1]
    if not (mean and deviation):
        return ()
    names = [*columns, *map(str, range(len(columns) + 1, width + 1))][:width]
    constants = (np.broadcast_to(np.asarray(given), (width,)) for given in (mean, deviation))
    for name, values, centre, unit in zip(names, records.T, *constants, strict=True):
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        far, spread = abs(float(known.mean()) - centre) / unit, float(known.std()) / unit
        few = len(known) < _FEWEST_ROWS
        if far > _FAR:
            why = f"its mean lies {far:.0f} public deviations from the task's: is it in another unit?"
        elif not few and spread == 0 and far > _FAR_CONSTANT:
            why = f"all {len(known):,} values are {known[0]:g}: was it not measured? Then say missing: in the task"
        elif not few and 0 < spread < 1 / _SPREAD and far > _FAR_CONSTANT:
            why = f"its spread is 1/{1 / spread:.0f} of the task's: is it in another unit?"
        elif not few and spread > _SPREAD:
            why = f"its spread is {spread:.0f} times the task's: is it in another unit?"
        else:
            continue
        said.append(f"column {name}: {why}")
    return tuple(said)


def two_units(columns: Sequence[str], records: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """SECRET: questions about columns of which a part looks as if it were in another unit: two groups, far apart.

    In another unit numbers are a multiple, so in logarithms the groups are equally wide; and every class has some of
    both. Columns with numbers that are not positive are not looked at.

    Args:
        columns: Names of the features.
        records: [n, features], as of `telling_columns`; NaN where a value is missing.
        labels: Class of each.
    """
    said, codes = [], np.unique(np.asarray(labels), return_inverse=True)[1]
    for name, values in zip(columns, np.asarray(records, dtype=np.float64).T, strict=True):
        there = np.isfinite(values)
        known = np.sort(values[there])
        least = max(_FEWEST_ROWS, int(np.ceil(_GROUP * len(known))))
        if len(known) < 2 * least or known[0] <= 0:
            continue
        place = least + int(np.argmax(np.diff(np.log(known))[least - 1 : len(known) - least]))
        lower, upper = known[:place], known[place:]
        if _are_units(lower, upper) and not _told(values[there] >= upper[0], codes[there]):
            said.append(
                f"column {name}: {len(lower):,} values from {lower[0]:g} to {lower[-1]:g}, {len(upper):,} from "
                f"{upper[0]:g} to {upper[-1]:g}, and none between: is a part of them in another unit?"
            )
    return tuple(said)


def _are_units(lower: npt.NDArray[np.float64], upper: npt.NDArray[np.float64]) -> bool:
    """Return whether sorted numbers look as if they were one quantity in two units."""
    low, high = np.log(lower), np.log(upper)
    small, large = sorted((float(low.std()), float(high.std())))
    return bool(
        min(len(np.unique(group)) for group in (lower, upper)) >= _DIFFERING
        and high[0] - low[-1] > _GAP * large
        and large <= _ALIKE_SPREAD * small
        and np.median(high) - np.median(low) > np.log(_LARGER)
    )


def _told(above: npt.NDArray[np.bool_], codes: npt.NDArray[np.int64]) -> bool:
    """Return whether classes tell most of which group a value is in; else every class has some of both."""
    left = sum(min(int(above[codes == each].sum()), int((~above[codes == each]).sum())) for each in np.unique(codes))
    return left < _TOLD * min(int(above.sum()), int((~above).sum()))
