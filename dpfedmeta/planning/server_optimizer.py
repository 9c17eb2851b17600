"""Server's update rule by the name in the settings, tested before the first round."""

from __future__ import annotations

import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.learning.server_step import Moments, Rule

_SETTING, _FOLDER = "server.optimizer", "dpfedmeta.learning.server_optimizers"


def rule_of(name: str) -> Rule:
    """The rule that `server.optimizer` names.

    Raises:
        InputError: There is none of this name, or it cannot be called with moments, or what it gives has another form.
    """
    rule = members.find(_SETTING, name, _FOLDER)
    if not callable(rule):
        raise InputError(f"{_SETTING} = {name}: expected a function of moments, got {type(rule).__name__}")
    sample = {"matrix": torch.ones(2, 3), "vector": torch.ones(2)}
    try:
        found = rule(Moments(first=sample, second=sample))
        forms = {key: tuple(value.shape) for key, value in found.items()}
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(f"{_SETTING} = {name}: it failed in a trial with moments of ones ({raised(error)})") from error
    if forms != {key: tuple(value.shape) for key, value in sample.items()}:
        raise InputError(f"{_SETTING} = {name}: it returned other names or shapes than the moments have: {forms}")
    chosen: Rule = rule
    return chosen
