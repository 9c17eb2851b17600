"""Spending that a ledger proves, of a training, an analysis or a loop, and what every verifier says of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import counted_words


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Spending that a ledger proves.

    Attributes:
        plan: The plan in its first line.
        charges: Its charges.
        guarantees: What they cost, from their own numbers; of a run that was chosen, what holds with the choice.
        remarks: What was checked, a line each.
        simulation: What is said where somebody chose the noise seed; None: nobody did.
        unverified: What no comparison with the ledger shows.
    """

    plan: PrivacyPlan
    charges: tuple[Charge, ...]
    guarantees: tuple[Guarantee, ...]
    remarks: tuple[str, ...]
    simulation: str | None
    unverified: str

    @property
    def rounds(self) -> int:
        """Rounds that were charged, each once however often it was done again."""
        return len({charge.round for charge in self.charges})

    def to_state(self) -> tuple[Guarantee, ...]:
        """The cells to state of it: what was spent; where it may still go on, what all its rounds may spend."""
        return self.guarantees if self.rounds == self.plan.rounds else guarantees(self.plan)


def chain_remark(charges: Sequence[Charge]) -> str:
    """How many rounds were charged, and how often again."""
    again = sum(bool(charge.attempt) for charge in charges)
    count = counted_words(len(charges) - again, "round")
    return f"{count}{f', {again} of them repeated and charged again' if again else ''}, hash chain intact"


def accountants_remarks(plan: PrivacyPlan, charges: Sequence[Charge], cells: Sequence[Guarantee]) -> list[str]:
    """(client, public) once more, by somebody else's accountant.

    Raises:
        InputError: Its bound is below this one, though neither is loose.
    """
    other = second_opinion((*plan.before, *phases_of(charges)), plan.client_delta)
    # It knows no bound on a client that its rows do not have.
    if other is None or not math.isfinite(cells[0].epsilon):
        return []
    name, epsilon = other
    own = cells[0].epsilon
    # Two grids differ by parts in a thousand; where every bound is loose, nothing can be compared.
    if not all(bound.loose for bound in cells[0].bounds) and not own <= 1.01 * epsilon + 1e-4:
        raise InputError(
            f"(client, public): {rounded_up(own, 4)} here but {rounded_up(epsilon, 4)} by {name}: please report this"
        )
    return [
        f"(client, public) of the same rounds, checked with another library's accountant ({name}): "
        f"{rounded_up(epsilon)}, and {rounded_up(own)} here; both are upper bounds, and the table's value counts"
    ]
