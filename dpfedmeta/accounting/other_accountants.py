"""Second opinion on an epsilon by somebody else's accountant."""

import math
from collections.abc import Sequence
from functools import lru_cache

from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from dpfedmeta.accounting.divergences.rdp import rdp_epsilon, round_event
from dpfedmeta.accounting.events.events import Phase, have_noise, neighbours_of, surplus
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.release_costs import cost_of, released
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.errors import InputError

# Widths of its grid of privacy losses, its own first; a finer one where an epsilon is this many of them or fewer.
_WIDTHS, _FEW = (1e-4, 1e-5, 1e-6), 500
# It computes each of them one by one: so many take seconds.
_MOST_POINTS = 3e5


def dp_accounting_pld(
    phases: Sequence[Phase], delta: float, *, replaced: bool = False, width: float = _WIDTHS[0]
) -> float:
    """dp-accounting's own PLD accountant on the rounds' events; Poisson only. inf for noise that it does not know."""
    return _of_released(tuple(released(phases)), delta, replaced, width)


@lru_cache(maxsize=64)
def _of_released(phases: tuple[Phase, ...], delta: float, replaced: bool, width: float) -> float:
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=width)
    for phase in phases:
        event = round_event(phase.event)
        if event is None:
            return math.inf
        accountant.compose(event, phase.rounds)
    return float(accountant.get_epsilon(delta))


def second_opinion(phases: Sequence[Phase], delta: float) -> tuple[str, float] | None:
    """(name, epsilon) of (client, public) by somebody else's accountant; None: no promise, or unknown there."""
    if not have_noise(phases):
        return None
    return cost_of(phases).second_opinion(phases, delta - surplus(phases))


def opinion_on_releases(phases: Sequence[Phase], delta: float) -> tuple[str, float] | None:
    """The same of releases that are accounted for one by one; None: the noise is unknown there.

    Fixed-size sampling has only the looser RDP there. It rounds privacy losses up to a grid, which at a small epsilon
    would be most of its number (0.00207 for 0.00188): the grid becomes finer until it is not.
    """
    if len({phase.event.sampler for phase in phases}) > 1 or not all(round_event(phase.event) for phase in phases):
        return None
    if neighbours_of(phases) == "replace-one":
        return "dp-accounting RDP (looser)", rdp_epsilon(phases, delta)
    return "dp-accounting PLD", on_a_fine_grid(phases, delta)[0]


def on_a_fine_grid(phases: Sequence[Phase], delta: float) -> tuple[float, float]:
    """(epsilon by its PLD, the width of the grid that gives it): the grid becomes finer until it is not most of it."""
    far = max(phase.event.noise.largest_loss(1.0) for phase in phases if phase.event.noise)
    least, its = math.inf, _WIDTHS[0]
    for width in _WIDTHS:
        used = max(width, far / _MOST_POINTS)
        epsilon = dp_accounting_pld(phases, delta, width=used)
        if epsilon < least:
            least, its = epsilon, used
        if used > width or least == 0 or least > _FEW * width:
            break
    return least, its


def opinion_remarks(phases: Sequence[Phase], delta: float, cells: Sequence[Guarantee]) -> list[str]:
    """(client, public) once more, by somebody else's accountant.

    Raises:
        InputError: Its bound is below this one, though neither is loose.
    """
    other = second_opinion(phases, delta)
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
