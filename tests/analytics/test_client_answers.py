"""Answers of single clients, against what their model gives them."""

import numpy as np
import torch

from dpfedmeta.analytics.client_answers import HeldImages
from dpfedmeta.config.load import resolve
from dpfedmeta.core.params import flatten
from dpfedmeta.data.populations.from_records import RecordsPopulation
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan

WHOLE = {
    "population.episodes": "whole", "population.kind": "natural", "population.clients": "60", "task.most_ways": "5",
    "population.cohort": "6", "server.rounds": "2", "model.name": "mlp", "model.width": "4", "meta.steps": "2",
    "meta.learn": "body",
}  # fmt: skip


def test_a_whole_client_is_judged_by_the_outputs_of_its_own_classes():
    plan = make_plan(resolve("maml", "omniglot", None, WHOLE), load_task("omniglot")[0])
    bright = np.repeat([0.0, 1.0], 6).astype(np.float32)[:, None, None, None] * np.ones((1, 1, 28, 28), np.float32)
    population = RecordsPopulation(held={"ann": (bright, [0] * 6 + [1] * 6)}, shape=plan.whole, seed=0)
    held = HeldImages(plan=plan, population=population)
    initial = plan.algorithm.initial(plan.network, 0)
    # A head that learned that everything is the fifth class, which this client does not have.
    initial["head.bias"] = torch.tensor([0.0, 0.0, 0.0, 0.0, 100.0])
    before, after = held.accuracies(0, flatten(initial).numpy().astype("<f4").tobytes())
    assert before == 0.5
    assert after >= 0.5
