"""Mechanism that releases a plan's sums, built from the plan's constants, or the reason why there is none."""

from __future__ import annotations

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.privacy.mechanisms import Mechanism

_SETTING, _FOLDER = "server.noise", "dpfedmeta.privacy.noises"


def mechanism_of(plan: PrivacyPlan) -> Mechanism:
    """The mechanism that `server.noise` names.

    Raises:
        InputError: There is none of this name, or it breaks its protocol.
    """
    mechanism: Mechanism = members.find(_SETTING, plan.noise, _FOLDER)(plan=plan)
    members.check_protocol(_SETTING, plan.noise, mechanism, "init", "release", "event")
    return mechanism


def check_mechanism(mechanism: Mechanism, plan: PrivacyPlan) -> None:
    """Check that the mechanism costs what the plan counts with, and that the ledger can store its noise.

    Raises:
        RefusedPlan: It states another event than the plan, or one that cannot be read back.
        InputError: The accountant does not know its noise.
    """
    for number, phase in enumerate(plan.phases):
        round_ = sum(before.rounds for before in plan.phases[:number])
        stated = mechanism.event(round_)
        if stated != phase.event:
            raise RefusedPlan(
                f"server.noise = {plan.noise}: in round {round_} its mechanism states {stated.noise}, but the plan "
                f"counts {phase.event.noise}, so no guarantee would hold"
            )
        if Event.from_json(stated.as_json()) != stated:
            raise RefusedPlan(
                f"server.noise = {plan.noise}: its noise cannot be read back from the ledger unchanged; give it only "
                "fields of numbers and text"
            )
