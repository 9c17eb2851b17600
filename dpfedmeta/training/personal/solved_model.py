"""Models that were solved for, without PyTorch: they are a matrix, so numpy alone adapts them and predicts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dpfedmeta.config.dataset_names import data_of_run, encoding_of_run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_checks import check_outside_runs, not_a_run
from dpfedmeta.core.files.run_directory import CONFIG, RunDirectory
from dpfedmeta.data.columns import check_same_rows
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.readers import columns_in
from dpfedmeta.learning.models.spec import BODY, HEAD, NetworkSpec
from dpfedmeta.learning.models.weight_shapes import FLOOR, GAUSSIAN, METRIC, SHARPNESS, weight_shapes
from dpfedmeta.learning.targets.regression import Regression
from dpfedmeta.planning.client_spec import evaluation_adaptation, method_of, network_spec
from dpfedmeta.training.personal.user_inputs import DESCRIBED, FORMAT, Answers, Images, InputForm, Labels, checked_names

if TYPE_CHECKING:
    from dpfedmeta.learning.meta.adaptation import Adaptation

Array = npt.NDArray[np.float32]
Arrays = Mapping[str, Array]


def _at_length_one(values: Any) -> Any:
    return values / np.sqrt((values * values).sum(-1, keepdims=True) + np.float32(FLOOR))


def _by_metric(weights: Arrays, records: Array) -> Array:
    seen = _at_length_one(records) - weights[f"{BODY}layers.1.centre"]
    factor = np.float32(SHARPNESS) * np.exp(weights[f"{BODY}layers.3.exponent"])
    found: Array = _at_length_one(seen @ weights[f"{BODY}layers.1.matrix"]) * factor
    return found


def _by_gaussian(weights: Arrays, records: Array) -> Array:
    seen: Any = records - weights[f"{BODY}layers.0.centre"]
    found: Array = seen @ weights[f"{BODY}layers.0.matrix"]
    return found


BODIES: Mapping[str, Callable[[Arrays, Array], Array]] = {
    METRIC: _by_metric,
    GAUSSIAN: _by_gaussian,
}
"""The bodies of networks that are solved for, before their head, as `learning.models.registry` builds them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixModel:
    """A client's own model (`training.personal.personal_model.PersonalModel`), with numpy in the place of PyTorch.

    Attributes:
        network: What it is.
        weights: By name.
        form: What records it takes.
        class_names: A name for each class, or nothing.
        targets: Public constants of numbers to predict; None: it has classes.
    """

    network: NetworkSpec
    weights: Arrays
    form: InputForm
    class_names: tuple[str, ...] = ()
    targets: TargetRange | None = None

    def logits(self, records: Images) -> Array:
        """Logits [n, classes], or numbers in scales [n, 1], of records as `PersonalModel.logits` takes them.

        Raises:
            InputError: The records do not fit.
        """
        seen = BODIES[self.network.name](self.weights, self.form.vectors(records))
        found: Array = seen @ self.weights[f"{HEAD}weight"].T + self.weights[f"{HEAD}bias"]
        return found

    def probabilities(self, records: Images) -> Array:
        """Softmax of the logits, [n, classes]; not calibrated.

        Raises:
            InputError: The model predicts numbers, or the records do not fit.
        """
        if self.targets is not None:
            raise InputError("the model predicts numbers, which have no probabilities; predict gives them")
        logits = self.logits(records)
        shares: Any = np.exp(logits - logits.max(1, keepdims=True))
        found: Array = shares / shares.sum(1, keepdims=True)
        return found

    def predict(self, records: Images) -> npt.NDArray[Any]:
        """Labels [n], int64, as they were given to `adapt`; or numbers [n], float64, in their own unit."""
        found: npt.NDArray[Any] = self.logits(records)
        if self.targets is None:
            found = found.argmax(1)
            return found
        found = Regression(range=self.targets).predicted(found.astype(np.float64))
        return found * self.targets.scale + self.targets.centre

    def predict_names(self, records: Images) -> list[str]:
        """Names of the classes.

        Raises:
            InputError: The model has none, or the records do not fit.
        """
        if not self.class_names:
            raise InputError("the model has no class names; give class_names to adapt")
        return [self.class_names[label] for label in self.predict(records).tolist()]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that `PersonalModel.save` writes; only its owner can read it.

        Raises:
            InputError: It cannot be written, or is inside a run and not in its secret folder.
        """
        target = Path(path)
        check_outside_runs("MatrixModel.save:", target)
        content = {
            "format": FORMAT,
            "network": asdict(self.network),
            "form": asdict(self.form),
            "steps": 0,
            "class_names": self.class_names,
            "targets": None if self.targets is None else asdict(self.targets),
        }
        tensors = {name: np.ascontiguousarray(value) for name, value in self.weights.items()}
        try:
            replace_file(target, save(tensors, metadata={DESCRIBED: json.dumps(content)}), SECRET)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{target}: cannot be written ({error})") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedRun:
    """The model of a run that was solved for, which adapts without PyTorch.

    Attributes:
        network: What it is.
        weights: By name, before adaptation.
        adaptation: In closed form.
        form: What records it takes.
        labels: Public list of labels that all clients share; empty: each has classes of its own.
    """

    network: NetworkSpec
    weights: Arrays
    adaptation: Adaptation
    form: InputForm
    labels: tuple[str, ...] = ()

    def adapt(
        self, records: Images, labels: Labels, *, class_names: Sequence[str] = (), ways: int | None = None
    ) -> MatrixModel:
        """Adapt to labelled records of one's own, as `Initialisation.adapt` does. Nothing leaves the machine.

        Raises:
            InputError: Records or labels do not fit.
        """
        targets = self.adaptation.targets
        check_same_rows(records, labels)
        own = self.form.vectors(records)
        given = Answers(labels=labels, records=len(own), ways=ways, names=checked_names(class_names))
        known, classes, names = given.known(targets, self.network.ways, self.labels)
        head: Any = {f"{HEAD}{name}": self.weights[f"{HEAD}{name}"] for name in ("weight", "bias")}
        start: Any = self.adaptation.rule.start
        found = start(head, lambda: BODIES[self.network.name](self.weights, own), known, targets.outputs(classes))
        return MatrixModel(
            network=replace(self.network, ways=targets.outputs(classes)),
            weights={**self.weights, **{name: value.astype(np.float32) for name, value in found.items()}},
            form=self.form,
            class_names=names,
            targets=targets.range if isinstance(targets, Regression) else None,
        )


def load_solved(path: str | os.PathLike[str]) -> SolvedRun:
    """Read a run of moments, to adapt its model and predict without PyTorch; `load` reads any run.

    Args:
        path: A run directory.

    Raises:
        InputError: It is none, its weights are missing or damaged, or its model is no matrix.

    Example:
        run = dpfedmeta.load_solved("runs/people")
        run.adapt("mine.csv", labels).predict("new.csv")
    """
    directory = RunDirectory(Path(path))
    if not (directory.path / CONFIG).is_file():
        raise not_a_run(directory.path, CONFIG)
    settings = resolve(None, None, directory.path / CONFIG)
    task, _ = load_task(data_of_run(settings.dataset, None), None, encoding_of_run(settings))
    spec, method = network_spec(settings, task), method_of(settings, task)
    how = evaluation_adaptation(settings, method)
    if spec.name not in BODIES or how.steps:
        raise InputError(f"{path}: model.name = {spec.name} is no matrix; dpfedmeta.load reads it, with PyTorch")
    _, tensors = described_tensors(directory.weights)
    source = task.source
    there = isinstance(source, OwnSource) and Path(source.path).exists()
    columns = columns_in(source.reader, Path(source.path)) if there and isinstance(source, OwnSource) else ()
    weights: Any = how.rule.network(tensors)  # type: ignore[arg-type]
    _check_weights(spec, weights, str(directory.weights))
    form = InputForm.of(task.form, *task.constants, columns=columns)
    return SolvedRun(network=spec, weights=weights, adaptation=how, form=form, labels=task.labels)


def load_solved_model(path: Path) -> MatrixModel | None:
    """A client's own model from its file; None: PyTorch has to read it, or to say what is wrong with it."""
    try:
        content, tensors = described_tensors(path)
        spec = TypeAdapter(NetworkSpec).validate_python(content.get("network"))
        if content.get("format") != FORMAT or spec.name not in BODIES:
            return None
        _check_weights(spec, tensors, str(path))
        return MatrixModel(
            network=spec,
            weights=tensors,
            form=TypeAdapter(InputForm).validate_python(content.get("form")),
            class_names=TypeAdapter(tuple[str, ...]).validate_python(content.get("class_names")),
            targets=TypeAdapter(TargetRange | None).validate_python(content.get("targets")),
        )
    except (InputError, ValidationError):
        return None


def described_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """A safetensors file: its description, empty if there is none, and its tensors.

    Raises:
        InputError: Missing or damaged.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            said: Mapping[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content = json.loads(said.get(DESCRIBED, "null"))
    except (OSError, SafetensorError, *DAMAGED_JSON) as error:
        raise InputError(f"{path}: no readable weights ({' '.join(str(error).split())})") from error
    return content if isinstance(content, dict) else {}, tensors


def _check_weights(spec: NetworkSpec, weights: Arrays, where: str) -> None:
    wanted = {name: tuple(shape) for name, shape in weight_shapes(spec).items()}
    found = {name: value.shape for name, value in weights.items()}
    if found != wanted or not all(np.isfinite(value).all() for value in weights.values()):
        raise InputError(f"{where}: no finite weights of {spec.name} (has {', '.join(found)})")
