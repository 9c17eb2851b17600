"""Draws docs/epsilon.png from the numbers in docs/results.md; no training.

python docs/draw_epsilon.py
"""

from pathlib import Path

from dpfedmeta.report.epsilon_plot import Curve, draw_curves
from dpfedmeta.report.pooling import Measured


def accuracy(percent: float, half: float = 0.0) -> Measured:
    """A mean and half its 95% interval, in percent."""
    return Measured(mean=percent / 100, ci95=half / 100)


# The tables "Accuracy against epsilon", "Seeds" and "The benchmarks" of docs/results.md.
DP_AGR = ((0.5, 95.4), (1.0, 95.1), (1.5, 95.4), (3.0, 96.2), (8.0, 96.5))
CURVES = (
    Curve(
        algo="dp-agr",
        cell=("client", "public"),
        points=tuple((epsilon, accuracy(percent, 0.3)) for epsilon, percent in DP_AGR),
        untrained=accuracy(56.2),
    ),
    Curve(
        algo="dp-agrlr-micro",
        cell=("record", "server"),
        points=((1.0, accuracy(93.8, 0.4)), (2.5, accuracy(96.0, 1.0)), (8.0, accuracy(97.2, 0.3))),
        untrained=accuracy(85.1),
    ),
    Curve(algo="maml", cell=None, points=((0.0, accuracy(99.1, 0.1)),)),
)

if __name__ == "__main__":
    draw_curves(Path(__file__).with_name("epsilon.png"), CURVES, "Omniglot, 5-way 5-shot", accuracy(71.2))
