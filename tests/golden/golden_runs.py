"""Runs of a few rounds with fixed seeds, as plain values: what a change of the house must not change.

Recorded again by `python tests/golden/golden_runs.py`, after a change that is meant to move
results; the difference of golden.json then says what moved.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

from dpfedmeta.config.load import resolve
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions

FILE = Path(__file__).with_name("golden.json")

TINY = {
    "name": "tiny",
    "source": {"reader": "strokes", "seed": 1, "variation": 1.0},
    "split": {"train": 12, "val": 8, "test": 8},
    "image_size": 28,
    "channels": 1,
    "images_per_class": 20,
    "train_rotations": 4,
}

SMALL = {
    "population.clients": "60", "population.cohort": "6", "server.rounds": "4", "run.seed": "3", "run.noise_seed": "11",
    "run.workers": "1", "run.device": "cpu", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "evaluation.episodes": "2", "evaluation.validation_episodes": "2", "evaluation.queries": "2",
    "evaluation.every": "2", "privacy.client.delta": "1.0e-3", "clip.window": "2", "model.width": "4",
    "meta.steps": "2", "clip.count_noise": "5",
}  # fmt: skip
LOCAL = {"model.name": "linear", "meta.batch": "5", "server.noise_multiplier": "3"}
REPTILE = {"meta.method": "reptile", "meta.order": "1", "meta.adapt": "all", "meta.learn": "all"}
FEW_STEPS = {"privacy.client.hostile": "0.0"}
TWO_PARTS = {"record.micro_shots": "1", "record.micro_queries": "1"}
SECURE = {"population.sampler": "fixed", "population.cohort": "20", "population.max_participations": "null"}

# name: (algorithm, data set, settings). None as data set: a small one that is drawn.
RUNS = {
    "maml": ("maml", None, {}),
    "dp-agr": ("dp-agr", None, {}),
    "dp-const": ("dp-const", None, {}),
    "dp-aqc": ("dp-aqc", None, {}),
    "dp-agr-checkins": ("dp-agr-checkins", None, {"population.cohort": "60"}),
    "dp-agrlr-micro": ("dp-agrlr-micro", None, {}),
    "dp-agrlr": ("dp-agrlr", None, FEW_STEPS),
    "meta-sgd": ("meta-sgd", None, {}),
    "proto-maml": ("proto-maml", None, {}),
    "dp-agr-correlated": ("dp-agr-correlated", None, {}),
    "dp-agr-cyclic": ("dp-agr-cyclic", None, {"population.separation": "3"}),
    "dp-agr-secure": ("dp-agr-secure", None, {**SECURE, "clip.policy": "quantile"}),
    "dp-agrlr-secure": ("dp-agrlr-secure", None, {**SECURE, **TWO_PARTS}),
    "dp-fedavg": ("dp-fedavg", None, LOCAL),
    "dp-fedavg-fixed": ("dp-fedavg-fixed", None, LOCAL),
    "dp-fedavg-adaptive": ("dp-fedavg-adaptive", None, LOCAL),
    "local-dp": ("local-dp", None, {**LOCAL, "server.noise_multiplier": "null"}),
    "all-adapt": ("dp-agr", None, {"meta.adapt": "all", "meta.learn": "all", "meta.lr": "0.1", "model.norm": "group"}),
    "fomaml": ("dp-agr", None, {"meta.method": "fomaml", "meta.order": "1", "meta.adapt": "all", "meta.lr": "0.1"}),
    "side-by-side": ("dp-agr", None, {"run.chunk": "4"}),
    "divisions": ("dp-agr", None, {"meta.divisions": "3", "model.norm": "group"}),
    "reptile": ("dp-const", None, {**REPTILE, "clip.scope": "per-layer"}),
    "literal": ("dp-agr", None, {"clip.policy": "window-literal", "population.dropout": "0.3", "server.timeout": "2",
                                 "population.latency_spread": "0.5"}),
    "median": ("dp-const", None, {"clip.policy": "median", "population.availability": "diurnal",
                                  "population.dropout": "0.2"}),
    "scheduled": ("dp-agr", None, {"server.schedule": "[{from_round: 2, noise_scale: 0.8, cohort_scale: 1.5}]",
                                   "population.max_participations": "1", "server.average": "0.5"}),
    "split-noise": ("dp-fedavg-fixed", None, {**LOCAL, "server.noise_site": "clients", "privacy.client.hostile": "0.05",
                                              "population.cohort": "20"}),
    "stacked": ("dp-agrlr", None, {"server.noise_mode": "stacked", "record.client_ledgers": "true",
                                         "server.rounds": "6", "population.max_participations": "2"}),
    "stacked-reptile": ("dp-agrlr", None, {**REPTILE, "server.noise_mode": "stacked"}),
    "by-opacus": ("dp-agrlr", None, {**FEW_STEPS, "record.engine": "opacus", "meta.adapt": "all",
                                           "meta.learn": "all"}),
    "hostile": ("dp-agrlr", None, {"record.engine": "vmap", "population.cohort": "20", "model.downscale": "2"}),
    "unequal": ("dp-agr", None, {"population.most_shots": "4"}),
    "disjoint": ("dp-agr", None, {"population.kind": "disjoint", "population.clients": "20"}),
}  # fmt: skip

# On real images.
REAL = {
    "omniglot": ("dp-agr", "omniglot", {"population.kind": "natural", "population.clients": "20"}),
    "cifar-fs": ("dp-agr", "cifar-fs", {"model.width": "32", "population.cohort": "3", "server.rounds": "2"}),
    "mini-imagenet": ("dp-agrlr-micro", "mini-imagenet", {"population.cohort": "3", "server.rounds": "2",
                                                          "model.initial": "null", "model.downscale": "3"}),
    "mnist-shards": ("dp-fedavg", "mnist-shards", {**LOCAL, "population.records": "20", "meta.batch": "5",
                                                   "track.public_clients": "3", "server.schedule": "[]"}),
}  # fmt: skip


# What the last bits of a sum decide over: compared between runs of one machine alone.
OF_A_MACHINE = ("bits", "accuracy")


def recorded(found):
    """The values of a run that are the same on every machine, up to a tolerance."""
    return {name: value for name, value in found.items() if name not in OF_A_MACHINE}


def values_of(run):
    """All that a run leaves and that may be compared."""
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    cohorts = (run.secret / "participations.jsonl").read_bytes()
    summary = run.read_json("summary.json")
    weights = load_file(run.weights)
    vector = torch.cat([weights[name].double().flatten() for name in sorted(weights)])
    bits = hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()[:32]
    rows = run.rounds()
    return {
        "cohorts": hashlib.sha256(cohorts).hexdigest()[:32],
        "charges": sum("event" in line for line in lines),  # and not the line that closes the ledger
        "guarantees": {
            f"({cell['unit']}, {cell['observer']})": [cell["epsilon"], cell["delta"], cell["method"]]
            for cell in summary["guarantees"]
        },
        "promised": [cell["epsilon"] for cell in summary["planned"]],
        "bounds": [row["clip"] for row in rows],
        "norms": [row.get("aggregate_norm") for row in rows],
        "epsilons": [row["epsilons"] for row in rows],
        "accuracy": summary["accuracy"]["mean"],
        "weights": float(vector.norm()),
        "bits": {"releases": [row["release"][:16] for row in rows], "weights": bits},
    }


def golden_run(name, folder, data_folder=None, **more):
    """Train one of them, with more settings than it has."""
    algo, dataset, given = {**RUNS, **REAL}[name]
    if dataset is None:
        task = Path(folder) / "tiny.yaml"
        task.parent.mkdir(exist_ok=True)
        task.write_text(yaml.safe_dump(TINY))
        dataset = str(task)
    settings = resolve(algo, dataset, None, {**SMALL, **given, **more, "run.dir": str(folder), "run.name": name})
    run, status = run_training(settings, RunOptions(data_folder=data_folder))
    return {"status": status, **values_of(run)}


def main():
    """Record all of them."""
    torch.set_num_threads(1)
    data = Path(os.environ.get("DPFEDMETA_DATA") or Path(__file__).parents[3] / "shared" / "data")
    found = {}
    for name in [*RUNS, *REAL]:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = recorded(golden_run(name, folder, data))
        print(name, found[name]["guarantees"], flush=True)
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
