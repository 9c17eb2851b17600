"""A personal model: predictions from one record at a time, and one file without pickle."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.core.files.run_directory import CONFIG
from dpfedmeta.core.params import Params, is_finite
from dpfedmeta.data.columns import check_same_rows
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.missing import names_of
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_params
from dpfedmeta.learning.models.frozen import frozen_network, restored_network
from dpfedmeta.learning.models.functional import channels_last
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.regression import Regression
from dpfedmeta.training.personal.user_inputs import (
    DESCRIBED,
    FORMAT,
    Answers,
    Images,
    InputForm,
    Labels,
    checked_names,
)
from dpfedmeta.training.results.trained_run import open_run

_IMAGES_PER_CHUNK = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonalModel:
    """An adapted network with frozen statistics: a prediction depends on the image and on nothing else.

    Attributes:
        network: What the module was built from.
        module: From standardised records [n, ...] to logits [n, classes], or to [n, 1] of numbers to predict.
        form: What records it takes, with the names of a table's columns and the constants that standardise them.
        steps: Gradient steps that were taken.
        class_names: A name for each class, or nothing.
        targets: Public constants of numbers to predict; None: it has classes.
    """

    network: NetworkSpec
    module: nn.Module
    form: InputForm
    steps: int
    class_names: tuple[str, ...] = ()
    targets: TargetRange | None = None

    def logits(self, images: Images) -> Tensor:
        """Logits [n, classes] of images [n, channels, height, width], uint8 or standardised floats; or of vectors.

        Vectors [n, numbers] are as in the file that the run was trained on, and are standardised here. A table (pandas,
        polars), a mapping from names to numbers, or a CSV file is read by the names of its columns.

        Raises:
            InputError: The images do not fit.
        """
        parts = torch.split(self.form.tensor(images), _IMAGES_PER_CHUNK)
        with torch.no_grad():
            return torch.cat([self.module(channels_last(part)) for part in parts])

    def probabilities(self, images: Images) -> Tensor:
        """Softmax of the logits, [n, classes]; not calibrated.

        Raises:
            InputError: The model predicts numbers, or the records do not fit.
        """
        if self.targets is not None:
            raise InputError("the model predicts numbers, which have no probabilities; predict gives them")
        return self.logits(images).softmax(1)

    def predict(self, images: Images) -> Tensor:
        """Labels [n], int64, as they were given to `adapt`; or numbers [n], float64, in their own unit."""
        if self.targets is not None:
            numbers: Tensor = Regression(range=self.targets).predicted(self.logits(images).double())
            return numbers * self.targets.scale + self.targets.centre
        return self.logits(images).argmax(1)

    def predict_names(self, images: Images) -> list[str]:
        """Names of the classes.

        Raises:
            InputError: The model has none, or the images do not fit.
        """
        if not self.class_names:
            raise InputError("the model has no class names; give class_names to adapt")
        return [self.class_names[label] for label in self.predict(images).tolist()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all: weights, frozen statistics, and what describes them.

        Only its owner can read it, since it adapted to records without noise; prototypes of one record a class are
        that record.

        Raises:
            InputError: The folder does not exist or cannot be written, or is inside a run and not in its secret folder.
        """
        target = Path(path)
        if target.is_dir():
            raise InputError(f"{target}: is a folder; name a file in it, as {target / 'model.safetensors'}")
        if not target.parent.is_dir():
            raise InputError(f"{target}: cannot be written: there is no folder {target.parent}; make it first")
        content = {
            "format": FORMAT,
            "network": asdict(self.network),
            "form": asdict(self.form),
            "steps": self.steps,
            "class_names": self.class_names,
            "targets": None if self.targets is None else asdict(self.targets),
        }
        tensors = {name: value.detach().contiguous().clone() for name, value in self.module.state_dict().items()}
        check_outside_runs("PersonalModel.save:", target)
        try:
            replace_file(target, save(tensors, metadata={DESCRIBED: json.dumps(content)}), SECRET)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{target}: cannot be written ({error})") from error


def load_personal(path: str | os.PathLike[str]) -> PersonalModel:
    """Read a file of `PersonalModel.save`.

    Nothing in it is executed, with one exception: where it names a network of the user's own
    (package.module:factory), that module, installed or in the current directory, is imported.

    Raises:
        InputError: MissingValues, damaged, not a personal model, or its tensors do not fit its network.
    """
    source = Path(path)
    if source.is_dir():
        run = (source / CONFIG).is_file()
        raise InputError(
            f"{source}: is {'the directory of a run' if run else 'a folder'}; a personal model is one file, which "
            "PersonalModel.save writes" + (f"; the run's initialisation: dp.load({str(source)!r})" if run else "")
        )
    try:
        content, tensors = _read(source)
        if content.get("format") != FORMAT:
            raise InputError(f"expected the format {FORMAT!r}, found {content.get('format')!r}")
        spec = TypeAdapter(NetworkSpec).validate_python(content.get("network"))
        form = TypeAdapter(InputForm).validate_python(content.get("form"))
        names = TypeAdapter(tuple[str, ...]).validate_python(content.get("class_names"))
        steps = TypeAdapter(int).validate_python(content.get("steps"))
        targets = TypeAdapter(TargetRange | None).validate_python(content.get("targets"))
        module = _restored(spec, tensors)
        model = PersonalModel(network=spec, module=module, form=form, steps=steps, class_names=names, targets=targets)
        _check(model, tensors)
        return model
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{source}: is damaged, or not a personal model: {place} {first['msg']}") from error
    except InputError as error:
        raise InputError(f"{source}: is damaged, or not a personal model: {error}") from error


