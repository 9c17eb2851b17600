# %% [markdown]
# # A sweep: the window W, and other clip policies
#
# Six short runs on `strokes` with one promise and different rules for the clip bound: what each does, and what it costs to try them all.

# %%
import matplotlib.pyplot as plt

import dpfedmeta as dp
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.cli.sweeps.tuning_cost import compose
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan

# %% [markdown]
# ## The runs
#
# Validation classes are public, so they may choose. Test classes are not looked at until the choice is made.

# %%
short = {
    "run.workers": 1, "model.width": 8, "meta.order": 1, "meta.steps": 5, "evaluation.every": 12,
    "evaluation.validation_episodes": 100, "evaluation.episodes": 50,
}  # fmt: skip
rules = {
    "W = 2": {"clip.window": 2},
    "W = 4": {"clip.window": 4},
    "W = 8": {"clip.window": 8},
    "constant 0.05": {"clip.policy": "constant", "clip.initial": 0.05},
    "constant 0.5": {"clip.policy": "constant", "clip.initial": 0.5},
    "quantile": {"clip.policy": "quantile"},
}
runs, validation = {}, {}
for name, rule in rules.items():
    settings = dp.Settings.preset("dp-agr", "strokes", {**short, **rule}, epsilon=1.5, rounds=12, cohort=40)
    runs[name] = dp.train(settings, quiet=True)
    last = [row for row in runs[name].rounds if row["validation_accuracy"] is not None][-1]
    validation[name] = last["validation_accuracy"], last["validation_ci95"]
    spent = runs[name].guarantees.of("client", "public").epsilon
    print(
        f"{name:14} validation {validation[name][0]:.1%} ± {100 * validation[name][1]:.1f}, epsilon {rounded_up(spent)}"
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=[3, 2])
colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
for name, colour, mark in zip(runs, colours, "os^vDP", strict=True):
    rows = list(runs[name].rounds)
    left.plot(
        [row["round"] for row in rows], [row["clip"] for row in rows], color=colour, marker=mark, ms=4, label=name
    )
left.set(xlabel="round", ylabel="clip bound", yscale="log", ylim=(0.03, 3))
left.legend(fontsize=8, ncols=3, loc="upper left")
for place, (mean, margin) in enumerate(validation.values()):
    right.errorbar(100 * mean, -place, xerr=100 * margin, fmt="o", color="#1d2330", capsize=3)
right.set_yticks([-place for place in range(len(runs))], list(runs), fontsize=8)
_ = right.set(xlabel="validation accuracy, %")

# %% [markdown]
# The bounds go different ways, and the accuracies do not say which is better: so few clients and rounds, and one seed each, tell no rule from another. A sweep that is to say something has several seeds
# (`dpfedmeta sweep configs/sweeps/window.yaml` has three, draws them together and goes on after an interruption).
#
# ## The choice

# %%
best = max(validation, key=lambda name: validation[name][0])
print(f"chosen on validation classes: {best}; on test classes {runs[best].accuracy}")

# %% [markdown]
# ## What trying costs
#
# On simulated clients, nothing. Had these been real people, every run would have looked at them, and whoever picks the best has seen all. The promise of the chosen model is then that of all
# rounds together: much less than the sum, and much more than one.

# %%
plans = [make_plan(run.settings, load_task("strokes")[0]).privacy for run in runs.values()]
together = [compose(plans[:count]).client_public for count in range(1, len(plans) + 1)]
figure, place = plt.subplots(figsize=(6, 3), layout="constrained")
counts = range(1, len(plans) + 1)
place.plot(counts, together, "o-", color="#0072b2", label="all rounds composed")
place.plot(counts, [1.5 * count for count in counts], "s--", color="#d55e00", label="epsilons added")
place.set(xlabel="runs over the same clients", ylabel="epsilon of (client, public)")
place.legend()
print(f"one run {rounded_up(together[0])}, all six {rounded_up(together[-1])}")

# %% [markdown]
# [More on sweeps](../sweeps.md); [what the policies do with full runs](../policies.md#clip-policies-at-one-guarantee).
