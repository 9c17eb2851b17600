"""Parameters of a sweep: values to choose from, or a range to draw from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, StrictFloat, StrictInt, TypeAdapter, ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import first_problem, nearest

Value = str | bool | int | float

_STRICT = ConfigDict(extra="forbid")
_KNOWN = ("constant", "categorical", "int_uniform", "uniform", "q_uniform", "log_uniform", "log_uniform_values")
# W&B draws from these too; they are left to its agents.
_ELSEWHERE = (
    "categorical_w_probabilities", "q_log_uniform", "q_log_uniform_values", "inv_log_uniform",
    "inv_log_uniform_values", "normal", "q_normal", "log_normal", "q_log_normal", "beta", "q_beta",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A finite list; a single value is a constant of the sweep."""

    values: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two bounds.

    Attributes:
        low: Smallest.
        high: Largest.
        step: Distance of neighbours; None: any.
        logarithmic: Whether the logarithm is uniform.
        whole: Whether the numbers are integers.
    """

    low: float
    high: float
    step: float | None = None
    logarithmic: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Value, Value]:
        """Both bounds, as a setting takes them."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


Parameter = Choices | Range


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """The keys of a parameter as they stand; W&B's names."""

    __pydantic_config__ = _STRICT
    value: Any = None
    values: list[Any] | None = None
    distribution: str | None = None
    min: StrictInt | StrictFloat | None = None
    max: StrictInt | StrictFloat | None = None
    q: StrictInt | StrictFloat | None = None


def parse_parameter(name: str, content: Any, *, grid: bool) -> Parameter:
    """Parse an entry under `parameters`.

    Raises:
        InputError: A wrong key or type, a distribution that is not known, or one that a grid cannot list.
    """
    if isinstance(content, dict):
        content = {str(key): entry for key, entry in content.items()}
        if "parameters" in content:
            raise InputError(f"parameters.{name}: nested parameters are not options; write {name}.KEY instead")
    try:
        entry: _Entry = TypeAdapter(_Entry).validate_python(content)
    except ValidationError as error:
        hint = " (in YAML, write 1.0e-4 for 1e-4)" if "1e" in str(error) else ""
        raise InputError(f"parameters.{name}: {first_problem(error, _Entry)}{hint}") from error
    distribution = _distribution(name, entry)
    if distribution == "constant":
        return Choices(values=(_scalar(name, entry.value),))
    if distribution == "categorical":
        return _choices(name, entry.values)
    drawn = _range(name, distribution, entry)
    return _listed(name, drawn) if grid else drawn


def _distribution(name: str, entry: _Entry) -> str:
    stated = entry.distribution
    if stated in _ELSEWHERE:
        raise InputError(
            f"parameters.{name}.distribution = {stated}: not supported here; known are {', '.join(_KNOWN)}"
        )
    if stated is not None and stated not in _KNOWN:
        raise InputError(f"parameters.{name}.distribution = {stated}: unknown{nearest(stated, _KNOWN)}")
    bounded = entry.min is not None or entry.max is not None
    kinds = [kind for kind, given in _given(entry, bounded).items() if given]
    if len(kinds) != 1:
        raise InputError(f"parameters.{name}: give one of value, values, or min and max")
    if kinds[0] != "range":
        if stated not in (None, kinds[0]) or entry.q is not None:
            raise InputError(f"parameters.{name}: {kinds[0]} values have no distribution = {stated} and no q")
        return kinds[0]
    if stated is not None:
        return stated
    whole = isinstance(entry.min, int) and isinstance(entry.max, int)
    return "int_uniform" if whole else "uniform"


def _given(entry: _Entry, bounded: bool) -> dict[str, bool]:
    return {"constant": entry.value is not None, "categorical": entry.values is not None, "range": bounded}


def _range(name: str, distribution: str, entry: _Entry) -> Range:
    where = f"parameters.{name}"
    if distribution in ("constant", "categorical") or entry.min is None or entry.max is None:
        raise InputError(f"{where}: distribution = {distribution} needs " + _needed(distribution))
    low, high, step = float(entry.min), float(entry.max), entry.q
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{where}: min = {low:g} is not below max = {high:g}")
    if (step is not None) != (distribution == "q_uniform") or (step is not None and not step > 0):
        raise InputError(f"{where}.q: a step above 0 goes with q_uniform, and with no other distribution")
    if distribution == "int_uniform" and not (low.is_integer() and high.is_integer()):
        raise InputError(f"{where}: int_uniform needs whole numbers, got {low:g} and {high:g}")
    if distribution == "log_uniform":  # W&B's min and max are exponents of e
        low, high = math.exp(low), math.exp(high)
    logarithmic = distribution.startswith("log")
    if logarithmic and low <= 0:
        raise InputError(f"{where}: {distribution} needs min above 0, got {low:g}")
    whole = distribution == "int_uniform" or (isinstance(step, int) and isinstance(entry.min, int))
    return Range(low=low, high=high, step=step, logarithmic=logarithmic, whole=whole)


def _needed(distribution: str) -> str:
    return {"constant": "value", "categorical": "values"}.get(distribution, "both min and max")


def _choices(name: str, values: list[Any] | None) -> Choices:
    found = tuple(_scalar(name, value) for value in values or ())
    if not found:
        raise InputError(f"parameters.{name}.values: empty, there is nothing to sweep")
    if len({str(value) for value in found}) < len(found):
        raise InputError(f"parameters.{name}.values: a value stands there twice: {list(found)}")
    return Choices(values=found)


def _scalar(name: str, value: Any) -> Value:
    if value is None:
        # An agent would write None, which YAML reads as a word.
        raise InputError(f'parameters.{name}: an empty value; write "null" in quotes for null')
    if not isinstance(value, Value):
        raise InputError(f"parameters.{name}: expected single values, got {value!r}")
    return value


def _listed(name: str, drawn: Range) -> Choices:
    """The numbers of a range, for a grid."""
    step = drawn.step or (1.0 if drawn.whole else None)
    if step is None:
        raise InputError(f"parameters.{name}: a grid needs values, int_uniform or q_uniform, not a range without steps")
    count = math.floor((drawn.high - drawn.low) / step + 1e-9) + 1
    numbers = (drawn.low + index * step for index in range(count))
    return Choices(values=tuple(int(number) if drawn.whole else number for number in numbers))
