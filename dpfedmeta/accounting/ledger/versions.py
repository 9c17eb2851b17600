"""The versions of a ledger that can be read, and what the earlier ones leave unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, restored
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.ledger.charges import Charge, planned_charge
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.relations.relations import MomentBlocks
from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

VERSION = 5


@dataclass(frozen=True, kw_only=True)
class Unsaid:
    """Constants that ledgers of an earlier version do not state, because there was no choice yet.

    Attributes:
        plan: Values of those constants of the plan.
        settings: Values of those settings, by their dotted names.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


# Independent noise, and a server that sees every message.
_PLAIN = {"noise": "independent", "server_sees": "messages"}
# The first version whose lines hold whole events.
EVENTS = 5

# Every version that can be read: a new constant or setting comes with a new VERSION, and its value in earlier ones.
UNSAID: Mapping[int, Unsaid] = {
    # All noise that messages carry was counted on, as if nobody were hostile.
    3: Unsaid(plan={"hostile": 0.0, **_PLAIN}, settings={"privacy.client.hostile": 0.0}),
    # Messages were added up in floating point, so no round of it can be done again here.
    4: Unsaid(plan=_PLAIN),
    VERSION: Unsaid(),
}


def plan_of(stated: Mapping[str, Any], version: int) -> PrivacyPlan:
    """A plan from the JSON of its constants, in a ledger of this version or beside it.

    Raises:
        InputError: The version is not known here.
        TypeError: A constant is missing, or is none of a plan.
        RefusedPlan: No guarantee can be computed for a constant.
    """
    if version not in UNSAID:
        known = f"ledger version {version} is not known here, only version {', '.join(map(str, UNSAID))}"
        raise InputError(f"{known}; verify it with the dpfedmeta that wrote it")
    fields = {**UNSAID[version].plan, **stated}
    record, secure = fields.pop("record"), fields.pop("secure", None)
    correlation = fields.pop("correlation", None)
    schedule = tuple(Change(**change) for change in fields.pop("schedule"))
    ends = tuple(fields.pop("ends", ()))
    earlier = tuple(Earlier.from_json(each) for each in fields.pop("earlier", ()))
    return PrivacyPlan(
        **fields,
        schedule=schedule,
        ends=ends,
        earlier=earlier,
        record=_record_of(record, version) if record else None,
        secure=_secure_of(secure) if secure else None,
        correlation=Correlation(**correlation) if correlation else None,
    )


def _secure_of(stated: Mapping[str, Any]) -> SecureRounds:
    # Inside: what belongs to sums of whole numbers is loaded where there are such.
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

    return SecureRounds(**stated)


def constants(plan: PrivacyPlan) -> dict[str, Any]:
    """The inverse: as a ledger's first line and plan.json hold them.

    What came later stands there only where it says something: `ends` of an extended run, what only a sum of whole
    numbers has, what was spent before, and what only correlated noise has.
    """
    stated = asdict(plan)
    if not plan.ends:
        del stated["ends"]
    if plan.secure is None:
        del stated["secure"]
    else:
        for name in ("longest", "tallest"):
            if getattr(plan.secure, name) is None:
                del stated["secure"][name]
        if not plan.secure.malicious:
            del stated["secure"]["malicious"]
    if plan.missed is None:
        del stated["missed"]
    del stated["earlier"]
    if plan.earlier:
        stated["earlier"] = [each.as_json() for each in plan.earlier]
    if plan.correlation is None:
        del stated["correlation"]
    if plan.capacity is None:
        del stated["capacity"]
    if plan.relation == "zero-out":
        del stated["relation"]
    for name in ("of_sum", "rows", "own_terms", "blocks"):
        if plan.record is not None and not getattr(plan.record, name):
            del stated["record"][name]
    return stated


def _record_of(stated: Mapping[str, Any], version: int) -> RecordLayer:
    fields = dict(stated)
    if fields.get("blocks") is not None:
        fields["blocks"] = MomentBlocks(**fields["blocks"])
    if version >= EVENTS:
        return RecordLayer(**fields)
    message = fields.pop("message")
    if message == "update":
        fields["query_noise"] = None
    elif message == "episodes":
        fields |= {"support_noise": None, "parts": "micro-episodes"}
    return RecordLayer(**fields)


def charge_of(line: Mapping[str, Any], plan: PrivacyPlan, version: int) -> Charge:
    """A line of a ledger of this version.

    Earlier versions keep the numbers that epsilon depends on; constants that follow from them are those of the plan.

    Raises:
        InputError: A kind of noise that the accountant does not know.
        TypeError: Something is missing, too much, or of another type.
        LookupError: Likewise.
    """
    if version >= EVENTS:
        return Charge.from_json(line)
    fields = dict(line)
    round_, attempt, inputs = (fields.pop(name) for name in ("round", "attempt", "inputs"))
    if type(round_) is not int or type(attempt) is not int or not isinstance(inputs, str):
        raise TypeError(f"round {round_!r}, attempt {attempt!r}, inputs {inputs!r}")
    multiplier = fields.pop("noise_multiplier")
    record = plan.record
    if record is not None and record.query_noise is None:
        del fields["query_noise"]  # a number without a meaning
    planned = planned_charge(plan, min(max(round_, 0), plan.rounds - 1)).event
    noise = restored({"kind": "gaussian", "multiplier": multiplier}) if multiplier else None
    return Charge(round=round_, attempt=attempt, inputs=inputs, event=replace(planned, noise=noise, **fields))


def old_phase(phase: Phase) -> dict[str, Any]:
    """Return a phase in the form in which plan.json stated it before version 5."""
    event, noise = phase.event, phase.event.noise
    return {
        "rounds": phase.rounds,
        "sampler": event.sampler,
        "clients": event.clients,
        "cohort": event.cohort,
        "rate": event.rate,
        "largest_cohort": event.largest_cohort,
        "surplus_probability": event.surplus_probability,
        "total_noise": event.total_noise,
        "effective_noise": noise.multiplier if isinstance(noise, GaussianNoise) else event.total_noise,
        "message_noise": event.message_noise,
        "assured_noise": event.assured_noise,
        "hostile": event.hostile,
        "copy": phase.copy,
    }
