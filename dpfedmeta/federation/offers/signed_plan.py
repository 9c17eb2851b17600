"""The plan of a federation as one text, which the server signs once and every question names by its hash.

A client believes none of its numbers: it makes the plan again from the settings, computes the guarantees itself, and
takes no part where anything differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from pydantic import ValidationError

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve_text, to_yaml
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.params import Params
from dpfedmeta.data.task import Task, holds_rows
from dpfedmeta.federation.client.client_log import offered_words
from dpfedmeta.federation.offers.offered_settings import check_own, for_clients, task_of, with_own_encoder
from dpfedmeta.federation.offers.signed_document import (
    OfferForm,
    SignedOffer,
    check_numbers,
    check_text,
    checked_names,
    content_of,
    earlier_of,
    name_of,
    opened_parts,
    signed_parts,
)
from dpfedmeta.federation.offers.work_limits import check_work
from dpfedmeta.planning.privacy.masking_graph import withstood
from dpfedmeta.planning.privacy.secure_sum_settings import check_company
from dpfedmeta.planning.run_plan import Plan, make_plan
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.round_parameters import Agreement, agreed

FORM = OfferForm(
    kind="plan",
    format="dpfedmeta federation plan 2",
    mark=b"dpfedmeta federation plan",
    own=frozenset({"clients", "settings"}),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedPlan(SignedOffer):
    """A plan, as both sides hold it.

    Attributes:
        plan: Every constant of the run.
    """

    plan: Plan

    @property
    def privacy(self) -> PrivacyPlan:
        """Privacy plan that a participation is charged as."""
        return self.plan.privacy

    @cached_property
    def name(self) -> str:
        """Digest of the plan without its run, under which it may be offered again."""
        return name_of(self.plan.settings, self.task, self.privacy)

    @property
    def masked(self) -> bool:
        """True where sums are computed by secure aggregation."""
        return self.plan.privacy.secure is not None

    def agreement(self, round_: int, invited: int) -> Agreement:
        """Return the parameters of secure aggregation for so many invited clients (see `Signed`)."""
        whole = self.plan.privacy.at(round_).whole
        assert whole is not None
        if not whole.least <= invited <= whole.most:
            raise Refused(f"{invited} clients are invited, but the plan allows {whole.least} to {whole.most}")
        return agreement_of(self.plan, round_, invited)

    def words(self) -> Iterator[str]:
        """Yield log lines that describe the offer."""
        return offered_words(self)

    @cached_property
    def initial(self) -> Params:
        """All weights before round 0; they follow from the settings."""
        return self.plan.algorithm.initial(self.plan.network, self.plan.settings.run.seed)

    @cached_property
    def learned(self) -> Params:
        """Those that are learned, before round 0: the form of what is sent both ways."""
        return self.plan.algorithm.learned(self.plan.network, self.initial)


def sign_plan(plan: Plan, task: Task, *, run: bytes, server: Identity, roster: Sequence[bytes]) -> SignedPlan:
    """Make and sign the text of a plan that a server sends to its clients.

    Args:
        plan: Plan of the run.
        task: Its data set.
        run: 32 bytes that no other run has.
        server: Identity that signs.
        roster: Identities of all clients, by number.

    Raises:
        InputError: A part of the plan cannot be sent to a client.
    """
    check_rows(plan.privacy)
    plan, settings = plan.among_real_clients(), for_clients(plan.settings, task)
    named = tuple(roster) if plan.privacy.secure is not None else ()
    parts = signed_parts(
        FORM,
        server,
        task,
        run=run,
        roster=named,
        privacy=plan.privacy,
        promised=plan.planned,
        clients=plan.privacy.clients,
        settings=to_yaml(settings),
    )
    return SignedPlan(plan=replace(plan, settings=settings), **parts)


def opened_plan(text: bytes, signature: bytes, server: bytes) -> SignedPlan:
    """A plan that this server signed, made again here.

    Raises:
        Refused: Another server's, or not what its settings give here.
        InputError: Of another version.
    """
    content = opened_parts(FORM, text, signature, server)
    plan, task = _made(text)
    run, masked = bytes.fromhex(content["run"]), plan.privacy.secure is not None
    roster = checked_names(content, server, plan.privacy.clients, masked=masked)
    return SignedPlan(plan=plan, task=task, run=run, server=server, roster=roster, text=text, signature=signature)


def agreement_of(plan: Plan, round_: int, invited: int) -> Agreement:
    """The numbers, as the accountant counts with them; a real server may break the protocol.

    Raises:
        InputError: Too few would stay to agree on who survived.
    """
    whole = plan.privacy.at(round_).whole
    assert whole is not None
    return agreed(
        clients=invited,
        dimension=whole.dimension,
        bits=whole.bits,
        adversarial=withstood(plan.settings.aggregation.adversarial, plan.privacy.colluding, invited),
        dropout=whole.dropout,
        malicious=True,
        fewest=whole.fewest(invited),
    )


def check_rows(privacy: PrivacyPlan) -> None:
    """Refuse promises for records of real clients where it is not the row alone that decides whether it is used.

    Raises:
        RefusedPlan: Records would be chosen by how many a client holds; says what to use.
    """
    if privacy.record is not None and not privacy.record.rows:
        raise RefusedPlan(
            "record.release = steps (or local training) with classes of a client's own: which records are used would "
            "follow from how many a client holds; use --record.release micro-episodes, or a task with a public list "
            "of labels"
        )


@lru_cache(maxsize=2)
def _made(text: bytes) -> tuple[Plan, Task]:
    """The plan that the settings give here: solving it takes a second, and clients of one process share it."""
    content = content_of(text, FORM)
    try:
        check_text("settings", content["settings"])
        settings = resolve_text(content["settings"], "the server's plan")
        task = task_of(content)
        check_own(settings)
        check_work(settings, task)
        earlier = earlier_of(content["privacy"])
    except (InputError, RefusedPlan, ValidationError, TypeError, LookupError, AttributeError) as error:
        raise Refused(f"the plan is refused here: {error}") from error
    if settings.record.enabled and not holds_rows(settings.population.kind, task):
        raise Refused(
            f"the plan has population.kind = {settings.population.kind}, which counts with records that never come or "
            "go; a server of real clients says real"
        )
    # What an encoder lacks on this machine is for its owner to mend, and no fault of the plan.
    task = with_own_encoder(task, settings, content)
    try:
        plan = make_plan(settings, task, earlier=earlier).among_real_clients()
        check_rows(plan.privacy)
        check_company(plan.privacy, settings.aggregation.company)
    except (InputError, RefusedPlan, ValidationError, TypeError, LookupError, AttributeError) as error:
        raise Refused(f"the plan is refused here: {error}") from error
    check_numbers(FORM, plan.privacy, content, "settings")
    if plan.privacy.clients != content["clients"]:
        raise Refused("the plan states two different numbers of clients")
    return plan, task
