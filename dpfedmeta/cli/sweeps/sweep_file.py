"""Sweep files, the YAML of `wandb sweep`, and the trials that one stands for: of a list, or proposed by Optuna."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, TypeAdapter, ValidationError

from dpfedmeta.config.dotted_keys import OPEN, SHORT_FORMS
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
_RANGES = ("uniform", "int_uniform", "q_uniform", "log_uniform", "log_uniform_values")
# What each form of a parameter must be given with.
_NEEDED = {"constant": "value", "categorical": "values", **dict.fromkeys(_RANGES, "both min and max")}
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
    """Numbers from `low` to `high`, in steps or any, uniform or by their logarithm, whole or not."""

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
        return _sweep(read_yaml(read_named(path, SWEEPS)))
    except (OSError, WrongEncoding) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read ({reason})") from error
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, _File)}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except YAML_ERRORS as error:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error


def _refuse(where: str, rules: Mapping[str, bool]) -> None:
    """Refuse by the first words that hold."""
    if (words := next((words for words, holds in rules.items() if holds), None)) is not None:
        raise InputError(f"{where}{words}")


def _sweep(content: Any) -> Sweep:
    file: _File = TypeAdapter(_File).validate_python(content)
    search, known, metric = file.method != "grid", get_args(Method), file.metric
    name, goal = (metric.name, metric.goal) if metric else (METRIC, "maximize")
    of_test = "test classes must not choose settings; " if name.startswith("accuracy") else ""
    _refuse("", {
        f"method = {file.method}: unknown{nearest(file.method, known)}; known are {', '.join(known)}":
            file.method not in known,
        f"program = {file.program}: only scripts/train.py can be swept": PurePosixPath(file.program).name != "train.py",
        "early_terminate: not supported here, every run goes to its end; take it out, or use `wandb agent`":
            file.early_terminate is not None,
        f"metric: missing; a {file.method} search needs name: {METRIC}, goal: maximize": search and metric is None,
        f"metric.name = {name}: {of_test}use {METRIC}, from public validation classes": name != METRIC,
        "metric.goal: write goal: maximize, since it is an accuracy (W&B's default is minimize)": goal != "maximize",
        "parameters: empty, there is nothing to sweep": not file.parameters,
        f"run_cap: missing; a {file.method} search has no end of its own": search and file.run_cap is None,
    })  # fmt: skip
    names = _full_names("parameters", file.parameters)
    return Sweep(
        method=cast(Method, file.method),
        parameters={
            full: _parameter(f"parameters.{name}", entry, grid=not search)
            for full, (name, entry) in zip(names, file.parameters.items(), strict=True)
        },
        command=_settings_of(file.command),
        run_cap=file.run_cap,
    )


def _full_names(where: str, names: Iterable[str]) -> list[str]:
    """Names of options in full, each of which may stand there once."""
    known, found = [*(setting for setting, _, _ in setting_fields()), *CHOICES], list[str]()
    for name in names:
        full = SHORT_FORMS.get(name, name)
        inside = next((setting for setting in known if setting.startswith(f"{name}.")), None)
        _refuse("", {
            f"{name}: the sweep sets it for each run; take it out": full in SET_BY_THE_SWEEP,
            f"parameters: {name}: is a section; nested parameters are not read: name a setting in it, as {inside}: ...":
                inside is not None,
            f"parameters: {name}: not a setting{nearest(name, [*known, *SHORT_FORMS])}":
                full not in known and not full.startswith(OPEN),
            f"{where}: {name} occurs twice (as {full})": full in found,
        })  # fmt: skip
        found.append(full)
    return found


def _settings_of(command: tuple[str, ...]) -> dict[str, str]:
    """The settings between ${program} and ${args}; tracking is for W&B's agents, which would see no metric else."""
    words = [word for word in command if not word.startswith("${")]
    unset = next((word for word in words if not word.startswith("--") or "=" not in word), None)
    _refuse("command: ", {
        f"expected {' '.join(_PLACES[:3])}, settings as --name=value, and {_PLACES[3]}":
            tuple(word for word in command if word not in words) != _PLACES or command[:3] != _PLACES[:3],
        f"{unset}: write settings as --name=value": unset is not None,
    })  # fmt: skip
    names, _, values = zip(*(word[2:].partition("=") for word in words), strict=True) if words else ((), (), ())
    given = dict(zip(_full_names("command", names), values, strict=True))
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
    ranged = entry.min is not None or entry.max is not None
    given = {"constant": entry.value is not None, "categorical": entry.values is not None, "range": ranged}
    stated, kind = entry.distribution, next((kind for kind in given if given[kind]), None)
    _refuse(where, {
        f".distribution = {stated}: not supported here{nearest(str(stated), _NEEDED)}; known are {', '.join(_NEEDED)}":
            stated not in (None, *_NEEDED),
        ": give one of value, values, or min and max": sum(given.values()) != 1,
        f": {kind} values have no distribution = {stated} and no q":
            not ranged and (stated not in (None, kind) or entry.q is not None),
    })  # fmt: skip
    if ranged:
        return _range(where, entry, grid=grid)
    values = [entry.value] if entry.values is None else entry.values
    other = next((value for value in values if value is not None and not isinstance(value, Value)), None)
    _refuse(where, {
        # An agent would write None, which YAML reads as a word.
        ': an empty value; write "null" in quotes for null': None in values,
        f": expected single values, got {other!r}": other is not None,
        ".values: empty, there is nothing to sweep": not values,
        f".values: a value stands there twice: {values}": len({str(value) for value in values}) < len(values),
    })  # fmt: skip
    return Choices(values=tuple(values))


