"""Number of colluding clients in a cohort, depending on whether the server draws cohorts honestly or picks them."""

from __future__ import annotations

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.secure_aggregation.crypto.neighbour_graph import counted


def may_be_picked(plan: PrivacyPlan, invited: int) -> int:
    """Return how many clients of a cohort may collude if the server picks the cohort among all clients."""
    assert plan.secure is not None
    adversarial = plan.secure.adversarial or 0.0
    return min(invited - 1, counted(adversarial, plan.clients))


def check_company(plan: PrivacyPlan, company: str) -> None:
    """Check that the plan counts as many colluding clients as a server of real clients can put into a cohort.

    Args:
        plan: Of real clients, whom the server knows by name.
        company: `picked`: the server may choose the clients of a cohort; `drawn`: it is trusted to draw cohorts as it
            says.

    Guarantee:
        (record or client, server): the noise of a cohort counts without `privacy.client.colluding` clients, and masks
        withstand so many. Where a server picks its cohorts that is all who may collude among all clients, or all but
        one of a cohort.

    Raises:
        RefusedPlan: The plan counts fewer.
    """
    secure, whole = plan.secure, plan.at(0).whole
    if secure is None or whole is None or company == "drawn":
        return
    picked = may_be_picked(plan, whole.most)
    if plan.colluding < picked:
        raise RefusedPlan(
            f"privacy.client.colluding = {plan.colluding}: a server that chooses {whole.most} of {plan.clients:,} "
            f"clients can place {picked} colluding ones in the cohort of any client (aggregation.adversarial = "
            f"{secure.adversarial:g} of all); give --privacy.client.colluding {picked}, or a lower "
            "aggregation.adversarial, or --aggregation.company drawn if clients trust the server to draw cohorts as "
            "it says"
        )
