"""Rounds of a caller's own loop on disk: charged, released once, stored, and gone on with after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from threading import Lock, RLock
from typing import Any

import numpy as np

from dpfedmeta.accounting.events.guarantee import FourGuarantees
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, RunIdentity, read_content, released_before, spent
from dpfedmeta.accounting.ledger.ledger_register import registered
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import LOOP, PLAN, RunDirectory, config_of, create
from dpfedmeta.core.params import Params
from dpfedmeta.core.plugins.own_function import FunctionNotes
from dpfedmeta.core.random.fresh_seeds import keep_secret, new_source, secret_of_run
from dpfedmeta.core.random.random_sources import SecretSource
from dpfedmeta.privacy.charged import release_sum
from dpfedmeta.privacy.clip_policies.policy_checks import next_bound
from dpfedmeta.privacy.clip_policy import ClipPolicy, with_attachment
from dpfedmeta.privacy.mechanisms import MechanismState, check_mechanism, mechanism_of
from dpfedmeta.privacy.rounds.cohort_log import reopen_participations
from dpfedmeta.privacy.rounds.noise_state import drop_noise_states, keep_noise_state, kept_noise_state
from dpfedmeta.privacy.rounds.promise import RoundsRequest, plan_of_rounds
from dpfedmeta.privacy.rounds.round_journal import Journal, round_inputs
from dpfedmeta.privacy.rounds.round_sum import RoundSum, keep_left_out
from dpfedmeta.privacy.rounds.stored_release import (
    StoredRelease,
    SumDigests,
    form_of_release,
    keep_release,
    load_release,
    stored_rounds,
)
from dpfedmeta.privacy.samplers import Cohort

_LET_GO = (
    "in a notebook the cell of before does: run private.close(), by the name that its PrivateRounds has, and then the "
    "cell again (with dp.PrivateRounds(...) as private: closes it by itself)"
)


class ChargedRounds:
    """The rounds of one run directory, which this process alone writes.

    The order of a round's writes is the proof: the cohort, then the charge with fresh bytes (both before anybody is
    asked), the digest of the exact sum, the state of correlated noise, the release. Each is flushed to disk before the
    next; a release is handed out after the last.

    Guarantee:
        Nothing is released that was not charged. A stored release is never computed again. An attempt that comes to a
        second sum is used up: the round gets a further attempt, with a charge, a cohort and noise of its own.

    Attributes:
        run: The run directory.
        plan: The plan.
        form: Names and shapes of an update, as zeros; None until they are known.
        attachment: Numbers that the clip policy asks for beside updates, or None.
        bound: Clip bound of the round that is due.
        released: Rounds that are released.
        ended: `completed`, `budget` where further attempts used the last rounds up; else empty.
        remarks: What was mended after a crash, a line each.
        simulation: Whether the noise seed was chosen.
        functions: SECRET: what the caller's functions are known by.
        began: Whether a round was begun in this process.
        looked_at: Whether this loop's function was compared with that of the rounds so far.
        added: Whether anybody of a cohort was added in this process, whatever the update was.
        told_undue: Whether it was said that clients outside of a cohort add nothing.
    """

    def __init__(
        self,
        run: RunDirectory,
        request: RoundsRequest,
        policy: ClipPolicy[Any],
        form: Params | None,
        source: SecretSource,
        *,
        per_layer: bool = False,
        changed_code: bool = False,
    ) -> None:
        """Take the locks, and read and mend what is there.

        Args:
            run: A run directory that `begun` made.
            request: What the rounds were asked for.
            policy: The clip policy.
            form: Names and shapes of an update, as zeros; None: the first one says them.
            source: Secret randomness; the one of the run.
            per_layer: Whether each layer of an update is clipped on its own.
            changed_code: Whether rounds may go on with another function than those before.

        Raises:
            InputError: Another process is at these rounds, or a file is damaged or missing.
            RefusedPlan: The ledger is of another plan.
        """
        self.run, self.plan, self.form = run, request.planned, form
        self.simulation, self.functions = request.simulation, FunctionNotes(run, changed=changed_code)
        self._policy, self._per_layer, self.attachment = policy, per_layer, policy.attachment
        self._mechanism = mechanism_of(self.plan)
        check_mechanism(self._mechanism, self.plan)
        self._stack, self._closed, self._process = ExitStack(), False, os.getpid()
        self.began = self.looked_at = False
        self.added = self.told_undue = False
        self._looping, self._lock = Lock(), RLock()
        try:
            self._open(source, request)
        except BaseException:
            self.close()
            raise

    def _open(self, source: SecretSource, request: RoundsRequest) -> None:
        self._stack.enter_context(only_writer(self.run.path, _LET_GO))
        lineage, missing = self._stack.enter_context(registered(self.run, _LET_GO))
        opened = open_ledger(self.run, self.plan, source, "", lineage)
        participations, mended = reopen_participations(self.run, self.plan, source, opened.content.charges)
        self.remarks = tuple(filter(None, (missing, *opened.remarks, *mended)))
        self._journal = Journal(
            plan=self.plan,
            ledger=opened.ledger,
            participations=participations,
            budget=Budget.of(tuple(request.guarantees)),
            source=source,
            environment="",
            lineage=lineage,
        )
        # As it was written when the rounds began.
        self._question = opened.content.identity.config
        self._sums = SumDigests(self.run)
        self._state = self._policy.initial()
        self.bound, self._head = self._state.bound, ""
        self.released = stored_rounds(self.run)
        self._held = released_before(self.run.ledger, opened.content)
        if self.released:
            self._go_on(load_release(self.run, self.released - 1, self._state))
        self._remembered: MechanismState | None = None
        self._attempt: Cohort | None = None
        self._end_with("completed" if self.released == self.plan.rounds else "")

    def _intact(self, stored: StoredRelease) -> StoredRelease:
        """Refuse a stored release that is not the one that the ledger holds."""
        if self._held.get(stored.round, stored.digest) != stored.digest:
            raise InputError(
                f"{self.run.path}: the stored release of round {stored.round} is not the one that the ledger holds; "
                "restore it from a backup"
            )
        return stored

    def _end_with(self, ended: str) -> None:
        """Note how the rounds ended; the ledger then says what the last release was, and the locks are given back."""
        self.ended = ended
        if ended:
            with self._whole():
                self._journal.close(self.released, {})
            self._stack.close()

    def _go_on(self, last: StoredRelease) -> None:
        if (last.round, last.attempt) not in {(each.round, each.attempt) for each in self._journal.ledger.charges}:
            raise InputError(
                f"{self.run.ledger}: lacks the charge of round {last.round}, which was released; restore it from a "
                "backup"
            )
        self._intact(last)
        self._state, self.bound, self._head = last.policy, last.following, last.head
        self._journal.released[last.round] = last.digest
        self._take_form(form_of_release(last))

    def _take_form(self, form: Params) -> None:
        known, found = ({name: value.shape for name, value in each.items()} for each in (self.form or form, form))
        if known != found:
            raise InputError(
                f"{self.run.path}: its releases have the form {found}, and the model has {known}; go on with the same "
                "model"
            )
        self.form = form if self.form is None else self.form

    def allows(self) -> bool:
        """Return whether the budget allows the round that is due; if not, the rounds have ended."""
        with self._whole():
            allowed = self._journal.allows(self.released, self._inputs())
            if not allowed:
                self._end_with("budget")
        return allowed

    @property
    def spent(self) -> FourGuarantees:
        """The four cells that the charges so far add up to."""
        return FourGuarantees(spent(self.plan, self._journal.ledger.charges))

    def stored(self, number: int) -> StoredRelease:
        """Return the release of a round that is done."""
        return self._intact(load_release(self.run, number))

    def _inputs(self) -> str:
        """Digest of what the round that is due is computed from."""
        # An attempt that came to two sums is used up; the next one has a question of its own.
        question = f"{self._question} {self._sums.used_up(self.released)}"
        return round_inputs(self.released, {}, self.bound, question)

    def begin(self, number: int) -> Cohort | None:
        """SECRET: a round's cohort, charged and on disk; nobody where it is released; None: no budget for it."""
        with self._whole():
            if number < self.released:  # another thread did it
                return nobody(number)
            if self.ended:  # the ledger is not this process's any more
                return None
            if self._attempt is None:
                self.began = True
                self._attempt = self._journal.begin(self.released, self._inputs())
                if self._attempt is None:
                    self._end_with("budget")
            return self._attempt

    def empty_sum(self, cohort: Cohort) -> RoundSum:
        """SECRET: the sum of nobody's updates."""
        clients = cohort.clients.tolist()
        return RoundSum(self.form, self.bound, self.attachment, clients, per_layer=self._per_layer)

    def release(self, total: RoundSum, cohort: Cohort) -> StoredRelease | None:
        """Release a sum, on disk when this returns; a round that is released already comes from its file.

        Args:
            total: SECRET: the sum.
            cohort: SECRET: the attempt that `begin` returned last.

        Returns:
            The release; None where the attempt had another sum before: it is used up.
        """
        with self._lock:
            if cohort.round < self.released:
                return self.stored(cohort.round)
            if cohort is not self._attempt:
                raise InputError(
                    f"PrivateRounds: round {cohort.round} was begun anew; release the round that came last"
                )
            return self._release(total, cohort)

    def _release(self, total: RoundSum, cohort: Cohort) -> StoredRelease | None:
        query = total.query()
        assert total.form is not None
        self._take_form(total.form)
        number, attempt = cohort.round, cohort.again[0] if cohort.again else 0
        with self._whole():
            if not self._sums.keep(number, attempt, query):
                self._attempt = None
                return None
            remembered = self._before(number)
            releasing = partial(release_sum, self._mechanism, number, query, remembered)
            released, following = self._journal.release(cohort, releasing, bound=query.sensitivity)
            state, bound = next_bound(self._policy, self._state, released, f"PrivateRounds: clip: after round {number}")
            stored = StoredRelease(
                round=number,
                attempt=attempt,
                bound=self.bound,
                sensitivity=query.sensitivity,
                deviation=released.noise_deviation,
                values=released.value,
                policy=state,
                following=bound,
                # Of its own charge: the same release, done again after later ones, has the same digest.
                head=self._journal.ledger.head_of(number, attempt),
            )
            if total.left_out:
                keep_left_out(self.run, number, total.left_out)
            # Written before the release that needs it, dropped after: a crash leaves too many and never too few.
            keep_noise_state(self.run, number + 1, following, stored.head)
            stored = keep_release(self.run, stored)
            self._journal.released[number] = stored.digest
            drop_noise_states(self.run, {number + 1})
        self._state, self.bound, self._head, self._remembered = state, bound, stored.head, following
        self.released, self._attempt = number + 1, None
        self._end_with("completed" if self.released == self.plan.rounds else "")
        return stored

    def _before(self, number: int) -> MechanismState:
        """SECRET: the mechanism's state before a round."""
        if self._remembered is None:
            assert self.form is not None
            initial = self._mechanism.init(with_attachment(self.form, self._policy.attachment))
            self._remembered = kept_noise_state(self.run, number, initial, self._head)
        return self._remembered

    @contextmanager
    def one_loop(self) -> Iterator[None]:
        """Keep all other loops out while one goes through the rounds.

        Raises:
            InputError: There is one. Two would charge and release one round twice, and the ledger would not be read.
        """
        if not self._looping.acquire(blocking=False):
            self.check_process()
            raise InputError(
                f"PrivateRounds: {self.run.path}: another loop is already going through these rounds, in this thread "
                "or another one, and nothing was charged for this one; let that one end, leave it by break, or close() "
                "its iterator"
            )
        try:
            yield
        finally:
            self._looping.release()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """After a failure in between, only what reached the disk counts: a new start reads it."""
        self.check_process()
        if self._closed:
            raise InputError("PrivateRounds: is closed; make it again with the same run_dir to go on")
        try:
            with self._lock:
                yield
        except OSError as error:
            self.close()
            raise _unwritten(self.run.path, error) from error
        except BaseException:
            self.close()
            raise

    def check_process(self) -> None:
        """Refuse a process that was forked from the one that made the rounds.

        Raises:
            InputError: What it adds would never reach the sum, and what it releases would be a second release.
        """
        if os.getpid() != self._process:
            raise InputError(
                "PrivateRounds: add and release in the process that made the rounds; let worker processes return "
                "their updates"
            )

    def finish(self) -> None:
        """End for now: the ledger says what the last release was, and the locks are given back.

        A forked process that leaves the block of its parent ends nothing.
        """
        try:
            if os.getpid() == self._process:
                with self._lock:
                    if not self._closed and self.released and not self.ended:
                        self._journal.close(self.released, {})
        finally:
            self.close()

    def close(self) -> None:
        """Give the locks back."""
        self._closed = True
        self._stack.close()


