"""Common style of all pictures: colours for colour-blind readers, sizes, titles, axes in percent."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatter, NullLocator

from dpfedmeta.core.files.atomic_files import replace_file

# The palette of Okabe and Ito (2008), less yellow, which a white page swallows.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER, BLACK, BROWN = "#56b4e9", "#e69f00", "#1d2330", "#8a6d1f"
GREY = "#7a808a"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, BLACK, BROWN)
STYLES = ("-", "--", "-.", ":")
# Beside the colour, so that lines differ in grey print too.
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")

# An algorithm keeps its colour from picture to picture; those that are not here take what is left.
_OF_ALGORITHMS = {
    "maml": BLACK, "dp-agr": BLUE, "dp-agrlr-micro": ORANGE, "dp-agrlr": AMBER, "dp-const": GREEN, "dp-aqc": PURPLE,
    "dp-fedavg": SKY, "local-dp": BROWN,
}  # fmt: skip

Look = tuple[str, str]

TITLE, SMALL = 10.5, 8.5
# Inches of a picture of a page: on a phone its words stay readable.
WIDE = 4.8


def looks(count: int) -> list[Look]:
    """(colour, line style) of each line, all different up to 32."""
    colours = cycle(PALETTE)
    return [(next(colours), STYLES[index // len(PALETTE) % len(STYLES)]) for index in range(count)]


def mark(place: int) -> str:
    """The mark of the line at this place of a picture, all different up to 8."""
    return MARKS[place % len(MARKS)]


def looks_of(algorithms: Sequence[str]) -> list[Look]:
    """The same for one line each of these algorithms: the first of each has its algorithm's own colour."""
    found: dict[int, Look] = {}
    for index, name in enumerate(algorithms):
        look = (_OF_ALGORITHMS.get(name, ""), STYLES[0])
        if look[0] and look not in found.values():
            found[index] = look
    left = iter([look for look in looks(len(PALETTE) * len(STYLES)) if look not in found.values()])
    for index in range(len(algorithms)):
        if index not in found:
            found[index] = next(left, (GREY, STYLES[0]))
    return [found[index] for index in range(len(algorithms))]


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with one set of axes; sizes in inches."""
    figure, axis = plt.subplots(figsize=(width, height))
    return figure, axis


def entitle(axis: Axes, title: str, width: int = 90) -> None:
    """Says above the axes what is seen, from the left, in lines of at most `width` letters."""
    axis.set_title("\n".join(textwrap.wrap(title, width)), loc="left", fontsize=TITLE)


def finish(figure: Figure, axis: Axes, path: Path, *, below: bool = False) -> None:
    """Grid, a legend beside or below the picture, and to disk."""
    axis.grid(alpha=0.25)
    handles, labels = axis.get_legend_handles_labels()
    if handles and below:
        figure.set_figheight(figure.get_figheight() + 0.2 * len(handles))
        figure.set_layout_engine("constrained")
        figure.legend(handles, labels, frameon=False, fontsize=SMALL, loc="outside lower left")
        save(figure, path)
        return
    if handles:
        axis.legend(frameon=False, fontsize=SMALL, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path)


# No time stamp and no version in the file: the same run gives the same bytes.
_METADATA: Mapping[str, Any] = {".pdf": {"Creator": None, "Producer": None, "CreationDate": None}}


def save(figure: Any, path: Path) -> None:
    """Write and close; .pdf is vectors with its fonts inside."""
    drawn, metadata = io.BytesIO(), _METADATA.get(path.suffix, {"Software": None})
    with mpl.rc_context({"pdf.fonttype": 42}):
        figure.savefig(drawn, format=path.suffix[1:] or "png", dpi=130, metadata=metadata)
    plt.close(figure)
    # A run that ends and somebody who watches it may draw the same picture.
    replace_file(path, drawn.getvalue())


class _PlainMinor(LogFormatter):
    """Writes 0.6 and not 6e-01, where the axis is so short that minor ticks need a number."""

    def __call__(self, value: float, position: Any = None) -> str:
        return f"{value:g}" if super().__call__(value, position) else ""


def logarithmic(axis: Axes) -> None:
    """A logarithmic axis with plain numbers on it, also where it spans less than a power of ten."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(_PlainMinor(minor_thresholds=(1.0, 0.4)))


def show_zero(axis: Axes, values: Sequence[float], smallest: float = 0.1) -> None:
    """A logarithmic axis on which zero has a place: it is linear below `smallest`.

    Args:
        axis: Of the picture.
        values: What is drawn over it; NaN is left out.
        smallest: Where the logarithmic part begins.
    """
    top = max([value for value in values if math.isfinite(value)], default=smallest)
    axis.set_yscale("symlog", linthresh=smallest, linscale=0.8)
    steps = [0.0, smallest / 2] + [factor * smallest * 10**power for power in range(8) for factor in (1, 2, 5)]
    limit = max(1.3 * top, 2 * smallest)
    axis.set_ylim(-0.12 * smallest, limit)
    axis.yaxis.set_major_locator(FixedLocator([step for step in steps if step <= limit]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.axhline(0.0, color=GREY, linewidth=0.8, alpha=0.6)
