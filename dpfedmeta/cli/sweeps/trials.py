"""Trials of a sweep: their values, names and commands, and which comes next."""

import hashlib
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.cli.sweeps.sweep_file import CHOICES, MOST, Choices, Parameter, Sweep, Value
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.config.load import resolve
from dpfedmeta.config.run_settings import EvaluationSettings, RunSettings, TrackSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.planning.client_spec import check_protocol
from dpfedmeta.planning.early_checks import check_registered
from dpfedmeta.planning.policy_from_settings import clip_policy
from dpfedmeta.planning.privacy.solve import make_privacy

# What does not change a result, so a finished run stays finished when it changes.
_OF_NO_ACCOUNT = (
    *("run.name", "run.dir", "run.workers", "run.device"),
    *(f"track.{name}" for name in ("to", "wandb", "project", "entity", "group", "tags", "model", "tensorboard")),
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


def grid(sweep: Sweep, fixed: Mapping[str, str]) -> tuple[Trial, ...]:
    """Every combination, the last parameter varying fastest.

    Raises:
        InputError: More combinations than anybody meant.
    """
    lists = [parameter.values for parameter in sweep.parameters.values()]
    count = math.prod(len(values) for values in lists)
    if count > MOST:
        raise InputError(f"parameters: {count:,} combinations; more than {MOST:,} are refused, use method: random")
    products = itertools.islice(itertools.product(*lists), sweep.run_cap)
    return tuple(
        make_trial(number, sweep, dict(zip(sweep.parameters, values, strict=True)), fixed)
        for number, values in enumerate(products)
    )


def corners(sweep: Sweep, fixed: Mapping[str, str]) -> tuple[Trial, ...]:
    """For a search without a list: every value, and both ends of every range, with the others as they come first."""
    first = {name: parameter.values[0] for name, parameter in sweep.parameters.items()}
    others = [{name: value} for name, parameter in sweep.parameters.items() for value in parameter.values[1:]]
    return tuple(make_trial(0, sweep, {**first, **other}, fixed) for other in ({}, *others))


def check_can_search(sweep: Sweep) -> None:
    """Refuse a search before its first run where there is nothing to search with.

    Raises:
        InputError: Optuna is not installed; says what to type.
    """
    if sweep.method != "grid" and find_spec("optuna") is None:
        raise InputError(
            f"method = {sweep.method}: searches need Optuna, which is not installed; type: {sys.executable} -m pip "
            "install 'dpfedmeta[search]' (in a checkout -c constraints.txt -e '.[search]'), or use method: grid"
        )


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
            _check_task(settings)
            # Seeds share a plan.
            shared = replace(settings, run=RunSettings(), evaluation=EvaluationSettings(), track=TrackSettings())
            if shared not in plans:
                plans[shared] = _planned(shared)
            clip_policy(settings, plans[shared])
        except InputError as error:
            values = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
            raise InputError(f"{error} (in the combination {values})") from error
        found[trial.name] = plans[shared]
    return found


def _check_task(settings: Settings) -> None:
    check_registered(settings)
    task = task_of(settings)[0]
    if targets_of(task).numbers:
        raise InputError(
            f"dataset = {settings.dataset}: predicts numbers, and a sweep chooses by accuracy on validation classes; "
            "train each setting by itself and compare validation_error"
        )
    check_protocol(settings, task)


def _planned(settings: Settings) -> PrivacyPlan:
    """Return the privacy plan; a run that begins with a private start also has that start's charge in it."""
    if settings.clip.start == "given":
        return make_privacy(settings, task_of(settings)[0])
    from dpfedmeta.analytics.initial_clip_bound import planned_after_start

    return planned_after_start(settings)


def same_result(settings: Settings, written: Mapping[str, Any]) -> str | None:
    """Compare with the config.yaml of a run; settings that only one of them knows are of another version and pass.

    Returns:
        The first difference in words, or None.
    """
    before = dict(flattened(written))
    if settings.clip.start != "given":
        settings = _started(settings, before)
    for name, value in flattened(asdict(settings)):
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
