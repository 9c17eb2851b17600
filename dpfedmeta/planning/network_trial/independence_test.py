"""Test before the first round that a network keeps records, micro-episodes and clients independent of each other.

Types of modules tell about known ones only (registry.check_records_uncoupled). Here clients compute on synthetic
images, the data of one are changed, and all other records, micro-episodes and clients are compared.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import global_generators_at
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.planning.network_trial.forward_test import (
    DrawsRandomNumbers,
    check_draws_nothing,
    check_forward,
    check_keeps_nothing,
    drawn_so_far,
    draws_random_numbers,
)
from dpfedmeta.planning.network_trial.method_test import check_method
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal, RehearsedClients

# Sound networks move no bit of another row. Below this share of a row's length lies the rounding of float32, by which
# clipping shortens all the more (privacy.clipping).
_TOLERANCE = 1e-6
# Which weights (0: the initial ones, behind whose zeros a coupling may hide; others are random), and how bright the
# changed images are at most: brighter than all others, which moves a maximum over the batch, or black.
_TRIALS = ((0, 1.0), (1, 1.0), (2, 0.0))
# How often a network is tried out where another thread may have drawn meanwhile.
_TRIES = 3

_KEEP_NOTHING = "let the network keep nothing (in a buffer or an attribute) from one call to the next"
_TREAT_ALONE = (
    "let the network treat every image separately, without statistics of the batch (GroupNorm and LayerNorm do), and "
    "keep nothing from one call to the next"
)
_ATTENTION = (
    "PyTorch's fast attention has no second derivative: put `with torch.nn.attention.sdpa_kernel("
    "torch.nn.attention.SDPBackend.MATH):` around it in forward, or use --meta.order 1"
)
_RECURRENT = "its gradients cannot be computed for several records at once: use nn.LSTM"
_BAG = "it has no second derivative: use nn.Embedding and the mean over tokens, or --meta.order 1"


@lru_cache(maxsize=256)
def check_uncoupled(rehearsal: Rehearsal) -> None:
    """Refuse a network that mixes what has to stay apart, keeps what it saw, or draws random numbers.

    Guarantee:
        None by itself: the sensitivities of sums over records, micro-episodes and clients presume what is tried out
        here. What is refused would break them; a coupling that no trial brings out is not seen.

    Raises:
        RefusedPlan: One unit moved another one, or what the network saw before moved it.
        InputError: The network cannot be run as planned, or draws random numbers.
    """
    for _ in range(_TRIES - 1):
        try:
            return _try_out(rehearsal)
        except DrawsRandomNumbers:
            # Another thread's draws come and go; those of the network come each time.
            if threading.active_count() == 1:
                raise
    _try_out(rehearsal)


def _try_out(rehearsal: Rehearsal) -> None:
    with global_generators_at(python=0, numpy=0, torch=0), in_one_line(rehearsal):
        check_forward(rehearsal)
        check_method(rehearsal)
        used = RehearsedClients(rehearsal)
        # One random draw brings out what a network keeps.
        count = 2 if rehearsal.trial.apart else len(_TRIALS)
        learns = [_try(rehearsal, used, draw, brightness) for draw, brightness in _TRIALS[:count]]
        if ":" in rehearsal.network.name:
            check_keeps_nothing(rehearsal.network, used.network)
            if not any(learns):
                raise InputError(
                    f"model.name = {rehearsal.network.name}: no gradient reaches the weights that are learned, so "
                    "every client's message would be 0; look for detach() or no_grad() in forward, or for an output "
                    "that does not depend on them"
                )


@contextmanager
def in_one_line(rehearsal: Rehearsal) -> Iterator[None]:
    """Errors of the user's own code."""
    spec = rehearsal.network
    own = rehearsal.own
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        if own:
            raise InputError(
                f"{own[0]}: fails when clients compute with it, on {spec.form.words} ({raised(error)})"
            ) from error
        if ":" not in spec.name:
            raise
        if "called random operation" in str(error):  # under torch.func.vmap
            raise draws_random_numbers(spec) from error
        where, tracking = f"model.name = {spec.name}", _tracking(spec)
        if tracking:
            raise InputError(
                f"{where}: {tracking} cannot keep running statistics where gradients of several clients or records are "
                "computed at once; build it with track_running_stats=False"
            ) from error
        raise InputError(
            f"{where}: fails when clients compute with it, on {spec.form.words} ({raised(error)}){remedy(spec, error)}"
        ) from error


