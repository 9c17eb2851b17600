"""The server's state as one file: complete and proven, or not there."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.core.files.run_directory import safetensors_header, with_metadata
from dpfedmeta.core.params import Params, digest
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.learning.server_step import ServerState
from dpfedmeta.privacy.clip_policies.policy_checks import packed, unpacked

VERSION = 2
_FILE = re.compile(r"round-(\d{6,})\.safetensors")
_PARTS = ("model", "first", "second", "average")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run continues from; post-processing of releases, so nothing in it is secret.

    Attributes:
        state: The server's state.
        lines: Lines of the ledger when it was saved.
        head: Hash of the last of them.
    """

    state: ServerState
    lines: int
    head: str


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write round-NNNNNN.safetensors atomically, then remove all but the last `keep` up to it.

    Those of later rounds go too: the run went back behind them, and is about to write them again.
    """
    state = checkpoint.state
    tensors = {f"{part}/{name}": value.contiguous().cpu() for part, name, value in _tensors(state)}
    vectors: dict[str, FloatArray] = {}
    policy = packed(asdict(state.policy), vectors)
    tensors |= {name: torch.from_numpy(value) for name, value in vectors.items()}
    text = json.dumps(
        {
            "version": VERSION,
            "round": state.round,
            "released": state.released,
            "bound": state.bound,
            "averaged": state.averaged,
            "policy": policy,
            "lines": checkpoint.lines,
            "head": checkpoint.head,
        },
        sort_keys=True,
    )
    metadata = {"state": text, "digest": _digest(tensors, text)}
    replace_file(folder / f"round-{state.round:06d}.safetensors", with_metadata(save(tensors), metadata))
    found = checkpoint_files(folder)
    kept = [path for round_, path in found if round_ <= state.round][:keep]
    for _, path in found:
        if path not in kept:
            path.unlink(missing_ok=True)


def _tensors(state: ServerState) -> list[tuple[str, str, torch.Tensor]]:
    return [(part, name, value) for part in _PARTS for name, value in getattr(state, part).items()]


def _digest(tensors: Params, text: str) -> str:
    return hashlib.sha256(f"{digest(tensors)} {text}".encode()).hexdigest()


def checkpoint_files(folder: Path) -> list[tuple[int, Path]]:
    """(round, path) of every checkpoint, the latest first."""
    found = ((_FILE.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def load_checkpoint(path: Path, like: ServerState) -> Checkpoint:
    """Read a checkpoint of the form of `like`. No code is run from it: tensors and JSON only.

    Raises:
        InputError: Missing, damaged, or of another run's form.
    """
    try:
        content = path.read_bytes()
        metadata = safetensors_header(BytesIO(content))["__metadata__"]
        text, tensors = metadata["state"], load(content)
        if metadata["digest"] != _digest(tensors, text):
            raise InputError(f"{path}: damaged: its digest does not match its content")
        return _checkpoint(json.loads(text), tensors, like)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (SafetensorError, ValidationError, *DAMAGED_JSON) as error:
        raise InputError(f"{path}: damaged: not a checkpoint of this run ({type(error).__name__})") from error


def contradicts(folder: Path, weights: Params) -> bool:
    """Return whether weights are not those of the latest checkpoint; one that cannot be read contradicts nothing."""
    for _, path in checkpoint_files(folder)[:1]:
        try:
            content = path.read_bytes()
            state = json.loads(safetensors_header(BytesIO(content))["__metadata__"]["state"])
            part = "average" if state["averaged"] else "model"
            tensors = load(content)
        except (OSError, SafetensorError, *DAMAGED_JSON):
            return False
        names = [name.removeprefix(f"{part}/") for name in tensors if name.startswith(f"{part}/")]
        return any(name not in weights or not torch.equal(weights[name], tensors[f"{part}/{name}"]) for name in names)
    return False


def _checkpoint(fields: dict[str, Any], tensors: Params, like: ServerState) -> Checkpoint:
    if fields["version"] != VERSION:
        raise ValueError("version")
    parts: dict[str, Params] = {part: {} for part in _PARTS}
    for part, name, wanted in _tensors(like):
        value = tensors[f"{part}/{name}"]
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            raise ValueError(name)
        parts[part][name] = value
    held = unpacked(fields["policy"], tensors)
    policy: Any = TypeAdapter(type(like.policy)).validate_python(held)
    bound = float(fields["bound"])
    if len(tensors) != len(_tensors(like)) or math.isnan(bound) or bound <= 0:
        raise ValueError("form")
    state = ServerState(
        round=int(fields["round"]),
        released=int(fields["released"]),
        policy=policy,
        bound=bound,
        averaged=int(fields["averaged"]),
        **parts,
    )
    return Checkpoint(state=state, lines=int(fields["lines"]), head=str(fields["head"]))
