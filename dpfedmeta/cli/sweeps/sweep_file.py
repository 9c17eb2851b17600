"""Sweep files: the YAML of `wandb sweep`, checked; what only W&B's agents can do is refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, TypeAdapter, ValidationError

from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.packaged_files import SWEEPS, read_named
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, first_problem, nearest, read_yaml

# The only number that a search may look at, on public classes. Test classes choose nothing (docs/sweeps.md).
METRIC = "validation_accuracy/mean"
# Options of train that are no settings but may be swept.
CHOICES = ("algo", "dataset", "config")
SET_BY_THE_SWEEP = ("run.name", "run.dir")
_PLACES = ("${env}", "${interpreter}", "${program}", "${args}")
_DISTRIBUTIONS = ("uniform", "int_uniform", "q_uniform", "log_uniform", "log_uniform_values")
# Runs of a grid: more would be a mistake in the file sooner than a plan. And e to this power is a float.
MOST, _MOST_EXPONENT = 10_000, 700
_STRICT = ConfigDict(extra="forbid")

Value = str | bool | int | float
Method = Literal["grid", "random", "bayes"]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Finite list of values; a single one is a constant of the sweep."""

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
    def values(self) -> tuple[Value, ...]:
        """Both bounds, as a setting takes them."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


Parameter = Choices | Range


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Content of a sweep file.

    Attributes:
        method: How combinations are chosen.
        parameters: What is swept or set, by full option name, in the order of the file.
        command: Further settings that every run gets, from the words of `command`.
        run_cap: The most runs; None only for grids.
    """

    method: Method
    parameters: Mapping[str, Parameter]
    command: Mapping[str, str]
    run_cap: int | None


@dataclass(frozen=True, kw_only=True)
class _Metric:
    __pydantic_config__ = _STRICT
    name: str
    goal: Literal["maximize", "minimize"] = "minimize"


@dataclass(frozen=True, kw_only=True)
class _File:
    """The keys of the file as they stand; W&B's names."""

    __pydantic_config__ = _STRICT
    program: str
    method: str
    parameters: dict[str, Any]
    metric: _Metric | None = None
    command: tuple[str, ...] = _PLACES
    run_cap: Annotated[int, Field(ge=1)] | None = None
    early_terminate: Any = None
    name: str | None = None
    description: str | None = None
    project: str | None = None
    entity: str | None = None


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


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        InputError: Unreadable, or a key, a name, a type or a distribution that is not known; says which.
    """
    try:
        content = read_yaml(read_named(path, SWEEPS))
    except (OSError, WrongEncoding) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read ({reason})") from error
    except YAML_ERRORS as error:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    try:
        file: _File = TypeAdapter(_File).validate_python(content)
        _check_keys(file)
        return Sweep(
            method=cast(Method, file.method),
            parameters=_parameters(file),
            command=_settings_of(file.command),
            run_cap=file.run_cap,
        )
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, _File)}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check_keys(file: _File) -> None:
    grid, known = file.method == "grid", get_args(Method)
    if file.method not in known:
        close = nearest(file.method, known)
        raise InputError(f"method = {file.method}: unknown{close}; known are {', '.join(known)}")
    if PurePosixPath(file.program).name != "train.py":
        raise InputError(f"program = {file.program}: only scripts/train.py can be swept")
    if file.early_terminate is not None:
        raise InputError(
            "early_terminate: not supported here, every run goes to its end; take it out, or use `wandb agent`"
        )
    if file.metric is None and not grid:
        raise InputError(f"metric: missing; a {file.method} search needs name: {METRIC}, goal: maximize")
    if file.metric is not None and file.metric.name != METRIC:
        hint = "test classes must not choose settings; " if file.metric.name.startswith("accuracy") else ""
        raise InputError(f"metric.name = {file.metric.name}: {hint}use {METRIC}, from public validation classes")
    if file.metric is not None and file.metric.goal != "maximize":
        raise InputError("metric.goal: write goal: maximize, since it is an accuracy (W&B's default is minimize)")
    if not file.parameters:
        raise InputError("parameters: empty, there is nothing to sweep")
    if file.run_cap is None and not grid:
        raise InputError(f"run_cap: missing; a {file.method} search has no end of its own")


def _parameters(file: _File) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for name, entry in file.parameters.items():
        full = _option_name(name)
        if full in parameters:
            raise InputError(f"parameters: {name} occurs twice (as {full})")
        parameters[full] = _parameter(f"parameters.{name}", entry, grid=file.method == "grid")
    return parameters


def _option_name(name: str) -> str:
    """Return the full name of a swept option."""
    full = SHORT_FORMS.get(name, name)
    known = [*(setting for setting, _, _ in setting_fields()), *CHOICES]
    if full in SET_BY_THE_SWEEP:
        raise InputError(f"{name}: the sweep sets it for each run; take it out")
    if inside := [setting for setting in known if setting.startswith(f"{name}.")]:
        raise InputError(
            f"parameters: {name}: is a section; nested parameters are not read: name a setting in it, as "
            f"{inside[0]}: ..."
        )
    if full not in known:
        raise InputError(f"parameters: {name}: not a setting{nearest(name, [*known, *SHORT_FORMS])}")
    return full


def _settings_of(command: tuple[str, ...]) -> dict[str, str]:
    """The settings between ${program} and ${args}; tracking is for W&B's agents, which would see no metric else."""
    if tuple(word for word in command if word.startswith("${")) != _PLACES or command[:3] != _PLACES[:3]:
        raise InputError(f"command: expected {' '.join(_PLACES[:3])}, settings as --name=value, and {_PLACES[3]}")
    given: dict[str, str] = {}
    for word in command:
        name, equals, value = word.removeprefix("--").partition("=")
        if word in _PLACES:
            continue
        if not word.startswith("--") or not equals:
            raise InputError(f"command: {word}: write settings as --name=value")
        full = _option_name(name)
        if full in given:
            raise InputError(f"command: {name} occurs twice (as {full})")
        given[full] = value
    given.pop("track.wandb", None)
    return given