def _tracking(spec: NetworkSpec) -> str | None:
    """A layer that keeps running statistics, by name and kind."""
    modules = build_network(spec).named_modules()
    return next((f"{n} ({type(m).__name__})" for n, m in modules if getattr(m, "track_running_stats", False)), None)


def _try(rehearsal: Rehearsal, used: RehearsedClients, draw: int, brightness: float) -> bool:
    """Fresh clients and, with one unit changed, clients that saw other data before: no unit but that one may differ.

    Returns:
        Whether any of the last phase's units, of which messages are made, is not 0.
    """
    weights, episodes, fresh = rehearsal.weights(draw), rehearsal.episodes(draw), RehearsedClients(rehearsal)
    changed, before = rehearsal.changed(episodes, 1000 + draw, brightness), drawn_so_far()
    first = fresh(*weights, episodes)
    moved = used(*weights, changed)
    check_draws_nothing(rehearsal.network, before)
    if _share(first, moved) <= _TOLERANCE:
        return bool(first[-1].any())
    # Why: with nothing changed, and with nothing seen before.
    share = _share(first, RehearsedClients(rehearsal)(*weights, changed))
    if _share(first, RehearsedClients(rehearsal)(*weights, episodes)) == 0.0 and share > _TOLERANCE:
        trial = rehearsal.trial
        raise _refusal(
            rehearsal,
            f"changing one {trial.one} moved the {trial.unit} by {share:.2g} of its length (allowed: 0)",
            _KEEP_NOTHING if trial.apart else _TREAT_ALONE,
        )
    raise _refusal(
        rehearsal,
        "gives different gradients for the same records after it has seen other records, or after it is built again: "
        "they depend on what it keeps (in a buffer or an attribute), or on random numbers of its own",
        "make its output a function of weights and images alone",
    )


def _refusal(rehearsal: Rehearsal, what: str, remedy: str) -> InputError:
    promise, name = rehearsal.promise, rehearsal.network.name
    if promise is None:
        return InputError(f"model.name = {name}: {what}, so no run could be resumed bit for bit; {remedy}")
    return RefusedPlan(f"model.name = {name}: {what}, so {promise} privacy would not hold; {remedy}")


def _share(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Largest change of any row but the first of each phase, relative to the longer of its two values."""
    found = 0.0
    for old, new in zip(before, after, strict=True):
        old, new = old[1:].double(), new[1:].double()
        lengths = torch.maximum(old.norm(dim=1), new.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
        found = max(found, float(((new - old).norm(dim=1) / lengths).max()))
    return found


def remedy(spec: NetworkSpec, error: BaseException) -> str:
    """The layer that fails, by name and kind, and what to do; empty where nothing is known of it."""
    text = str(error)
    if "scaled_dot_product" in text:
        return _said(_named(spec, nn.MultiheadAttention), _ATTENTION)
    if "_embedding_bag" in text:
        return _said(_named(spec, nn.EmbeddingBag), _BAG)
    failed = _innermost(error)
    if isinstance(failed, nn.GRU | nn.RNN):
        return _said(_named(spec, type(failed)), _RECURRENT)
    return ""


def _said(layer: str, what: str) -> str:
    return f": {layer + ': ' if layer else ''}{what}"


def _named(spec: NetworkSpec, kind: type[nn.Module]) -> str:
    found = [name for name, module in build_network(spec).named_modules() if isinstance(module, kind)]
    return f"{', '.join(found)} ({kind.__name__})" if found else ""


def _innermost(error: BaseException) -> nn.Module | None:
    """The last module that was computing when the error came."""
    holders = [frame.get("self") for frame in _frames(error)]
    entered = [holder for holder in holders if isinstance(holder, nn.Module)]
    return entered[-1] if entered else None


def _frames(error: BaseException) -> Iterator[dict[str, object]]:
    at = error.__traceback__
    while at is not None:
        yield at.tb_frame.f_locals
        at = at.tb_next
