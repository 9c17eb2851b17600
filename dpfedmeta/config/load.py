"""Settings from preset < file < command line, with errors that name the key, the value and where it stood."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpfedmeta.config.dataset_names import found_again, with_data_values
from dpfedmeta.config.dotted_keys import LISTS, SHORT_FORMS, Given, built, check_known, flattened, takes_text
from dpfedmeta.config.packaged_files import SETTINGS, read_named
from dpfedmeta.config.presets import algorithm_names, displaced, preset_values
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml, shown


def resolve(
    algo: str | None,
    dataset: str | None,
    file: Path | None = None,
    command_line: Mapping[str, str] | None = None,
    *,
    keep_both: bool = False,
    default_dataset: str | None = None,
    look: bool = True,
) -> Settings:
    """Merge the levels and check every value.

    Args:
        algo: --algo, or None to take it from the file.
        dataset: --dataset, or None to take it from the file.
        file: --config.
        command_line: Dotted names to values as typed.
        keep_both: Whether a noise and a target of one cell may stand together (something else is solved).
        default_dataset: Where nothing else names one.
        look: Whether data of one's own are looked at; else what they decide is the preset's.

    Raises:
        InputError: Names the key, the value, and what would be right.
    """
    from_file = _parse(_read(file), str(file)) if file else {}
    algo = algo or from_file.get("algo")
    from_file.pop("algo", None)
    dataset = dataset or from_file.pop("dataset", default_dataset)
    for key, value in (("algo", algo), ("dataset", dataset)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{file}: {key}: expected text, got {shown(value)}; write it in quotes")
    if algo is None or dataset is None:
        if {"source", "labels", "split"} & {*from_file}:
            raise InputError(f"{file}: is a task, not settings; give it as --dataset, and settings (algo, ...) here")
        raise InputError("--algo and --dataset are needed, on the command line or in the file of --config")
    dataset = found_again(dataset) if look else dataset
    given = _given(algo, dataset, from_file, str(file)) | _typed(command_line or {})
    check_known(Settings, given)
    given = with_data_values(dataset, given, look=look)
    return built(Settings, {"algo": algo, "dataset": dataset}, given if keep_both else displaced(given))


def resolve_text(text: str, where: str) -> Settings:
    """The settings of a config.yaml that another file holds.

    Args:
        text: The whole of it.
        where: Whose text it is, for errors.

    Raises:
        InputError: Names the key, the value, and what would be right.
    """
    content = _parse(text, where)
    algo, dataset = content.get("algo"), content.get("dataset")
    if not isinstance(algo, str) or not isinstance(dataset, str):
        raise InputError(f"{where}: algo or dataset is missing; it needs both")
    said = _given(algo, dataset, content, where)
    check_known(Settings, said)
    return built(Settings, {"algo": algo, "dataset": dataset}, displaced(said))


def _typed(command_line: Mapping[str, str]) -> dict[str, Given]:
    return {
        name: Given(value=_scalar(name, text), level=3, where="the command line") for name, text in command_line.items()
    }


def _given(algo: str, dataset: str, content: Mapping[str, Any], where: str) -> dict[str, Given]:
    """The preset, and what a file says beside algo and dataset."""
    rest = {name: value for name, value in content.items() if name not in ("algo", "dataset")}
    return preset_values(algo, dataset) | {
        name: Given(value=value, level=2, where=where) for name, value in flattened(rest)
    }


def _read(file: Path) -> str:
    try:
        return read_named(file, SETTINGS)
    except OSError as error:
        meant = f"; {file} is a preset: --algo {file}" if str(file) in algorithm_names() else ""
        raise InputError(f"{file}: cannot be read ({error.strerror}){meant}") from error
    except WrongEncoding as error:
        raise InputError(f"{file}: cannot be read ({error})") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = read_yaml(text)
    except YAML_ERRORS as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise InputError(
            f"{where}: expected sections with keys in YAML (`server:`, below it `  rounds: 100`), found {found}"
        )
    if {"method", "parameters"} <= content.keys():
        raise InputError(f"{where}: is a sweep of settings; run it with: dpfedmeta sweep {where}")
    return content


def _scalar(name: str, text: str) -> Any:
    if takes_text(Settings, name):
        named = name in ("run.name", "run.dir", "model.name")  # a run may be called null
        return None if text in ("null", "~") and not named else text
    if not text.strip():
        # Perhaps a variable of a shell that is not set: a target that is lost without a word is a promise lost.
        raise InputError(f"--{name}: the value is empty; write one, or null for none")
    try:
        value = read_yaml(text)
    except YAML_ERRORS as error:
        said = f" ({error})" if type(error) is yaml.YAMLError else ""
        raise InputError(f"--{name}: cannot read the value {text!r}{said}") from error
    if isinstance(value, dict | list) and name not in LISTS:
        raise InputError(f"--{name}: expected a single value, got {text!r}")
    return value


def to_yaml(settings: Settings) -> str:
    """The fully resolved settings; reading them back gives the same run."""
    return yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False)


def of_preset(algo: str, dataset: str | None, command_line: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a preset, whatever the task is.

    Args:
        algo: Its name.
        dataset: Presets may say something else for one of them; None: what holds for the others.
        command_line: What is given besides: dotted names to values as typed.

    Raises:
        InputError: There is no such preset, or a value is refused.
    """
    given = preset_values(algo, dataset or "") | _typed(command_line or {})
    check_known(Settings, given)
    return built(Settings, {"algo": algo, "dataset": dataset or ""}, displaced(given))


def describe(holding: Settings | None = None, names: Collection[str] | None = None) -> str:
    """Settings with their meaning, for --help.

    Args:
        holding: Whose values are shown; None: the defaults.
        names: Which of them; None: all.
    """
    values = {} if holding is None else dict(flattened(dataclasses.asdict(holding)))
    short = {target: f"--{name}" for name, target in SHORT_FORMS.items()}
    lines = []
    for name, annotation, default in setting_fields():
        if name in ("algo", "dataset") or (names is not None and name not in names):
            continue
        meaning = next((m.description for m in annotation.__metadata__ if getattr(m, "description", None)), "")
        value = values.get(name, default)
        shown = "null" if value is None else value
        if isinstance(value, float) and math.isfinite(value):
            shown = f"{value:g}" if float(f"{value:g}") == value else repr(value)
        alias = f" ({short[name]})" if name in short else ""
        lines.append(f"  --{name}{alias} [{shown}]\n      {meaning}")
    return "\n".join(lines)
