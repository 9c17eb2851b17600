"""The graph on which a cohort shares its masks: whether one carries the plan, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError, RefusedPlan

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

_FEWEST = 3
_FOR_FEW = (
    ". Secure sums are for three clients or more. With two, each can add noise of its own: dpfedmeta federate plan "
    "--sites 2 --records A..B --dataset TASK --out plan.yaml writes such settings for --config plan.yaml"
)


@dataclass(frozen=True, kw_only=True)
class MaskingGraph:
    """Parameters of a round's masking graph, which every party computes alone (neighbour_graph).

    Attributes:
        clients: n, the expected cohort size.
        degree: k, the number of other clients with which each client shares masks.
        threshold: t, how many of these suffice to restore a secret.
        fewest: V, the fewest survivors; with fewer nothing is unmasked.
    """

    clients: int
    degree: int
    threshold: int
    fewest: int


def masking_graph(plan: PrivacyPlan) -> MaskingGraph | None:
    """For a cohort of the expected size; None where nothing is masked, or no graph is said to be needed.

    Raises:
        RefusedPlan: There is none.
    """
    secure, whole = plan.secure, plan.at(0).whole
    if secure is None or whole is None or secure.adversarial is None:
        return None
    clients = round(plan.cohort)
    degree, threshold = _parameters(plan, clients, secure.adversarial, complete=False)
    return MaskingGraph(clients=clients, degree=degree, threshold=threshold, fewest=whole.fewest(clients))


def check_graph(plan: PrivacyPlan) -> None:
    """Check that every cohort that may be drawn has a masking graph, and that enough of its clients can answer.

    Raises:
        RefusedPlan: No graph exists for a cohort, it withstands fewer than are counted with, or most rounds would be
            aborted.
    """
    secure, whole = plan.secure, plan.at(0).whole
    if secure is None or whole is None or secure.adversarial is None:
        return
    # With a server that follows the protocol a sparse graph exists only where the complete one does.
    for clients in range(whole.least, whole.most + 1):
        _parameters(plan, clients, secure.adversarial, complete=True)
    staying = (1.0 - secure.absent) * plan.cohort
    if staying < whole.fewest(round(plan.cohort)):
        raise RefusedPlan(
            f"aggregation.dropout = {secure.dropout:g}: with population.dropout = {secure.absent:g} about "
            f"{staying:.0f} of {plan.cohort:g} clients answer, and a round needs "
            f"{whole.fewest(round(plan.cohort))}; most rounds would be aborted; raise it"
        )


def withstood(adversarial: float, colluding: int, clients: int) -> float:
    """The share of a cohort whom masks withstand: those who tell the server all they know, and know their own noise.

    Args:
        adversarial: Share of a cohort, as the settings have it.
        colluding: So many clients at least, as their noise is counted.
        clients: Of the cohort.
    """
    return max(adversarial, min(colluding / clients, 1.0 - 1.0 / clients))


def _parameters(plan: PrivacyPlan, clients: int, adversarial: float, *, complete: bool) -> tuple[int, int]:
    # SciPy, which few plans need so early.
    from dpfedmeta.secure_aggregation.crypto import neighbour_graph as graph

    assert plan.secure is not None
    try:
        return graph.parameters(
            clients=clients,
            adversarial=withstood(adversarial, plan.colluding, clients),
            dropout=plan.secure.dropout,
            malicious=plan.secure.malicious,
            complete=complete,
        )
    except InputError as error:
        raise RefusedPlan(
            f"aggregation.adversarial = {adversarial:g} and privacy.client.colluding = {plan.colluding} with "
            f"aggregation.dropout = {plan.secure.dropout:g}: {error}{_FOR_FEW if plan.clients < _FEWEST else ''}"
        ) from error
