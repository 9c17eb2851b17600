"""`python -m benchmarks.simulators.run`: one federated task in several simulators, in turns on this machine.

Every simulator is a process with the Python of an environment of its own (`make simulators`). First all of them train
a few clients, and their weights are compared with numpy's; who differs is not timed. Then they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import Tree
from benchmarks.results import write
from benchmarks.simulators import task

ROOT = Path(__file__).parents[2]
# Relative distance of weights that simulators may have from numpy's.
MOST_APART = 1e-4
_USER_CODE = re.compile(r"^ *# -- the user's code\n(.*?)^ *# -- end$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """One way to do the task.

    Attributes:
        name: For people.
        module: In benchmarks.simulators.
        environment: Its folder under --environments; None: this Python.
        private: Whether its rounds clip and add noise.
    """

    name: str
    module: str
    environment: str | None
    private: bool = True

    def python(self, environments: Path) -> Path:
        """Its Python."""
        return Path(sys.executable) if self.environment is None else environments / self.environment / "bin" / "python"

    @property
    def lines(self) -> int:
        """Lines of code that a user writes: between the marks, without blank lines and comments."""
        text = (Path(__file__).parent / f"{self.module}.py").read_text(encoding="utf-8")
        lines = "".join(_USER_CODE.findall(text)).splitlines()
        return sum(bool(line.strip()) and not line.strip().startswith(("#", '"""')) for line in lines)


SIMULATORS: Sequence[Simulator] = (
    Simulator(name="dpfedmeta", module="dpfedmeta_loop", environment=None),
    Simulator(name="pfl-research", module="pfl_loop", environment="pfl"),
    Simulator(name="Flower", module="flower_loop", environment="flower"),
    Simulator(name="FedJAX, no privacy", module="fedjax_loop", environment="fedjax", private=False),
)


