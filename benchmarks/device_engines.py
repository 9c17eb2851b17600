"""Who is timed on a device: this project's engines, many clients at once, and other libraries' loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.engines import EngineName, missing_peers, private_on, private_together, reference
from benchmarks.peers import Engine, learn2learn_loop, opacus_hooks
from benchmarks.settings import Algorithm, Setting, moved_problem
from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.meta_gradients import batched, batched_divided_gradients, batched_query_gradients
from dpfedmeta.learning.meta.partwise_gradients import part_gradients
from dpfedmeta.learning.meta.support_query_splits import divided_gradient
from dpfedmeta.learning.models.layers.convolution import bfloat16_in_hardware
from dpfedmeta.learning.models.spec import Precision
from dpfedmeta.simulation.gpu_batches import Chunks

Together = Callable[[Sequence[Episode]], list[Params]]
"""Meta-gradients of several clients whose episodes lie on the device."""

SHORTER: tuple[Precision, ...] = ("tf32", "bfloat16")
_DIVISIONS = Divisions(count=10, shots=5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Contestant:
    """One way to compute clients on a device.

    Attributes:
        algorithm: What is computed; "divided": ten divisions of each client's records, and the head adapts.
        name: Of the engine.
        together: It.
        truth: What one client sends, by a loop on the CPU in float32.
        chunks: How many clients it takes at once, where that is found from free memory.
    """

    algorithm: str
    name: str
    together: Together
    truth: Engine
    chunks: Chunks | None = None


def contestants(setting: Setting, device: torch.device, *, peers: bool) -> list[Contestant]:
    """All of them, the quickest to compute first, so that a lack of time costs the least."""
    found: list[Contestant] = []
    orders: tuple[Algorithm, ...] = ("maml-1", "maml-2")
    for algorithm in orders:
        found.append(_stacked(setting, algorithm, device, "float32"))
        if peers and "learn2learn" not in missing_peers():
            found.append(_loop(setting, algorithm, device, "learn2learn", learn2learn_loop))
    found += _divided(setting, device)
    found += _per_record(setting, device, peers=peers)
    on_gpu = device.type == "cuda"
    shorter = [name for name in SHORTER if on_gpu or (name == "bfloat16" and bfloat16_in_hardware())]
    found += [_stacked(setting, algorithm, device, precision) for algorithm in orders for precision in shorter]
    return found


def _chunks(device: torch.device) -> Chunks:
    # A CPU takes two, so that there is a batch.
    return Chunks(device=device, fixed=None if device.type == "cuda" else 2)


def _loop(
    setting: Setting,
    algorithm: Algorithm,
    device: torch.device,
    name: str,
    make: Callable[[Setting, Algorithm], Engine],
) -> Contestant:
    with torch.device(device):
        engine = make(setting, algorithm)
    truth = reference(setting, algorithm)
    return Contestant(algorithm=algorithm, name=name, together=one_by_one(engine), truth=truth)


def one_by_one(engine: Engine) -> Together:
    """A loop over clients."""
    return lambda part: [engine(episode) for episode in part]


def _each(gradients: Params, count: int) -> list[Params]:
    return [{name: value[index] for name, value in gradients.items()} for index in range(count)]


def _stacked(setting: Setting, algorithm: Algorithm, device: torch.device, precision: Precision) -> Contestant:
    network, model = moved_problem(setting, algorithm, device, precision)
    spec, chunks = setting.meta(algorithm), _chunks(device)

    def piece(part: Sequence[Episode]) -> list[Params]:
        gradients = batched_query_gradients(network, model, {}, batched(part), spec.adaptation, spec.order)
        return _each(gradients, len(part))

    return Contestant(
        algorithm=algorithm,
        name=precision,
        together=partial(chunks.compute, piece),
        truth=reference(setting, algorithm),
        chunks=chunks,
    )


def _divided(setting: Setting, device: torch.device) -> list[Contestant]:
    """Ways to divide a client's records again and again; first order."""
    network, model = moved_problem(setting, "maml-1", device)
    on_cpu, known = moved_problem(setting, "maml-1", torch.device("cpu"))
    adaptation = Adaptation(adapt="head", steps=setting.steps, lr=setting.lr)

    def truth(episode: Episode) -> Params:
        return divided_gradient(on_cpu, known, {}, episode, adaptation, 1, _DIVISIONS)

    def alone(episode: Episode) -> Params:
        return divided_gradient(network, model, {}, episode, adaptation, 1, _DIVISIONS)

    def side_by_side(part: Sequence[Episode]) -> list[Params]:
        return _each(batched_divided_gradients(network, model, {}, batched(part), adaptation, 1, _DIVISIONS), len(part))

    def one_pass(part: Sequence[Episode]) -> list[Params]:
        return _each(part_gradients(network, model, {}, batched(part), adaptation, 1, _DIVISIONS), len(part))

    found = [
        Contestant(algorithm="divided", name="one client at a time", together=one_by_one(alone), truth=truth),
    ]
    for name, piece in (("side by side", side_by_side), ("one pass for all clients", one_pass)):
        chunks = _chunks(device)
        together = partial(chunks.compute, piece)
        found.append(Contestant(algorithm="divided", name=name, together=together, truth=truth, chunks=chunks))
    return found


def _per_record(setting: Setting, device: torch.device, *, peers: bool) -> list[Contestant]:
    truth, found = reference(setting, "dp-agrlr"), list[Contestant]()
    chunks = _chunks(device)
    together = partial(chunks.compute, private_together(device, setting))
    found.append(
        Contestant(algorithm="dp-agrlr", name="side by side", together=together, truth=truth, chunks=chunks),
    )
    engines: tuple[EngineName, ...] = ("auto", "vmap", "opacus")
    for engine in engines:
        if engine == "opacus" and "opacus hooks" in missing_peers():
            continue
        own = one_by_one(private_on(device, setting, engine))
        found.append(Contestant(algorithm="dp-agrlr", name=f"per record, {engine}", together=own, truth=truth))
    if peers and "opacus hooks" not in missing_peers():
        found.append(_loop(setting, "dp-agrlr", device, "opacus hooks", opacus_hooks))
    return found


def in_one_step(setting: Setting) -> Setting:
    """More steps amplify rounding until engines of the same function are a tenth apart."""
    return replace(setting, steps=1)
