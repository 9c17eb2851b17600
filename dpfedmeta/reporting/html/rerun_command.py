"""Repetition of a run: the settings in which it differs from its preset, and the command that gives them."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfedmeta.config.dataset_names import decided_by
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError

# Where a run lies and what it is called make no other run.
_PLACES = {"run.name", "run.dir"}
# Whoever chose it may know it; a page that is handed on does not say it.
_UNSAID = {"run.noise_seed"}


@dataclass(frozen=True, kw_only=True)
class ChangedSetting:
    """Setting of a run, beside the value that its preset gives.

    Attributes:
        name: Dotted.
        value: As text.
        preset: The preset's, as text; None where the preset is not known here.
    """

    name: str
    value: str
    preset: str | None

    @property
    def differs(self) -> bool:
        """True if the run's value is another one than its preset's."""
        return self.preset is not None and self.value != self.preset


def settings_shown(settings: Settings) -> list[ChangedSetting]:
    """All settings beside the preset's, less names and places; a chosen noise seed is only said to be there."""
    own, preset = _values(settings), _of_preset(settings)
    return [
        ChangedSetting(
            name=name, value=_shown(name, value), preset=None if preset is None else _shown(name, preset.get(name))
        )
        for name, value in own.items()
        if name not in _PLACES
    ]


def command(settings: Settings) -> str:
    """The command line that makes the run again, with noise of its own.

    Where the preset is not known here every setting is given. Settings may change what a preset says of others (more
    ways lengthen a step), so the preset is asked again with those that are given. Data of one's own may have changed
    or be elsewhere, so what they decide is given too, and they are not looked at.
    """
    own, given, more = _values(settings), dict[str, str](), True
    decided = decided_by(settings.dataset)
    while more:
        preset = _of_preset(settings, given)
        others = {name for name, value in own.items() if preset is None or name in decided or value != preset.get(name)}
        more = bool(others := others - _PLACES - _UNSAID - given.keys())
        given |= {name: _text(own[name]) for name in others}
    words = [f"--{name}={given[name]}" for name in own if name in given]
    return shlex.join(["dpfedmeta", "train", "--algo", settings.algo, "--dataset", settings.dataset, *words])


def _of_preset(settings: Settings, given: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    try:
        return _values(resolve(settings.algo, settings.dataset, command_line=given, look=False))
    except InputError:
        return None


def _values(settings: Settings) -> dict[str, Any]:
    """Dotted names to values; algo and dataset are said apart."""
    content: Mapping[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return {name: value for name, value in flattened(content) if name not in ("algo", "dataset")}


def _shown(name: str, value: Any) -> str:
    if name in _UNSAID:
        return "secret, drawn" if value is None else "chosen (a simulation)"
    return _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
