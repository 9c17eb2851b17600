"""Files beside a ledger that were written when a bound was looser than it is today.

Under check-ins (record, public) was bounded in two halves: the client is removed, and then added with another message
(`Allocation.epsilon_by_absence`). That was a true bound, so such files stay valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.observers.four_guarantees import stated
from dpfedmeta.accounting.release_costs import cost_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.verification.file_claims import Proven


def agreed(check: Callable[[Proven], list[str]], proven: Proven) -> list[str]:
    """Run a check of one file by the bounds of today or, where that fails, by those of earlier versions.

    Guarantee:
        A file passes only where all that it states is by one of the two; both hold.

    Raises:
        InputError: It agrees with neither; names what differs from today's.
    """
    try:
        return check(proven)
    except InputError as today:
        earlier = _by_absence(proven)
        if earlier is None:
            raise
        try:
            first, *others = check(earlier)
        except InputError:
            raise today from None
    return [f"{first}, by a looser bound of earlier versions on replaced clients; the table has today's", *others]


def _by_absence(proven: Proven) -> Proven | None:
    """None: there never was another bound."""
    content = proven.content
    if not cost_of(content.plan.phases).had_looser_bound:
        return None
    looser = replace(proven, by_absence=True)
    spent, planned = (stated(each, looser.terms) for each in (phases_of(content.charges), content.plan.phases))
    return replace(looser, spent=spent, planned=planned)