def nobody(number: int) -> Cohort:
    """The cohort of a round for which nobody is asked."""
    return Cohort(round=number, clients=np.zeros(0, dtype=np.int64))


def _unwritten(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be written ({error.strerror}); make room, and start the program again with the same run_dir: "
        "it goes on, and no round is charged twice"
    )


def begun(path: Path, request: RoundsRequest, noise_seed: int | None, *, secure_rng: bool) -> RunDirectory:
    """The run directory of a request; made with all its first files where there is none.

    Raises:
        InputError: It holds something else, or rounds that were asked for otherwise, or new ones cannot be asked for.
    """
    run = RunDirectory(path)
    if not path.exists():
        sampling_of(request.sampler).check_new_run(
            cohort=request.cohort, separation=request.separation, rounds=request.rounds
        )
        source = new_source(noise_seed, secure_rng=secure_rng)

        def fill(made: RunDirectory) -> None:
            keep_secret(made, source)
            made.write_json(PLAN, plan_of_rounds(request))
            identity = RunIdentity(run=token_hex(16), config=request.as_text(), secure=secure_rng)
            Ledger(made.ledger, request.planned, identity)

        return create(path.parent, path.name, fill)
    if not config_of(path).startswith(LOOP):
        raise InputError(f"{path}: exists, and holds no rounds of a loop; choose another run_dir")
    identity = read_content(run.ledger, torn=True).identity
    before = RoundsRequest.from_text(identity.config, f"{run.ledger}, line 1: identity.config")
    if name := request.difference(before):
        was, now = _apart(getattr(before, name), getattr(request, name))
        raise InputError(
            f"{path}: began with {name} = {was}, and now it is {now}; go on with the same, or choose another run_dir"
        )
    if identity.secure != secure_rng:
        raise InputError(f"{path}: began with secure_rng = {identity.secure}; go on with the same")
    if noise_seed is not None and source_of(run, noise_seed) != new_source(noise_seed):
        raise InputError(f"{path}: began with another noise_seed; go on with the same")
    return run


def _apart(one: object, other: object) -> tuple[str, str]:
    """Two values in words; of two long texts that list the same parts, only the parts that differ."""
    parts = [each.split(", ") if isinstance(each, str) else [] for each in (one, other)]
    if len(parts[0]) != len(parts[1]) or len(parts[0]) < 2:
        return repr(one), repr(other)
    differing = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
    return ", ".join(pair[0] for pair in differing), ", ".join(pair[1] for pair in differing)


def source_of(run: RunDirectory, noise_seed: int | None) -> SecretSource:
    """SECRET: the randomness of a run that has begun."""
    return secret_of_run(run, noise_seed, secure=read_content(run.ledger, torn=True).identity.secure)