def run(own: Simulator, data: Path, environments: Path, rounds: int, *, check: bool) -> dict[str, Any]:
    """Times, rates and memory of a simulator, or its weights where these are compared.

    Raises:
        RuntimeError: It failed; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="dpfedmeta-simulators-") as folder:
        out, log = Path(folder) / "found.json", Path(folder) / "log.txt"
        words = [str(own.python(environments)), "-m", f"benchmarks.simulators.{own.module}", "--data", str(data)]
        words += ["--out", str(out), "--rounds", str(rounds), *(["--check"] if check else [])]
        arrays = {
            "SIMULATOR_RECORDS": str(data.with_name("records.npy")),
            "SIMULATOR_LABELS": str(data.with_name("labels.npy")),
        }
        # The project's own folders, and no more of this environment: the others' packages are their own.
        environment = {**os.environ, **arrays, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
        begun = time.time()
        with log.open("w") as printed:
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=printed, stderr=printed)
            tree = Tree(root=process.pid)
            while process.poll() is None:
                tree.look()
                time.sleep(0.2)
        if process.returncode or not out.is_file():
            raise RuntimeError(f"{own.name}: exit code {process.returncode}: {log.read_text()[-2000:]}")
        if check:
            return dict(np.load(out.with_suffix(".npz")))
        ends = json.loads(out.read_text())["ends"]
        return _rates(ends, begun, tree, rounds)


def _rates(ends: Sequence[float], begun: float, tree: Tree, rounds: int) -> dict[str, Any]:
    if len(ends) != rounds:
        raise RuntimeError(f"{len(ends)} rounds ended, of {rounds}")
    return {
        "seconds_to_first_round": ends[0] - begun,
        "clients_per_second": task.COHORT * (rounds - 1) / (ends[-1] - ends[0]),
        "cpu_ms_per_client": 1e3 * (tree.seconds(ends[-1]) - tree.seconds(ends[0])) / (task.COHORT * (rounds - 1)),
        "cpu_seconds_to_first_round": tree.seconds(ends[0]),
        "memory_mb": tree.most / 2**20,
        "load": os.getloadavg()[0],
    }


def apart(found: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    """Distance of all weights from known ones, over how far these moved from the start."""
    start = task.initial_weights()
    difference = sum(float(np.sum((np.float64(found[name]) - known[name]) ** 2)) for name in known)
    return float(np.sqrt(difference / sum(float(np.sum((np.float64(start[n]) - known[n]) ** 2)) for n in known)))


def exported(folder: Path) -> Path:
    """The arrays of all clients, as this toolkit deals MNIST out."""
    from dpfedmeta.config.load import resolve
    from dpfedmeta.data.dataset import open_dataset
    from dpfedmeta.planning.run_plan import make_plan
    from dpfedmeta.training.build_data import population

    dataset = open_dataset("mnist-shards", None)
    sizes = {"population.clients": str(task.CLIENTS), "population.cohort": str(task.COHORT), "population.records": "50"}
    held = population(make_plan(resolve("dp-fedavg-fixed", "mnist-shards", None, sizes), dataset.task), dataset)
    records, labels = [], []
    for client in range(task.CLIENTS):
        episode = held.episode(client)
        records.append(
            np.concatenate([episode.support_images.numpy(), episode.query_images.numpy()]).reshape(-1, task.PIXELS)
        )
        labels.append(np.concatenate([episode.support_labels.numpy(), episode.query_labels.numpy()]))
    arrays = {"records": np.stack(records).astype(np.float32), "labels": np.stack(labels)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "data.npz", records=arrays["records"], labels=arrays["labels"])
    return folder / "data.npz"


def compared(chosen: Sequence[Simulator], environments: Path, rounds: int, turns: int) -> dict[str, Any]:
    """All of them, checked and timed; one that fails or differs is a row that says so."""
    rows: dict[str, dict[str, Any]] = {own.name: {"lines": own.lines, "private": own.private} for own in chosen}
    with tempfile.TemporaryDirectory(prefix="dpfedmeta-simulators-") as folder:
        data = exported(Path(folder))
        held = np.load(data)
        known = task.reference(held["records"][: task.FEW], held["labels"][: task.FEW], task.FEW_ROUNDS)
        for own in chosen:
            try:
                rows[own.name]["apart"] = apart(run(own, data, environments, task.FEW_ROUNDS, check=True), known)
            except (RuntimeError, OSError) as error:
                rows[own.name]["failed"] = str(error)
            print(f"{own.name}: {rows[own.name]}", flush=True)
        sound = [own for own in chosen if rows[own.name].get("apart", 1.0) <= MOST_APART]
        measured: dict[str, list[dict[str, Any]]] = {own.name: [] for own in sound}
        for _ in range(turns):
            for own in sound:
                measured[own.name].append(run(own, data, environments, rounds, check=False))
                print(f"{own.name}: {measured[own.name][-1]}", flush=True)
    for name, found in measured.items():
        rows[name] |= {key: statistics.median(each[key] for each in found) for key in found[0]} | {"turns": found}
    return {"cores": os.cpu_count(), "task": {**task.described(), "rounds": rounds}, "rows": rows}


def main() -> int:
    """Compare, and write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--environments", type=Path, default=Path(sys.prefix) / "simulators")
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help="simulators whose names begin so")
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--turns", type=int, default=3)
    made.add_argument("--json", type=Path, default=Path("simulators.json"))
    options = made.parse_args()
    chosen = [own for own in SIMULATORS if not options.only or own.name.startswith(tuple(options.only))]
    absent = [own.name for own in chosen if not own.python(options.environments).exists()]
    if absent or not chosen:
        print(f"error: {', '.join(absent) or 'nothing chosen'}: not installed; type: make simulators", file=sys.stderr)
        return 2
    found = compared(chosen, options.environments, options.rounds, options.turns)
    write(options.json, found)
    differ = [name for name, row in found["rows"].items() if row.get("apart", 1.0) > MOST_APART]
    print(f"written: {options.json}" + (f"; not timed: {', '.join(differ)}" if differ else ""))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
