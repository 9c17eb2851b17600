"""An analysis that a client takes part in: what it computes there from its own images, and what it says of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.analytics.analysis import Handing
from dpfedmeta.analytics.client_answers import Held, HeldImages
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import IntArray, KeyedSource
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_log import answered_words, answering_words, without_images
from dpfedmeta.federation.client.client_state import DECODED, FreshOf, Kept, kept_for, source_at
from dpfedmeta.federation.client.local_data import NoRecords, OwnRecords, open_records, opened_or_why
from dpfedmeta.federation.client.signed_participation import ClientSetup
from dpfedmeta.federation.offers.plan_limits import PlanLimits
from dpfedmeta.federation.offers.signed_analysis import SignedAnalysis
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedAnalysis:
    """Client's part in one analysis (a `SignedParticipation`): its data, noise, log and the signed request.

    Attributes:
        signed: What is asked.
        number: The client's.
        kept: What must survive.
        held: Its own images.
        source: Its noise, of a key that no other run has.
        fresh_of: What the streams of a charged attempt are keyed by.
        log: Told what is for the owner alone.
    """

    signed: SignedAnalysis
    number: int
    kept: Kept
    held: Held
    source: KeyedSource | FreshSource
    fresh_of: FreshOf
    log: Callable[[str], None]

    @property
    def limits(self) -> PlanLimits:
        """Rounds that the plan itself allows this client."""
        return PlanLimits(plan=self.signed.privacy, name=self.signed.name, number=self.number)

    def check(self, task: bytes) -> None:
        """Check a task before it is charged (see `Taken`)."""
        try:
            self.signed.analysis.check_told(task, self.signed.privacy, self.held)
        except InputError as error:
            raise Refused(str(error)) from error

    def whole(self, task: bytes, attempt: Attempt, invited: int) -> IntArray:
        """SECRET: compute the answer, with the client's share of the noise where the analysis has one (see `Taken`)."""
        try:
            return self._answer(self.held, task, attempt, invited)
        except Exception as error:
            # A client that falls silent would tell that its images make the computation fail.
            why = raised(error)
            self.log(without_images(why))
        nothing = NoRecords(clients=self.signed.privacy.clients, number=self.number, why=why)
        return self._answer(HeldImages(plan=self.signed.plan, population=nothing), task, attempt, invited)

    def _answer(self, held: Held, task: bytes, attempt: Attempt, invited: int) -> IntArray:
        analysis, plan = self.signed.analysis, self.signed.privacy
        source = source_at(self.source, attempt, self.fresh_of)
        handing = Handing(plan=plan, told=task, held=held, client=self.number, invited=invited, source=source)
        return np.concatenate([analysis.sent(handing, part) for part in range(analysis.form(plan).parts)])

    def words(self, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
        """Yield log lines on the cost of taking part and on what would leave the machine."""
        return answering_words(self, ledger, promise)

    def sent_words(self, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: bytes, what: str) -> str:
        """Return a log line on what left the machine."""
        return answered_words(self, promise, what)


def join_analysis(
    signed: SignedAnalysis,
    own: ClientSetup,
) -> JoinedAnalysis:
    """Look at an analysis as a client does, and get ready for it; of what it finds nothing is told to the server.

    What images there are, and whether they can be read, decides over the answer and not over whether there is one.

    Args:
        signed: What is asked.
        own: The client.
    """
    plan, clients, number = signed.plan, signed.privacy.clients, own.number
    decoded = own.folder / DECODED
    pool = opened_or_why(lambda: open_records(own.images, signed.task, signed.columns, decoded, own.log), own.claimed)
    held: OwnRecords | NoRecords
    if isinstance(pool, str):
        held = NoRecords(clients=clients, number=number, why=pool)
        own.log(without_images(pool))
    else:
        held = OwnRecords(pool=pool, shape=plan.shape, clients=clients, number=number, seed=plan.settings.run.seed)
    kept = kept_for(own.folder, signed.run)
    return JoinedAnalysis(
        signed=signed,
        number=number,
        kept=kept,
        held=HeldImages(plan=plan, population=held),
        source=kept.source(own.noise_seed),
        fresh_of=own.fresh_of,
        log=own.log,
    )
