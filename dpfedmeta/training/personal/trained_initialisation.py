"""A trained initialisation: from a run directory to a model of one's own in a few gradient steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params, is_finite
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_params
from dpfedmeta.learning.models.frozen import frozen_network
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.resize_head import with_ways
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.training.personal.personal_model import PersonalModel
from dpfedmeta.training.personal.user_inputs import Images, InputForm, Labels, checked_labels
from dpfedmeta.training.results.trained_run import open_run


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Initialisation:
    """Initialisation that the federation learned, with all that is needed to adapt it.

    Attributes:
        network: The network.
        weights: Its weights before adaptation.
        adaptation: Inner loop of held-out clients.
        form: Form of the records that it takes.
        learned_by: Algorithm and data set of the run, for display.
    """

    network: NetworkSpec
    weights: Params
    adaptation: Adaptation
    form: InputForm
    learned_by: str = ""

    def __repr__(self) -> str:
        count = sum(value.numel() for value in self.weights.values())
        return (
            f"Initialisation{f' by {self.learned_by}' if self.learned_by else ''}: {self.network.name}, "
            f"{count:,} weights, {self.network.ways} ways"
        )

    def adapt(
        self,
        images: Images,
        labels: Labels,
        *,
        class_names: Sequence[str] = (),
        ways: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
    ) -> PersonalModel:
        """Adapt to labelled images of one's own. Nothing leaves the machine, so no noise is added.

        Args:
            images: The support set, [n, channels, height, width]: uint8, or floats standardised as in training.
            labels: [n], whole numbers 0 ... classes - 1, an image of each at least.
            class_names: A name for each class; kept in the model.
            ways: Number of classes; None: that of the names, else of the labels, at most as many as in training.
            steps: Gradient steps; None: as the run evaluates.
            lr: Step size; None: as the run evaluates.

        Raises:
            InputError: Images or labels do not fit, steps < 0, or the adaptation diverged.
        """
        how = self._adaptation(steps, lr)
        support = self.form.tensor(images)
        wanted = _wanted_ways(ways, class_names)
        known, classes = checked_labels(labels, len(support), self.network.ways, wanted)
        spec, weights = with_ways(self.network, self.weights, classes)
        network = build_network(spec)
        with torch.enable_grad():
            params = adapted_params(network, weights, support, known, how)
        if not is_finite(params):
            raise InputError(f"the adaptation diverged after {how.steps} steps of {how.lr:g}; take a smaller lr")
        return PersonalModel(
            network=spec,
            module=frozen_network(network, params, support),
            form=self.form,
            steps=how.steps,
            class_names=tuple(class_names),
        )

    def _adaptation(self, steps: int | None, lr: float | None) -> Adaptation:
        if steps is not None and steps < 0:
            raise InputError(f"steps = {steps}: a number of gradient steps is 0 or more")
        if lr is not None and not (isfinite(lr) and lr > 0):
            raise InputError(f"lr = {lr}: a step size is positive and finite")
        known = self.adaptation
        return replace(known, steps=known.steps if steps is None else steps, lr=known.lr if lr is None else lr)


def _wanted_ways(ways: int | None, class_names: Sequence[str]) -> int | None:
    if class_names and ways not in (None, len(class_names)):
        raise InputError(f"ways = {ways}, but there are {len(class_names)} class_names")
    return len(class_names) if class_names else ways


def load(path: str | os.PathLike[str]) -> Initialisation:
    """The initialisation that a run has learned; the images of its benchmark are not needed.

    Args:
        path: A run directory.

    Raises:
        InputError: Not a run directory, or its weights are missing, damaged or of another network.
    """
    run = open_run(Path(path))
    by = f"{run.settings.algo} on {run.settings.dataset}"
    task = run.task
    form = InputForm(
        channels=run.network.channels,
        size=run.network.image_size,
        mean=task.mean,
        deviation=task.deviation,
        records=task.form.kind,
        vocabulary=task.form.vocabulary,
    )
    return Initialisation(network=run.network, weights=run.weights, adaptation=run.adaptation, form=form, learned_by=by)
