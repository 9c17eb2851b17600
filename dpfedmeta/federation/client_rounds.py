"""The client's side of a loop of one's own, in a process of its own: what it promises, and what leaves it.

    offer, key = dp.sign_rounds(private, record=dp.RecordRelease(records=20, clip=1.0, noise_multiplier=8.0))
    mine = dp.ClientRounds(offer, "folder", server=key, epsilon=2.0, delta=1e-5)  # at the client, from here on
    reply = mine.message(round.number, round.bound, gradients)  # charged on its disk before its records count
    round.add(client, dp.ClientRounds.update(reply))  # at the server again

The client believes nothing of the offer but the server's key: it solves the plan again, and keeps a ledger of its own.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from dpfedmeta.accounting.events.failure_probability import MOST_MESSAGES
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer, check
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.participation_cost import spending
from dpfedmeta.accounting.relations.relations import Relation
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.core.params import Params, host
from dpfedmeta.core.random.fresh_seeds import draw_fresh
from dpfedmeta.core.random.random_sources import Purpose
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import check_newest, name_home, note_answered
from dpfedmeta.federation.client.client_state import asked_digest, forgotten, kept_for
from dpfedmeta.federation.offers.plan_limits import PlanLimits
from dpfedmeta.federation.offers.rounds_offer import check_rounds, is_bound, opened_rounds, shortened
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.privacy.charged import check_record_release
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released
from dpfedmeta.privacy.rounds.private_rounds import PrivateRounds
from dpfedmeta.privacy.rounds.promise import RoundsRequest, plan_content
from dpfedmeta.privacy.rounds.round_sum import RoundSum, problem_of_update
from dpfedmeta.privacy.units import Bounded, RecordUnit
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, SIGNATURE_BYTES, Identity, signed_by

_MARK = b"dpfedmeta rounds of a loop 1\0"
_KEY, _LEDGER = "identity.key", "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class RecordRelease:
    """The noisy mean of per-record gradients: what a client sends where the server may look at its messages.

    Guarantee:
        (record, server): for each message, whoever else takes part, 1/noise_multiplier-GDP if a record counts as
        nothing or its row is deleted or added, twice that if another one takes its place. Each record's gradient is
        shortened to `clip`; one that is not finite or of another form counts as zero. All of them are added, as whole
        numbers, and the sum is projected onto the ball of radius `records` * `clip`, which brings no two sums further
        apart.

    Attributes:
        records: n: records of a client as far as the sum counts them, a public constant that it is divided by.
        clip: C_q: clip bound of one record's gradient.
        noise_multiplier: z_q: standard deviation of the noise over `clip`.
    """

    records: int
    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        whole = type(self.records) is int and 0 < self.records <= MOST_MESSAGES
        check("RecordRelease.records", self.records, whole, f"a whole number from 1 to {MOST_MESSAGES:,}")
        for name in ("clip", "noise_multiplier"):
            value = getattr(self, name)
            check(f"RecordRelease.{name}", value, is_bound(value), "a number above 0, from 1e-30 to 1e30")
        deviation = self.clip * self.noise_multiplier
        check("RecordRelease: clip * noise_multiplier", deviation, is_bound(deviation), "a number from 1e-30 to 1e30")

    @classmethod
    def from_offer(cls, stated: Mapping[str, Any]) -> RecordRelease:
        """What a server wrote.

        Raises:
            InputError: It is no record release.
        """
        names = {each.name for each in fields(cls)}
        if set(stated) != names:
            raise InputError(f"ClientRounds: offer: record: expected {', '.join(sorted(names))}")
        try:
            return cls(**stated)
        except RefusedPlan as error:
            raise InputError(shortened(f"ClientRounds: offer: {error}")) from None

    @property
    def layer(self) -> RecordLayer:
        """Cost of a participation to a record."""
        return RecordLayer(
            support_noise=None,
            query_noise=float(self.noise_multiplier),
            support_steps=1,
            support_records=1,
            query_records=self.records,
            parts="records",
            rows=True,
            own_terms=True,
        )

    def released(self, gradients: Sequence[object], form: Params, noise: Any) -> Released[RecordUnit, Params]:
        """Clip, add and release; `noise` is the generator of a charged attempt."""
        total = RoundSum(form, self.clip, None, range(len(gradients)))
        for place, gradient in enumerate(gradients):
            total.add(place, gradient)
        projected = total.query(within=self.records * self.clip).value
        query = Bounded[RecordUnit, Params](value=projected, sensitivity=total.sensitivity)
        mechanism = GaussianMechanism(
            total_multiplier=self.noise_multiplier, charged_multiplier=self.noise_multiplier, denominator=self.records
        )
        found = mechanism.release(query, noise)
        check_record_release(found, [GaussianNoise(multiplier=self.noise_multiplier)])
        return found


def sign_rounds(private: PrivateRounds, *, record: RecordRelease | None = None) -> tuple[bytes, bytes]:
    """Sign the plan of a loop's rounds for its clients.

    Args:
        private: The rounds, made with `like=model`.
        record: What clients do to the gradients of their records; None: their messages are exact but for the clip.

    Returns:
        The offer, and the public key by which clients know who signed it. The key has to reach them by another way.

    Raises:
        InputError: Clients could not answer these rounds.
    """
    form = private.form
    if form is None:
        raise InputError("sign_rounds: the form of an update is not known; give PrivateRounds like=model")
    if private.measures:
        raise InputError(
            "sign_rounds: the clip policy measures updates before they are clipped, and these clients clip; use "
            "dp.clip.Window or dp.clip.Constant"
        )
    path = private.run.secret / _KEY
    if not path.exists():
        replace_file(path, secrets.token_bytes(SECRET_BYTES), SECRET)
    server, identity = Identity(path.read_bytes()), read_content(private.run.ledger, torn=True).identity
    request = RoundsRequest.from_text(identity.config, str(private.run.ledger))
    check_rounds(request, "sign_rounds")
    content = {
        "run": identity.run,
        "request": identity.config,
        "form": {name: list(value.shape) for name, value in form.items()},
        "record": None if record is None else asdict(record),
        **plan_content(request.planned, request.guarantees),
    }
    text = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    return server.sign(_MARK + text) + text, server.public


class ClientRounds:
    """One client's part in the rounds of a loop, with a ledger of its own.

    Guarantee:
        (record, server), for the `relation` of a record: over all messages of this folder, in all runs, what `spent`
        says and never more than was promised here; a message beyond it is declined. A charge is on disk before a record
        counts. A round is answered once. The last one asked again gets the same bytes, whatever update is handed over;
        asked otherwise (another bound, another plan), or once another round was answered, it is declined. A folder that
        was restored from a backup is refused on the machine that wrote it (its user's register of homes). Elsewhere,
        or without the register, it can answer again what it does not count, each time with noise of its own. Without
        `record` in the offer the server sees exact messages, clipped; then participations alone are counted.

    Attributes:
        record: What is done to the gradients of records; None: an update is handed over, and clipped.
        rounds: How many rounds there are.
    """

    def __init__(
        self,
        offer: bytes,
        folder: str | PathLike[str],
        *,
        server: bytes,
        epsilon: float | None = None,
        delta: float = 1e-5,
        participations: int | None = None,
        relation: Relation | None = None,
        change_limit: bool = False,
    ) -> None:
        """Check an offer, and get ready to answer.

        Args:
            offer: As `sign_rounds` gave it.
            folder: The client's own, for its ledger and the key of its noise; one for all runs.
            server: The server's public key.
            epsilon: The most that a record may spend towards the server, in all runs; None: the server is trusted.
            delta: Delta of epsilon.
            participations: Messages at most, in all runs.
            relation: How a record differs, for which epsilon is the limit; None: its row is deleted or added where the
                offer has records, else it counts as nothing; the first message decides that for all that follow.
            change_limit: Whether these limits replace those that the folder has; what was spent stays counted. An older
                copy of the folder is taken then too: what is missing is charged again where this machine knows it.

        Raises:
            InputError: The offer is another server's, or is none, or states other numbers than it comes to; or nothing
                is promised; or the folder is inside a run, which may be published.
        """
        for name, value in (("offer", offer), ("server", server)):
            if not isinstance(value, bytes | bytearray):
                raise InputError(
                    f"ClientRounds: {name}: expected bytes, as sign_rounds gives them, got {type(value).__name__}"
                )
        check_outside_runs("ClientRounds: folder", Path(folder))  # its noise keys would be published
        offer, server = bytes(offer), bytes(server)
        signature, text = offer[:SIGNATURE_BYTES], offer[SIGNATURE_BYTES:]
        if not signed_by(server, signature, _MARK + text):
            raise InputError("ClientRounds: the offer is not signed by the server whose key was given")
        opened = opened_rounds(text)
        self.rounds = opened.request.rounds
        self.record = None if opened.record is None else RecordRelease.from_offer(opened.record)
        self._form = opened.form
        layer = None if self.record is None else self.record.layer
        plan = opened.request.planned
        self._limits = PlanLimits(plan=plan, name=opened.name, number=None)
        self._cost = spending(plan.at(0), layer, "messages", "record")
        self._run, self._text, self._folder = opened.run, text, Path(folder)
        self._promise = Promise(epsilon=epsilon, delta=delta, participations=participations, relation=relation)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._watched = self._watch(accept=change_limit)
        self._kept = kept_for(self._folder, bytes.fromhex(self._run))
        self._promise = replace(self._promise, relation=self._ledger(change=change_limit).budget.relation)

    def _watch(self, *, accept: bool) -> bool:
        """Refuse an older copy of the folder that this machine's register knows; return if it would notice one."""
        try:
            name_home(self._folder)
            told = check_newest(self._folder, accept=accept)
        except OSError as error:
            told = f"{error.filename}: cannot be written, so an older copy of {self._folder} would not be noticed"
            print(f"ClientRounds: {told}", file=sys.stderr)
            return False
        if told is not None:
            print(f"ClientRounds: {told}", file=sys.stderr)
        return True

    def _ledger(self, *, change: bool = False) -> ClientLedger:
        if self._watched:
            check_newest(self._folder)
        ledger = ClientLedger(self._folder / _LEDGER, self._promise.budget(), change=change)
        lost = forgotten(self._folder, ledger.charged())
        if lost is not None:
            raise InputError(f"{lost}: the ledger beside it knows nothing of this answer; restore the newest ledger")
        return ledger

    @property
    def spent(self) -> float:
        """Epsilon of (record, server) that all messages of this folder add up to; inf where the server is trusted."""
        return self._ledger().epsilon

    @property
    def spent_by_relation(self) -> dict[Relation, float]:
        """The same for every relation of a record that holds in all messages; empty before the first one."""
        return self._ledger().epsilons

    def message(self, number: int, bound: float, update: Any) -> bytes:
        """The bytes to send for a round: charged, on disk, and the same again if the last round is asked again.

        Args:
            number: Of the round.
            bound: Its clip bound, as the server says it.
            update: With `record` a list of the gradients of the client's records, one mapping from names to arrays
                each; else its update. Not finite, or of another form, it counts as zero, since silence would tell of
                the data. What `problem` says of it stands on standard error, for the client alone.

        Raises:
            InputError: Declined: more than is promised, or another question than the round was charged for.
        """
        if type(number) is not int or not 0 <= number < self.rounds or not is_bound(bound):
            words = f"ClientRounds: there is no such round in the offer: {number!r} with bound {bound!r}"
            raise InputError(shortened(words))
        # An iterator that one record stops would lose all others: a record would move more than its own gradient.
        if self.record is not None and not isinstance(update, list | tuple):
            raise InputError("ClientRounds: expected a list of gradients, one for each record")
        if (said := self.problem(update)) is not None:
            print(f"ClientRounds: {said}", file=sys.stderr)
        attempt = Attempt(run=bytes.fromhex(self._run), round=number)
        asked = asked_digest(self._text + json.dumps([number, float(bound)]).encode())
        with only_writer(self._folder):
            ledger = self._ledger()
            before = ledger.question(self._run, attempt.key)
            if before is None:
                if (why := self._limits.problem(ledger, self._run, number)) is not None:
                    raise InputError(f"ClientRounds: round {number} is declined: {why}")
                if not ledger.accepts(self._cost, run=self._run):
                    raise InputError(f"ClientRounds: round {number} is declined: it exceeds {self._promise.words}")
                self._kept.begin(attempt)
                run, plan = self._run, self._limits.name
                ledger.charge(number, self._cost, run=run, question=asked, fresh=draw_fresh(), plan=plan)
            elif before != asked:
                raise InputError(f"ClientRounds: round {number} was charged for another question, and is declined")
            elif not self._kept.began(attempt):
                raise InputError(f"ClientRounds: round {number} was answered, and its answer is not kept any more")
            if self._watched:  # also of a charge that a crash kept from being noted
                note_answered(self._folder)
            return self._kept.once(attempt, asked, lambda: self._made(ledger, number, bound, update))

    def problem(self, update: Any) -> str | None:
        """SECRET: say what of an update would not count as it is meant, for the client alone; None: nothing.

        Args:
            update: As `message` takes it.
        """
        if self.record is None:
            why = problem_of_update(update, self._form)
            return None if why is None else f"it counts as zero: {why}"
        odd = [(place, why) for place, each in enumerate(update) if (why := problem_of_update(each, self._form))]
        said = [f"{len(odd)} of {len(update)} gradients count as zero (number {odd[0][0]}: {odd[0][1]})"] if odd else []
        if len(update) > (due := self.record.records):
            said.append(
                f"{len(update)} gradients, where the offer counts with {due} records: the sum is divided by {due} and "
                f"shortened to {due} clip bounds, so hand over {due} of them, the same in each round"
            )
        return "; ".join(said) or None

    def _made(self, ledger: ClientLedger, number: int, bound: float, update: Any) -> bytes:
        if self.record is None:
            total = RoundSum(self._form, bound, None, [0])
            total.add(0, update)
            values = total.query().value
        else:
            source = self._kept.source(None).again((), ledger.stream(self._run, (number,)))
            values = self.record.released(update, self._form, source.generator(Purpose.QUERY_NOISE, number)).value
        return save({name: host(value).astype(np.float32) for name, value in values.items()})

    @staticmethod
    def update(reply: bytes) -> dict[str, Any] | None:
        """Decode a reply for `round.add`; None, which counts as zero, where it is no message."""
        try:
            return dict(load(reply))
        except Exception:
            # Whatever a client sends, the round goes on: a stop would tell of its data.
            return None
