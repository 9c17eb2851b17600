"""Trial of a sweep: its values, its name, its command, and the settings that they give."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.cli.sweeps.definition import CHOICES, Sweep
from dpfedmeta.cli.sweeps.parameters import Choices, Range, Value
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.load import resolve
from dpfedmeta.config.schema import ClipSettings, EvaluationSettings, ModelSettings, RunSettings, TrackSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.clipping.policy_from_settings import bounds_clients, clip_policy
from dpfedmeta.planning.privacy.solve import make_privacy

SEED = "run.seed"
# More would be a mistake in the file sooner than a plan.
_MOST = 10_000
# What does not change a result, so a finished run stays finished when it changes.
_OF_NO_ACCOUNT = (
    *("run.name", "run.dir", "run.workers", "run.device"),
    *(f"track.{name}" for name in ("wandb", "project", "entity", "group", "tags", "model", "tensorboard")),
)


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
    words = "_".join(
        f"{_last(name)}-{_plain(name, value)}" for name, value in parameters.items() if varies(sweep, name)
    )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", words)[:80].strip("-._")
    return Trial(number=number, name=f"{name or 'run'}-{key[:8]}", key=key, parameters=parameters, fixed=fixed)


def varies(sweep: Sweep, name: str) -> bool:
    """Return whether the runs of a sweep differ in this parameter."""
    parameter = sweep.parameters[name]
    return isinstance(parameter, Range) or len(parameter.values) > 1


def without_fixed(sweep: Sweep, fixed: Mapping[str, str]) -> Sweep:
    """A parameter that is given on the command line is no longer swept.

    Raises:
        InputError: Nothing is left.
    """
    parameters = {name: parameter for name, parameter in sweep.parameters.items() if name not in fixed}
    if not parameters:
        raise InputError("every parameter of the sweep is set on the command line: there is nothing to sweep")
    return replace(sweep, parameters=parameters)


def grid(sweep: Sweep, fixed: Mapping[str, str]) -> tuple[Trial, ...]:
    """Every combination, the last parameter varying fastest.

    Raises:
        InputError: More combinations than anybody meant.
    """
    lists = [parameter.values for parameter in sweep.parameters.values() if isinstance(parameter, Choices)]
    count = math.prod(len(values) for values in lists)
    if count > _MOST:
        raise InputError(f"parameters: {count:,} combinations; more than {_MOST:,} are refused, use method: random")
    products = itertools.islice(itertools.product(*lists), sweep.run_cap)
    return tuple(
        make_trial(number, sweep, dict(zip(sweep.parameters, values, strict=True)), fixed)
        for number, values in enumerate(products)
    )


def corners(sweep: Sweep, fixed: Mapping[str, str]) -> Iterator[Trial]:
    """For a search without a list: every value, and both ends of every range, with the others as they come first."""
    lists = {
        name: parameter.values if isinstance(parameter, Choices) else parameter.ends
        for name, parameter in sweep.parameters.items()
    }
    first = {name: values[0] for name, values in lists.items()}
    yield make_trial(0, sweep, first, fixed)
    for name, values in lists.items():
        for value in values[1:]:
            yield make_trial(0, sweep, {**first, name: value}, fixed)


def settings_of(trial: Trial) -> Settings:
    """Return the settings that train.py will make of a trial's options.

    Raises:
        InputError: It would refuse them.
    """
    options = trial.options
    chosen = {name: options.pop(name, None) for name in CHOICES}
    file = Path(chosen["config"]) if chosen["config"] else None
    return resolve(chosen["algo"], chosen["dataset"], file, options)


def check(trials: Iterable[Trial]) -> dict[str, PrivacyPlan]:
    """Resolve every trial as train.py will: settings, noise, clip policy, task.

    Returns:
        The privacy plan of each, by the name of its run.

    Raises:
        InputError: A run would be refused; says which one.
    """
    plans: dict[Settings, PrivacyPlan] = {}
    found = {}
    for trial in trials:
        try:
            settings = settings_of(trial)
            form = _what_privacy_sees(settings)
            if form not in plans:
                plans[form] = _planned(form)
            clip_policy(settings, plans[form])
        except InputError as error:
            values = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
            raise InputError(f"{error} (in the combination {values})") from error
        found[trial.name] = plans[form]
    return found


def _planned(settings: Settings) -> PrivacyPlan:
    """Return the privacy plan; a run that begins with a private start also has that start's charge in it."""
    if settings.clip.start == "given":
        return make_privacy(settings, task_of(settings)[0])
    from dpfedmeta.analytics.initial_clip_bound import planned_after_start

    return planned_after_start(settings)


def _what_privacy_sees(settings: Settings) -> Settings:
    """The same settings with everything that no guarantee depends on at its default: solving a noise takes a second."""
    clipped = ClipSettings() if bounds_clients(settings) else ClipSettings(policy=settings.clip.policy)
    clipped = replace(clipped, start=settings.clip.start)
    server = replace(settings.server, lr=1.0, final_lr=None, unit="raw", optimizer="sgd", average=0.0)
    return replace(
        settings,
        clip=clipped,
        server=server,
        model=ModelSettings(),
        evaluation=EvaluationSettings(),
        track=TrackSettings(),
        run=RunSettings(),
    )


def same_result(settings: Settings, written: Mapping[str, Any]) -> str | None:
    """Compare with the config.yaml of a run; settings that only one of them knows are of another version and pass.

    Returns:
        The first difference in words, or None.
    """
    before = dict(_flat(written))
    if settings.clip.start != "given":
        settings = _started(settings, before)
    for name, value in _flat(dataclasses.asdict(settings)):
        now = list(value) if isinstance(value, tuple) else value
        if name in before and name not in _OF_NO_ACCOUNT and before[name] != now:
            return f"{name} was {before[name]}, now it is {now}"
    return None


def _started(settings: Settings, before: Mapping[str, Any]) -> Settings:
    """A run that began with an analysis has its answer and its folder in what was written."""
    spent, asked = [*(before.get("privacy.spent_before") or ())], settings.privacy.spent_before
    if before.get("clip.start") != "given" or len(spent) != len(asked) + 1:
        return settings
    return replace(
        settings,
        clip=replace(settings.clip, start="given", initial=before.get("clip.initial", settings.clip.initial)),
        privacy=replace(settings.privacy, spent_before=(*asked, spent[-1])),
    )


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _plain(name: str, value: Value) -> str:
    if name == "config":
        return Path(str(value)).stem
    return f"{value:.6g}" if isinstance(value, float) else str(value)
