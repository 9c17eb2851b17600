"""Clip policies by name or as objects: what any of them has to meet, their calls and their stored state."""

from __future__ import annotations

import copy
import json
from collections.abc import MutableMapping
from dataclasses import asdict, fields, is_dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.params import Params, host, same_kind
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.privacy.clip_policies.median_policy import NormHistogram
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound
from dpfedmeta.privacy.clip_policy import Attachment, ClipPolicy, Mode, Surroundings, bound_problem

if TYPE_CHECKING:
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit

_SETTING, _FOLDER = "clip.policy", "dpfedmeta.privacy.clip_policies"
_METHODS = ("initial", "next_bound")
_TRIALS, _SEED = 3, 20
# Under this name stand the vectors that a clip policy remembers; the text has their names in their place.
_POLICY = "policy"


def named_policy(name: str) -> Any:
    """Return the class of a clip policy, by its name or as package.module:name.

    Raises:
        InputError: There is none.
    """
    member = members.find(_SETTING, name, _FOLDER)
    members.check_protocol(_SETTING, name, member, "planned")
    return member


def planned_policy(clip: ClipSettings, around: Surroundings) -> ClipPolicy[Any]:
    """Return the clip policy that settings describe, checked.

    Raises:
        InputError: The clip settings do not fit each other or the run, or the policy breaks its protocol.
        RefusedPlan: The policy needs what the clients do not release.
    """
    member = named_policy(clip.policy)
    own = members.own_settings("clip", clip.policy, member, clip.own)
    policy: ClipPolicy[Any] = members.planned(_SETTING, clip.policy, member.planned, clip, around, **own)
    members.check_protocol(_SETTING, clip.policy, policy, "initial", "next_bound", "attachment")
    members.check_protocol(_SETTING, clip.policy, policy.initial(), "bound", "mode")
    bounded = bool(getattr(member, "bounded", True))
    check_policy(policy, f"{_SETTING} = {clip.policy}", algo=around.algo, exact=around.exact, bounded=bounded)
    return policy


def check_policy(policy: ClipPolicy[Any], name: str, *, algo: str, exact: bool, bounded: bool = True) -> None:
    """Refuse a policy that breaks its protocol, or for which clients would send what no guarantee covers.

    Args:
        policy: As an object.
        name: Setting and value, for errors.
        algo: Name of the algorithm, for errors.
        exact: Whether clients compute exact messages, whose norms they may count.
        bounded: Whether it has to bound messages.

    Guarantee:
        What clients add to their messages for a policy is counted by its stated sensitivity. That is true of the
        attachments of this package, so only these are taken, as they are made here: neither another class, nor one of
        theirs with other numbers. A policy itself sees released values only, so its bounds enter no event.

    Raises:
        InputError: It lacks a part, or begins with what is no bound.
        RefusedPlan: It asks clients for what no guarantee would cover.
    """
    for method in _METHODS:
        if not callable(getattr(policy, method, None)):
            raise InputError(f"{name}: has no {method}(); see dpfedmeta.privacy.clip_policy.ClipPolicy")
    _check_attachment(policy, name, algo=algo, exact=exact)
    _check_initial(policy, name, bounded=bounded)


def _check_attachment(policy: ClipPolicy[Any], name: str, *, algo: str, exact: bool) -> None:
    if not hasattr(policy, "attachment"):
        raise InputError(f"{name}: has no attachment; set it to None if clients send only their message")
    attachment = policy.attachment
    if attachment is None:
        return
    if type(attachment) not in (BelowBound, NormHistogram):
        raise RefusedPlan(
            f"{name}: its attachment is {type(attachment).__qualname__}, whose sensitivity is not known; use "
            "BelowBound or Histogram of dpfedmeta.privacy.clip_policies.quantile_policy and .median, or None"
        )
    if not _as_made_here(attachment):
        raise RefusedPlan(
            f"{name}: its attachment is {attachment!r}, which changes more of {type(attachment).__qualname__} than its "
            "scale and edges; give only these"
        )
    if not exact:
        raise RefusedPlan(
            f"{name}: its attachment counts norms of exact messages, but {algo} clips or noises each record before a "
            "message is formed; set its attachment to None"
        )


def _as_made_here(attachment: Attachment) -> bool:
    """Return whether the attachment is the one that its class makes of its scale and edges alone."""
    names = {field.name for field in fields(attachment)}  # type: ignore[arg-type]
    if {*vars(attachment)} != names:
        return False
    chosen = {name: value for name, value in vars(attachment).items() if name in ("scale", "edges")}
    return bool(type(attachment)(**chosen) == attachment) and attachment.scale > 0


def _check_initial(policy: ClipPolicy[Any], name: str, *, bounded: bool) -> None:
    """Its state is kept in every checkpoint, as numbers and text."""
    state = policy.initial()
    bound, mode = getattr(state, "bound", None), getattr(state, "mode", None)
    problem = bound_problem(bound) if bounded else None
    if problem is not None:
        raise InputError(f"{name}: initial().bound is {problem}")
    if mode not in get_args(Mode):
        raise InputError(f"{name}: initial().mode is {mode!r}, expected one of {', '.join(get_args(Mode))}")
    # Of a policy that bounds nothing the bound is infinite, for which a checkpoint has a word of its own.
    kept = state if bounded or not is_dataclass(state) else replace(state, bound=1.0)  # type: ignore[type-var]
    if not is_dataclass(kept) or isinstance(kept, type) or not _survives(kept):
        raise InputError(
            f"{name}: initial() is {type(state).__qualname__}; use a dataclass of numbers, text and tuples of them, "
            "which a checkpoint can keep"
        )


