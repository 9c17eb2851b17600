"""Per-record gradients: layer by layer, torch.func.vmap, or Opacus' GradSampleModule. All give the same values."""

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.layers.per_example_layers import has_record_layers, record_logits
from dpfedmeta.learning.models.torch_func import functional_call, grad, vmap
from dpfedmeta.learning.targets.classification import OWN_CLASSES


class PerRecordGradients(Protocol):
    """Gradients of the loss of each record on its own."""

    @property
    def batches(self) -> bool:
        """Return whether weights may differ from record to record, so that several clients fit into one call."""
        ...

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        varying: frozenset[str],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape], in the order of `params`.

        Args:
            module: What the weights belong to.
            params: Weights to differentiate by.
            fixed: The module's other weights.
            varying: Names in `params` and `fixed` whose tensors have a leading dimension [records].
            inputs: [records, ...].
            labels: [records].
        """
        ...


class VmapGradients:
    """vmap(grad) over records."""

    batches = True

    def __init__(self, targets: TargetKind = OWN_CLASSES) -> None:
        self._targets = targets

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        varying: frozenset[str],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape]."""

        def loss(theta: Params, rest: Params, image: Tensor, label: Tensor) -> Tensor:
            logits: Tensor = functional_call(module, {**rest, **theta}, (image[None],))
            return self._targets.loss(logits, label[None])

        dimensions = [{name: 0 if name in varying else None for name in part} for part in (params, fixed)]
        mapped = vmap(grad(loss), in_dims=(dimensions[0], dimensions[1], 0, 0))
        gradients: Params = mapped(dict(params), dict(fixed), inputs, labels)
        return gradients


class LayeredGradients:
    """Per-record gradients by one backward pass in which every layer returns them (per_example_layers)."""

    batches = True

    def __init__(self, targets: TargetKind = OWN_CLASSES) -> None:
        self._targets, self._other = targets, VmapGradients(targets)

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        varying: frozenset[str],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape].

        Weights that vary go to `VmapGradients`, which is faster on many clients of a small network side by side, and
        so does a network with layers of the user's own.
        """
        if varying or not has_record_layers(module) or not len(labels):
            return self._other(module, params, fixed, varying, inputs, labels)

        def own(value: Tensor) -> Tensor:
            return value.detach().expand(len(labels), *value.shape)

        leaves = {name: own(value).requires_grad_() for name, value in params.items()}
        weights = {**{name: own(value) for name, value in fixed.items()}, **leaves}
        loss = self._targets.loss(record_logits(module, weights, inputs), labels, "sum")
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


class OpacusGradients:
    """Opacus' hooks. They do not work through functional_call, so the weights are loaded into a copy."""

    batches = False

    def __init__(self, targets: TargetKind = OWN_CLASSES) -> None:
        self._targets = targets
        self._wrapped: WeakKeyDictionary[nn.Module, dict[frozenset[str], Any]] = WeakKeyDictionary()

    def __call__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        varying: frozenset[str],
        inputs: Tensor,
        labels: Tensor,
    ) -> Params:
        """Each tensor [records, *shape].

        Raises:
            ValueError: Weights vary, which hooks on one module cannot express.
        """
        if varying:
            raise ValueError("the Opacus engine takes one client at a time")
        wrapped = self._wrapper(module, frozenset(params))
        own = dict(wrapped._module.named_parameters())
        with torch.no_grad():
            for name, value in {**fixed, **params}.items():
                own[name].copy_(value)
        wrapped.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            # Images need no gradient, which PyTorch's full backward hooks remark on.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._targets.loss(wrapped(inputs), labels, "sum").backward()  # type: ignore[no-untyped-call]
        return {name: own[name].grad_sample.detach() for name in params}

    def _wrapper(self, module: nn.Module, learned: frozenset[str]) -> Any:
        """Opacus decides when it wraps which parameters get a gradient, so there is one wrapper for each choice."""
        # Opacus takes a second to import, and few need it.
        from opacus import GradSampleModule

        wrappers = self._wrapped.setdefault(module, {})
        if learned not in wrappers:
            own = copy.deepcopy(module)
            for name, parameter in own.named_parameters():
                parameter.requires_grad_(name in learned)
            wrappers[learned] = GradSampleModule(own, loss_reduction="sum")
        return wrappers[learned]


def per_record_engine(name: Literal["auto", "vmap", "opacus"], targets: TargetKind = OWN_CLASSES) -> PerRecordGradients:
    """The engine of `record.engine`, for targets of this kind."""
    engines: dict[str, Callable[[TargetKind], PerRecordGradients]]
    engines = {"auto": LayeredGradients, "vmap": VmapGradients, "opacus": OpacusGradients}
    return engines[name](targets)
