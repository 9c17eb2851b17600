"""Settings from preset < file < command line, with errors that name the key, the value and where it stood."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from dpfedmeta.errors import InputError
from dpfedmeta.settings import Settings
from dpfedmeta.validation import YAML_ERRORS, first_problem, nearest

SHORT_FORMS: Mapping[str, str] = {
    "rounds": "server.rounds",
    "clients": "population.clients",
    "cohort": "population.cohort",
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
_LISTS = ("server.schedule",)

# Settings of members of the user's own: any key below these.
OPEN = ("clip.own.", "meta.own.")

# A noise and a target of one cell displace each other; the stronger level wins.
_CELLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("privacy.client.epsilon", ("server.noise_multiplier",)),
    ("privacy.record.epsilon", ("record.support_noise", "record.query_noise")),
)


@dataclass(frozen=True)
class Given:
    """One value and where it was given."""

    value: Any
    level: int
    where: str


def algorithm_names() -> list[str]:
    """Names of the presets in configs/algo/."""
    folder = resources.files("dpfedmeta.configs") / "algo"
    return sorted(f.name[: -len(".yaml")] for f in folder.iterdir() if f.name.endswith(".yaml"))


def setting_fields(form: type = Settings, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, annotation, default) of every setting."""
    hints = get_type_hints(form, include_extras=True)
    for entry in dataclasses.fields(form):
        name = f"{prefix}{entry.name}"
        if dataclasses.is_dataclass(hints[entry.name]):
            yield from setting_fields(hints[entry.name], f"{name}.")
        else:
            made = entry.default_factory
            yield name, hints[entry.name], entry.default if made is dataclasses.MISSING else made()


def resolve(
    algo: str | None,
    dataset: str | None,
    file: Path | None = None,
    command_line: Mapping[str, str] | None = None,
    *,
    keep_both: bool = False,
) -> Settings:
    """Merge the levels and check every value.

    Args:
        algo: --algo, or None to take it from the file.
        dataset: --dataset, or None to take it from the file.
        file: --config.
        command_line: Dotted names to values as typed.
        keep_both: Whether a noise and a target of one cell may stand together (something else is solved).

    Raises:
        InputError: Names the key, the value, and what would be right.
    """
    from_file = _parse(_read(file), f"--config {file}") if file else {}
    algo = algo or from_file.pop("algo", None)
    dataset = dataset or from_file.pop("dataset", None)
    if not isinstance(algo, str) or not isinstance(dataset, str):
        raise InputError("--algo and --dataset are needed, on the command line or in the file of --config")
    given = _given(algo, dataset, from_file, str(file))
    for name, text in (command_line or {}).items():
        given[name] = Given(_scalar(name, text), 3, "the command line")
    _check_known(given)
    return _build(algo, dataset, given if keep_both else _displace(given))


