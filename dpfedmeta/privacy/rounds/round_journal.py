"""Journal of a run's charges and releases: a round is charged once, however often it is done again identically."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from dpfedmeta.accounting.ledger.charges import Charge, Closing, planned_charge
from dpfedmeta.accounting.ledger.ledger import ABORTED, Budget, Ledger
from dpfedmeta.accounting.ledger.ledger_register import Lineage
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.params import Params, digest
from dpfedmeta.core.random.fresh_seeds import draw_fresh
from dpfedmeta.core.random.random_sources import SecretGenerator, SecretSource
from dpfedmeta.core.signals import deferred
from dpfedmeta.privacy.charged import check_charged, noise_of_attempt
from dpfedmeta.privacy.mechanisms import MechanismState, Released, ValueT
from dpfedmeta.privacy.rounds.cohort_log import Participations, draw, repeatable
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import ClientUnit

# A release and the mechanism's next state, from the server's noise for the attempt.
Releasing = Callable[[SecretGenerator], tuple[Released[ClientUnit, ValueT], MechanismState]]


@dataclass(kw_only=True, eq=False)
class Journal:
    """The one writer of a run's ledger and participations.

    Attributes:
        plan: The plan.
        ledger: Charges.
        participations: SECRET: invitations.
        budget: What may be spent at most; None: whatever is charged.
        source: Secret randomness of the server.
        environment: Digest of what could change the last bits of a result; None: nothing is done again identically.
        released: Digest of every release that left this run, by round; ABORTED where there was none.
        lineage: This machine's register, or None.

    Guarantee:
        Charges and invitations are on disk when `begin` returns, and with a charge the fresh bytes of its attempt. A
        cohort is returned without a new charge only where an earlier charge had the same inputs and its fresh bytes are
        there: then round, state, key, cohort and environment are the same, and so is the release, as noise follows
        from the exact sum. Every other attempt is charged, with a cohort and noise of its own. A sum is released by
        `release` alone: only for an attempt that is charged, and only with the noise that is charged.
    """

    plan: PrivacyPlan
    ledger: Ledger
    participations: Participations
    budget: Budget | None
    source: SecretSource
    environment: str | None
    released: dict[int, str] = field(default_factory=dict)
    lineage: Lineage | None = None
    # The last attempt that was released, and the digest of its release.
    _done: tuple[Charge, str] | None = None
    # (next round that may be charged without asking again, first round that may not be charged)
    _allowed: tuple[int, int] = (-1, -1)

    @property
    def reproducible(self) -> bool:
        """True if a round can be done again identically."""
        return self.source.reproducible and self.environment is not None

    def charged(self, round_: int, inputs: str) -> Charge | None:
        """Return the charge of an earlier attempt at the same, which is done again without another one; None: none."""
        asked = inputs, self._last_release(round_)
        # One whose fresh bytes are not there is none that could be repeated.
        repeated = (each for each in self.ledger.attempts(round_) if repeatable(self.source, each))
        return next((each for each in repeated if (each.inputs, each.release) == asked), None)

    def begin(self, round_: int, inputs: str, *, anew: bool = False) -> Cohort | None:
        """SECRET: who takes part in the next round, charged and on disk; None: the budget does not allow it.

        Args:
            round_: The round.
            inputs: Digest of all that its release is computed from besides the clients' data (see `round_inputs`).
            anew: Whether it has to be another release than all attempts before.
        """
        inputs = secrets.token_hex(16) if anew or not self.reproducible else inputs
        if (same := self.charged(round_, inputs)) is not None:
            return self.participations.cohort(same.round, same.again)
        planned, release = planned_charge(self.plan, round_), self._last_release(round_)
        fresh, attempt = draw_fresh() if self.source.needs_fresh else "", len(self.ledger.attempts(round_))
        event = replace(planned, attempt=attempt, inputs=inputs, fresh=fresh, release=release)
        if not self._affordable(event):
            return None
        # A signal between the two would be harmless, but would leave a line to drop.
        with deferred():
            return self._charge(event)

    def allows(self, round_: int, inputs: str) -> bool:
        """Return whether `begin` would give a cohort; nothing is charged."""
        done = self.reproducible and self.charged(round_, inputs) is not None
        return done or self._affordable(planned_charge(self.plan, round_))

    def last_question(self, round_: int, inputs: str) -> str:
        """Return the inputs of the last attempt that was made because those before it were used up.

        Args:
            round_: The round.
            inputs: Of its first attempt.
        """
        charged = {each.inputs for each in self.ledger.attempts(round_)}
        while (following := further_question(inputs)) in charged:
            inputs = following
        return inputs

    def release(
        self, cohort: Cohort, releasing: Releasing[ValueT], *, bound: float, denominator: float | None = None
    ) -> tuple[Released[ClientUnit, ValueT], MechanismState]:
        """Release the sum of a cohort that `begin` returned: the one way from a client-level sum to a public value.

        Args:
            cohort: SECRET: the attempt; clients that did not answer may be missing in it.
            releasing: Calls the mechanism with the server's noise for this attempt.
            bound: The largest change of the sum by one client.
            denominator: What the mechanism divides the sum by; None: the expected cohort.

        Returns:
            The release, and the mechanism's next state.

        Guarantee:
            The noise comes from the charge of this attempt, so there is none without one. What is returned states
            exactly the noise of that charge, and an attempt is released once: again only with the same bits.

        Raises:
            RefusedPlan: The attempt has no charge in the ledger, the release states another noise than its charge, or
                the attempt was released otherwise before; nothing may leave.
        """
        charge = next((each for each in self.ledger.attempts(cohort.round) if _is_of(each, cohort)), None)
        if charge is None:
            raise RefusedPlan(
                f"ledger.jsonl: has no charge for this attempt at round {cohort.round}, so nothing was released; start "
                "the run again with --resume, which charges the round first"
            )
        released, following = releasing(noise_of_attempt(self.source, charge.round, charge.again, charge.stream))
        check_charged(released, charge.event, charge.round, bound, denominator)
        bits = _bits(released.value)
        if self._done is not None and self._done[0] == charge and self._done[1] != bits:
            raise RefusedPlan(f"round {charge.round}: two releases for one charge; the second one was not released")
        self._done = (charge, bits)
        return released, following

    def close(self, rounds: int, weights: Mapping[str, str]) -> None:
        """Write what was published to the ledger, which ends with it for now.

        Args:
            rounds: How many rounds were released.
            weights: Digest of each published file of weights, by its name.
        """
        closing = Closing(rounds=rounds, release=self._last_release(rounds), weights=weights)
        with deferred():
            self.ledger.close(closing)
            self._follow()

    def _last_release(self, round_: int) -> str:
        """Digest of the last release before a round; empty: there is none, or it is not known here."""
        before = (self.released.get(known, "") for known in range(round_ - 1, -1, -1))
        return next((release for release in before if release != ABORTED), "")

    def _follow(self) -> None:
        if self.lineage is not None:
            self.lineage.follow(self.ledger.lines, self.ledger.head)

    def _charge(self, event: Charge) -> Cohort:
        cohort = draw(self.plan, self.source, event, self.participations)
        self.participations.record(cohort)
        # Before the clients are invited: towards the server, their own messages are the releases (privacy rule 6).
        self.ledger.charge(event)
        self._follow()
        if event.attempt:
            self.released = {known: release for known, release in self.released.items() if known < event.round}
        return cohort

    def _affordable(self, event: Charge) -> bool:
        if self.budget is None:
            return True
        due, end = self._allowed
        if event.round != due:
            privacy = self.plan
            # Every further attempt is a charge more than there are rounds.
            if event.round != self.ledger.rounds:
                end = event.round + self.budget.further_rounds(privacy, self.ledger.charges, event.round)
            else:
                end = self.budget.affordable_rounds(privacy)
        self._allowed = (event.round + 1, end)
        return event.round < end

    def repeats(self, round_: int, release: str) -> bool:
        """Return whether a round came out as in its earlier release; also true if it has none."""
        return self.released.get(round_, release) == release


def _bits(value: object) -> str:
    """Digest of parameters by their bits, of anything else by its words."""
    arrays = isinstance(value, Mapping) and all(hasattr(each, "shape") for each in value.values())
    return digest(cast(Params, value)) if arrays else hashlib.sha256(repr(value).encode()).hexdigest()


def _is_of(charge: Charge, cohort: Cohort) -> bool:
    return (charge.again, charge.stream) == (cohort.again, cohort.fresh)


def round_inputs(round_: int, model: Params, bound: float, environment: str | None) -> str:
    """Digest of what the release of a round is computed from besides the clients' data.

    Args:
        round_: The round.
        model: The released state that clients are told.
        bound: The clip bound.
        environment: Digest of what else could change the last bits of the release.
    """
    text = f"{round_} {digest(model)} {bound!r} {environment}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def release_digest(released: Released[ClientUnit, Params] | None) -> str:
    """Digest of what a round released; post-processing."""
    return ABORTED if released is None else digest(released.value)


def further_question(inputs: str) -> str:
    """Inputs of the attempt that follows one which never has a sum: it is charged, and repeatable, as any other."""
    return hashlib.sha256(f"after {inputs}".encode()).hexdigest()[:32]
