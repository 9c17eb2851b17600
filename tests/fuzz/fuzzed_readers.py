"""Everything that reads a file which somebody else may have written, with what may never be accepted."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, check_rounds, read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights, save_weights
from dpfedmeta.core.params import digest
from dpfedmeta.data.sources.omniglot import decode
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.server_step import initial_state
from dpfedmeta.privacy.clip_policies.window_policy import Window
from dpfedmeta.privacy.rounds.cohort_log import _read as read_participations
from dpfedmeta.training.state.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"

LAYER = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=1, support_records=4, query_records=4)
PLAN = PrivacyPlan(clients=500, cohort=5, rounds=4, noise_multiplier=0.8, record=LAYER)
STATE = initial_state({"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}, Window(initial_bound=0.3))
BODY = NetworkSpec(name="conv3-blur", channels=1, image_size=8, ways=2, width=2, norm="group", groups=1)
FORM = {name: value.shape for name, value in initial_weights(BODY, 0).items()}

TOKENS = [
    b"&a", b"*a", b"<<: *a", b"!!python/object/apply:os.system [x]", b"!!binary x", b"2001-99-99", b".nan", b"-.inf",
    b"1e999", b"9" * 5000, b"0x" + b"f" * 60, b"? ", b"- ", b": ", b"[" * 300, b"{" * 300, b"\0", b"\xff", b"\n",
    b"null", b"true", b'"', b"'", b"NaN", b"Infinity", b"-1", b"\xe2\x80\xa8", b"12:30:45", b"=", b"~", b"1_0", b"\r",
    b"__metadata__",
]  # fmt: skip


def mutations() -> st.SearchStrategy[list[tuple[str, float, float, bytes]]]:
    """What is done to a file: at a place, over a length, with some bytes."""
    place = st.floats(0, 1, exclude_max=True)
    kinds = st.sampled_from(["flip", "cut", "insert", "copy", "truncate", "overwrite"])
    content = st.one_of(st.binary(max_size=4), st.sampled_from(TOKENS))
    return st.lists(st.tuples(kinds, place, place, content), min_size=1, max_size=4)


def mutated(content: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """The changes, one after the other."""
    for kind, first, second, new in changes:
        here, length = int(first * (len(content) + 1)), int(second**4 * len(content)) + 1
        if kind == "flip":
            content = (
                content[:here]
                + bytes(b ^ (1 << int(second * 8)) for b in content[here : here + 1])
                + content[here + 1 :]
            )
        elif kind == "cut":
            content = content[:here] + content[here + length :]
        elif kind == "insert":
            content = content[:here] + new + content[here:]
        elif kind == "copy":
            there = int(second * (len(content) + 1))
            content = content[:here] + content[there : there + 40] + content[here:]
        elif kind == "truncate":
            content = content[:here]
        else:
            content = content[:here] + new + content[here + len(new) :]
    return content


def config(path: Path, original: bytes) -> None:
    """Accepted settings are whole: written and read again they are the same."""
    settings = resolve(None, None, path)
    path.write_text(to_yaml(settings))
    assert resolve(None, None, path) == settings


def task(path: Path, original: bytes) -> None:
    """An accepted task has its splits."""
    accepted, splits = load_task(str(path))
    assert set(splits.values()) <= {"train", "val", "test"}
    assert accepted.image_size >= 8


def split(path: Path, original: bytes) -> None:
    """A task whose class list was damaged."""
    beside = path.with_name("beside.yaml")
    if not beside.exists():
        text = (ROOT / "tasks" / "omniglot.yaml").read_text()
        beside.write_text(text.replace("omniglot.csv", path.name).replace("omniglot-split.csv", path.name))
    load_task(str(beside))


def ledger(path: Path, original: bytes) -> None:
    """What is accepted was charged: nothing is cheaper, missing in the middle, or reordered."""
    content = read_content(path, torn=True)
    check_rounds(content.plan, content.charges)
    whole = [planned_charge(PLAN, round_) for round_ in range(PLAN.rounds)]
    found = [replace(event, inputs="") for event in content.charges]
    # The last line carries nobody's hash but its own: heads kept elsewhere protect its free text.
    assert found == whole[: len(found)]
    assert len(found) < 1 or content.plan == PLAN


def checkpoint(path: Path, original: bytes) -> None:
    """Bit for bit, or not at all."""
    found = load_checkpoint(path, STATE)
    assert digest(found.state.model) == digest(STATE.model)
    assert (found.state.bound, found.state.policy, found.state.round) == (STATE.bound, STATE.policy, STATE.round)
    assert (found.lines, found.head) == (3, "0" * 64)


def weights(path: Path, original: bytes) -> None:
    """Tensors and nothing else."""
    assert all(isinstance(value, torch.Tensor) for value in load_weights(path).values())


def initial(path: Path, original: bytes) -> None:
    """A body that fits and is finite."""
    begun = initial_weights(replace(BODY, initial=str(path)), 0)
    assert {name: value.shape for name, value in begun.items()} == FORM
    assert all(bool(torch.isfinite(value).all()) for value in begun.values())


def rows(path: Path, original: bytes) -> None:
    """Rows are mappings."""
    assert all(isinstance(row, dict) for row in RunDirectory(path.parent).rounds())


def summary(path: Path, original: bytes) -> None:
    """An object."""
    assert isinstance(RunDirectory(path.parent).read_json(path.name), dict)


def participations(path: Path, original: bytes) -> None:
    """Rounds with clients."""
    assert all(cohort.clients.ndim == 1 for cohort in read_participations(path))


def archive(path: Path, original: bytes) -> None:
    """Whole images of the right form."""
    images = decode([path], ["Latin/character01", "Latin/character02"], 8, 2)
    assert images.shape == (4, 1, 8, 8)


Reader = Callable[[Path, bytes], None]
# reader, file name, share of all inputs
READERS: dict[str, tuple[Reader, str, float]] = {
    "config": (config, "config.yaml", 0.06),
    "task": (task, "task.yaml", 0.10),
    "split": (split, "split.csv", 0.08),
    "ledger": (ledger, "ledger.jsonl", 0.20),
    "checkpoint": (checkpoint, "round-000000.safetensors", 0.18),
    "weights": (weights, "model.safetensors", 0.05),
    "initial": (initial, "public.safetensors", 0.05),
    "rows": (rows, "rounds.jsonl", 0.08),
    "summary": (summary, "summary.json", 0.06),
    "participations": (participations, "participations.jsonl", 0.06),
    "archive": (archive, "images.zip", 0.08),
}


def attempt(name: str, path: Path, content: bytes) -> bool:
    """Whether the content is accepted; anything but acceptance or one line of InputError is a crash."""
    path.write_bytes(content)
    try:
        READERS[name][0](path, content)
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError(f"more than a line: {error}") from error
        return False
    return True


def seeds(name: str) -> list[bytes]:
    """The corpus of a reader."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def write_corpus() -> None:
    """Make the seeds anew (`python tests/fuzz/fuzzed_readers.py`); what fuzzing finds is added by hand beside them."""
    folders = {name: CORPUS / name for name in READERS}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    settings = resolve("dp-agrlr-micro", "strokes", None, {"server.schedule": "[{from_round: 3, noise_scale: 2.0}]"})
    (folders["config"] / "whole.yaml").write_text(to_yaml(settings))
    (folders["config"] / "short.yaml").write_text("algo: dp-agr\ndataset: strokes\nserver: {rounds: 3, lr: 1.0e-3}\n")
    for path in (ROOT / "tasks").glob("*.yaml"):
        if path.stem in ("strokes", "omniglot"):
            (folders["task"] / path.name).write_bytes(path.read_bytes())
    (folders["split"] / "split.csv").write_text('class,split\nA/c01,train\nA/c02,val\n"B/c,1",test\n')
    path = folders["ledger"] / "ledger.jsonl"
    path.unlink(missing_ok=True)
    made = Ledger(path, PLAN, RunIdentity(run="0" * 32, config="algo: dp-agr\n"))
    for round_ in range(PLAN.rounds):
        made.charge(replace(planned_charge(PLAN, round_), inputs="ab" * 16))
    save_checkpoint(folders["checkpoint"], Checkpoint(state=STATE, lines=3, head="0" * 64), keep=1)
    save_weights(folders["weights"] / "model.safetensors", STATE.model)
    save_weights(folders["initial"] / "public.safetensors", initial_weights(BODY, 1))
    (folders["rows"] / "rounds.jsonl").write_text('{"round": 0, "clip": 0.1}\n{"round": 1, "epsilons": {"a": null}}\n')
    (folders["summary"] / "summary.json").write_text('{"status": "completed", "guarantees": [{"epsilon": 1.5}]}\n')
    (folders["participations"] / "p.jsonl").write_text('{"round": 0, "clients": [1, 2]}\n{"round": 1, "clients": []}\n')
    with zipfile.ZipFile(folders["archive"] / "images.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for character, drawing in itertools.product((1, 2), (1, 2)):
            image = io.BytesIO()
            Image.fromarray(np.eye(10, k=drawing, dtype=np.uint8) * 255).save(image, "png")
            file.writestr(f"images/Latin/character{character:02d}/{drawing:02d}.png", image.getvalue())


if __name__ == "__main__":
    write_corpus()