def _read(path: Path) -> tuple[dict[str, Any], Params]:
    try:
        with safe_open(path, framework="pt") as file:
            described: Mapping[str, str] = file.metadata() or {}
            tensors: Params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content = json.loads(described.get(DESCRIBED, "null"))
    except (OSError, SafetensorError, *DAMAGED_JSON) as error:
        raise InputError(" ".join(str(error).split())) from error
    if not isinstance(content, dict):
        raise InputError("its description is missing")
    return content, tensors


def _restored(spec: NetworkSpec, tensors: Params) -> nn.Module:
    try:
        return restored_network(build_network(spec), tensors)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"its network cannot be built ({' '.join(str(error).split())})") from error


def _check(model: PersonalModel, tensors: Mapping[str, Tensor]) -> None:
    """Check that the parts of a model fit each other, also by computing the logits of one image."""
    form, network = model.form, model.network
    if form.form != network.form:
        raise InputError("its images do not fit its network")
    allowed = (0, form.channels, 1) if form.records == "vectors" else (0, form.channels)
    if len(form.columns) not in (0, form.width) or len({*form.columns}) != len(form.columns):
        raise InputError("its columns do not fit its records")
    if (missing := form.missing) is not None:
        missing.check("its columns", form.width)
        missing.check_names("its columns", names_of(form.columns, form.width))
        if form.width + missing.added(form.width) != form.channels:
            raise InputError("its missing values do not fit its records")
    if any(len(values) not in allowed for values in (form.mean, form.deviation)):
        raise InputError("its standardisation does not fit its images")
    if len(model.class_names) not in (0, network.ways):
        raise InputError(f"it has {len(model.class_names)} class names for {network.ways} classes")
    if not is_finite(tensors):
        raise InputError("it holds values that are not finite")
    try:
        # Bytes are standardised, as floats of images are not.
        kind = torch.uint8 if form.records == "images" else torch.float32
        shape = form.form.shape if form.records == "images" else (form.width,)
        record = form.tensor(torch.ones(1, *shape, dtype=kind), ask=False)
        with torch.no_grad():
            logits = model.module(channels_last(record))
    except RuntimeError as error:
        raise InputError("its statistics do not fit its network") from error
    if not bool(torch.isfinite(logits).all()):
        raise InputError("its standardisation or its statistics give values that are not finite")
    if tuple(logits.shape) != (1, network.ways):
        raise InputError(f"its network gives {list(logits.shape)} for one image of {network.ways} classes")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Initialisation:
    """Initialisation that the federation learned, with all that is needed to adapt it.

    Attributes:
        network: The network.
        weights: Its weights before adaptation.
        adaptation: Inner loop of held-out clients.
        form: Form of the records that it takes.
        learned_by: Algorithm and data set of the run, for display.
        labels: Public list of labels that all clients share; empty: each has classes of its own.
    """

    network: NetworkSpec
    weights: Params
    adaptation: Adaptation
    form: InputForm
    learned_by: str = ""
    labels: tuple[str, ...] = ()

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
            labels: [n], whole numbers 0 ... classes - 1, an image of each at least; or names of the public list, where
                clients share one; or numbers to predict, in their own unit. A series (pandas) names its rows as
                `images` does.
            class_names: A name for each class; kept in the model.
            ways: Number of classes; None: that of the names, else of the labels, at most as many as in training.
            steps: Gradient steps; None: as the run evaluates.
            lr: Step size; None: as the run evaluates.

        Raises:
            InputError: Images or labels do not fit, steps < 0, or the adaptation diverged.
        """
        targets = self.adaptation.targets
        how = self._adaptation(steps, lr)
        check_same_rows(images, labels)
        support = self.form.tensor(images)
        given = Answers(labels=labels, records=len(support), ways=ways, names=checked_names(class_names))
        numbers, classes, names = given.known(targets, self.network.ways, self.labels)
        known = torch.from_numpy(numbers)
        spec, weights = with_ways(self.network, self.weights, self.adaptation.targets.outputs(classes))
        network = build_network(spec)
        with torch.enable_grad():
            params = adapted_params(network, weights, support, known, how)
        if not is_finite(params):
            raise InputError(f"the adaptation diverged after {how.steps} steps of {how.lr:g}; give a smaller lr")
        return PersonalModel(
            network=spec,
            module=frozen_network(network, params, support),
            form=self.form,
            steps=how.steps,
            class_names=names,
            targets=targets.range if isinstance(targets, Regression) else None,
        )

    def _adaptation(self, steps: int | None, lr: float | None) -> Adaptation:
        if steps is not None and not (isinstance(steps, Integral) and steps >= 0):
            raise InputError(f"steps = {steps}: expected a number of gradient steps, 0 or more")
        if lr is not None and not (isinstance(lr, Real) and isfinite(lr) and lr > 0):
            raise InputError(f"lr = {lr}: expected a step size above 0, and finite")
        known = self.adaptation
        return replace(
            known, steps=known.steps if steps is None else int(steps), lr=known.lr if lr is None else float(lr)
        )


def load(path: str | os.PathLike[str]) -> Initialisation:
    """The initialisation that a run has learned; the images of its benchmark are not needed.

    Args:
        path: A run directory.

    Raises:
        InputError: Not a run directory, or its weights are missing, damaged or of another network.
    """
    run = open_run(Path(path))
    by = f"{run.settings.algo} on {run.settings.dataset}"
    source = run.task.source
    there = isinstance(source, OwnSource) and Path(source.path).exists()
    columns = columns_in(source.reader, Path(source.path)) if there and isinstance(source, OwnSource) else ()
    return Initialisation(
        network=run.network,
        weights=run.weights,
        adaptation=run.adaptation,
        form=InputForm.of(run.task.form, *run.task.constants, columns=columns),
        learned_by=by,
        labels=run.task.labels,
    )