def _parameter(where: str, content: Any, *, grid: bool) -> Parameter:
    if isinstance(content, dict) and "parameters" in content:
        raise InputError(f"{where}: nested parameters are not options; write {where.partition('.')[2]}.KEY instead")
    try:
        entry: _Entry = TypeAdapter(_Entry).validate_python(content)
    except ValidationError as error:
        hint = " (in YAML, write 1.0e-4 for 1e-4)" if "1e" in str(error) else ""
        raise InputError(f"{where}: {first_problem(error, _Entry)}{hint}") from error
    given = {
        "constant": entry.value is not None,
        "categorical": entry.values is not None,
        "range": entry.min is not None or entry.max is not None,
    }
    kinds = [kind for kind, is_given in given.items() if is_given]
    stated, known = entry.distribution, ("constant", "categorical", *_DISTRIBUTIONS)
    if stated is not None and stated not in known:
        close = nearest(stated, known)
        raise InputError(f"{where}.distribution = {stated}: not supported here{close}; known are {', '.join(known)}")
    if len(kinds) != 1:
        raise InputError(f"{where}: give one of value, values, or min and max")
    if kinds[0] == "range":
        return _range(where, entry, grid=grid)
    if stated not in (None, kinds[0]) or entry.q is not None:
        raise InputError(f"{where}: {kinds[0]} values have no distribution = {stated} and no q")
    return _choices(where, [entry.value] if entry.values is None else entry.values)


def _choices(where: str, values: list[Any]) -> Choices:
    for value in values:
        if value is None:  # an agent would write None, which YAML reads as a word
            raise InputError(f'{where}: an empty value; write "null" in quotes for null')
        if not isinstance(value, Value):
            raise InputError(f"{where}: expected single values, got {value!r}")
    if not values:
        raise InputError(f"{where}.values: empty, there is nothing to sweep")
    if len({str(value) for value in values}) < len(values):
        raise InputError(f"{where}.values: a value stands there twice: {values}")
    return Choices(values=tuple(values))


def _as_float(number: float) -> float:
    """Infinite, which is refused, where a whole number is beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _range(where: str, entry: _Entry, *, grid: bool) -> Parameter:
    both_whole = isinstance(entry.min, int) and isinstance(entry.max, int)
    kind, step = entry.distribution or ("int_uniform" if both_whole else "uniform"), entry.q
    if kind not in _DISTRIBUTIONS or entry.min is None or entry.max is None:
        needed = {"constant": "value", "categorical": "values"}.get(kind, "both min and max")
        raise InputError(f"{where}: distribution = {kind} needs {needed}")
    low, high = _as_float(entry.min), _as_float(entry.max)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{where}: min = {low:g} is not below max = {high:g}")
    if (step is not None) != (kind == "q_uniform") or (step is not None and not step > 0):
        raise InputError(f"{where}.q: expected a step above 0 with q_uniform, and no q with other distributions")
    if kind == "int_uniform" and not (low.is_integer() and high.is_integer()):
        raise InputError(f"{where}: int_uniform needs whole numbers, got {low:g} and {high:g}")
    if kind == "log_uniform":  # W&B's min and max are exponents of e
        if max(abs(low), abs(high)) > _MOST_EXPONENT:
            raise InputError(
                f"{where}: log_uniform takes exponents of e, up to {_MOST_EXPONENT}, got {low:g} and {high:g}; for the "
                "values themselves write distribution: log_uniform_values"
            )
        low, high = math.exp(low), math.exp(high)
    if kind.startswith("log") and low <= 0:
        raise InputError(f"{where}: {kind} needs min above 0, got {low:g}")
    whole = kind == "int_uniform" or (isinstance(step, int) and isinstance(entry.min, int))
    if not grid:
        return Range(low=low, high=high, step=step, logarithmic=kind.startswith("log"), whole=whole)
    step = step or (1.0 if whole else None)
    if step is None:
        raise InputError(f"{where}: a grid needs values, int_uniform or q_uniform, not a range without steps")
    steps = (high - low) / step
    if not steps < MOST:
        raise InputError(f"{where}: has {steps:.3g} steps from min to max, a grid takes {MOST:,} runs at most")
    numbers = [low + index * step for index in range(math.floor(steps + 1e-9) + 1)]
    return Choices(values=tuple(int(number) if whole else number for number in numbers))
