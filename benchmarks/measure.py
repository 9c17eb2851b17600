"""All measurements of `scripts/bench.py` in one order, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.engines import (
    OURS,
    ROUNDED,
    disagreement,
    distance_of_rounded,
    engine,
    missing_peers,
    names,
)
from benchmarks.machine import bandwidth, client_operations
from benchmarks.rounds import PAPER, overhead, whole_round
from benchmarks.settings import ALGORITHMS, SETTINGS, episodes
from benchmarks.timing import CONVOLUTIONS, Cell, Speed, in_fresh_process, peak_memory, speeds
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.layers.convolution import bfloat16_in_hardware

# Float32 engines differ by rounding, which five steps amplify, and record-level ones by noise of 1e-6.
MOST_DISAGREEMENT = 5e-3
# Rounding to 8 bits tips maxima and ReLUs over, which five steps amplify.
MOST_OF_ROUNDED = 0.5
COHORTS = (16, 256, 4096)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        peers: Other libraries too.
        processes: One thread each.
        repetitions: Counted ones.
        seconds: The least per process and cell.
        settings: Names.
    """

    peers: bool
    processes: int
    repetitions: int = 3
    seconds: float = 1.0
    settings: Sequence[str] = tuple(SETTINGS)


def measure(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """{"rows", "ratios", "machine", "rounds", "left_out", ...}, as scripts/bench.py writes it.

    Raises:
        InputError: Two engines do not compute the same meta-gradient.
    """
    missing = missing_peers() if options.peers else {}
    for name, why in missing.items():
        say(f"left out: {name}, which cannot be imported ({why}); make peers installs it")
    cells = [
        Cell(setting=setting, algorithm=algorithm, name=name)
        for setting in options.settings
        for algorithm in ALGORITHMS
        for name in names(algorithm, peers=options.peers)
        if name not in missing
    ]
    exact, rounded = (_check([c for c in cells if c.name.endswith(ROUNDED) == short]) for short in (False, True))
    say(f"all engines compute the same meta-gradient: largest relative difference {exact:.1e}")
    if bfloat16_in_hardware():
        say(f"rounding to bfloat16 moves it by up to {rounded:.1e}, less than another order would")
    else:
        missing["bfloat16"] = "this processor does not have it (avx512_bf16 or amx_bf16), and training refuses it"
        say(f"left out: bfloat16: {missing['bfloat16']}")
    say(f"{len(cells)} cells, {options.repetitions} repetitions in turns, {options.processes} processes of one thread")
    peak = [Cell(setting=setting, algorithm="maml-1", name=CONVOLUTIONS) for setting in options.settings]
    found = speeds([*cells, *peak], options.processes, options.repetitions, options.seconds)
    say("peak memory, a fresh process for each")
    memory = peak_memory(cells, options.processes)
    say(f"rounds: cohorts of {', '.join(map(str, COHORTS))}, and the overhead of one of 200")
    cohorts = {cohort: in_fresh_process(whole_round, "dp-agr", "strokes", cohort) for cohort in COHORTS}
    spent = {
        "paper": in_fresh_process(overhead, "strokes", dict(PAPER)),
        "preset": in_fresh_process(overhead, "strokes", {}),
    }
    ratios = _ratios({(c.setting, c.algorithm, c.name): s for c, s in found.items()})
    ratios["memory_4096_vs_16"] = cohorts[4096]["peak_memory_mb"] / cohorts[16]["peak_memory_mb"]
    ratios["round_overhead"] = spent["paper"]["overhead"]
    return {
        "rows": [
            {
                "setting": cell.setting,
                "engine": cell.name,
                "algorithm": cell.algorithm,
                "clients_per_second": found[cell].median,
                "repetitions": list(found[cell].rates),
                "peak_memory_mb": memory[cell],
            }
            for cell in cells
        ],
        "ratios": ratios,
        "machine": _machine(options, found, peak),
        "rounds": {"cohorts": [{"cohort": cohort, **cohorts[cohort]} for cohort in COHORTS], "overhead": spent},
        "left_out": missing,
        "versions": {"torch": torch.__version__},
    }


def _check(cells: Sequence[Cell]) -> float:
    worst = 0.0
    for cell in cells:
        first, short = names(cell.algorithm, peers=False)[0], cell.name.endswith(ROUNDED)
        if cell.algorithm == "dp-agr" or cell.name == first:
            continue
        if short:
            setting = SETTINGS[cell.setting]
            message = engine(cell.setting, cell.algorithm, cell.name)(episodes(setting, 1)[0])
            found = distance_of_rounded(setting, cell.algorithm, message)
        else:
            found = disagreement(cell.setting, cell.algorithm, cell.name, first)
        if not found <= (MOST_OF_ROUNDED if short else MOST_DISAGREEMENT):
            raise InputError(
                f"{cell.name} and {first} differ by {found:.1e} in {cell.algorithm} on {cell.setting}; they are not "
                "compared in speed"
            )
        worst = max(worst, found)
    return worst


def _machine(options: Options, found: Mapping[Cell, Speed], peak: Sequence[Cell]) -> dict[str, Any]:
    by_setting = {
        cell.setting: {
            "clients_per_second": found[cell].median,
            "gflops": found[cell].median * client_operations(SETTINGS[cell.setting]) / 1e9,
        }
        for cell in peak
    }
    return {
        "processes": options.processes,
        "convolutions": by_setting,
        "bandwidth_gb_per_second_one_process": in_fresh_process(bandwidth),
    }


def _ratios(found: Mapping[tuple[str, str, str], Speed]) -> dict[str, float | None]:
    """On the paper's setting; None where a side was not measured."""

    def ratio(algorithm: str, ours: str, theirs: str, other: str | None = None) -> float | None:
        one, two = found.get(("paper", algorithm, ours)), found.get(("paper", other or algorithm, theirs))
        return one.median / two.median if one and two else None

    layered = f"{OURS} layered"
    return {
        "maml1_vs_learn2learn": ratio("maml-1", OURS, "learn2learn"),
        "maml2_vs_learn2learn": ratio("maml-2", OURS, "learn2learn"),
        "agrlr_vs_opacus": ratio("dp-agrlr", layered, "opacus hooks"),
        "agrlr_vs_record_loop": ratio("dp-agrlr", layered, "record loop"),
        "share_of_conv_peak": ratio("maml-1", OURS, CONVOLUTIONS),
    }