def resolve_text(text: str, where: str, unsaid: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a config.yaml that another file holds.

    Args:
        text: The whole of it.
        where: Whose text it is, for errors.
        unsaid: Dotted names to values that hold where the text does not say them.

    Raises:
        InputError: Names the key, the value, and what would be right.
    """
    content = _parse(text, where)
    algo, dataset = content.get("algo"), content.get("dataset")
    if not isinstance(algo, str) or not isinstance(dataset, str):
        raise InputError(f"{where}: names no algo or no dataset")
    said = _given(algo, dataset, content, where)
    levels = {name: entry.level for name, entry in said.items()}
    for name, value in (unsaid or {}).items():
        # Stronger than the preset: what a preset says today was not chosen then.
        if levels.get(name, 0) < 2:
            said[name] = Given(value, 2, where)
    _check_known(said)
    return _build(algo, dataset, _displace(said))


def _given(algo: str, dataset: str, content: Mapping[str, Any], where: str) -> dict[str, Given]:
    """The preset, and what a file says beside algo and dataset."""
    rest = {name: value for name, value in content.items() if name not in ("algo", "dataset")}
    return _preset(algo, dataset) | {name: Given(value, 2, where) for name, value in _flatten(rest)}


def _preset(algo: str, dataset: str) -> dict[str, Given]:
    if algo not in algorithm_names():
        known = ", ".join(algorithm_names())
        raise InputError(f"--algo {algo}: unknown{nearest(algo, algorithm_names())}; known are {known}")
    return {name: Given(value, 1, f"configs/algo/{algo}.yaml") for name, value in _of_preset(algo, dataset).items()}


def _of_preset(algo: str, dataset: str) -> dict[str, Any]:
    """A preset may extend another one: what it says itself is stronger, for every data set."""
    text = (resources.files("dpfedmeta.configs") / "algo" / f"{algo}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    base = content.pop("extends", None)
    of_dataset = content.pop("datasets", {}).get(dataset, {})
    inherited = _of_preset(base, dataset) if base else {}
    return {**inherited, **dict(_flatten(content)), **dict(_flatten(of_dataset))}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {file}: cannot be read ({error})") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except YAML_ERRORS as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected sections with keys, found {type(content).__name__}")
    return content


def _flatten(content: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and (value or f"{prefix}{key}." not in OPEN):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _scalar(name: str, text: str) -> Any:
    if name in ("run.name", "run.dir", "model.name"):
        return text
    try:
        value = yaml.safe_load(text) if text else None
    except YAML_ERRORS as error:
        raise InputError(f"--{name}: cannot read the value {text!r}") from error
    if isinstance(value, dict | list) and name not in _LISTS:
        raise InputError(f"--{name}: expected a single value, got {text!r}")
    return value


def _check_known(given: Mapping[str, Given]) -> None:
    known = [name for name, _, _ in setting_fields()]
    for name, entry in given.items():
        if name not in known and not name.startswith(OPEN):
            raise InputError(f"{entry.where}: {name}: unknown key{nearest(name, known)}")


def _displace(given: dict[str, Given]) -> dict[str, Given]:
    """Noise and target of one cell: keep the one given at the stronger level."""
    kept = dict(given)
    for target, noises in _CELLS:
        stated = [n for n in noises if n in kept and kept[n].value is not None]
        if target not in kept or kept[target].value is None or not stated:
            continue
        level = max(kept[noise].level for noise in stated)
        if kept[target].level == level:
            raise InputError(
                f"{kept[target].where}: {target} and {stated[0]} are both given; a noise is either chosen or "
                "solved from a target: remove one"
            )
        for loser in [target] if kept[target].level < level else stated:
            kept[loser] = Given(None, kept[loser].level, kept[loser].where)
    epsilon, limit = (kept.get(f"privacy.client.{name}") for name in ("epsilon", "limit"))
    if epsilon and limit and None not in (epsilon.value, limit.value) and epsilon.level > limit.level:
        # A target is for all rounds; the limit came with the noise that it displaced.
        kept["privacy.client.limit"] = Given(None, limit.level, limit.where)
    return kept


def _build(algo: str, dataset: str, given: Mapping[str, Given]) -> Settings:
    nested: dict[str, Any] = {"algo": algo, "dataset": dataset}
    annotations = {name: annotation for name, annotation, _ in setting_fields()}
    for name, entry in given.items():
        *sections, key = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = entry.value if name.startswith(OPEN) else _not_a_truth_value(name, entry, annotations[name])
    try:
        settings: Settings = TypeAdapter(Settings).validate_python(nested)
    except ValidationError as error:
        location = error.errors()[0]["loc"]
        name = ".".join(str(part) for part in location)
        where = next((e.where for n, e in given.items() if name.startswith(n)), "the settings")
        raise InputError(f"{where}: {first_problem(error, Settings)}") from error
    return settings


def _not_a_truth_value(name: str, entry: Given, annotation: Any) -> Any:
    """YAML reads on, off, yes and no as truth values; where none is wanted, `off` is the word."""
    kinds = set(_alternatives(annotation))
    if not isinstance(entry.value, bool) or bool in kinds:
        return entry.value
    if entry.value is False and "off" in kinds:
        return "off"
    raise InputError(f"{entry.where}: {name}: a truth value has no meaning here, got {str(entry.value).lower()}")


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The types and words that an annotation is made of."""
    parts = get_args(annotation)
    for part in parts:
        yield from _alternatives(part)
    if not parts:
        yield annotation


def to_yaml(settings: Settings) -> str:
    """The fully resolved settings; reading them back gives the same run."""
    return yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False)


def describe() -> str:
    """All settings with defaults and meaning, for --help."""
    short = {target: f"--{name}" for name, target in SHORT_FORMS.items()}
    lines = []
    for name, annotation, default in setting_fields():
        if name in ("algo", "dataset"):
            continue
        meaning = next((m.description for m in annotation.__metadata__ if getattr(m, "description", None)), "")
        shown = "null" if default is None else default
        if isinstance(default, float) and math.isfinite(default):
            shown = f"{default:g}"
        alias = f" ({short[name]})" if name in short else ""
        lines.append(f"  --{name}{alias} [{shown}]\n      {meaning}")
    return "\n".join(lines)
