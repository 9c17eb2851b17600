"""Engines on one device, a GPU above all: clients side by side, beside other libraries' loops on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.device_engines import SHORTER, Contestant, Together, contestants, in_one_step
from benchmarks.engines import apart, distance_of_rounded
from benchmarks.measure import MOST_DISAGREEMENT, MOST_OF_ROUNDED
from benchmarks.settings import Setting, episodes
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode

# A GPU is not busy with fewer; enough for the search for a chunk to end.
CLIENTS = 512
# Clients that differ; the others are these again.
_KNOWN = 64
# Clients whose meta-gradients are compared with the CPU's.
_CHECKED = 3


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure.

    Attributes:
        clients: How many episodes to cycle through.
        seconds: The least to spend on each engine.
        peers: Other libraries too, where they are installed.
        most: Seconds after which no further engine is begun; None: all are measured.
        patient: Whether an engine that fails is a row that says why, instead of the end.
    """

    clients: int = CLIENTS
    seconds: float = 5.0
    peers: bool = True
    most: float | None = None
    patient: bool = False


def device_rows(
    setting: Setting, device: torch.device, effort: Effort, kept: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """{"rows", "ratios", "left_out"}: clients per second of every engine, after a check of one step against a CPU.

    Args:
        setting: Network and episodes.
        device: Where to compute.
        effort: How much to measure.
        kept: Told what there is after each engine.

    Raises:
        InputError: An engine does not compute the same meta-gradient there, and nobody is patient.
    """
    known = episodes(setting, min(effort.clients, _KNOWN))
    held = [known[i % len(known)].to(device) for i in range(effort.clients)]
    before, begun = torch.backends.cudnn.allow_tf32, time.perf_counter()
    rows, left_out = list[dict[str, Any]](), list[str]()
    found: dict[str, Any] = {"rows": rows, "ratios": {}, "left_out": left_out}
    quick = contestants(in_one_step(setting), device, peers=effort.peers)
    for own, checked in zip(contestants(setting, device, peers=effort.peers), quick, strict=True):
        if effort.most is not None and time.perf_counter() - begun >= effort.most:
            left_out.append(f"{own.algorithm}, {own.name}: no time was left")
            continue
        torch.backends.cudnn.allow_tf32 = own.name == "tf32"
        try:
            rows.append(_row(setting, own, checked, held, effort.seconds))
        except Exception as error:
            if not effort.patient:
                raise
            left_out.append(f"{own.algorithm}, {own.name}: {type(error).__name__}: {str(error).strip()[:300]}")
        found["ratios"] = _ratios(rows)
        kept(found)
    torch.backends.cudnn.allow_tf32 = before
    return found


def _row(
    setting: Setting, own: Contestant, checked: Contestant, held: Sequence[Episode], seconds: float
) -> dict[str, Any]:
    device = held[0].support_images.device
    found = checked.together(held[:_CHECKED])
    # A maximum of two nearly equal numbers tips over by rounding and moves one client's gradient by a tenth.
    difference = median(_difference(in_one_step(setting), checked, each, client) for client, each in enumerate(found))
    most = MOST_OF_ROUNDED if own.name in SHORTER else MOST_DISAGREEMENT
    if not difference <= most:
        raise InputError(f"{own.name} on {device} and a loop on a CPU differ by {difference:.1e} in {own.algorithm}")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    rate = _rate(own.together, held, device, seconds)
    return {
        "setting": setting.name,
        "algorithm": own.algorithm,
        "engine": own.name,
        "clients_per_second": rate,
        "difference": difference,
        "chunk": None if own.chunks is None else own.chunks.size,
        "peak_memory_mb": torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None,
    }


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found = {(row["algorithm"], row["engine"]): row["clients_per_second"] for row in rows}

    def ratio(algorithm: str, ours: str, theirs: str) -> float | None:
        one, two = found.get((algorithm, ours)), found.get((algorithm, theirs))
        return one / two if one and two else None

    return {
        "maml-1_vs_learn2learn": ratio("maml-1", "float32", "learn2learn"),
        "maml-2_vs_learn2learn": ratio("maml-2", "float32", "learn2learn"),
        "dp-agrlr_vs_opacus": ratio("dp-agrlr", "side by side", "opacus hooks"),
        "divided_vs_one_at_a_time": ratio("divided", "side by side", "one client at a time"),
    }


def _difference(setting: Setting, own: Contestant, found: Mapping[str, Any], client: int) -> float:
    """Distance of a client's meta-gradient from that of the CPU's loop in float32, over the length of that."""
    there = {key: value.cpu() for key, value in found.items()}
    if own.name in SHORTER and own.algorithm in ("maml-1", "maml-2"):
        return distance_of_rounded(setting, own.algorithm, there, client)  # type: ignore[arg-type]
    return apart(there, own.truth(episodes(setting, client + 1)[client]))


def _rate(together: Together, held: Sequence[Episode], device: torch.device, seconds: float) -> float:
    """Clients per second, of as many of the episodes as that takes."""
    few = held[: max(1, len(held) // 8)]
    _seconds(together, few, device)  # warms up, and finds a chunk
    spent = _seconds(together, few, device)
    part = held if spent * len(held) / len(few) < 2.0 * seconds else few
    done, spent = 0, 0.0
    while not done or spent < seconds:
        spent += _seconds(together, part, device)
        done += len(part)
    return done / spent


def _seconds(together: Together, part: Sequence[Episode], device: torch.device) -> float:
    begun = time.perf_counter()
    together(part)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
