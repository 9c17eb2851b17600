"""A real client: it holds its images, its keys and its own ledger, and answers questions of the one server it knows."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.params import dimension, unflatten
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.fresh_seeds import draw_fresh
from dpfedmeta.data.user_sources.sound_rows import any_rows, unsound_words
from dpfedmeta.federation.client.client_budget import OverLimit, Promise, left, left_of_run, participation, run_cost
from dpfedmeta.federation.client.client_state import (
    DECODED,
    asked_digest,
    copied,
    forget_other_records,
    forgotten,
    keep_offer,
    kept_offer,
)
from dpfedmeta.federation.client.secagg_session import MaskedRound
from dpfedmeta.federation.client.signed_participation import ClientSetup, SignedParticipation
from dpfedmeta.federation.client.training_participation import Joined, joined_by, opened
from dpfedmeta.federation.offers.signed_analysis import SignedAnalysis
from dpfedmeta.federation.offers.signed_plan import SignedPlan
from dpfedmeta.federation.wire_format import (
    Attempt,
    Floats,
    Offer,
    ProtocolStep,
    Question,
    QuestionKind,
    RoundTask,
    Said,
    Start,
    answer,
    packed_floats,
    unpacked_floats,
)
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused, plain_line
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.training.personal.personal_model import Initialisation, PersonalModel
from dpfedmeta.training.personal.user_inputs import InputForm

LOG, MODEL, LOCK = "log.txt", "personal.safetensors", ".lock"


class RealClient:
    """Real client of a federation (a federation.channel.Party).

    Args:
        images: Its folder: CLASS/IMAGE, or train/CLASS/IMAGE.
        identity: Its private Ed25519 key, 32 bytes.
        ledger: Its ledger; what else it keeps lies beside it: log, noise keys, the adapted model.
        server: The server's public key, as the client got it from elsewhere. It believes nobody else.
        promise: What it lets a server learn, in all runs together.
        say: Told every line of the log, too.
        noise_seed: Of its noise, in a simulation; None: a key is drawn once for every run, and fresh bytes for every
            answer.
        dry_run: Look at plans, say what would be promised and sent, and decline. It works on a copy of its
            home, so that nothing is changed or written: neither a limit nor a log.
        change_limit: The promise replaces the one that the ledger has; what was spent stays counted.
        claimed: Called once the records of an offer are read: records come and go while a client waits, and each has
            one home. Those that it refuses are as data that cannot be read.

    Guarantee:
        (record or client, server), as `promise` says, over everything that ever leaves this object: a participation is
        on the ledger's disk before it is computed, beyond the promise it is declined, and what is asked again gets the
        same bytes. Nothing leaves but one clipped, noised or masked vector a round: no labels, counts, losses or
        accuracies, and a decline says no reason. Whether it takes part depends on no image: where the folder does not
        fit a plan, or cannot be read, what leaves is the noise of an honest message, charged as one, and the log says
        so. (How long it takes is not hidden: reading a folder takes longer the larger it is.)

    Raises:
        InputError: A key of another size, no images, or a ledger that was edited or started with another promise.
    """

    def __init__(
        self,
        images: Path,
        identity: bytes,
        ledger: Path,
        *,
        server: bytes,
        promise: Promise,
        say: Callable[[str], None] = lambda line: None,
        noise_seed: int | None = None,
        dry_run: bool = False,
        change_limit: bool = False,
        claimed: Callable[[], object] = lambda: None,
    ) -> None:
        found = any_rows(images)
        records = found.digests()
        self._images, self._private, self._server = images, identity, server
        self._identity = Identity(identity)
        self._home = ledger.parent
        if dry_run:
            ledger = copied(ledger)
            weakref.finalize(self, shutil.rmtree, ledger.parent, ignore_errors=True)
        self._folder = ledger.parent
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        forget_other_records(self._folder / DECODED, records)
        self._promise, self._path = promise, ledger
        try:
            self._ledger = ClientLedger(ledger, promise.budget(), change=change_limit)
        except InputError as error:
            raise InputError(self._in_home(str(error))) from error
        self._promise = replace(promise, relation=self._ledger.budget.relation)
        self._size = ledger.stat().st_size
        self._say, self._noise_seed, self._dry_run, self._claimed = say, noise_seed, dry_run, claimed
        self._joined: dict[bytes, SignedParticipation] = {}
        self._masked: MaskedRound | None = None
        self._last_step: tuple[bytes, bytes] | None = None
        self._unfit: str | None = None
        self._handed_out = False
        self._one = threading.Lock()
        if (words := unsound_words(found)) is not None:
            self._log(words)

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return self._identity.public

    @property
    def unfit(self) -> str | None:
        """Why nothing of the plan that was offered last can be answered here: what only this machine can mend."""
        return self._unfit

    @property
    def handed_out(self) -> bool:
        """Tell whether the learned model was handed out; then the client need not wait for more."""
        return self._handed_out

    def answer(self, question: bytes) -> bytes:
        """The answer to one question; whatever is wrong with it is in the log alone.

        The last step of secure aggregation, asked again, has the bytes that were sent: they were lost on the way.
        """
        with self._one:
            if self._last_step is not None and question == self._last_step[0]:
                self._log("the last question came again: the same answer as before leaves")
                return self._last_step[1]
            try:
                with self._alone():
                    said, body = self._answered(Question.opened(question, self._server, self.identity))
            except (Refused, Aborted) as error:
                self._log(f"declined: {error}")
            except (InputError, OSError) as error:
                self._log(f"declined, because of a problem on this machine: {error}")
            except Exception as error:
                # A traceback would tell of data, and the next round may be answered again.
                self._log(f"declined, because of an error in the program: {type(error).__name__}: {error}")
            else:
                made = answer(said, question, body, self._identity)
                if said is Said.PHASE:
                    self._last_step = question, made
                return made
            return answer(Said.DECLINED, question, b"", self._identity)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process answers from this ledger meanwhile; what one wrote in between is read."""
        with (self._folder / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.stat().st_size != self._size:
                self._ledger = ClientLedger(self._path, self._promise.budget())
            try:
                yield
            finally:
                self._size = self._path.stat().st_size

    def _answered(self, question: Question) -> tuple[Said, bytes]:
        if question.asked is QuestionKind.PLAN:
            try:
                body, self._unfit = self._accepted(question), None
            except (InputError, OverLimit) as error:
                # Neither follows from an image. A server whose clients decline ends, and would be waited for.
                self._unfit = self._in_home(str(error))
                raise
            return Said.ACCEPTED, body
        joined = self._known(question)
        if question.asked is QuestionKind.PHASE:
            return Said.PHASE, self._phase(joined, question)
        if not isinstance(joined, Joined):
            raise Refused("the question belongs to a training run, but this run is an analysis")
        if question.asked is QuestionKind.VECTOR:
            return Said.VECTOR, self._vector(joined, question)
        return Said.ADAPTED, self._adapted(joined, question)

    def _accepted(self, question: Question) -> bytes:
        offer, before = Offer.decode(question.body), kept_offer(self._folder, question.attempt.run)
        if question.plan in self._joined and before == question.body:
            return b""  # the server was started again, or had lost sight of this client
        signed = opened(offer.text, offer.signature, self._server)
        if signed.digest != question.plan or signed.run != question.attempt.run:
            raise Refused("this plan is not the one that the question names")
        if before is not None and before != question.body:
            raise Refused(
                f"run {signed.run.hex()[:8]}: its plan, or this client's number, is not the one that this client joined"
            )
        self._joined[signed.digest] = self._join(signed, offer)
        return b""

    def _join(self, signed: SignedPlan | SignedAnalysis, offer: Offer) -> SignedParticipation:
        if not 0 <= offer.number < signed.privacy.clients:
            raise Refused(f"this client's number is {offer.number}, but the plan has {signed.privacy.clients} clients")
        if signed.roster and signed.roster[offer.number] != self.identity:
            raise Refused("the plan lists another client at this client's number")
        for line in signed.words():
            self._log(line)
        own = ClientSetup(
            number=offer.number,
            images=self._images,
            folder=self._folder,
            promise=self._promise,
            noise_seed=self._noise_seed,
            fresh_of=self._fresh_of,
            log=self._log,
            claimed=self._claimed,
        )
        joined = joined_by(signed, own)
        for line in joined.words(self._ledger, self._promise):
            self._log(line)
        run = signed.run.hex()
        limits, ledger = joined.limits, self._ledger
        if not ledger.keys(run) and not left_of_run(signed.privacy, self._promise, ledger, run, limits):
            if (why := limits.problem(ledger, run, 0)) is not None:
                raise Refused(why)
            raise OverLimit(
                f"the promise is used up ({self._promise.words}), so this client cannot take part; "
                "its owner may raise it (--change-limit)"
            )
        if self._dry_run:
            raise Refused("this is a dry run; nothing is sent")
        keep_offer(joined.kept, offer.encode())
        return joined

    def _known(self, question: Question) -> SignedParticipation:
        if question.plan not in self._joined:
            kept = kept_offer(self._folder, question.attempt.run)
            if kept is None:
                raise Refused(f"run {question.attempt.run.hex()[:8]}: this client never joined its plan")
            offer = Offer.decode(kept)
            signed = opened(offer.text, offer.signature, self._server)
            self._joined[signed.digest] = self._join(signed, offer)
        joined = self._joined.get(question.plan)
        if joined is None or joined.signed.run != question.attempt.run:
            raise Refused("the question is for another plan than the one that this client joined")
        return joined

    def _vector(self, joined: Joined, question: Question) -> bytes:
        if joined.signed.masked:
            raise Refused("the server asked for an unmasked vector, but the plan uses secure aggregation")
        task, attempt = RoundTask.decode(question.body, joined.dimension), question.attempt
        asked = asked_digest(question.body)
        new = self._charged(joined, attempt, asked)
        vector = joined.kept.once(attempt, asked, lambda: packed_floats(joined.vector(task, attempt)))
        what = f"one vector, {len(vector):,} bytes" if new else "the same vector as before (asked again)"
        self._log(joined.sent_words(self._ledger, self._promise, attempt, question.body, what))
        return vector

    def _phase(self, joined: SignedParticipation, question: Question) -> bytes:
        step, attempt = ProtocolStep.decode(question.body), question.attempt
        if step.phase == ProtocolPhase.KEYS:
            if not joined.signed.masked:
                raise Refused("the server asked for secure aggregation, but the plan does not use it")
            start = Start.decode(step.said, joined.signed.privacy.clients)
            joined.check(start.task)
            before = self._masked
            place = (joined.signed.run, attempt.key, step.protocol)
            if before is not None and before.place[0] == place[0] and before.place >= place:
                raise Refused("the attempt at the protocol is not later than the last one")
            opened = MaskedRound(joined, attempt, step.protocol, start, self._private)
            # Charged once so many take part that there is a sum: keys and shares say nothing of the images.
            self._chargeable(joined, attempt, asked_digest(start.task, start.invited))
            self._masked = opened
        masked = self._masked
        if masked is None or masked.place != (joined.signed.run, attempt.key, step.protocol):
            raise Refused(f"round {attempt.round}: a step of secure aggregation that this client never began")
        # What is not due is refused below, and costs nothing.
        new = step.phase == ProtocolPhase.MASKED and masked.agreed and self._charged(joined, attempt, masked.asked)
        try:
            body = masked.answer(ProtocolPhase(step.phase), step.said)
        except (Refused, Aborted):
            if new:
                self._log(f"round {attempt.round}: charged, though no vector leaves this machine; its charge stays")
            raise
        if step.phase == ProtocolPhase.MASKED:
            vector = "one vector under masks" if new else "the same vector as before under other masks (asked again)"
            what = f"{vector}, {len(body):,} bytes"
            self._log(joined.sent_words(self._ledger, self._promise, attempt, masked.task, what))
        return body

    def _charged(self, joined: SignedParticipation, attempt: Attempt, asked: str) -> bool:
        """Charge one participation, on disk, before the images are touched; return False if it was charged before.

        Raises:
            Refused: See `_chargeable`.
        """
        if not self._chargeable(joined, attempt, asked):
            return False
        run, plan = joined.signed.run.hex(), joined.signed.privacy
        one = participation(plan, self._promise, attempt.round)
        joined.kept.begin(attempt)
        beside = {"run": run, "question": asked, "fresh": draw_fresh(), "plan": joined.limits.name}
        self._ledger.charge(attempt.round, one, attempt.again, **beside, cost=run_cost(plan))
        return True

    def _chargeable(self, joined: SignedParticipation, attempt: Attempt, asked: str) -> bool:
        """Return whether an answer would be charged; False if it was charged before.

        Raises:
            Refused: The round is over or not in the plan, it was asked with another question, the ledger or the run's
                folder is not the one that it was charged with, or the answer would break the promise.
        """
        run, plan = joined.signed.run.hex(), joined.signed.privacy
        before = self._ledger.question(run, attempt.key)
        taken = self._ledger.keys(run)
        last = max(taken, default=())
        if attempt.round >= plan.rounds:
            raise Refused(
                f"round {attempt.round}: the plan has only {counted_words(plan.rounds, 'round')}, numbered from 0"
            )
        if before is not None:
            if before != asked or attempt.key != last:
                raise Refused(f"round {attempt.round} was answered already; the question differs from the one before")
            if not joined.kept.began(attempt):
                raise Refused(
                    f"round {attempt.round} was charged with another folder than {joined.kept.folder}; its noise is "
                    "lost, and new noise would give a second answer for one charge"
                )
            return False
        if attempt.key < last:
            raise Refused(f"round {attempt.round} is over: round {last[0]} was answered already")
        if (answer := forgotten(self._folder, self._ledger.charged())) is not None:
            raise Refused(f"{self._path} is an older copy: {answer} left this machine and is missing in it; restore it")
        if (why := joined.limits.problem(self._ledger, run, attempt.round)) is not None:
            raise Refused(f"round {attempt.round}: {why}")
        if not left(plan, self._promise, self._ledger, run, [attempt.round], joined.limits):
            raise Refused(
                f"round {attempt.round} would be participation {len(taken) + 1} in this run and "
                f"{self._ledger.participations + 1} in all: more than is promised ({self._promise.words})"
            )
        return True

    def _fresh_of(self, attempt: Attempt) -> bytes:
        """Return the bytes that key an attempt's noise; they lie in its charge, so noise is drawn only after it."""
        return self._ledger.stream(attempt.run.hex(), attempt.key)

    def _adapted(self, joined: Joined, question: Question) -> bytes:
        """The model that was learned, adapted here; the answer is the same whatever the images make of it.

        Raises:
            Refused: Another number of weights, or one that is not finite.
            InputError, OSError: The disk takes nothing, so the model is still due.
        """
        flat = unpacked_floats(question.body, dimension(joined.signed.initial))
        if not np.isfinite(flat).all():
            raise Refused("the model holds values that are not finite")
        try:
            personal, what = self._personal(joined, flat)
        except Exception as error:
            # Whether it converges depends on the images: a server could ask for that as often as it likes.
            self._log(f"the learned model could not be adapted: {type(error).__name__}: {error}")
            # Nor may it hang on them whether a full disk is told: as much is written, and removed.
            nothing = self._folder / f".{MODEL}"
            replace_file(nothing, question.body, SECRET)
            nothing.unlink()
        else:
            personal.save(self._folder / MODEL)
            self._log(f"the learned model, adapted to {what} of this client: {MODEL}")
        self._handed_out = True
        return b""

    def _personal(self, joined: Joined, flat: Floats) -> tuple[PersonalModel, str]:
        """The adapted model, and words for what it was adapted to."""
        signed = joined.signed
        weights = unflatten(torch.from_numpy(flat.copy()), signed.initial)
        plan, task = signed.plan, signed.task
        form = InputForm.of(task.form, *task.constants, columns=signed.columns)
        # Its own records have no missing values any more; those that the model is to judge have.
        read = replace(form, missing=None)
        learned = Initialisation(network=plan.network, weights=weights, adaptation=plan.evaluation, form=read)
        images, labels, names = joined.images.labelled()
        if task.targets is None:
            return replace(learned.adapt(images, labels, class_names=names), form=form), f"{len(names)} classes"
        numbers = images[:, -1].astype(np.float64) * task.targets.scale + task.targets.centre
        numbers = numbers.clip(task.targets.lowest, task.targets.highest)  # float32 rounds the ends
        return replace(learned.adapt(images[:, :-1], numbers), form=form), "the numbers"

    def _in_home(self, text: str) -> str:
        """Words with the places of the home's files, of which a dry run sees copies."""
        return text.replace(str(self._folder), str(self._home))

    def _log(self, line: str) -> None:
        """In plain words, for whoever answers for the images: one line, whatever of it a server wrote."""
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {plain_line(self._in_home(line))}"
        try:
            with open(self._folder / LOG, "a", encoding="utf-8", opener=_for_its_owner) as file:
                file.write(text + "\n")
        except OSError:
            # A full disk must not make the client answer otherwise; its ledger says so by itself.
            pass
        self._say(text)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
