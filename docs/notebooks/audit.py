# %% [markdown]
# # An audit: the program held to its own epsilon
#
# An accountant proves that epsilon is at most so much. An audit attacks the program as it runs and proves that epsilon is at least so much. A lower bound above the promise would show that the program is wrong.

# %%
from pathlib import Path

import matplotlib.pyplot as plt

import dpfedmeta as dp

settings = dp.Settings.preset("dp-agr", "strokes")

# %% [markdown]
# ## What could be seen
#
# In every run a coin decides whether one client more, who sends the longest message that there may be, takes part. The attacker sees what is released, knows the promised noise, and says which it was. So many right answers
# come about only where epsilon is above the bound. Few clients take part, all in every round: at a preset's own size, one client among thousands would not be noticed in ten million runs.

# %%
print(dp.audit(settings, runs=300, expected=True, units=["client"], observers=["public"]))  # runs nothing

# %% [markdown]
# ## The attack

# %%
honest = dp.audit(settings, runs=300, units=["client"], observers=["public"])
print(honest)
print("refuted:", [f"{each.cell} by {each.audit}" for each in honest.refuted])

# %% [markdown]
# `distinguish` is the strongest attack there is on the promised noise. `many-runs` assumes nothing of the program, and proves less.
#
# ## A program that is wrong
#
# A mechanism that says it adds the promised noise, and adds half of it. No accountant sees that.

# %%
_ = Path("half_noise.py").write_text("""
from dataclasses import replace

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.privacy.noises.independent import Independent


class HalfNoise(Independent):
    @staticmethod
    def noise(multiplier):  # what it says that a release costs
        return GaussianNoise(multiplier=multiplier)

    def release(self, round_, query, state, generator):
        return super().release(round_, replace(query, sensitivity=query.sensitivity / 2), state, generator)
""")
wrong = dp.Settings.preset("dp-agr", "strokes", {"server.noise": "half_noise:HalfNoise"})
caught = dp.audit(wrong, runs=300, units=["client"], observers=["public"])
print(caught)
print("refuted:", [f"{each.cell} by {each.audit}" for each in caught.refuted])

# %%
figure, place = plt.subplots(figsize=(6, 2.4), layout="constrained")
for row, audit in enumerate([honest, caught]):
    for each, mark in zip(audit.findings, "os", strict=False):
        place.plot(each.audited, -row, mark, color="#0072b2", ms=8, label=each.audit if row == 0 else None)
promised = honest.findings[0].promised
place.axvline(promised, color="#d55e00", linestyle="--")
place.annotate("promised", (promised, 0.35), xytext=(4, 0), textcoords="offset points", color="#d55e00")
place.set_yticks([0, -1], ["as it is", "half the noise"])
place.set(xlabel="lower bound on epsilon, 95%", ylim=(-1.5, 0.7), xlim=(0, None))
_ = place.legend(loc="lower center", ncols=2, fontsize=8)

# %% [markdown]
# A bound is above the promise by chance in one audit of twenty. Give more runs before you believe a small excess; a program that adds half the noise is far beyond it.
#
# [What is audited, and what the audits of this and of other libraries found](../auditing.md).
