"""What canaries cost a run that learns: time and test accuracy, with and without them, from the same seeds.

The product has no switch for this: audited runs are runs of their own. Here canary clients are put beside the clients
of a preset's own run, which computes, sums and releases as ever. Such a run lies in a folder that is removed.

    DPFEDMETA_DATA=... python -m benchmarks.one_shot_in_training --algo dp-agr --dataset omniglot --rounds 40
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

import dpfedmeta.training.run_training as running
from dpfedmeta.auditing.canaries import RandomDirections, with_canaries
from dpfedmeta.auditing.estimators.many_runs import cosines
from dpfedmeta.auditing.estimators.one_run import one_shot
from dpfedmeta.auditing.observed_loop import AuditedTraining, ObservedRound
from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import dimension
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.training.build_data import client_side


def trained(
    words: argparse.Namespace, given: Mapping[str, str], canaries: int, folder: Path
) -> tuple[dict[str, Any], list[ObservedRound]]:
    """(summary.json, what was released) of one run; canaries are its first clients."""
    directions, noted = RandomDirections(seed=words.seed), list[ObservedRound]()

    def side(*parts: Any) -> ClientRunner:
        clients = client_side(*parts)
        return with_canaries(clients, dict.fromkeys(range(canaries), 1), directions, others=True)

    def noting(**parts: Any) -> AuditedTraining:
        return AuditedTraining(**parts, seen=noted)

    settings = resolve(words.algo, words.dataset, None, {**given, "run.dir": str(folder)})
    with patch("dpfedmeta.training.setup.client_side", side), patch.object(running, "Training", noting):
        run, _ = running.run_training(settings)
    return run.read_json("summary.json"), noted


def rows(words: argparse.Namespace) -> list[dict[str, Any]]:
    """Without canaries, and with: as many honest clients in the population, each drawn as often."""
    found = []
    with TemporaryDirectory() as folder:  # compilers and caches are warm after it
        few = {"server.rounds": "1", "evaluation.episodes": "2", "run.workers": "1", "population.cohort": "10"}
        trained(words, few, 0, Path(folder))
    for canaries in (0, words.canaries):
        cohort = round(words.cohort * (words.clients + canaries) / words.clients)
        given = {
            "population.clients": str(words.clients + canaries),
            "population.cohort": str(cohort),
            "server.rounds": str(words.rounds),
            "server.noise_multiplier": str(words.noise_multiplier),
            "privacy.client.epsilon": "null",
            "run.seed": str(words.seed),
            "run.noise_seed": str(words.seed),
            "run.workers": "1",
            "evaluation.every": str(words.rounds),
            "evaluation.episodes": "600",
        }
        with TemporaryDirectory() as folder:
            begun = time.process_time()
            summary, seen = trained(words, given, canaries, Path(folder))
            row = {"canaries": canaries, "cohort": cohort, "cpu_seconds": time.process_time() - begun}
        row |= {"accuracy": summary["accuracy"], "untrained": summary["accuracy_untrained"]}
        if canaries:
            begun, size = time.process_time(), dimension(seen[0].model)
            scores = cosines(seen, RandomDirections(seed=words.seed), canaries, size)
            (cell,) = (
                each for each in summary["guarantees"] if (each["unit"], each["observer"]) == ("client", "public")
            )
            found_now = one_shot(np.asarray(scores), size, cell["delta"])
            row |= {"estimate": found_now.epsilon, "promised": cell["epsilon"], "mean": found_now.mean}
            row["cpu_seconds_of_cosines"] = time.process_time() - begun
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("algo", "dp-agr"), ("dataset", "omniglot")):
        parser.add_argument(f"--{name}", default=default)
    for name, number in (("clients", 10_000), ("cohort", 100), ("rounds", 40), ("canaries", 1000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    rows(parser.parse_args())
