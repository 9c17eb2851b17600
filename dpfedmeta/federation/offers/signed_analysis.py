"""An analysis as one text, which the server signs once and every question names by its hash.

A client believes none of its numbers: it makes the plan again from the request, computes the guarantees itself, and
takes no part where anything differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from pydantic import ValidationError

from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import FOLDER, Analysis
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_names import names
from dpfedmeta.data.task import Task
from dpfedmeta.federation.client.client_log import analysis_words
from dpfedmeta.federation.offers.kept_settings import MOST_CLIENTS
from dpfedmeta.federation.offers.offered_settings import check_own, for_clients, task_of, with_own_encoder
from dpfedmeta.federation.offers.signed_document import (
    OfferForm,
    SignedOffer,
    check_numbers,
    check_text,
    checked_names,
    content_of,
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

# Bins, names, letters: what an answer is long by.
MOST_OF_OPTION = 100_000
FORM = OfferForm(
    kind="analysis",
    format="dpfedmeta federation analysis 2",
    mark=b"dpfedmeta federation analysis",
    own=frozenset({"request"}),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedAnalysis(SignedOffer):
    """An analysis, as both sides hold it (a `Signed`).

    Attributes:
        request: What is asked; without what is the server's alone.
        privacy: What the release is charged as.
        plan: Of the training that is served.
    """

    request: Request
    privacy: PrivacyPlan
    plan: Plan
    masked: bool = True

    @cached_property
    def name(self) -> str:
        """Digest of the analysis without its run, under which it may be asked again."""
        return name_of(self.plan.settings, self.task, self.privacy, self.request.as_text())

    @property
    def analysis(self) -> Analysis:
        """The analysis that is computed."""
        return self.request.analysis

    def agreement(self, round_: int, invited: int) -> Agreement:
        """Return the parameters of secure aggregation for so many invited clients (see `Signed`)."""
        if invited != self.request.cohort:
            raise Refused(f"{invited} clients are invited, but the analysis asks {self.request.cohort:g}")
        return agreement_for(self.request, self.privacy)

    def words(self) -> Iterator[str]:
        """Yield log lines that describe the offer."""
        return analysis_words(self, guarantees(self.privacy))


def agreement_for(request: Request, plan: PrivacyPlan) -> Agreement:
    """The numbers of secure aggregation; a real server may break the protocol.

    Raises:
        RefusedPlan: Too few would stay to agree on who survived, or no cohort of a fixed size is asked.
    """
    fixed, form = request.fixed, request.analysis.form(plan)
    if request.settings is not None:
        check_company(plan, request.settings.aggregation.company)
    if fixed is None:
        raise RefusedPlan(f"{request.kind}: with real clients the cohort must have a fixed size")
    try:
        return agreed(
            clients=int(request.cohort),
            dimension=form.dimension,
            bits=form.bits,
            adversarial=withstood(fixed.adversarial, plan.colluding, int(request.cohort)),
            dropout=fixed.dropout,
            malicious=True,
        )
    except InputError as error:
        raise RefusedPlan(
            f"{request.kind} of {request.cohort:g} real clients: {error}; ask more clients, or lower "
            "aggregation.dropout or aggregation.adversarial"
        ) from None


def sign_analysis(
    request: Request,
    privacy: PrivacyPlan,
    plan: Plan,
    task: Task,
    *,
    run: bytes,
    server: Identity,
    roster: Sequence[bytes],
) -> SignedAnalysis:
    """Make and sign the text of an analysis that a server sends to its clients.

    Args:
        request: The request of the analysis.
        privacy: Plan that its release is charged as.
        plan: Plan of the training that is served.
        task: Form of the records.
        run: 32 bytes that no other run has.
        server: Identity that signs.
        roster: Identities of all clients, by number.

    Raises:
        InputError: A part of it cannot be sent to a client.
    """
    assert request.settings is not None
    # Which folder of the server holds a model is nothing to clients: they are sent its weights.
    own = dict(request.own) | ({"run": ""} if request.run is not None else {})
    settings = for_clients(request.settings, task)
    said = replace(request, settings=settings, own=own, run=None, names=None, noise_seed=None)
    parts = signed_parts(
        FORM,
        server,
        task,
        run=run,
        roster=roster,
        privacy=privacy,
        promised=guarantees(privacy),
        request=said.as_text(),
    )
    return SignedAnalysis(request=said, privacy=privacy, plan=replace(plan, settings=settings), **parts)


def opened_analysis(text: bytes, signature: bytes, server: bytes) -> SignedAnalysis:
    """An analysis that this server signed, made again here.

    Raises:
        Refused: Another server's, of another version, or not what its request gives here.
    """
    content = opened_parts(FORM, text, signature, server)
    request, privacy, plan, task = _made(text)
    return SignedAnalysis(
        request=request,
        privacy=privacy,
        plan=plan,
        task=task,
        run=bytes.fromhex(content["run"]),
        server=server,
        roster=checked_names(content, server, privacy.clients, masked=True),
        text=text,
        signature=signature,
    )


def _check_size(request: Request) -> None:
    """Refuse a request for which a client would compute longer than any analysis takes, by its numbers alone.

    Raises:
        Refused: Names the number and the limit.
    """
    sizes = {"clients": (request.clients, MOST_CLIENTS)}
    sizes |= {name: (value, MOST_OF_OPTION) for name, value in request.own.items() if type(value) is int}
    for name, (value, most) in sizes.items():
        if value > most:
            raise Refused(f"the analysis has {name} = {value:,}: a client takes at most {most:,}")


@lru_cache(maxsize=2)
def _made(text: bytes) -> tuple[Request, PrivacyPlan, Plan, Task]:
    """Compute the numbers from the request; cached, since it takes a second and clients of one process share it."""
    content = content_of(text, FORM)
    try:
        check_text("request", content["request"])
        request = Request.from_text(content["request"], "the server's analysis")
        # A name with a colon would be code of the server's choice.
        if request.kind not in names(FOLDER) or request.names or request.run or request.settings is None:
            raise Refused("the analysis names code or files of the server, or no clients")
        check_own(request.settings)
        _check_size(request)
        task = task_of(content)
        check_work(request.settings, task)
    except (InputError, RefusedPlan, ValidationError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise Refused(f"the analysis is refused here: {error}") from error
    # What an encoder lacks on this machine is for its owner to mend, and no fault of the analysis.
    task = with_own_encoder(task, request.settings, content)
    try:
        privacy, plan = request.planned(), make_plan(request.settings, task, earlier=())
        agreement_for(request, privacy)
    except (InputError, RefusedPlan, ValidationError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise Refused(f"the analysis is refused here: {error}") from error
    check_numbers(FORM, privacy, content, "request")
    return request, privacy, plan, task