def _as_float(number: float | None) -> float:
    """Not finite, which is refused, where there is no number, or a whole one is beyond all floats."""
    try:
        return math.nan if number is None else float(number)
    except OverflowError:
        return math.inf


def _range(where: str, entry: _Entry, *, grid: bool) -> Parameter:
    both_whole = isinstance(entry.min, int) and isinstance(entry.max, int)
    kind, step = entry.distribution or ("int_uniform" if both_whole else "uniform"), entry.q
    low, high, by = (_as_float(number) for number in (entry.min, entry.max, step))
    _refuse(where, {
        f": distribution = {kind} needs {_NEEDED[kind]}": kind not in _RANGES or None in (entry.min, entry.max),
        f": min = {low:g} is not below max = {high:g}": not -math.inf < low < high < math.inf,
        ".q: expected a step above 0 with q_uniform, and no q with other distributions":
            (step is not None) != (kind == "q_uniform") or (step is not None and not 0 < by < math.inf),
        f": int_uniform needs whole numbers, got {low:g} and {high:g}":
            kind == "int_uniform" and not (low.is_integer() and high.is_integer()),
        f": log_uniform takes exponents of e, up to {_MOST_EXPONENT}, got {low:g} and {high:g}; for the values "
        "themselves write distribution: log_uniform_values":
            kind == "log_uniform" and max(abs(low), abs(high)) > _MOST_EXPONENT,
        f": {kind} needs min above 0, got {low:g}": kind == "log_uniform_values" and low <= 0,
    })  # fmt: skip
    if kind == "log_uniform":  # W&B's min and max are exponents of e
        low, high = math.exp(low), math.exp(high)
    whole = kind == "int_uniform" or (isinstance(step, int) and isinstance(entry.min, int))
    if not grid:
        return Range(low=low, high=high, step=step, logarithmic=kind.startswith("log"), whole=whole)
    apart = by if step is not None else 1.0
    steps = (high - low) / apart
    _refuse(where, {
        ": a grid needs values, int_uniform or q_uniform, not a range without steps": step is None and not whole,
        f": has {steps:.3g} steps from min to max, a grid takes {MOST:,} runs at most": not steps < MOST,
    })  # fmt: skip
    numbers = [low + index * apart for index in range(math.floor(steps + 1e-9) + 1)]
    return Choices(values=tuple(int(number) if whole else number for number in numbers))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Run of a sweep.

    Attributes:
        number: Its place in the sweep, from 0.
        name: Name of its run directory.
        key: Hash of everything below.
        parameters: The sweep's own parameters, by full option name.
        fixed: What every run gets besides.
    """

    number: int
    name: str
    key: str
    parameters: Mapping[str, Value]
    fixed: Mapping[str, str]

    @property
    def options(self) -> dict[str, str]:
        """All options as train.py is given them; the user's own are the stronger ones."""
        return {**{name: str(value) for name, value in self.parameters.items()}, **self.fixed}


