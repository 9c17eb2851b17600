"""Layers that PyTorch cannot differentiate twice, or for several records at once, and what to use in their place."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

_ATTENTION = (
    "PyTorch's fast attention has no second derivative: put `with torch.nn.attention.sdpa_kernel("
    "torch.nn.attention.SDPBackend.MATH):` around it in forward, or use --meta.order 1"
)
_RECURRENT = "its gradients cannot be computed for several records at once: use nn.LSTM"
_BAG = "it has no second derivative: use nn.Embedding and the mean over tokens, or --meta.order 1"


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
