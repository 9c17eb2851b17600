"""Calls of a clip policy: with a copy of the release, and with checks of what it gives."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, same_kind
from dpfedmeta.privacy.clip_policy import ClipPolicy, bound_problem
from dpfedmeta.privacy.mechanisms import Released, post_process
from dpfedmeta.privacy.units import ClientUnit

_TRIALS, _SEED = 3, 20


def next_bound(
    policy: ClipPolicy[Any], state: Any, aggregate: Released[ClientUnit, Params], where: str, *, bounded: bool = True
) -> tuple[Any, float]:
    """The state and the clip bound after a release.

    Args:
        policy: Of this package, or of the user's own.
        state: Its state.
        aggregate: What was released. The policy gets a copy, so that one that writes into it changes no update.
        where: Whose answer it is, for errors.
        bounded: Whether it bounds messages.

    Raises:
        InputError: The policy gives something else; nothing of the round is shown.
    """
    own = post_process(copy.deepcopy, (aggregate,), aggregate.noise_deviation)
    answer: object = policy.next_bound(state, own)
    if not isinstance(answer, tuple) or len(answer) != 2 or type(answer[0]) is not type(state):
        raise InputError(
            f"{where} its next_bound gives {answer!r:.80}, expected (state, bound), with a state as initial() gives"
        )
    following, bound = answer
    problem = bound_problem(bound) if bounded else None
    if problem is not None:
        raise InputError(f"{where} its next_bound gives {problem}")
    return following, bound


def check_answers(policy: ClipPolicy[Any], name: str, form: Params) -> None:
    """Try a policy of the user's own on made-up releases, before any round is charged.

    Args:
        policy: The policy.
        name: Setting and value, for errors.
        form: Names and shapes of an update.

    Raises:
        InputError: It gives no state and bound, or another answer to the same release: a run that goes on after a crash
            would go another way.
    """
    random, state = np.random.default_rng(_SEED), policy.initial()
    bounded = bool(getattr(policy, "bounded", True))
    for _ in range(_TRIALS):
        value = {key: same_kind(random.normal(0.0, 1e-3, tuple(part.shape)), part) for key, part in form.items()}
        release: Released[ClientUnit, Params] = post_process(lambda made=value: made, (), 1e-3)
        answers = [next_bound(policy, state, release, f"{name}:", bounded=bounded) for _ in range(2)]
        if answers[0] != answers[1]:
            raise InputError(
                f"{name}: its next_bound gives {answers[0][1]!r}, then {answers[1][1]!r}, for the same state and "
                "release; keep all that it remembers in its state, and let it draw nothing"
            )
        state = answers[0][0]
