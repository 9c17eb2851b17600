"""A run that a client has joined: the plan as it made it itself, what it computes there, and what it keeps."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.core.errors import DAMAGED_JSON
from dpfedmeta.core.params import Params, dimension, unflatten
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import IntArray, KeyedSource
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.populations.natural import simulated_key
from dpfedmeta.federation.client.analytics_participation import join_analysis
from dpfedmeta.federation.client.client_budget import Promise, check_allowed
from dpfedmeta.federation.client.client_log import joined_words, sent_words, without_images
from dpfedmeta.federation.client.client_state import DECODED, FreshOf, Kept, kept_for, row_key, source_at
from dpfedmeta.federation.client.local_data import NullRecords, OwnRecords, open_records, opened_or_why
from dpfedmeta.federation.client.signed_participation import ClientSetup, SignedParticipation
from dpfedmeta.federation.offers.plan_limits import PlanLimits
from dpfedmeta.federation.offers.signed_analysis import FORM, SignedAnalysis, opened_analysis
from dpfedmeta.federation.offers.signed_plan import SignedPlan, opened_plan
from dpfedmeta.federation.wire_format import Attempt, Floats, RoundTask
from dpfedmeta.learning.meta.algorithm import numbers_sent
from dpfedmeta.planning.client_population import training_pool
from dpfedmeta.planning.client_spec import layout_of
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import rounded_messages
from dpfedmeta.training.build_data import client_side

Made = TypeVar("Made")


class NoMessage(Exception):
    """The client's code gives nothing that could be sent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """Client's part in one run: the signed plan, its data, noise, log and state on disk.

    Attributes:
        signed: The plan.
        number: The client's.
        side: What it computes, on its own images.
        source: Its noise, of a key that no other run has.
        images: Its own, as far as they can be read.
        null: What stands in for them where there is no message to be had from them.
        why: SECRET: why there is none in the whole run; None: the images fit the plan.
        kept: What must survive.
        fresh_of: What the streams of a charged attempt are keyed by.
        log: Told what is for the owner alone.
    """

    signed: SignedPlan
    number: int
    side: ClientRunner
    source: KeyedSource | FreshSource
    images: OwnRecords | NullRecords
    null: NullRecords
    why: str | None
    kept: Kept
    fresh_of: FreshOf
    log: Callable[[str], None]

    @property
    def dimension(self) -> int:
        """Weights that are learned, which a question holds."""
        return dimension(self.signed.learned)

    @property
    def numbers_sent(self) -> int:
        """Numbers of a message."""
        return numbers_sent(self.signed.plan.algorithm, self.signed.learned)

    @property
    def limits(self) -> PlanLimits:
        """Rounds that the plan itself allows this client."""
        return PlanLimits(plan=self.signed.privacy, name=self.signed.name, number=self.number)

    def vector(self, task: RoundTask, attempt: Attempt) -> Floats:
        """Compute the message to a server that sees messages, [d]: clipped, with the plan's noise.

        Guarantee:
            The release that the client's ledger counts. The same question gives the same bits. Whether there is one
            depends on no image (`_computed`).
        """

        def computed(side: ClientRunner) -> Floats:
            (values,) = side.sent(self._model(task), task.bound, attempt.round, [self.number])
            if values is None:
                raise NoMessage("the computed message does not have the form of the model")
            return np.asarray(values.cpu().numpy())

        return self._computed(attempt, computed)

    def check(self, task: bytes) -> None:
        """Check a task before it is charged (see `SignedParticipation`)."""
        RoundTask.decode(task, self.dimension)

    def whole(self, task: bytes, attempt: Attempt, invited: int) -> IntArray:
        """SECRET: compute the rounded message with the client's share of the noise (see `SignedParticipation`)."""
        return self._whole(RoundTask.decode(task, self.dimension), attempt, invited)

    def _whole(self, task: RoundTask, attempt: Attempt, invited: int) -> IntArray:
        whole = self.side.whole
        assert whole is not None
        arrays = {name: value.numpy() for name, value in self._model(task).items()}
        common = (arrays, (task.bound, whole.share(invited)), attempt.round, [self.number])

        def computed(side: ClientRunner) -> IntArray:
            (vector,) = rounded_messages(side, *common, side.source)
            return vector

        return self._computed(attempt, computed) & ((1 << whole.bits) - 1)

    def _computed(self, attempt: Attempt, computed: Callable[[ClientRunner], Made]) -> Made:
        """SECRET: what is computed from the images; from null records where they give no message.

        Guarantee:
            That the images make the computation fail would be told by a client that falls silent, and under secure
            aggregation it would decide over the sum of all. What is sent in its place has the noise of an honest
            message, and was charged as one. The noise that a failed computation drew was seen by nobody.
        """
        side = self._at(attempt)
        if self.why is None:
            try:
                return computed(side)
            except Exception as error:
                self.log(without_images(f"round {attempt.round}: {raised(error)}"))
        return computed(replace(side, population=self.null))

    def words(self, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
        """Yield log lines on the cost of taking part and on what would leave the machine."""
        return joined_words(self, ledger, promise)

    def sent_words(self, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: bytes, what: str) -> str:
        """Return a log line on what left the machine."""
        return sent_words(self, ledger, promise, attempt, RoundTask.decode(task, self.dimension), what)

    def _at(self, attempt: Attempt) -> ClientRunner:
        return replace(self.side, source=source_at(self.source, attempt, self.fresh_of))

    def _model(self, task: RoundTask) -> Params:
        return unflatten(torch.from_numpy(np.array(task.model)), self.signed.learned)


def join(
    signed: SignedPlan,
    own: ClientSetup,
) -> Joined:
    """Look at a plan as a client does, and get ready for it; of what it finds nothing is told to the server.

    What images there are, and whether they can be read, decides over the message and not over whether there is one.

    Args:
        signed: The plan.
        own: The client.
    """
    images, null = _held(signed, own)
    kept = kept_for(own.folder, signed.run)
    source = kept.source(own.noise_seed)
    side = client_side(signed.plan, images, source, torch.device("cpu"))
    why = null.why or side.data_form.problem(images, own.number)
    if why is not None:
        why = f"{own.images}: not what the plan counts with: {why}"
        own.log(without_images(why))
    return Joined(
        signed=signed,
        number=own.number,
        side=side,
        source=source,
        images=images,
        null=null,
        why=why,
        kept=kept,
        fresh_of=own.fresh_of,
        log=own.log,
    )


def _held(signed: SignedPlan, own: ClientSetup) -> tuple[OwnRecords | NullRecords, NullRecords]:
    """SECRET: (the client's images as the plan has them drawn, if they can be read; what stands in for them)."""
    plan, task, number = signed.plan, signed.task, own.number
    # Before any row is read.
    key = row_key(own.folder) if own.noise_seed is None else simulated_key(plan.settings.run.seed, number)

    def records() -> ClassPool:
        return training_pool(
            plan.settings, open_records(own.images, task, signed.columns, own.folder / DECODED, own.log)
        )

    pool = opened_or_why(records, own.claimed)
    clients, why = plan.privacy.clients, pool if isinstance(pool, str) else None
    targets = plan.algorithm.adaptation.targets
    blank = targets.blank if targets.numbers else None
    null = NullRecords(
        clients=clients, number=number, why=why, form=task.form.shape, shape=plan.shape, blank_labels=blank
    )
    if isinstance(pool, str):
        return null, null
    seed, layout = plan.settings.run.seed, layout_of(plan.settings, task)
    own_records = OwnRecords(
        pool=pool, shape=plan.shape, clients=clients, number=number, seed=seed, layout=layout, key=key
    )
    return own_records, null


def opened(text: bytes, signature: bytes, server: bytes) -> SignedPlan | SignedAnalysis:
    """Open an offer that this server signed, and compute its numbers again here.

    Raises:
        Refused: Another server signed it, or its numbers are not what its settings or request give here.
        InputError: It is of another version.
    """
    try:
        analysis = json.loads(text)["format"] == FORM.format
    except DAMAGED_JSON as error:
        raise Refused(f"this is not the plan of a federation ({type(error).__name__})") from error
    return (opened_analysis if analysis else opened_plan)(text, signature, server)


def joined_by(signed: SignedPlan | SignedAnalysis, own: ClientSetup) -> SignedParticipation:
    """Look at an offer as a client does, and get ready for it; of what it finds nothing is told to the server.

    Guarantee:
        The images decide nothing of whether it returns: a plan or an analysis is refused for what the promise and the
        client's ledger say, and for nothing else.

    Raises:
        Refused: The promise allows nothing of it.
    """
    own.promise.floors.check(signed.privacy, rough=signed.plan.settings.aggregation.rough)
    check_allowed(signed.privacy, own.promise)
    return join(signed, own) if isinstance(signed, SignedPlan) else join_analysis(signed, own)