def _survives(state: Any) -> bool:
    try:
        plain: Any = TypeAdapter(Any).dump_json(asdict(state))
        return bool(TypeAdapter(type(state)).validate_json(plain) == state)
    except (PydanticUserError, ValidationError, ValueError, TypeError):
        return False


def own_policy_name(policy: object) -> str:
    """Name by which a run remembers the policy: its values where it is a dataclass, else its class."""
    form = policy if isinstance(policy, type) else type(policy)
    where = f"{form.__module__}.{form.__qualname__}"
    return f"{where}: {policy!r}" if is_dataclass(policy) and not isinstance(policy, type) else where


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
    from dpfedmeta.privacy.mechanisms import post_process  # brings SciPy, which a plan alone does not need

    own = post_process(copy.deepcopy, (aggregate,), aggregate.noise_deviation)
    try:
        answer: object = policy.next_bound(state, own)
    except Exception as error:  # the user's own code
        words = " ".join(str(error).split())
        raise InputError(f"{where} its next_bound raised {type(error).__name__}: {words:.200}") from error
    if not isinstance(answer, tuple) or len(answer) != 2 or type(answer[0]) is not type(state):
        raise InputError(
            f"{where} its next_bound gives {answer!r:.80}, expected (state, bound), with a state as initial() gives"
        )
    following, bound = map(_plain, answer)
    if isinstance(bound, Real) and not isinstance(bound, bool):
        bound = float(bound)
    problem = bound_problem(bound) if bounded else None
    if problem is not None:
        raise InputError(f"{where} its next_bound gives {problem}")
    return _as_stored(following, where), bound


def _as_stored(state: Any, where: str) -> Any:
    """A state as it comes back from disk: a run that goes on after a crash has no other one."""
    arrays: dict[str, Any] = {}
    try:
        text = json.dumps(packed(asdict(state), arrays))
        return TypeAdapter(type(state)).validate_python(unpacked(json.loads(text), arrays))
    except (PydanticUserError, ValidationError, ValueError, TypeError) as error:
        raise InputError(
            f"{where} its next_bound gives {state!r:.120}, which cannot be stored and read again; let its state hold "
            "numbers, text, and tuples or arrays of them, as they are annotated"
        ) from error


def _plain(value: Any) -> Any:
    """Scalars of numpy and torch, and arrays of no dimension, as Python's own, wherever a state holds them."""
    if isinstance(value, np.floating):
        return float(value)  # one of 80 bits has no other way
    if getattr(value, "ndim", None) == 0:
        return _plain(value.item())
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        made = {name: _plain(each) for name, each in held.items()}
        return value if all(made[name] is held[name] for name in held) else replace(value, **made)
    return value


def check_answers(policy: ClipPolicy[Any], name: str, form: Params, *, bounded: bool = True) -> None:
    """Try a policy of the user's own on made-up releases, before any round is charged.

    Args:
        policy: The policy.
        name: Setting and value, for errors.
        form: Names and shapes of an update.
        bounded: Whether it has to bound messages.

    Raises:
        InputError: It gives no state and bound, or another answer to the same release: a run that goes on after a crash
            would go another way.
    """
    from dpfedmeta.privacy.mechanisms import post_process

    random, state = np.random.default_rng(_SEED), policy.initial()
    for _ in range(_TRIALS):
        value = {key: same_kind(random.normal(0.0, 1e-3, tuple(part.shape)), part) for key, part in form.items()}
        release: Released[ClientUnit, Params] = post_process(lambda made=value: made, (), 1e-3)
        answers = [next_bound(policy, state, release, f"{name}:", bounded=bounded) for _ in range(2)]
        if len({_as_text(*answer) for answer in answers}) > 1:
            raise InputError(
                f"{name}: its next_bound gives {answers[0][1]!r}, then {answers[1][1]!r}, for the same state and "
                "release; keep all that it remembers in its state, and let it draw nothing"
            )
        state = answers[0][0]


def _as_text(state: Any, bound: float) -> str:
    """All that an answer says: two NaN are the same, and so are two arrays of the same numbers."""
    arrays: dict[str, Any] = {}
    return repr((packed(asdict(state), arrays), bound, [(str(each.dtype), each.tobytes()) for each in arrays.values()]))


def packed(value: Any, arrays: MutableMapping[str, Any]) -> Any:
    """`value` with the name of an array, new in `arrays`, wherever it held a vector."""
    if isinstance(value, np.ndarray):
        name = f"{_POLICY}/{len(arrays):06d}"
        arrays[name] = value
        return {_POLICY: name}
    if isinstance(value, dict):
        return {key: packed(inner, arrays) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [packed(inner, arrays) for inner in value]
    return value


def unpacked(value: Any, arrays: MutableMapping[str, Any]) -> Any:
    """Undo `packed`: put the vectors back, and remove them from `arrays`."""
    if isinstance(value, dict):
        if set(value) == {_POLICY}:
            return host(arrays.pop(value[_POLICY]))
        return {key: unpacked(inner, arrays) for key, inner in value.items()}
    return [unpacked(inner, arrays) for inner in value] if isinstance(value, list) else value
