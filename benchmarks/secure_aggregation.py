"""Whole rounds of secure aggregation on this machine: clients, server and messages, but no network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpfedmeta.secure_aggregation import Agreement, agreed
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.simulated_round import run_round

# The curve, and up to how many clients the complete graph is measured beside it.
CLIENTS = (100, 200, 400, 1000, 1500, 3000, 10_000)
MOST_COMPLETE = 400


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What to measure.

    Attributes:
        clients: How many are invited; None for the curve.
        dimension: Coordinates of a vector.
        bits: Of a coordinate.
        adversarial: The share that colludes.
        dropout: The share that falls silent after it shared its keys, which costs a server most.
        malicious: Whether the server may break the protocol.
        verify: Whether clients check the signatures of their neighbours' keys towards a server that follows the
            protocol too.
        complete: Whether everybody is everybody's neighbour; the curve has both.
        processes: Worker processes.
    """

    clients: int | None = None
    dimension: int = 32_768
    bits: int = 16
    adversarial: float = 0.1
    dropout: float = 0.2
    malicious: bool = False
    verify: bool = False
    complete: bool = False
    processes: int = 2


def rows(crowd: Crowd, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row for each number of clients; the complete graph beside it where it is a curve.

    Raises:
        InputError: No graph exists.
    """
    if crowd.clients is not None:
        return [_row(crowd, _agreement(crowd, crowd.clients, complete=crowd.complete))]
    found = []
    for clients in CLIENTS:
        graphs = (False, True) if clients <= MOST_COMPLETE else (False,)
        for complete in graphs:
            found.append(_row(crowd, _agreement(crowd, clients, complete=complete)))
            say(f"{clients} clients, degree {found[-1]['degree']}: {found[-1]['seconds']:.1f} s")
    return found


def _agreement(crowd: Crowd, clients: int, *, complete: bool) -> Agreement:
    return agreed(
        clients=clients,
        dimension=crowd.dimension,
        bits=crowd.bits,
        adversarial=crowd.adversarial,
        dropout=crowd.dropout,
        malicious=crowd.malicious,
        complete=complete,
    )


def _row(crowd: Crowd, agreement: Agreement) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    vectors = [
        rng.integers(0, 2**crowd.bits, crowd.dimension, dtype=np.uint32).astype("<u2" if crowd.bits <= 16 else "<u4")
        for _ in range(agreement.clients)
    ]
    silent = rng.choice(agreement.clients, agreement.clients - agreement.fewest, replace=False).tolist()
    cpu, start = _cpu(), time.perf_counter()
    found = run_round(
        vectors,
        agreement=agreement,
        silent=dict.fromkeys(silent, ProtocolPhase.MASKED),
        processes=crowd.processes,
        verify=crowd.verify,
    )
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    total = np.zeros(crowd.dimension, dtype=np.uint64)
    for seat in found.sum.survivors:
        total += vectors[seat]
    if not (found.sum.total == total % 2**crowd.bits).all():
        raise AssertionError("the sum is not the survivors' plain sum")
    per_client = max(found.traffic.of(seat) for seat in found.sum.survivors)
    return {
        "clients": agreement.clients,
        "degree": agreement.degree,
        "threshold": agreement.threshold,
        "dimension": agreement.dimension,
        "bits": agreement.bits,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "bytes_per_client": per_client,
    }


def _cpu() -> float:
    """Of this process and of worker processes that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def save_plot(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """CPU seconds of a round against the number of clients, both logarithmic, the complete graph beside the sparse one.

    Args:
        path: Of the PNG.
        found: Rows.
    """
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    panel = figure.add_subplot()
    for complete, name, colour in ((False, "random Harary graph", "#1f77b4"), (True, "complete graph", "#b0b0b0")):
        own = [row for row in found if (row["degree"] == row["clients"] - 1) is complete]
        if own:
            panel.plot(
                [row["clients"] for row in own], [row["cpu_seconds"] for row in own], "o-", color=colour, label=name
            )
    panel.set(xscale="log", yscale="log", xlabel="clients invited", ylabel="CPU seconds of a round, all parties")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=120)
