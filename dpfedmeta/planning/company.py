"""Who may sit beside a client in a cohort: whom the server draws as it says, or whomever it picks."""

from __future__ import annotations

from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.errors import RefusedPlan
from dpfedmeta.secure_aggregation.graph import counted


def may_be_picked(plan: PrivacyPlan, invited: int) -> int:
    """How many of a cohort may tell the server all they know, where it picks the cohort among all clients."""
    assert plan.secure is not None
    adversarial = plan.secure.adversarial or 0.0
    return min(invited - 1, counted(adversarial, plan.clients))


def check_company(plan: PrivacyPlan, company: str) -> None:
    """Whether as many colluding clients are counted as a server of real clients can put into a cohort.

    Args:
        plan: Of real clients, whom the server knows by name.
        company: `picked`: the server may choose whom it asks; `drawn`: it is trusted to draw cohorts as it says.

    Guarantee:
        (record or client, server): the noise of a cohort counts without `privacy.client.colluding` clients, and masks
        withstand so many. Where a server picks its cohorts that is all who may collude among all clients, or all but
        one of a cohort.

    Raises:
        RefusedPlan: Fewer are.
    """
    secure, whole = plan.secure, plan.at(0).whole
    if secure is None or whole is None or company == "drawn":
        return
    picked = may_be_picked(plan, whole.most)
    if plan.colluding < picked:
        raise RefusedPlan(
            f"privacy.client.colluding = {plan.colluding}: a server that picks {whole.most} of {plan.clients:,} "
            f"clients can put {picked} who collude beside any other one (aggregation.adversarial = "
            f"{secure.adversarial:g} of all); give --privacy.client.colluding {picked}, or a lower "
            "aggregation.adversarial, or --aggregation.company drawn where clients trust the server to draw cohorts "
            "as it says"
        )
