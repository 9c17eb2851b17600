"""A sweep file: the YAML that `wandb sweep` takes, as values; what cannot be run here is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpfedmeta.cli.sweeps.parameters import Parameter, parse_parameter
from dpfedmeta.config.packaged_files import SWEEPS, read_named
from dpfedmeta.config.presets import SHORT_FORMS
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding
from dpfedmeta.core.pydantic_errors import first_problem, nearest, read_yaml

# What a search may look at: the public validation classes. Test classes choose nothing (docs/sweeps.md).
METRIC = "validation_accuracy/mean"
# W&B's agents call the file; here it says that `dpfedmeta train` is meant.
_PROGRAM = "train.py"

# Options of train that are no settings but may be swept.
CHOICES = ("algo", "dataset", "config")
# Where a run goes is decided by whoever starts it.
RESERVED = ("run.name", "run.dir")
_PLACES = ("${env}", "${interpreter}", "${program}")
_ARGUMENTS = "${args}"
# Words of `command` that are for W&B's agents: without a login there is nothing to track locally.
_FOR_AGENTS = ("track.wandb",)
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Metric that random and bayes searches maximise."""

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
    metric: Metric | None = None
    command: tuple[str, ...] = (*_PLACES, _ARGUMENTS)
    run_cap: Annotated[int, Field(ge=1)] | None = None
    early_terminate: Any = None
    name: str | None = None
    description: str | None = None
    project: str | None = None
    entity: str | None = None


Method = Literal["grid", "random", "bayes"]


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


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        InputError: Unreadable, or a key, a name, a type or a distribution that is not known; says which.
    """
    try:
        content = read_yaml(read_named(path, SWEEPS))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except WrongEncoding as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    try:
        file: _File = TypeAdapter(_File).validate_python(content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, _File)}") from error
    try:
        return _checked(file)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _checked(file: _File) -> Sweep:
    method = _method(file.method)
    if PurePosixPath(file.program).name != _PROGRAM:
        raise InputError(f"program = {file.program}: only scripts/{_PROGRAM} can be swept")
    if file.early_terminate is not None:
        raise InputError(
            "early_terminate: not supported here, every run goes to its end; take it out, or use `wandb agent`"
        )
    _check_metric(file.metric, method)
    if not file.parameters:
        raise InputError("parameters: empty, there is nothing to sweep")
    parameters: dict[str, Parameter] = {}
    for name, entry in file.parameters.items():
        full = option_name(name)
        if full in parameters:
            raise InputError(f"parameters: {name} stands there twice (as {full})")
        parameters[full] = parse_parameter(name, entry, grid=method == "grid")
    if method != "grid" and file.run_cap is None:
        raise InputError(f"run_cap: missing; a {method} search has no end of its own")
    return Sweep(method=method, parameters=parameters, command=_settings_of(file.command), run_cap=file.run_cap)


def _method(name: str) -> Method:
    for known in ("grid", "random", "bayes"):
        if name == known:
            return known
    raise InputError(
        f"method = {name}: unknown{nearest(name, ('grid', 'random', 'bayes'))}; known are grid, random, bayes"
    )


def _check_metric(metric: Metric | None, method: Method) -> None:
    if metric is None:
        if method == "grid":
            return
        raise InputError(f"metric: missing; a {method} search needs name: {METRIC}, goal: maximize")
    if metric.name != METRIC:
        hint = "test classes choose nothing; " if metric.name.startswith("accuracy") else ""
        raise InputError(f"metric.name = {metric.name}: {hint}use {METRIC}, from public validation classes")
    if metric.goal != "maximize":
        raise InputError("metric.goal: an accuracy is to grow; write goal: maximize (W&B's default is minimize)")


def option_name(name: str) -> str:
    """The full name of a swept option.

    Raises:
        InputError: Not an option of train.py, or one that a sweep sets itself.
    """
    full = SHORT_FORMS.get(name, name)
    known = [*(setting for setting, _, _ in setting_fields()), *CHOICES]
    if full in RESERVED:
        raise InputError(f"{name}: set for every run by whoever starts it; take it out")
    if full not in known:
        raise InputError(f"parameters: {name}: not a setting{nearest(name, [*known, *SHORT_FORMS])}")
    return full


def _settings_of(command: tuple[str, ...]) -> dict[str, str]:
    """The settings between ${program} and ${args}."""
    order = (*_PLACES, _ARGUMENTS)
    if tuple(word for word in command if word.startswith("${")) != order or command[:3] != order[:3]:
        raise InputError(f"command: expected {' '.join(order[:3])}, settings as --name=value, and {_ARGUMENTS}")
    given: dict[str, str] = {}
    for word in command:
        if word.startswith("${"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals:
            raise InputError(f"command: {word}: write settings as --name=value")
        full = option_name(name)
        if full not in _FOR_AGENTS:
            given[full] = value
    return given
