"""Opacus' DP-SGD with this project's network: its own wrappers, loader, optimizer and accountant.

Nothing here gives a guarantee.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.audited_case import Case
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

RECORDS, DELTA, BOUND = 10, 1e-6, 0.1
# cross_entropy gives a record with this label no gradient: the neighbour that holds nothing.
_NOBODY = -100
_SPEC = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=5, width=8, norm="group")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run is made.

    Attributes:
        z: Noise multiplier.
        batch: Records of a batch, expected.
        poisson: As Opacus' `poisson_sampling`.
        alone: Whether the canary alone holds anything; the loss is then summed, as a mean over nobody is none.
        removed: Whether the canary's place is gone in the other world, and not only what it holds.
    """

    z: float
    batch: int
    poisson: bool = True
    alone: bool = False
    removed: bool = False

    def data(self, one: bool) -> TensorDataset:
        """The records of a world; the canary is the last one."""
        images = torch.randn(RECORDS, 1, 28, 28, generator=torch.Generator().manual_seed(1))
        labels = torch.arange(RECORDS) % _SPEC.ways
        images[-1] *= 5
        if self.alone:
            labels[:-1] = _NOBODY
        if not one:
            labels[-1] = _NOBODY
        count = RECORDS - (self.removed and not one)
        return TensorDataset(images[:count], labels[:count])


def network() -> nn.Module:
    """With the same weights each time."""
    torch.manual_seed(0)
    return build_network(_SPEC)


def run(setting: Setting, one: bool, seed: int) -> tuple[list[tuple[Tensor, Tensor]], float]:
    """([(weights before a step, what the step released)], epsilon that Opacus prints)."""
    from opacus import PrivacyEngine

    module, reduction = network(), "sum" if setting.alone else "mean"
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    loader = DataLoader(setting.data(one), batch_size=setting.batch)
    torch.manual_seed(seed)  # its cohorts and noise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine: Any = PrivacyEngine()
        module, optimizer, loader = engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=setting.z, max_grad_norm=BOUND,
            poisson_sampling=setting.poisson, loss_reduction=reduction,
        )  # fmt: skip
        steps = []
        for images, labels in loader:
            before = _flat(module)
            optimizer.zero_grad()
            cross_entropy(module(images), labels, ignore_index=_NOBODY, reduction=reduction).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps.append((before, before - _flat(module)))
        printed = engine.get_epsilon(DELTA) if seed == 0 and setting.z else math.nan
    return steps, float(printed)


def cases(runs: int) -> Iterator[Case]:
    """All of them."""
    logging.getLogger("opacus").setLevel(logging.ERROR)  # it tells of every batch that is empty
    z, version = 1.0, "printed by Opacus' own accountant (PRV)"
    whole = Setting(z=z, batch=RECORDS)
    claimed, true = run(whole, True, 0)[1], gaussian_epsilon(1 / z, DELTA)
    name = f"Opacus DP-SGD, {_SPEC.name}, z = {z:g}, one step of all {RECORDS} records"
    yield Case(
        name=name, worlds="a record, or one without a gradient in its place", claimed=claimed, by=version, true=true,
        delta=DELTA, runs=runs, ratio=_OneStep(whole),
    )  # fmt: skip
    gone = Setting(z=z, batch=RECORDS, removed=True)
    yield Case(
        name=name, worlds="a record, or none: the data set has one less, and noise and mean are over fewer",
        claimed=claimed, by=version, true=_of_the_deviation(), delta=DELTA, runs=min(runs, 200), ratio=_OneStep(gone),
    )  # fmt: skip
    sampled = Setting(z=0.8, batch=1, alone=True)
    printed = run(sampled, True, 0)[1]
    name = f"Opacus DP-SGD, {_SPEC.name}, z = {sampled.z:g}, {RECORDS} steps, q = 0.1"
    phases = PrivacyPlan(
        clients=RECORDS, cohort=1, rounds=RECORDS, noise_multiplier=sampled.z, client_delta=DELTA
    ).phases
    yield Case(
        name=f"{name}, Poisson", worlds="a record, or one without a gradient in its place", claimed=printed, by=version,
        true=sampled_epsilon(phases, "add-remove", DELTA), delta=DELTA, runs=runs // 2, ratio=_ManySteps(sampled),
    )  # fmt: skip
    ordered = Setting(z=0.8, batch=1, alone=True, poisson=False)
    yield Case(
        name=f"{name}, poisson_sampling=False", worlds="the same; batches in their order",
        claimed=run(ordered, True, 0)[1], by=version, true=gaussian_epsilon(1 / ordered.z, DELTA), delta=DELTA,
        runs=runs // 2, ratio=_ManySteps(ordered),
    )  # fmt: skip


class _OneStep:
    """Knows what the step of either world is without noise, and how large its noise is."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        quiet = Setting(**{**vars(setting), "z": 0.0})
        self.means = {one: run(quiet, one, 0)[0][0][1] for one in (True, False)}

    def __call__(self, one: bool, seed: int) -> float:
        ((_, released),), _ = run(self.setting, one, seed + 1)
        return self._log_density(released, True) - self._log_density(released, False)

    def _log_density(self, released: Tensor, one: bool) -> float:
        deviation = self.setting.z * BOUND / len(self.setting.data(one))
        apart = float((released - self.means[one]).square().sum())
        return -apart / (2 * deviation**2) - len(released) * math.log(deviation)


class _ManySteps:
    """Knows the canary's own step from any weights; all others hold nothing."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.module = setting, network()
        self.image, self.label = (part[-1:] for part in setting.data(True).tensors)

    def __call__(self, one: bool, seed: int) -> float:
        steps, _ = run(self.setting, one, seed + 1)
        if not self.setting.poisson:
            return self._ratio(*steps[-1])
        rate = self.setting.batch / RECORDS
        return sum(
            float(np.logaddexp(math.log1p(-rate), math.log(rate) + self._ratio(before, released)))
            for before, released in steps
        )

    def _ratio(self, before: Tensor, released: Tensor) -> float:
        torch.nn.utils.vector_to_parameters(before.float(), self.module.parameters())
        loss = cross_entropy(self.module(self.image), self.label)
        found = torch.autograd.grad(loss, list(self.module.parameters()))
        sent = torch.cat([part.flatten() for part in found]).double()
        sent *= min(1.0, BOUND / float(sent.norm()))
        return float(released @ sent - sent @ sent / 2) / (self.setting.z * BOUND) ** 2


def _of_the_deviation() -> float:
    """Epsilon at least, from the size of the noise alone: over N records in one world, over N - 1 in the other."""
    size, wider = len(_flat(network())), (RECORDS / (RECORDS - 1)) ** 2

    def lost(epsilon: float) -> float:
        edge = 2 * (epsilon + size / 2 * math.log(wider)) / (1 - 1 / wider)
        return float(chi2.sf(edge / wider, size) - np.exp(epsilon + chi2.logsf(edge, size)))

    return smallest_epsilon(lost, DELTA)


def _flat(module: nn.Module) -> Tensor:
    return torch.cat([part.detach().flatten() for part in module.parameters()]).double()
