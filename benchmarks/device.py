"""Engines on one device, a GPU above all: clients side by side, beside learn2learn's loop on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.engines import EngineName, apart, distance_of_rounded, missing_peers, private_on, reference
from benchmarks.measure import MOST_DISAGREEMENT, MOST_OF_ROUNDED
from benchmarks.peers import Engine, learn2learn_loop
from benchmarks.settings import Algorithm, Setting, episodes, moved_problem
from dpfedmeta.data.episode import Episode
from dpfedmeta.errors import InputError
from dpfedmeta.meta.side_by_side import batched, batched_query_gradients
from dpfedmeta.models.spec import Precision
from dpfedmeta.parameters import Params
from dpfedmeta.simulation.chunks import Chunks

Together = Callable[[Sequence[Episode]], list[Params]]
"""Meta-gradients of several clients whose episodes lie on the device."""

SHORTER: tuple[Precision, ...] = ("tf32", "bfloat16")
# A GPU is not busy with fewer; enough for the search for a chunk to end.
CLIENTS = 512


def device_rows(
    setting: Setting, device: torch.device, *, clients: int = CLIENTS, seconds: float = 5.0, peers: bool = True
) -> dict[str, Any]:
    """{"rows", "ratios"}: clients per second of every engine, after a check of one step against the loop on a CPU.

    Args:
        setting: Network and episodes.
        device: Where to compute.
        clients: How many episodes to cycle through.
        seconds: The least to spend on each.
        peers: learn2learn too, where it is installed.

    Raises:
        InputError: An engine does not compute the same meta-gradient there.
    """
    known = episodes(setting, min(clients, 64))
    held = [known[i % len(known)].to(device) for i in range(clients)]
    before, rows = torch.backends.cudnn.allow_tf32, list[dict[str, Any]]()
    # More steps amplify rounding until engines of the same function are a tenth apart.
    quick = replace(setting, steps=1)
    pairs = zip(_contestants(setting, device, peers=peers), _contestants(quick, device, peers=peers), strict=True)
    for (algorithm, name, together), (*_, in_one_step) in pairs:
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        difference = _difference(quick, algorithm, name, in_one_step(held[:2])[1])
        most = MOST_OF_ROUNDED if name in SHORTER else MOST_DISAGREEMENT
        if not difference <= most:
            raise InputError(f"{name} on {device} and a loop on a CPU differ by {difference:.1e} in {algorithm}")
        rows.append(
            {
                "setting": setting.name,
                "algorithm": algorithm,
                "engine": name,
                "clients_per_second": _rate(together, held, device, seconds),
                "difference": difference,
            }
        )
    torch.backends.cudnn.allow_tf32 = before
    return {"rows": rows, "ratios": _ratios(rows)}


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found = {(row["algorithm"], row["engine"]): row["clients_per_second"] for row in rows}

    def ratio(algorithm: str) -> float | None:
        ours, theirs = found.get((algorithm, "float32")), found.get((algorithm, "learn2learn"))
        return ours / theirs if ours and theirs else None

    return {f"{algorithm}_vs_learn2learn": ratio(algorithm) for algorithm in ("maml-1", "maml-2")}


def _contestants(setting: Setting, device: torch.device, *, peers: bool) -> list[tuple[Algorithm, str, Together]]:
    found: list[tuple[Algorithm, str, Together]] = []
    orders: tuple[Algorithm, ...] = ("maml-1", "maml-2")
    for algorithm in orders:
        offered = ["float32", *(precision for precision in SHORTER if device.type == "cuda" or precision != "tf32")]
        found += [(algorithm, precision, _stacked(setting, algorithm, device, precision)) for precision in offered]
        if peers and "learn2learn" not in missing_peers():
            found.append((algorithm, "learn2learn", _learn2learn(setting, algorithm, device)))
    engines: tuple[EngineName, ...] = ("auto", "vmap", "opacus")
    for engine in engines:
        found += [("dp-agrlr", f"per record, {engine}", _one_by_one(private_on(device, setting, engine)))]
    return found


def _learn2learn(setting: Setting, algorithm: Algorithm, device: torch.device) -> Together:
    with torch.device(device):
        return _one_by_one(learn2learn_loop(setting, algorithm))


def _one_by_one(engine: Engine) -> Together:
    return lambda part: [engine(episode) for episode in part]


def _stacked(setting: Setting, algorithm: Algorithm, device: torch.device, precision: Precision) -> Together:
    network, model = moved_problem(setting, algorithm, device, precision)
    spec, chunks = setting.meta(algorithm), Chunks(device=device, fixed=None if device.type == "cuda" else 2)

    def piece(part: Sequence[Episode]) -> list[Params]:
        gradients = batched_query_gradients(network, model, {}, batched(part), spec.adaptation, spec.order)
        return [{name: value[index] for name, value in gradients.items()} for index in range(len(part))]

    return partial(chunks.compute, piece)


def _difference(setting: Setting, algorithm: Algorithm, name: str, found: Params) -> float:
    """Distance of the second client's meta-gradient from that of the CPU's loop in float32, over the length of that."""
    own = {key: value.cpu() for key, value in found.items()}
    if name in SHORTER:
        return distance_of_rounded(setting, algorithm, own, 1)
    return apart(own, reference(setting, algorithm)(episodes(setting, 2)[1]))


def _rate(together: Together, held: Sequence[Episode], device: torch.device, seconds: float) -> float:
    """Clients per second, of as many of the episodes as that takes."""
    few = held[: max(1, len(held) // 8)]
    spent = _seconds(together, few, device)  # also warms up, and finds a chunk
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
