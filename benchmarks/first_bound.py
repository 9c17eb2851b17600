"""A private first clip bound (`clip.start quantile`) beside constants of a grid that was fixed beforehand.

    python -m benchmarks.first_bound --dataset strokes --rounds 30 --cohort 100 --seeds 0 1 2

All runs of a seed share cohorts, noise and episodes, so they differ in the bound; the private one has also paid for its
question. The best constant is chosen on validation classes; both kinds of accuracy are printed. One process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.analytics.initial_clip_bound import with_private_start
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.files.run_directory import load_weights
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.learning.evaluation import Accuracy
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training.build_data import held_out_evaluation
from dpfedmeta.training.run_training import run_training

PRIVATE = "quantile"


def trained(settings: Settings, dataset: Dataset, episodes: int) -> dict[str, Any]:
    """One run: its first bound, what it promises, and how good it is."""
    if settings.clip.start == PRIVATE:
        settings, _ = with_private_start(settings, None)
    plan = make_plan(settings, dataset.task)
    run, _ = run_training(settings)
    weights = load_weights(run.weights)

    def accuracy(split: Any) -> Accuracy:
        judged = held_out_evaluation(plan, dataset, split)
        return judged.accuracy(InProcess(), plan.network, weights, plan.evaluation, episodes)

    epsilon = next(cell.epsilon for cell in plan.planned if (cell.unit, cell.observer) == ("client", "public"))
    return {
        "seed": settings.run.seed,
        "bound": settings.clip.initial,
        "z": plan.privacy.noise_multiplier,
        "epsilon": epsilon,
        "validation": accuracy("val").as_json(),
        "test": accuracy("test").as_json(),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Train every arm with every seed, and print each line as it comes."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--algo", default="dp-const", help="preset (dp-const)")
    made.add_argument("--dataset", default="strokes", help="benchmark (strokes)")
    made.add_argument("--rounds", type=int, default=30, help="of each run (30)")
    made.add_argument("--cohort", type=float, default=100.0, help="clients a round (100)")
    made.add_argument("--constants", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0, 10.0], help="the grid")
    made.add_argument("--quantiles", type=float, nargs="*", default=[0.5], help="of private starts (0.5)")
    made.add_argument("--seeds", type=int, nargs="+", default=[0], help="of data and first weights, and of the noise")
    made.add_argument("--episodes", type=int, default=600, help="of each evaluation (600)")
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    made.add_argument("--json", type=Path, help="also append each line to this file")
    options = made.parse_args(words)
    dataset = open_dataset(options.dataset)
    print("| seed | first bound | C_0 | z | (client, public) | validation | test |\n|---|---|---|---|---|---|---|")
    arms = [(f"quantile {q:g}", {"clip.start": PRIVATE, "clip.quantile": str(q)}) for q in options.quantiles]
    arms += [(f"C = {bound:g}", {"clip.initial": str(bound)}) for bound in options.constants]
    for seed in options.seeds:
        for name, given in arms:
            with TemporaryDirectory() as folder:
                found = trained(_settings(options, seed, folder, given), dataset, options.episodes)
            shown = [str(Accuracy.from_json(found[split])) for split in ("validation", "test")]
            line = [
                str(seed),
                name,
                *(f"{found[key]:.4g}" for key in ("bound", "z")),
                rounded_up(found["epsilon"], 4),
                *shown,
            ]
            print("|", " | ".join(line), "|", flush=True)
            if options.json is not None:
                with options.json.open("a") as file:
                    file.write(json.dumps({"arm": name, **found}) + "\n")


def _settings(options: argparse.Namespace, seed: int, folder: str, given: dict[str, str]) -> Settings:
    common = {
        "server.rounds": str(options.rounds),
        "population.cohort": str(options.cohort),
        "run.seed": str(seed),
        "run.noise_seed": str(1000 + seed),
        "run.dir": folder,
        "run.name": "run",
        "run.workers": "1",
        # Judged here, at full length.
        "evaluation.every": str(options.rounds),
        "evaluation.validation_episodes": "2",
        "evaluation.episodes": "2",
    }
    own = dict(word.split("=", 1) for word in options.set)
    return resolve(options.algo, options.dataset, None, {**common, **own, **given})


if __name__ == "__main__":
    main()
