"""A run that a client has joined: the plan as it made it itself, what it computes there, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.errors import InputError
from dpfedmeta.federation.kept import FreshOf, Kept, kept_for, source_at
from dpfedmeta.federation.messages import Attempt, Floats, Task
from dpfedmeta.federation.own_images import OwnImages, open_images
from dpfedmeta.federation.promise import Promise, check_allowed
from dpfedmeta.federation.signed_plan import SignedPlan
from dpfedmeta.federation.words import joined_words, sent_words
from dpfedmeta.fresh_source import FreshSource
from dpfedmeta.ledger.client_ledger import ClientLedger
from dpfedmeta.parameters import Params, dimension, unflatten
from dpfedmeta.planning.population import training_pool
from dpfedmeta.randomness import IntArray, KeyedSource
from dpfedmeta.secure_aggregation.refusals import Refused
from dpfedmeta.simulation.client_side import ClientSide
from dpfedmeta.simulation.secure_sums import rounded_messages
from dpfedmeta.training.data import client_side


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """What a client holds of one run.

    Attributes:
        signed: The plan.
        number: The client's.
        side: What it computes, on its own images.
        source: Its noise, of a key that no other run has.
        kept: What must survive.
        fresh_of: What the streams of a charged attempt are keyed by.
    """

    signed: SignedPlan
    number: int
    side: ClientSide
    source: KeyedSource | FreshSource
    images: OwnImages
    kept: Kept
    fresh_of: FreshOf

    @property
    def dimension(self) -> int:
        """Weights that are learned."""
        return dimension(self.signed.learned)

    def vector(self, task: Task, attempt: Attempt) -> Floats:
        """What the client sends to a server that sees messages, [d]: clipped, with the noise that the plan gives it.

        Guarantee:
            The release that the client's ledger counts. The same question gives the same bits.

        Raises:
            Refused: The client's images are not what the plan counts with.
        """
        side = self._at(attempt)
        (values,) = side.sent(self._model(task), task.bound, attempt.round, [self.number])
        if values is None:
            raise Refused("the images are not what the plan counts with")
        return np.asarray(values.cpu().numpy())

    def check(self, task: bytes) -> None:
        """As `Taken`."""
        Task.decode(task, self.dimension)

    def whole(self, task: bytes, attempt: Attempt, invited: int) -> IntArray:
        """As `Taken`: its rounded message and its share of the noise."""
        return self._whole(Task.decode(task, self.dimension), attempt, invited)

    def _whole(self, task: Task, attempt: Attempt, invited: int) -> IntArray:
        side = self._at(attempt)
        assert side.whole is not None
        arrays = {name: value.numpy() for name, value in self._model(task).items()}
        common = (arrays, (task.bound, side.whole.share(invited)), attempt.round, [self.number])
        (vector,) = rounded_messages(side, *common, side.source)
        return vector & ((1 << side.whole.bits) - 1)

    def words(self, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
        """As `Taken`."""
        return joined_words(self, ledger, promise)

    def sent_words(self, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: bytes, what: str) -> str:
        """As `Taken`."""
        return sent_words(self, ledger, promise, attempt, Task.decode(task, self.dimension), what)

    def _at(self, attempt: Attempt) -> ClientSide:
        return replace(self.side, source=source_at(self.source, attempt, self.fresh_of))

    def _model(self, task: Task) -> Params:
        return unflatten(torch.from_numpy(np.array(task.model)), self.signed.learned)


def join(
    signed: SignedPlan,
    number: int,
    *,
    images: Path,
    folder: Path,
    promise: Promise,
    noise_seed: int | None,
    fresh_of: FreshOf,
) -> Joined:
    """Look at a plan as a client does, and get ready for it; of what it finds nothing is told to the server.

    Args:
        signed: The plan.
        number: The client's.
        images: Its folder of images.
        folder: The client's own folder, for what it keeps.
        promise: What it promises.
        noise_seed: Given, in a simulation; None: a key is drawn once for the run, and kept.
        fresh_of: What the streams of a charged attempt are keyed by.

    Raises:
        Refused: The promise allows no round.
        InputError: The images cannot be read, or are not what the plan counts with.
    """
    plan = signed.plan
    promise.floors.check(plan.privacy, rough=plan.settings.aggregation.rough)
    check_allowed(plan.privacy, promise)
    pool = training_pool(plan.settings, open_images(images, signed.task, folder / "images"))
    own = OwnImages(
        pool=pool, shape=plan.shape, clients=plan.privacy.clients, number=number, seed=plan.settings.run.seed
    )
    kept = kept_for(folder, signed.run)
    source = kept.source(noise_seed)
    side = client_side(plan, own, source, torch.device("cpu"))
    problem = side.data_form.problem(own, number)
    if problem is not None:
        raise InputError(f"{images}: not what the plan counts with: {problem}")
    return Joined(
        signed=signed,
        number=number,
        side=side,
        source=source,
        images=own,
        kept=kept,
        fresh_of=fresh_of,
    )