def make_trial(number: int, sweep: Sweep, parameters: Mapping[str, Value], fixed: Mapping[str, str]) -> Trial:
    """A trial with its name; the same values have the same name."""
    content = json.dumps({"parameters": parameters, "fixed": fixed}, sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()
    varying = [name for name in parameters if len(sweep.parameters[name].values) > 1]
    words = "_".join(f"{name.rsplit('.', 1)[-1]}-{_plain(name, parameters[name])}" for name in varying)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", words)[:80].strip("-._")
    return Trial(number=number, name=f"{name or 'run'}-{key[:8]}", key=key, parameters=parameters, fixed=fixed)


def _plain(name: str, value: Value) -> str:
    if name == "config":
        return Path(str(value)).stem
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def without_fixed(sweep: Sweep, fixed: Mapping[str, str]) -> Sweep:
    """A parameter that is given on the command line is no longer swept.

    Raises:
        InputError: Nothing is left, or several values are given.
    """
    for name in sweep.parameters:
        value = fixed.get(name, "")
        if "," in value or value.startswith("["):
            listed = ", ".join(part.strip(" []") for part in value.split(","))
            raise InputError(
                f"--{name} {value}: the command line takes one value for all runs; to sweep over several, write into "
                f"the sweep's file: parameters: {{{name}: {{values: [{listed}]}}}}"
            )
    parameters = {name: parameter for name, parameter in sweep.parameters.items() if name not in fixed}
    if not parameters:
        raise InputError("every parameter of the sweep is set on the command line: there is nothing to sweep")
    return replace(sweep, parameters=parameters)


def trials_of(sweep: Sweep, fixed: Mapping[str, str]) -> tuple[Trial, ...]:
    """Every combination of a grid, the last parameter varying fastest.

    Of a search, which has no list: every value, and both ends of every range, with the others as they come first.

    Raises:
        InputError: More combinations than anybody meant.
    """
    lists = {name: parameter.values for name, parameter in sweep.parameters.items()}
    first = {name: values[0] for name, values in lists.items()}
    combinations = [first, *({**first, name: value} for name, values in lists.items() for value in values[1:])]
    if sweep.method == "grid":
        count = math.prod(map(len, lists.values()))
        if count > MOST:
            raise InputError(f"parameters: {count:,} combinations; more than {MOST:,} are refused, use method: random")
        products = itertools.islice(itertools.product(*lists.values()), sweep.run_cap)
        combinations = [dict(zip(lists, values, strict=True)) for values in products]
    return tuple(make_trial(number, sweep, values, fixed) for number, values in enumerate(combinations))


def propose(number: int, sweep: Sweep, past: Iterable[tuple[Mapping[str, Value], float | None]]) -> dict[str, Value]:
    """Values of trial `number` of a random or bayes search, after runs with these values and validation accuracies.

    bayes is Optuna's tree-structured Parzen estimator (W&B's own is a Gaussian process); runs that still go have no
    accuracy and count as poor ones, so that parallel runs spread.
    """
    import optuna  # takes a while to load, and a grid needs none of it

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {name: _distribution(parameter) for name, parameter in sweep.parameters.items()}
    bayes, samplers, states = sweep.method == "bayes", optuna.samplers, optuna.trial.TrialState
    sampler = samplers.TPESampler(seed=number, constant_liar=True) if bayes else samplers.RandomSampler(seed=number)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, accuracy in past if bayes else ():
        state = states.RUNNING if accuracy is None else states.COMPLETE
        given = optuna.trial.create_trial(params=dict(values), distributions=space, value=accuracy, state=state)
        study.add_trial(given)
    drawn = study.ask(space).params
    return {name: drawn[name] for name in sweep.parameters}


def _distribution(parameter: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.values)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), step=int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.logarithmic, step=parameter.step)
