"""Draws docs/epsilon*.png from the numbers of docs/results.md, here with their intervals; no training.

python docs/draw_epsilon.py
"""

from pathlib import Path

from dpfedmeta.reporting.compare.seed_groups import Measured
from dpfedmeta.reporting.plots.epsilon_plot import Curve, draw_curves


def accuracy(percent: float, half: float = 0.0) -> Measured:
    """A mean and half its 95% interval, in percent."""
    return Measured(mean=percent / 100, ci95=half / 100)


# "The benchmarks" of docs/results.md: on Omniglot the shorter runs that differ in epsilon alone, on colour images the
# presets.
CLIENT, RECORD = ("client", "public"), ("record", "server")
OMNIGLOT = (
    Curve(
        algo="dp-agr",
        cell=CLIENT,
        points=tuple(
            (epsilon, accuracy(percent, 0.3))
            for epsilon, percent in ((0.5, 95.4), (1.0, 95.1), (1.5, 95.4), (3.0, 96.2), (8.0, 96.5))
        ),
        untrained=accuracy(56.2),
    ),
    Curve(
        algo="dp-agrlr-micro",
        cell=RECORD,
        points=((1.0, accuracy(93.8, 0.4)), (2.5, accuracy(96.0, 1.0)), (8.0, accuracy(97.2, 0.3))),
        untrained=accuracy(85.1),
    ),
    Curve(algo="maml", cell=None, points=((0.0, accuracy(99.1, 0.1)),)),
)
CIFAR_FS = (
    Curve(algo="dp-agr", cell=CLIENT, points=((1.5, accuracy(66.4, 0.4)),), untrained=accuracy(53.6)),
    Curve(algo="dp-agrlr-micro", cell=RECORD, points=((2.5, accuracy(55.7, 1.0)),), untrained=accuracy(54.7)),
    Curve(algo="dp-agr-cyclic", cell=CLIENT, points=((1.5, accuracy(68.6, 1.0)),)),
    Curve(algo="dp-agrlr-secure", cell=RECORD, points=((2.34, accuracy(63.8, 1.0)),)),
    Curve(algo="maml", cell=None, points=((0.0, accuracy(73.2, 1.2)),)),
)
MINI_IMAGENET = (
    Curve(algo="dp-agr", cell=CLIENT, points=((1.5, accuracy(55.2, 1.2)),), untrained=accuracy(46.1)),
    Curve(algo="dp-agrlr-micro", cell=RECORD, points=((2.5, accuracy(44.1, 0.7)),), untrained=accuracy(44.3)),
    Curve(algo="dp-agr-cyclic", cell=CLIENT, points=((1.5, accuracy(56.8, 1.6)),)),
    Curve(algo="dp-agrlr-secure", cell=RECORD, points=((2.5, accuracy(52.5, 2.6)),)),
    Curve(algo="maml", cell=None, points=((0.0, accuracy(60.1, 0.9)),)),
)
# By what follows "epsilon" in the file's name.
PICTURES = {
    "": (OMNIGLOT, "Omniglot", 71.2),
    "-cifar-fs": (CIFAR_FS, "CIFAR-FS", 40.2),
    "-mini-imagenet": (MINI_IMAGENET, "mini-ImageNet", 31.9),
}

if __name__ == "__main__":
    for name, (curves, title, pixels) in PICTURES.items():
        draw_curves(Path(__file__).with_name(f"epsilon{name}.png"), curves, f"{title}, 5-way 5-shot", accuracy(pixels))
