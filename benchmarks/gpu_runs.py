"""Whole trainings of `make gpu`: how they are started, and what they leave. Their data may have come in pieces."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import read

# A full length: 600,000 participations.
_FULL = "configs/benchmarks/dp-agr-1.5.yaml"
# Noise that can be told apart from nothing is no secret here: with a seed of one's own a run states its exact time.
_SIMULATION = ("--run.noise_seed", "1", "--run.checkpoint_every", "20")
_SMALL = ("--rounds", "2", "--cohort", "4", "--evaluation.every", "1", "--evaluation.episodes", "4",
          "--model.width", "4", "--evaluation.validation_episodes", "2", "--run.workers", "1")  # fmt: skip
_NO_DATA = "its images are not here (DPFEDMETA_DATA, or pieces of the archive in the folder that --carried names)"


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """A training that is stopped when its time is over; it keeps what it has.

    Attributes:
        name: In JSON and log.
        words: For people.
        command: Behind the name of this Python.
        folder: Its run directory.
        most: Seconds that it gets.
        least: With fewer it is not begun.
        absent: Why it cannot be done here; None: it can.
        environment: Variables besides.
    """

    name: str
    words: str
    command: Sequence[str]
    folder: Path
    most: float
    least: float
    absent: str | None
    environment: Mapping[str, str]

    def found(self) -> dict[str, Any]:
        """How far it came, how fast, and how well it does."""
        lines = (self.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        timed = [row["seconds"] for row in rows if row.get("seconds")]
        plan, summary = read(self.folder / "plan.json")["privacy"], read(self.folder / "summary.json") or {}
        cohort = plan["cohort"]
        # The first round compiles and finds a chunk; the median does not see it, nor one with an evaluation.
        middle = sorted(timed)[len(timed) // 2] if timed else None
        return {
            "rounds": len(rows),
            "planned_rounds": plan["rounds"],
            "cohort": cohort,
            "clients_per_second": cohort / middle if middle else None,
            "minutes_of_all_rounds": plan["rounds"] * middle / 60 if middle else None,
            "validation": [
                {"round": row["round"], **{key: row[key] for key in row if key.startswith("validation")}}
                for row in rows
                if any(key.startswith("validation") for key in row)
            ],
            "status": summary.get("status", "interrupted"),
            "accuracy": summary.get("accuracy"),
            "accuracy_untrained": summary.get("accuracy_untrained"),
        }


def whole_runs(device: str, scratch: Path, data: Path | None) -> list[RunPart]:
    """In the order in which they are done.

    Args:
        device: cuda, or cpu: one tiny run of drawn images.
        scratch: Where their run directories go.
        data: Where the images are, or None.
    """
    if device == "cpu":
        words = ("--algo", "dp-agr", "--dataset", "strokes", *_SMALL)
        return [_run("dp-agr on strokes", "a tiny run", words, device, scratch, None, (150.0, 1.0))]
    full = ("--config", _FULL)
    return [
        _run("dp-agr on omniglot, preset", "as in the README, 75,000 participations",
             ("--algo", "dp-agr", "--dataset", "omniglot"), device, scratch, data, (70.0, 30.0)),
        _run("dp-agr on cifar-fs, preset", "as in the README, 54,000 participations",
             ("--algo", "dp-agr", "--dataset", "cifar-fs"), device, scratch, data, (45.0, 30.0)),
        _run("dp-agr on cifar-fs", "full length, 600,000 participations of Conv4-64, as long as time allows",
             (*full, "--dataset", "cifar-fs"), device, scratch, data, (60.0, 30.0)),
        _run("dp-agr on mini-imagenet", "full length, 600,000 participations of Conv4-64, as long as time allows",
             (*full, "--dataset", "mini-imagenet"), device, scratch, data, (60.0, 30.0)),
    ]  # fmt: skip


def _run(
    name: str,
    words: str,
    given: Sequence[str],
    device: str,
    scratch: Path,
    data: Path | None,
    seconds: tuple[float, float],
) -> RunPart:
    folder = name.replace(",", "").replace(" ", "-")
    dataset = given[given.index("--dataset") + 1]
    here = dataset == "strokes" or (data is not None and any((data / dataset).glob("*")))
    place = ("--run.dir", str(scratch), "--run.name", folder, "--run.device", device)
    return RunPart(
        name=name,
        words=f"scripts/train.py: {words}",
        command=["scripts/train.py", *given, *place, *_SIMULATION],
        folder=scratch / folder,
        most=seconds[0],
        least=seconds[1],
        absent=None if here else _NO_DATA,
        environment={"DPFEDMETA_DATA": str(data) if data else "", "DPFEDMETA_CACHE": str(scratch / "cache")},
    )


def joined_archives(carried: Path, place: Path) -> Path | None:
    """Where the images are: DPFEDMETA_DATA, or the pieces DATASET/FILE.part-NN of `carried` put together in `place`."""
    known = os.environ.get("DPFEDMETA_DATA")
    if known and Path(known).is_dir():
        return Path(known)
    pieces: dict[Path, list[Path]] = {}
    for piece in sorted(carried.glob("data-*/*/*.part-*"), key=lambda path: path.name):
        pieces.setdefault(Path(piece.parent.name) / piece.name.partition(".part-")[0], []).append(piece)
    for name, parts in pieces.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        with (place / name).open("wb") as whole:
            for part in parts:
                with part.open("rb") as own:
                    shutil.copyfileobj(own, whole)
    return place if pieces else None
