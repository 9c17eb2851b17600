"""Per-record gradients: torch.func.vmap, or Opacus' GradSampleModule. Both give the same values."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from dpfedmeta.parameters import Params


class PerRecordGradients(Protocol):
    """Gradients of the loss of each record on its own."""

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape], in the order of `params`; `fixed` are the module's other weights."""
        ...


def vmap_gradients(
    module: nn.Module,
    params: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
) -> Params:
    """vmap(grad) over records."""

    def loss(theta: Params, image: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, {**fixed, **theta}, (image[None],))
        return cross_entropy(logits, label[None])

    gradients: Params = vmap(grad(loss), in_dims=(None, 0, 0))(dict(params), inputs, labels)
    return gradients


class OpacusGradients:
    """Opacus' hooks. They do not work through functional_call, so the weights are loaded into a copy."""

    def __init__(self) -> None:
        self._wrapped: WeakKeyDictionary[nn.Module, dict[frozenset[str], Any]] = WeakKeyDictionary()

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape]."""
        wrapped = self._wrapper(module, frozenset(params))
        own = dict(wrapped._module.named_parameters())
        with torch.no_grad():
            for name, value in {**fixed, **params}.items():
                own[name].copy_(value)
        wrapped.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            # Images need no gradient, which PyTorch's full backward hooks remark on.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            cross_entropy(wrapped(inputs), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        return {name: own[name].grad_sample.detach() for name in params}

    def _wrapper(self, module: nn.Module, learned: frozenset[str]) -> Any:
        """Opacus decides when it wraps which parameters get a gradient, so there is one wrapper for each choice."""
        wrappers = self._wrapped.setdefault(module, {})
        if learned not in wrappers:
            own = copy.deepcopy(module)
            for name, parameter in own.named_parameters():
                parameter.requires_grad_(name in learned)
            wrappers[learned] = GradSampleModule(own, loss_reduction="sum")
        return wrappers[learned]


def per_record_engine(name: Literal["auto", "vmap", "opacus"]) -> PerRecordGradients:
    """The engine of `record.engine`."""
    return OpacusGradients() if name == "opacus" else vmap_gradients
