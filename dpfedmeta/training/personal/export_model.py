"""A personal model for other programs: safetensors and JSON, and an ONNX graph from raw records to predictions."""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.missing import MissingValues, names_of, number_of
from dpfedmeta.learning.targets.regression import Regression
from dpfedmeta.training.personal.personal_model import PersonalModel
from dpfedmeta.training.personal.user_inputs import InputForm

WEIGHTS, DESCRIPTION, GRAPH = "model.safetensors", "model.json", "model.onnx"
# Of probabilities, and of numbers to predict in deviations of the targets: kernels differ in their last bits.
MOST = 1e-4
_RECORDS, _OPSET = 16, 18
_FIRST = {
    "images": "divide bytes by 255, ",
    "vectors": "replace missing values and append indicators where there are such, ",
    "tokens": "",
}


class Predicting(nn.Module):
    """A personal model with what is done to records before it and to outputs after it.

    Vectors are float64 [n, numbers] as they stand in a table, tokens likewise, images uint8 [n, channels, size, size].
    Gives probabilities [n, classes], or numbers [n] in their own unit.
    """

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        self.module, self.form, self.targets = model.module, model.form, model.targets
        mean, deviation = model.form.mean or (0.0,), model.form.deviation or (1.0,)
        shape = (-1, 1, 1) if model.form.records == "images" else (-1,)
        self.mean, self.deviation = (torch.tensor(each, dtype=torch.float64).view(shape) for each in (mean, deviation))
        missing = model.form.missing
        self.marks = None if missing is None else _marks(model.form, missing)

    def forward(self, records: Tensor) -> Tensor:
        """Standardise, predict."""
        values = records.double() / 255.0 if self.form.records == "images" else records
        if self.form.missing is not None:
            values = self._filled(values, self.form.missing)
        if self.form.vocabulary is None:
            values = (values - self.mean) / self.deviation
        outputs: Tensor = self.module(values.float())
        if self.targets is None:
            return outputs.softmax(1)
        numbers: Tensor = Regression(range=self.targets).predicted(outputs.double())
        return numbers * self.targets.scale + self.targets.centre

    def _filled(self, values: Tensor, missing: MissingValues) -> Tensor:
        assert self.marks is not None
        numbers, blank = self.marks
        absent = (values.unsqueeze(2) == numbers).any(2) | (torch.isnan(values) & blank)
        names = names_of(self.form.columns, self.form.width)
        shown = names if missing.indicators is None else [*missing.indicators]
        filled = torch.where(absent, torch.tensor(missing.replaced_by, dtype=torch.float64), values)
        places = torch.tensor([names.index(name) for name in shown], dtype=torch.int64)
        return torch.cat([filled, absent[:, places].double()], 1)


def _marks(form: InputForm, missing: MissingValues) -> tuple[Tensor, Tensor]:
    """Numbers [columns, most] that say that a value is missing, NaN where there are fewer, and whether a blank does."""
    names = names_of(form.columns, form.width)
    words = [(*missing.values, *missing.columns.get(name, ())) for name in names]
    known = [[number for word in own if (number := number_of(word)) is not None] for own in words]
    most = max(1, *map(len, known))
    marks = torch.tensor([own + [float("nan")] * (most - len(own)) for own in known], dtype=torch.float64)
    blank = missing.absent(np.full((1, len(names)), np.nan), names)[0]
    return marks, torch.from_numpy(blank)


def described(model: PersonalModel) -> dict[str, Any]:
    """Return all that is needed to use the weights without dpfedmeta, in JSON."""
    return {
        "network": asdict(model.network),
        "records": asdict(model.form),
        "class_names": list(model.class_names),
        "targets": None if model.targets is None else asdict(model.targets),
        "steps": model.steps,
        "order": f"{_FIRST[model.form.records]}subtract mean, divide by deviation (where given), apply the network",
        "private": "adapted to one client's records without noise: whoever has it may learn of them",
    }


def exported(model: PersonalModel, *, onnx: bool) -> dict[str, bytes]:
    """Return the files of a model by their names.

    Args:
        model: A client's own.
        onnx: Whether a graph of it is among them; it is run beside the model before it is handed out.

    Raises:
        InputError: ONNX is not installed, or the graph does not predict as the model does.
    """
    weights = {name: value.detach().contiguous().clone() for name, value in model.module.state_dict().items()}
    files = {WEIGHTS: save(weights), DESCRIPTION: json.dumps(described(model), indent=1).encode()}
    return files | ({GRAPH: _graph(model)} if onnx else {})


def _graph(model: PersonalModel) -> bytes:
    try:
        onnx, onnxruntime, _ = (importlib.import_module(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    except ImportError as error:
        raise InputError(f"--onnx: {error.name} is not installed; type: pip install 'dpfedmeta[onnx]'") from error
    examples = _examples(model.form)
    network = Predicting(model).eval()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # PyTorch's exporter warns of its own code.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(
                network,
                (examples,),
                input_names=["records"],
                output_names=["probabilities" if model.targets is None else "numbers"],
                dynamic_shapes={"records": {0: torch.export.Dim("n")}},
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            why = " ".join(str(error).split())[:200]
            raise InputError(f"--onnx: PyTorch cannot write {model.network.name} as a graph ({why})") from error
    assert made is not None
    proto = made.model_proto
    onnx.helper.set_model_props(proto, {"dpfedmeta": json.dumps(described(model))})
    graph: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    for records in (examples, examples[:1]):
        try:
            (found,) = session.run(None, {"records": records.numpy()})
        except Exception as error:  # of its own kinds, which share no other base
            why = " ".join(str(error).split())[:200]
            raise InputError(f"--onnx: the graph of {model.network.name} does not run ({why})") from error
        due = model.predict(records) if model.targets else model.probabilities(records)
        apart = float(np.abs(found - due.numpy()).max()) / (model.targets.scale if model.targets else 1.0)
        if not apart <= MOST:
            raise InputError(f"--onnx: the graph's predictions differ from the model's by {apart:.2g}; none is written")
    return graph


def _examples(form: InputForm) -> Tensor:
    """Made-up records of a model's form, some values of which are missing where a model knows such."""
    draw = torch.Generator().manual_seed(0)
    if form.records == "images":
        shape = (_RECORDS, form.channels, form.size, form.size)
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    if form.vocabulary is not None:
        return torch.randint(1, form.vocabulary, (_RECORDS, form.width), generator=draw).double()
    mean, deviation = form.mean[: form.width] or (0.0,), form.deviation[: form.width] or (1.0,)
    records = torch.randn(_RECORDS, form.width, generator=draw, dtype=torch.float64)
    records = records * torch.tensor(deviation, dtype=torch.float64) + torch.tensor(mean, dtype=torch.float64)
    if form.missing is not None:
        marks, blank = _marks(form, form.missing)
        mark = torch.where(blank, torch.nan, marks[:, 0])
        records[::3] = torch.where(torch.isfinite(mark) | blank, mark, records[::3])
    return records
