"""The server of an analysis among real clients: charged and released as in a simulation, asked over a wire."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from shlex import quote

import numpy as np

from dpfedmeta.analytics.analysis import Analysis, PendingRelease, SumForm, Sums
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.execute import AskedOf
from dpfedmeta.analytics.public_context import Ground
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.offers.offered_settings import for_clients
from dpfedmeta.federation.offers.signed_analysis import agreement_for, sign_analysis
from dpfedmeta.federation.server.client_requests import TOLD, Blame, Heard, Told
from dpfedmeta.federation.server.client_requests import ClientRequests as Questions
from dpfedmeta.federation.server.federation_checks import check_federation, check_length
from dpfedmeta.federation.server.quorum import wait_for
from dpfedmeta.federation.server.remote_sums import NoSum, secure_sum
from dpfedmeta.federation.wire_format import Attempt, Start
from dpfedmeta.planning.privacy.masking_graph import check_graph
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.training.state.resume import identity_of

_SUM, _MARK_BYTES = "sum.bin", 32


@dataclass(frozen=True, kw_only=True)
class Company:
    """Real clients behind a wire.

    Attributes:
        channel: The wire.
        identity: The server's private Ed25519 key.
        roster: Identities of all clients: client number i is the i-th.
        seconds: How long a question waits for answers.
        fewest: How many clients must be connected before they are asked.
        wait: How long to wait for these.
        heard: Told how each question went; who answered is for who runs the server alone.
        blamed: Told whose shares were wrong; for who runs the server alone, too.
        waiting: Told every ten seconds for how many clients it waits.
        data_folder: Where the server's own data sets are; None: DPFEDMETA_DATA.
    """

    channel: Channel
    identity: bytes
    roster: Sequence[bytes]
    seconds: float = 60.0
    fewest: int = 1
    wait: float = 600.0
    heard: Callable[[Heard], None] = lambda heard: None
    blamed: Callable[[Blame], None] = lambda blame: None
    waiting: Callable[[str], object] = lambda line: None
    data_folder: Path | None = None

    @property
    def asked_of(self) -> AskedOf:
        """For `execute.begin` and `resume`."""
        return lambda request: RemoteClients(request=request, company=self)


@dataclass(frozen=True, kw_only=True, eq=False)
class RemoteClients:
    """Clients that hold their data themselves (a simulated_clients.Clients).

    Attributes:
        request: What is asked.
        company: Of whom.
    """

    request: Request
    company: Company

    @cached_property
    def ground(self) -> Ground:
        """Public information about the clients: settings, training plan and model."""
        return Ground(self.request, self.company.data_folder)

    @cached_property
    def digest(self) -> str:
        """Digest of the roster and of the model that is adapted, if any.

        The clients' data are not in it: a client that is asked again sends the bytes that it sent before.
        """
        model = self.ground.model if self.request.run else b""
        return sha256(b"".join(self.company.roster) + sha256(model).digest()).hexdigest()

    def check(self, analysis: Analysis) -> None:
        """Refuse, before the charge, an analysis that the clients could not answer (see `Clients`)."""
        if self.request.names or self.request.settings is None:
            raise InputError("--names: is only for simulated clients; real clients hold their own images; leave it out")
        check_federation(self.request.settings, self.company.roster)
        analysis.check(self.ground)
        # Whatever could not be signed, or planned by a client, is refused before it is charged.
        _ = self.ground.plan, for_clients(self.request.settings, self.ground.task)
        plan = self.request.planned()
        check_graph(plan)
        agreement_for(self.request, plan)
        form = analysis.form(plan)
        check_length(f"{form.dimension:,} numbers are too many for an answer", form.dimension * form.bits // 8)
        check_length("the model is too large to be asked for", len(self.ground.model) if self.request.run else 0)

    def ready(self) -> None:
        """Wait until enough clients are connected (see `Clients`)."""
        company = self.company
        wait_for(company.channel, company.roster, company.fewest, company.wait, company.waiting)

    def sums(self, analysis: Analysis, asking: PendingRelease, told: bytes, run: RunDirectory) -> Sums:
        """SECRET: as `Clients`, by the protocol of secure aggregation, or what it gave before the server was killed.

        Guarantee:
            One sum at most for a charge: each client agrees to one set of survivors of its answer, and what the server
            learned is on its disk before anything is released.
        """
        company, server = self.company, Identity(self.company.identity)
        name = sha256(b"dpfedmeta analysis" + identity_of(run).run.encode()).digest()
        ground, cohort = self.ground, asking.cohort
        signed = sign_analysis(
            self.request, asking.plan, ground.plan, ground.task, run=name, server=server, roster=company.roster
        )
        start = Start(invited=tuple(cohort.clients.tolist()), task=told)
        mark = sha256(signed.digest + repr(cohort.again).encode() + start.encode()).digest()
        form, path = analysis.form(asking.plan), run.secret / _SUM
        kept = _kept(path, mark, form)
        if kept is not None:
            return kept
        questions = Questions(
            channel=company.channel,
            signed=signed,
            server=server,
            roster=company.roster,
            seconds=company.seconds,
            heard=company.heard,
            blamed=company.blamed,
            told=Told(path=run.secret / TOLD),
        )
        attempt = Attempt(run=name, round=0, again=cohort.again)
        try:
            found = secure_sum(questions, company.identity, attempt, start)
        except NoSum as error:
            out = sorted(questions.left_out & (questions.told.survivors(attempt) or set()))
            if out:
                raise InputError(
                    f"{run.path}: can have no sum any more ({error}), so nothing is released; the analysis is charged. "
                    f"Start a new one, with a roster that lacks {', '.join(f'client {number}' for number in out)} "
                    "(counted from 0)"
                ) from None
            raise InputError(
                f"{run.path}: too few of {len(start.invited)} clients answered every step ({error}), so nothing is "
                "released; the analysis is charged. Check that the clients are connected, and their logs; then "
                f"go on with --resume {quote(str(run.path))}. Clients that answered are not charged again"
            ) from None
        content = len(found.survivors).to_bytes(4, "little") + found.total.astype("<u4").tobytes()
        replace_file(path, mark + content, SECRET)
        return _kept_of(content, form)


@dataclass(frozen=True, kw_only=True, eq=False)
class RemoteSums:
    """SECRET: what the protocol gave (a `Sums`).

    Attributes:
        entered: How many clients' vectors it is the sum of.
        total: All parts in a row, modulo 2^bits.
        form: Their form.
    """

    entered: int
    total: IntArray
    form: SumForm

    def part(self, index: int) -> IntArray:
        """Return one part of the sum modulo 2^bits, [length]."""
        return self.total[self.form.length * index : self.form.length * (index + 1)]


def _kept(path: Path, mark: bytes, form: SumForm) -> RemoteSums | None:
    """The sum that this very question had, where the server was killed after it."""
    content = path.read_bytes() if path.exists() else b""
    if content[:_MARK_BYTES] != mark:
        return None
    return _kept_of(content[_MARK_BYTES:], form)


def _kept_of(content: bytes, form: SumForm) -> RemoteSums:
    total = np.frombuffer(content[4:], dtype="<u4").astype(np.int64)
    return RemoteSums(entered=int.from_bytes(content[:4], "little"), total=total, form=form)
