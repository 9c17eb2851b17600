"""A whole run's settings, and how Python makes them; the tables are in the other files `..._settings.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.config.dataset_names import found_again, with_data_values
from dpfedmeta.config.dotted_keys import SHORT_FORMS, Given, built, check_alone, check_known, dotted_fields
from dpfedmeta.config.fields import STRICT, explained
from dpfedmeta.config.learning_settings import MetaSettings, ModelSettings, RecordSettings, TaskSettings
from dpfedmeta.config.presets import displaced, preset_values
from dpfedmeta.config.round_settings import AggregationSettings, PopulationSettings, ServerSettings
from dpfedmeta.config.run_settings import EvaluationSettings, PrivacySettings, RunSettings, TrackSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import nearest


@explained("")
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A whole run.

    Settings.preset(...) is how to make one. Built directly it is the bare table: no preset is applied, so every section
    has to be given, and nothing is filled in that its algorithm's preset would say otherwise.
    """

    missing_words: ClassVar[str] = (
        "Settings(...) is the bare table and applies no preset: use Settings.preset(algo, dataset, ...), as in "
        'Settings.preset("dp-agr", "omniglot", rounds=100)'
    )

    algo: str
    dataset: str
    population: PopulationSettings
    server: ServerSettings
    aggregation: AggregationSettings
    clip: ClipSettings
    meta: MetaSettings
    record: RecordSettings
    privacy: PrivacySettings
    task: TaskSettings
    model: ModelSettings
    evaluation: EvaluationSettings
    track: TrackSettings
    run: RunSettings

    @classmethod
    def preset(
        cls, algo: str, dataset: str | os.PathLike[str], values: Mapping[str, Any] | None = None, /, **short: Any
    ) -> Settings:
        """The settings of an algorithm on a data set, and what is changed of them.

        Args:
            algo: As --algo: a preset in configs/algo/.
            dataset: As --dataset: a name, a task file, or an image folder.
            values: Any settings by their dotted names: {"clip.policy": "window"}.
            **short: Settings by their short forms: rounds=100, epsilon=1.5, noise_multiplier=1.0.

        Raises:
            InputError: Names the setting, the value, and what would be right.
        """
        name = found_again(os.fspath(dataset))
        given = preset_values(algo, name)
        for setting, value in _by_full_name(values or {}, short).items():
            given[setting] = Given(value=value, level=3, where="Settings.preset")
            check_known(Settings, given)
            check_alone(Settings, setting, given[setting])
        given = with_data_values(name, given)
        return built(Settings, {"algo": algo, "dataset": name}, displaced(given))


def clients_made_by(given: Settings | Mapping[str, Any]) -> dict[str, str]:
    """Settings that decide who client number k of a data set is, beside how many there are; with others, somebody else.

    Args:
        given: All settings, or what a stored configuration holds of them.
    """
    kind, records, seed = (
        _at(given, *name.split(".")) for name in ("population.kind", "population.records", "run.seed")
    )
    found = {"population.kind": str(kind), "population.records": str(records)}
    # Clients whom the data name are who they are.
    return found if kind == "natural" else found | {"run.seed": str(seed)}


def _at(given: object, *names: str) -> object:
    for name in names:
        given = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
    return given


def setting_fields() -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, annotation, default) of every setting."""
    return dotted_fields(Settings)


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting by its dotted name."""
    found: Any = settings
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _by_full_name(values: Mapping[str, Any], short: Mapping[str, Any]) -> dict[str, Any]:
    """Both ways to name a setting as one."""
    named: dict[str, Any] = {}
    known = {form.replace("-", "_"): setting for form, setting in SHORT_FORMS.items()}
    for name, value in [*values.items(), *short.items()]:
        if name in short and name not in known:
            raise InputError(
                f"Settings.preset: {name}: no short form{nearest(name, known)}; any setting goes by its dotted name: "
                'Settings.preset(algo, dataset, {"server.lr": 0.01})'
            )
        setting = known.get(name, name)
        if setting in named:
            raise InputError(f"Settings.preset: {setting} is given twice")
        named[setting] = _plain(value)
    return named


def _plain(value: Any) -> Any:
    """Convert a path, or a whole number of another library, to plain text or int."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
