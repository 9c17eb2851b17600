# %% [markdown]
# # Your own data
#
# Clients with records of their own, from a folder of files to a private model. The data here are made up, so that there are some: sensors of 120 machines, each with three kinds of readings.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dpfedmeta as dp
from dpfedmeta.cli.commands.check_task_command import describe
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.inspection import Episodes, inspect_task

draw = np.random.default_rng(0)
mix = draw.normal(size=(4, 24))  # four hidden numbers tell the kinds of a machine apart, among 24 that are read


def readings(machine: int) -> tuple[np.ndarray, list[str], list[str]]:
    """Twelve readings of each of three kinds."""
    kinds = draw.normal(size=(3, 4)).repeat(12, axis=0)
    seen = (kinds + 0.3 * draw.normal(size=kinds.shape)) @ mix + 1.5 * draw.normal(size=(36, 24))
    return seen, [f"kind{number // 12}" for number in range(36)], [f"machine{machine:03d}"] * 36


records, classes, clients = zip(*(readings(machine) for machine in range(120)), strict=True)
np.savez(
    "machines.npz", records=np.concatenate(records), classes=np.concatenate(classes), clients=np.concatenate(clients)
)

# %% [markdown]
# ## Look before you train
#
# What is in the file, and whether every client has enough for an episode. This is for you, who own the data: in training, a client that has too little counts as zero and nobody is told.
# `dpfedmeta check-task machines.npz --ways 3 --shots 5 --task.queries 5 --evaluation.queries 5` prints the same.

# %%
shape = EpisodeShape(ways=3, shots=5, queries=5)
report, dataset = inspect_task("machines.npz", None, Episodes(shape=shape, evaluation_queries=5))
print("\n".join(describe(report)))

# %% [markdown]
# The file names its clients, so they are split: most train; a few, of whom nothing is kept back, say how good the model is. Their readings are taken as public.
#
# ## The promise, with so few clients
#
# Noise does not shrink with the population. What a thousand drawn clients hide behind is not there with some seventy: the same promise costs far more.

# %%
sizes = {
    "task.ways": 3, "task.shots": 5, "task.queries": 5, "evaluation.queries": 5, "run.workers": 1,
    "evaluation.every": 20, "evaluation.episodes": 200, "evaluation.validation_episodes": 50,
}  # fmt: skip
few = dp.Settings.preset("dp-agr", "machines.npz", sizes, epsilon=8.0, delta=1e-3, cohort=20, rounds=20)
print(dp.plan(few).guarantees)

# %% [markdown]
# ## Train, with and without privacy

# %%
open_ = dp.Settings.preset("maml", "machines.npz", sizes, cohort=20, rounds=20)
runs = {"no privacy": dp.train(open_, quiet=True), "epsilon 8": dp.train(few, quiet=True)}
for name, run in runs.items():
    print(f"{name}: {run.accuracy}; untrained {run.summary['accuracy_untrained']['mean']:.1%}")

# %%
figure, place = plt.subplots(figsize=(6, 2.4), layout="constrained")
for number, (run, hatch) in enumerate(zip(runs.values(), ["", "//"], strict=True)):
    place.barh(
        -number,
        100 * run.accuracy.mean,
        xerr=100 * run.accuracy.ci95,
        color="#56b4e9",
        hatch=hatch,
        edgecolor="white",
        capsize=3,
    )
untrained = 100 * runs["no privacy"].summary["accuracy_untrained"]["mean"]
place.axvline(untrained, color="grey", linestyle="--")
place.annotate("untrained", (untrained, 0.45), xytext=(3, 0), textcoords="offset points", fontsize=8)
place.set_yticks([-number for number in range(len(runs))], list(runs))
_ = place.set(xlabel="accuracy on machines that did not train, %", ylim=(-1.5, 0.8))

# %% [markdown]
# ## A new machine
#
# Its own readings adapt the model, where the machine is. Nothing of them leaves it.

# %%
seen, _, _ = readings(120)
seen, kinds = seen.astype(np.float32), np.arange(36) // 12
given = np.arange(36) % 12 < 5  # five of each kind; the others are to be told apart
model = runs["no privacy"].adapt(seen[given], kinds[given])
right = np.asarray(model.predict(seen[~given])) == kinds[~given]
print(f"{right.sum()} of {right.size} right")

# %% [markdown]
# [Images, lists of files, token sequences and clients as objects](../own-data.md).
