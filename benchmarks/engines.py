"""Who is measured: this project's engines and, where they are installed, other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Literal

import torch

from benchmarks.peers import CLIP, PEERS, Engine
from benchmarks.settings import SETTINGS, Algorithm, Setting, episodes, moved_problem, problem
from dpfedmeta.core.params import Params, flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.algorithm import ClientNoise
from dpfedmeta.learning.meta.meta_gradients import meta_gradient
from dpfedmeta.learning.models.layers.convolution import bfloat16_in_hardware
from dpfedmeta.learning.models.spec import Precision
from dpfedmeta.learning.record_dp.noisy_steps import private_messages
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine
from dpfedmeta.privacy.clipping import clip

EngineName = Literal["auto", "vmap", "opacus"]
OURS = "dpfedmeta"
ROUNDED = ", bfloat16"
Make = Callable[[Setting, Algorithm], Engine]


def _exact(setting: Setting, algorithm: Algorithm, *, precision: Precision = "float32") -> Engine:
    network, weights = problem(setting, algorithm, precision)
    spec = setting.meta(algorithm)

    def engine(episode: Episode) -> Params:
        message = meta_gradient(network, weights, {}, episode, spec.adaptation, spec.order)
        return clip(message, CLIP) if algorithm == "dp-agr" else message

    return engine


def _private(
    setting: Setting,
    algorithm: Algorithm,
    *,
    engine: EngineName,
    precision: Precision = "float32",
) -> Engine:
    return private_on(torch.device("cpu"), setting, engine, precision)


def private_on(device: torch.device, setting: Setting, engine: EngineName, precision: Precision = "float32") -> Engine:
    """Record-level steps of clients whose episodes lie on a device."""
    together = private_together(device, setting, engine, precision)
    return lambda episode: together([episode])[0]


def private_together(
    device: torch.device, setting: Setting, engine: EngineName = "vmap", precision: Precision = "float32"
) -> Callable[[Sequence[Episode]], list[Params]]:
    """The same of several clients by one call; their noise is one and the same here."""
    network, weights = moved_problem(setting, "dp-agrlr", device, precision)
    spec, per_record, source = setting.record(), per_record_engine(engine), KeyedSource(0)

    def noise() -> ClientNoise:
        purposes = (Purpose.SUPPORT_NOISE, Purpose.QUERY_NOISE, Purpose.LOCAL_BATCHES)
        support, query, batches = (source.generator(purpose, 0, 0) for purpose in purposes)
        return ClientNoise(support=support, query=query, batches=batches)

    def computed(part: Sequence[Episode]) -> list[Params]:
        noises = [noise() for _ in part]
        messages = private_messages(network, weights, {}, part, CLIP, noises, spec, per_record)
        return [message.value for message in messages]

    return computed


ENGINES: Mapping[str, tuple[Make, tuple[Algorithm, ...]]] = {
    OURS: (_exact, ("maml-1", "maml-2", "dp-agr")),
    f"{OURS} layered": (partial(_private, engine="auto"), ("dp-agrlr",)),
    f"{OURS} vmap": (partial(_private, engine="vmap"), ("dp-agrlr",)),
    f"{OURS} opacus": (partial(_private, engine="opacus"), ("dp-agrlr",)),
    f"{OURS}{ROUNDED}": (partial(_exact, precision="bfloat16"), ("maml-1", "maml-2")),
    f"{OURS} layered{ROUNDED}": (partial(_private, engine="auto", precision="bfloat16"), ("dp-agrlr",)),
}


def reference(setting: Setting, algorithm: Algorithm) -> Engine:
    """This project's own on a CPU, in float32."""
    return _private(setting, algorithm, engine="vmap") if algorithm == "dp-agrlr" else _exact(setting, algorithm)


@lru_cache(maxsize=64)
def engine(setting: str, algorithm: Algorithm, name: str) -> Engine:
    """By name, ready to be called.

    Raises:
        ImportError: A peer that is not installed.
    """
    make, _ = {**ENGINES, **PEERS}[name]
    return make(SETTINGS[setting], algorithm)


def names(algorithm: Algorithm, *, peers: bool) -> list[str]:
    """List the engines that compute an algorithm, this project's first; bfloat16 where the processor has it."""
    known = {**ENGINES, **PEERS} if peers else ENGINES
    return [
        name
        for name, (_, algorithms) in known.items()
        if algorithm in algorithms and (bfloat16_in_hardware() or not name.endswith(ROUNDED))
    ]


def missing_peers() -> dict[str, str]:
    """Peers that cannot be imported here, and why."""
    found = {}
    for name, (_, algorithms) in PEERS.items():
        try:
            engine("paper", algorithms[0], name)
        except ImportError as error:
            found[name] = str(error)
    return found


def disagreement(setting: str, algorithm: Algorithm, name: str, other: str) -> float:
    """Distance of two engines' meta-gradients of one client, over the length of the second."""
    (episode,) = episodes(SETTINGS[setting], 1)
    return apart(*(engine(setting, algorithm, who)(episode) for who in (name, other)))


def distance_of_rounded(setting: Setting, algorithm: Algorithm, found: Params, client: int = 0) -> float:
    """Of a meta-gradient of shorter operands from that of float32; infinite if that of another order is nearer."""
    episode = episodes(setting, client + 1)[client]
    own = apart(found, reference(setting, algorithm)(episode))
    if algorithm == "dp-agrlr":
        return own
    rival: Algorithm = "maml-1" if algorithm == "maml-2" else "maml-2"
    return own if own < apart(found, reference(setting, rival)(episode)) else math.inf


def apart(one: Params, two: Params) -> float:
    """Distance of two meta-gradients, over the length of the second."""
    wanted = flatten(two).double()
    found = flatten({key: one[key] for key in two}).double()
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted))
