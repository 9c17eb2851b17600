"""Choice of the next trial: the grid in its order, or a draw that depends on its number and finished runs alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpfedmeta.cli.sweeps.definition import Method, Sweep
from dpfedmeta.cli.sweeps.parameters import Choices, Parameter
from dpfedmeta.cli.sweeps.trials import Trial, make_trial
from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial with the validation accuracy that came of it; None while it runs, or where it failed."""

    trial: Trial
    value: float | None


def check_can_search(method: Method) -> None:
    """Refuse a search before its first run where there is nothing to search with.

    Raises:
        InputError: Optuna is not installed; says what to type.
    """
    if method != "grid" and find_spec("optuna") is None:
        raise InputError(
            f"method = {method}: searches need Optuna, which is not installed; type: {sys.executable} -m pip install "
            "'dpfedmeta[search]' (in a checkout -c constraints.txt -e '.[search]'), or use method: grid"
        )


def propose(number: int, sweep: Sweep, fixed: Mapping[str, str], past: Sequence[Outcome]) -> Trial:
    """Trial `number` of a random or bayes search.

    The draw is seeded with its number, so a search that was interrupted proposes the same again. bayes is Optuna's
    tree-structured Parzen estimator (W&B's own is a Gaussian process); runs that still go count as poor ones, so
    that parallel runs spread.
    """
    import optuna  # takes a while to load, and a grid needs none of it

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {name: _distribution(parameter) for name, parameter in sweep.parameters.items()}
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=number)
    if sweep.method == "bayes":
        sampler = optuna.samplers.TPESampler(seed=number, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for outcome in past if sweep.method == "bayes" else ():
        study.add_trial(_as_trial(outcome, space))
    drawn = study.ask(space).params
    return make_trial(number, sweep, {name: drawn[name] for name in sweep.parameters}, fixed)


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.values)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), step=int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.logarithmic, step=parameter.step)


def _as_trial(outcome: Outcome, space: Mapping[str, BaseDistribution]) -> Any:
    from optuna.trial import TrialState, create_trial

    state = TrialState.RUNNING if outcome.value is None else TrialState.COMPLETE
    return create_trial(
        params=dict(outcome.trial.parameters), distributions=dict(space), value=outcome.value, state=state
    )
