"""What `make gpu` found, as a picture: clients per second of everything, on one axis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dpfedmeta.reporting.plots.style import BLUE

_OTHERS = "#b0b0b0"
_PEERS = ("learn2learn", "opacus hooks")
# Of the issue, in clients per second.
GOALS: Mapping[str, float] = {"dp-agr, order 1": 3000.0, "dp-agr, order 2": 1000.0}


def bars(found: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    """(what, clients per second, whether it is another library's), in the order in which they were measured."""
    made: list[tuple[str, float, bool]] = []
    for part in found["parts"]:
        held = part["found"] or {}
        made += [(row["case"], row["clients_per_second"], False) for row in held.get("rows", [])]
        for setting in held.get("device", []):
            for row in setting["rows"]:
                name = f"{row['setting']}: {row['algorithm']}, {row['engine']}"
                made.append((name, row["clients_per_second"], row["engine"] in _PEERS))
        if held.get("clients_per_second"):
            made.append((f"run: {part['name']}", held["clients_per_second"], False))
    return made


def save_gpu_plot(path: Path, found: Mapping[str, Any]) -> None:
    """A bar for each thing that was measured, with the goals where there is one.

    Args:
        path: Of the PNG.
        found: As in gpu.json.
    """
    shown = bars(found)
    figure = Figure(figsize=(10.0, 1.6 + 0.3 * max(len(shown), 1)), layout="constrained")
    panel = figure.add_subplot()
    names, rates = [name for name, *_ in shown], [rate for _, rate, _ in shown]
    places = range(len(shown))
    drawn = panel.barh(places, rates, color=[_OTHERS if other else BLUE for *_, other in shown])
    panel.set_yticks(places, names, fontsize=8)
    panel.invert_yaxis()
    panel.bar_label(drawn, [f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}" for rate in rates], padding=3, fontsize=8)
    machine = found["machine"]
    goals = [(place, GOALS[name]) for place, name in enumerate(names) if name in GOALS and "gpu" in machine]
    for place, goal in goals:
        panel.plot([goal] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.5)
    panel.set_xlim(0.0, 1.15 * max([*rates, *(goal for _, goal in goals), 1.0]))
    panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{machine.get('gpu', 'CPU, tiny sizes: no measurement')}, PyTorch {machine['torch']}", fontsize=11)
    figure.supxlabel("clients per second (grey: other libraries; black line: goal)")
    figure.savefig(path, dpi=110)
