# %% [markdown]
# # Epsilon, noise and accuracy
#
# Epsilon against noise, and accuracy against epsilon, on `strokes`. The first half needs no training at all.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt

import dpfedmeta as dp
from dpfedmeta.accounting import PrivacyPlan, guarantees

# %% [markdown]
# ## Noise, and how many are drawn
#
# The same noise multiplier promises more when fewer of the 400,000 clients are drawn in each round, because nobody outside knows who was.

# %%
figure, place = plt.subplots(figsize=(6, 3.2), layout="constrained")
noises = [0.4, 0.5, 0.6, 0.8, 1.0, 1.3]
for cohort, line in [(100, "o-"), (1000, "s--"), (10_000, "^:")]:
    plan = PrivacyPlan(clients=400_000, cohort=cohort, rounds=100, noise_multiplier=1.0)
    found = [
        guarantees(replace(plan, noise_multiplier=z))[0].epsilon for z in noises
    ]  # the first cell: (client, public)
    place.plot(noises, found, line, label=f"{cohort:,} of 400,000 a round")
place.set(xlabel="noise multiplier", ylabel="epsilon of (client, public)", yscale="log")
_ = place.legend()

# %% [markdown]
# ## Accuracy
#
# Three short runs that differ in epsilon alone. The noise follows from it.

# %%
short = {"run.workers": 1, "evaluation.every": 20, "evaluation.episodes": 200, "evaluation.validation_episodes": 20}
runs = {}
for epsilon in (0.2, 1.5, 8.0):
    settings = dp.Settings.preset("dp-agr", "strokes", short, epsilon=epsilon, rounds=20, cohort=50)
    runs[epsilon] = dp.train(settings, quiet=True)
    print(f"epsilon {epsilon}: {runs[epsilon].accuracy}")

# %%
figure, place = plt.subplots(figsize=(6, 3.2), layout="constrained")
accuracies = [runs[epsilon].accuracy for epsilon in runs]
place.errorbar(list(runs), [each.mean for each in accuracies], [each.ci95 for each in accuracies], fmt="o-", capsize=3)
untrained = runs[8.0].summary["accuracy_untrained"]["mean"]
place.axhline(untrained, color="grey", linestyle="--")
place.annotate("untrained", (0.2, untrained), xytext=(0, 4), textcoords="offset points")
_ = place.set(xlabel="epsilon of (client, public)", ylabel="accuracy, 5-way 5-shot", xscale="log")

# %% [markdown]
# One run for each epsilon, and so few clients, say little about small differences: an interval here is over test clients, not over repetitions. [Measured with full runs](../results.md#omniglot).
