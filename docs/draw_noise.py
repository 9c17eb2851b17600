"""Draws docs/which-noise.png: the error of each noise against epsilon, from the accountant alone (a minute or two).

python docs/draw_noise.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

from dpfedmeta.accounting.compare_noises import FederationFacts, advise
from dpfedmeta.reporting.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    SMALL,
    entitle,
    logarithmic,
    mark,
    save,
)

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
ROUNDS, DELTA = 250, 1e-6
# (N, L, title): many clients of which few come, everybody once, everybody eight times.
PANELS = (
    (400_000, 300.0, "400,000 clients, 300 a round:\nmost never come"),
    (75_000, 300.0, "75,000 clients, 300 a round:\neach comes once"),
    (10_000, 300.0, "10,000 clients, 300 a round:\neach comes up to 8 times"),
)
LOOKS = {
    "cyclic": (PURPLE, "-", "cyclic: the same coins, banded noise"),
    "poisson": (BLUE, "-", "Poisson: a server's secret coins"),
    "fixed": (SKY, "--", "fixed size: the same, replaced client"),
    "check-ins": (GREEN, "-.", "check-ins: clients' own secret round"),
    "blt": (ORANGE, "-", "correlated (BLT): no secret"),
    "banded": (GREY, ":", "banded, 32 vectors: no secret"),
}

if __name__ == "__main__":
    figure, axes = plt.subplots(1, 3, figsize=(12.4, 4.6), sharey=True)
    for axis, (clients, cohort, title) in zip(axes, PANELS, strict=True):
        joined = max(-(-int(cohort * ROUNDS) // clients), 1)
        found = {name: [] for name in LOOKS}
        for epsilon in EPSILONS:
            rows = advise(
                FederationFacts(
                    clients=clients, rounds=ROUNDS, cohort=cohort, participations=joined, epsilon=epsilon, delta=DELTA
                )
            )
            for row in rows:
                if row.name in found:
                    found[row.name].append(1000 * row.per_message(ROUNDS))
        for place, (name, (colour, style, label)) in enumerate(LOOKS.items()):
            axis.plot(EPSILONS, found[name], style, color=colour, marker=mark(place), markersize=5, label=label)
        axis.set_xscale("log")
        axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axis.minorticks_off()
        logarithmic(axis)
        axis.grid(alpha=0.25)
        axis.set_xlabel("epsilon of (client, public), delta = 1e-6")
        entitle(axis, title, 44)
    axes[0].set_ylabel("error in the sum of 250 rounds, for each message,\nin thousandths of the clip bound")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=SMALL, loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    save(figure, Path(__file__).with_name("which-noise.png"))
