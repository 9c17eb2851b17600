"""Canary clients: clients of the population whose messages an attacker chose, among others that are as they are.

Whatever they send is clipped, summed and released like any message. The algorithm knows nothing of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.params import Params, dimension, unflatten
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.learning.meta.algorithm import message_form
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import RecordUnit
from dpfedmeta.simulation.client_runner import ClientRunner

# A message is so many times longer than its bound before it is clipped.
_LONG = 4.0


class Directions(Protocol):
    """Which way each canary's message points."""

    def of(self, number: int, dimension: int) -> Tensor:
        """[d], of length 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class RandomDirections:
    """Uniformly drawn ones, which are nearly orthogonal where d is large.

    Attributes:
        seed: Of the public generators.
    """

    seed: int

    def of(self, number: int, dimension: int) -> Tensor:
        """[d], a function of (seed, number)."""
        drawn = public_generator(self.seed, Purpose.CANARY, number).standard_normal(dimension, dtype=np.float32)
        return torch.from_numpy(drawn / np.linalg.norm(drawn))


@dataclass(frozen=True, kw_only=True)
class SameDirection:
    """The same direction for all canaries: all ones, over sqrt(d)."""

    def of(self, number: int, dimension: int) -> Tensor:
        """[d]."""
        return torch.full((dimension,), 1.0 / math.sqrt(dimension))


@dataclass(frozen=True, kw_only=True, eq=False)
class SideWithCanaries(ClientRunner):
    """The clients of a plan, some of which send what the attacker chose.

    Attributes:
        canaries: By client number: +1, or -1 for the other way; 0 for a client that holds nothing.
        directions: Of their messages; the canaries are numbered in the order of `canaries`.
        others: Whether all other clients compute as they do; else they hold nothing, as an attacker who knows their
            messages subtracts them.
    """

    canaries: Mapping[int, int] = field(default_factory=dict)
    directions: Directions = field(default_factory=SameDirection)
    others: bool = True

    def _raw(
        self, model: Params, bound: float, round_: int, clients: Sequence[int]
    ) -> Iterator[Params | Released[RecordUnit, Params] | None]:
        honest = [client for client in clients if self.others and client not in self.canaries]
        found = super()._raw(model, bound, round_, honest) if honest else iter(())
        for client in clients:
            if client in self.canaries or not self.others:
                yield self._of_canary(model, bound, round_, client)
            else:
                yield next(found)

    def _of_canary(self, model: Params, bound: float, round_: int, client: int) -> Params | None:
        """None where it holds nothing, unless an honest client would send noise all the same."""
        sign = self.canaries.get(client, 0)
        return self._chosen(model, bound, round_, client, sign) if sign or self.algorithm.releases else None

    def _chosen(self, model: Params, bound: float, round_: int, client: int, sign: int) -> Params:
        """SECRET: the message: longer than its bound, unless nobody clips it afterwards."""
        model = message_form(self.algorithm, model)
        size, longest = dimension(model), self.message_bound(bound if math.isfinite(bound) else 1.0)
        vector = sign * self.directions.of(self._places[client], size).double() if sign else torch.zeros(size)
        if self.algorithm.releases and self.message_clip_ratio is None:
            # A released message: its part of the data is no longer than the bound, and it carries its own noise.
            noise = self.source.generator(Purpose.QUERY_NOISE, round_, client).normal(size)
            values = longest * (vector + self.algorithm.message_deviation * torch.from_numpy(noise))
            return unflatten(values.float().to(self.device), model)
        message = unflatten((vector * (_LONG * longest)).float().to(self.device), model)
        if self.parts == 1:
            return message
        return {name: value.expand(self.parts, *value.shape) for name, value in message.items()}

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self.canaries)}


def with_canaries(
    side: ClientRunner, canaries: Mapping[int, int], directions: Directions, *, others: bool
) -> SideWithCanaries:
    """The same clients, with canaries among them, whose messages no mechanism released."""
    own = {**vars(side), "record_noises": ()}
    return SideWithCanaries(**own, canaries=canaries, directions=directions, others=others)
