"""The server of a federation: the ordinary training loop, whose clients are asked over a wire."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, end_of_whole_lines, replace_file
from dpfedmeta.core.files.run_directory import SUMMARY, WITH_RESULT, RunDirectory, append_lines, load_weights
from dpfedmeta.core.params import dimension, flatten
from dpfedmeta.data.populations.population import Population
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.offers.signed_plan import SignedPlan, opened_plan, sign_plan
from dpfedmeta.federation.server.client_requests import TOLD, Blame, ClientRequests, Heard, Told
from dpfedmeta.federation.server.federation_checks import check_agreements, check_federation, check_length
from dpfedmeta.federation.server.quorum import Presence, TooFew, all_are_asked, offer_until_answered, wait_for
from dpfedmeta.federation.server.remote_sums import AskedAdder, AskedSums
from dpfedmeta.federation.wire_format import Attempt, QuestionKind, packed_floats
from dpfedmeta.learning.meta.algorithm import numbers_sent
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity
from dpfedmeta.simulation.backend import Backend
from dpfedmeta.simulation.cohort_sums import SecureSums
from dpfedmeta.training.results.summary import Status
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunContext, RunOptions
from dpfedmeta.training.state.resume import check_same_settings, go_on, identity_of, settings_of_run
from dpfedmeta.training.tracking.callbacks import Callback, CallbackFailed

# The plan as clients got it, and the numbers of those that have the model; both go when all have it.
_OFFER, _HANDED = "handing_out.bin", "handed_out.json"
_FAULTS = "faults.jsonl"


@dataclass(frozen=True, kw_only=True)
class RemotePopulation:
    """Clients that hold their data themselves (population.Population): here there is nothing to read.

    Attributes:
        roster: Their identities, by number.
    """

    roster: tuple[bytes, ...]

    @property
    def clients(self) -> int:
        """N."""
        return len(self.roster)

    def episode(self, client: int) -> object:
        """Not here.

        Raises:
            IndexError: Always.
        """
        raise IndexError(f"client {client}: its data are on its own machine")

    def digest(self) -> str:
        """Digest of the clients' identities: a client that is asked again sends the same bytes, or nothing."""
        return sha256(b"".join(self.roster)).hexdigest()


@dataclass(kw_only=True, eq=False)
class Federation:
    """The clients of one server (a training.setup.ClientProvider).

    Attributes:
        channel: The wire.
        identity: The server's private Ed25519 key.
        roster: Identities of all clients: client number i is the i-th.
        seconds: How long a question waits for answers.
        fewest: How many clients must have answered the plan before a round is charged.
        wait: How long they may take: each makes the plan again for itself, and a slow one may seem gone meanwhile.
        heard: Told how each question went.
        blamed: Told whose shares were wrong, with names where all clients are asked; who it was stands in
            secret/faults.jsonl in any case.
        names: Of the clients, by number.
        waiting: Told every ten seconds for how many clients it waits.
    """

    channel: Channel
    identity: bytes
    roster: tuple[bytes, ...]
    seconds: float
    fewest: int = 1
    wait: float = 0.0
    heard: Callable[[Heard], None] = lambda heard: None
    blamed: Callable[[str], None] = lambda line: None
    names: tuple[str, ...] = ()
    waiting: Callable[[str], object] = lambda line: None
    _asking: ClientRequests | None = None
    _signed: SignedPlan | None = None

    def population(self, plan: Plan) -> Population:
        """Return the clients of the roster, after checking that the plan fits them.

        Raises:
            InputError: The plan counts with another number of clients.
            RefusedPlan: Under secure aggregation too few clients would stay to agree on who survived.
        """
        if plan.privacy.clients != len(self.roster):
            raise InputError(
                f"population.clients = {plan.privacy.clients:,}, but the roster names {len(self.roster):,} clients; "
                f"give --clients {len(self.roster)}"
            )
        check_agreements(plan)
        initial = plan.algorithm.initial(plan.network, plan.settings.run.seed)
        sent = numbers_sent(plan.algorithm, plan.algorithm.learned(plan.network, initial))
        numbers = max(dimension(initial), sent)
        check_length(f"{numbers:,} weights are too many for a federation; take a smaller network", 4 * numbers)
        population: Population = RemotePopulation(roster=self.roster)  # type: ignore[assignment]
        return population

    def backend(self, made: RunContext, run: RunDirectory) -> Backend:
        """Offer the plan to the clients, and return the backend that adds up their messages, as aggregation.mode says.

        Raises:
            InputError: So many clients decline the plan, or do not answer it, that no round of it is worth its charge.
        """
        server = Identity(self.identity)
        name = sha256(b"dpfedmeta federation" + identity_of(run).run.encode()).digest()
        signed = sign_plan(made.plan, made.dataset.task, run=name, server=server, roster=self.roster)
        # From here on the model is due to all clients, however this process ends.
        (run.secret / _HANDED).unlink(missing_ok=True)
        replace_file(run.secret / _OFFER, signed.signature + signed.text, SECRET)
        self._signed = signed
        asking = self._asking = self._questions(signed, server)
        asking.blamed = lambda blame: self._blame(run, asking, blame)
        asking.told = Told(path=run.secret / TOLD)
        asking.left_out |= left_out(run)
        offer_until_answered(asking, self.fewest, self.wait, self.waiting)
        if made.plan.privacy.secure is None:
            return AskedSums(clients=made.clients, asking=asking)
        added = AskedAdder(asking=asking, identity=self.identity)
        return SecureSums(clients=made.clients, workers=made.workers, added=added)

    def _blame(self, run: RunDirectory, asking: ClientRequests, blame: Blame) -> None:
        text = blame.text(self._name)
        excluded = asking.left_out.issuperset(blame.clients)
        line = {"round": blame.round, "clients": blame.clients, "text": text, "left_out": excluded}
        append_lines(run.secret / _FAULTS, [line], SECRET)
        # Who takes part in a round is as secret as the cohort.
        said = text + "; left out from now on" * excluded
        shown = said if all_are_asked(asking) else "shares of a client were wrong"
        self.blamed(f"round {blame.round}: {shown} (secret/{_FAULTS})")

    @property
    def asking(self) -> ClientRequests | None:
        """Its questions; None before there is a plan."""
        return self._asking

    def hand_out(self, run: RunDirectory) -> None:
        """Send the learned model to every client that lacks it, which adapts it to its own images.

        Raises:
            InputError: The run has no readable weights.
        """
        asking, signed, lacking = self._asking, self._signed, self._lacking(run)
        if asking is None or signed is None or not lacking:
            return
        weights = load_weights(run.weights)
        flat = flatten({name: weights[name] for name in signed.initial}).float()
        body, attempt = packed_floats(np.asarray(flat.numpy())), Attempt(run=signed.run, round=0)
        adapted = asking.ask(QuestionKind.MODEL, attempt, dict.fromkeys(lacking, body))
        left = [number for number in lacking if number not in adapted]
        if not left:
            for name in (_OFFER, _HANDED):
                (run.secret / name).unlink(missing_ok=True)
            return
        have = [number for number in range(len(self.roster)) if number not in left]
        replace_file(run.secret / _HANDED, json.dumps(have).encode(), SECRET)
        self.waiting(
            f"{len(have)} of {len(self.roster)} clients have the model; type the same command again when the others "
            f"are connected: {', '.join(self._name(number) for number in left)}"
        )

    def hand_out_again(self, run: RunDirectory) -> None:
        """`hand_out` of a run that has ended before: to whoever lacks the model and is there in time."""
        lacking = self._lacking(run)
        if not lacking or run.read_json(SUMMARY)["status"] not in WITH_RESULT:
            return
        content, server = (run.secret / _OFFER).read_bytes(), Identity(self.identity)
        signed = opened_plan(content[SIGNATURE_BYTES:], content[:SIGNATURE_BYTES], server.public)
        self._signed, self._asking = signed, self._questions(signed, server)
        with suppress(TooFew):
            wait_for(self.channel, [self.roster[each] for each in lacking], len(lacking), self.wait, self.waiting)
        self.hand_out(run)

    def _lacking(self, run: RunDirectory) -> list[int]:
        """Numbers of the clients to which the model is due."""
        if not (run.secret / _OFFER).exists():
            return []
        kept = run.secret / _HANDED
        try:
            have = {int(number) for number in json.loads(kept.read_bytes())} if kept.exists() else set()
        except DAMAGED_JSON:
            have = set()  # a client that has it already takes it again
        return [number for number in range(len(self.roster)) if number not in have]

    def _name(self, number: int) -> str:
        return self.names[number] if self.names else f"client {number}"

    def _questions(self, signed: SignedPlan, server: Identity) -> ClientRequests:
        return ClientRequests(
            channel=self.channel,
            signed=signed,
            server=server,
            roster=self.roster,
            seconds=self.seconds,
            heard=self.heard,
        )


def left_out(run: RunDirectory) -> frozenset[int]:
    """SECRET: clients whose shares ended an attempt at a sum beyond doubt, in this or an earlier process.

    Raises:
        InputError: The file that says so is damaged.
    """
    path = run.secret / _FAULTS
    content = path.read_bytes() if path.exists() else b""
    try:
        lines = [json.loads(line) for line in content[: end_of_whole_lines(content)].decode().splitlines()]
        return frozenset(int(number) for line in lines if line["left_out"] for number in line["clients"])
    except DAMAGED_JSON as error:
        raise InputError(f"{path}: damaged; it says which clients are left out; restore it from a backup") from error


def serve(
    settings: Settings,
    channel: Channel,
    folder: Path,
    *,
    identity: bytes,
    roster: Sequence[bytes],
    seconds: float = 60.0,
    fewest: int = 1,
    wait: float = 600.0,
    data_folder: Path | None = None,
    secure_rng: bool = False,
    callbacks: Sequence[Callback] = (),
    heard: Callable[[Heard], None] = lambda heard: None,
    blamed: Callable[[str], None] = lambda line: None,
    names: Sequence[str] = (),
    waiting: Callable[[str], object] = lambda line: None,
    page: Callable[[RunDirectory], object] = lambda run: None,
) -> tuple[RunDirectory, Status]:
    """Train a federation of real clients, or go on where a killed server stopped; then hand out what was learned.

    Args:
        settings: As for a simulation; of the data set its validation and test classes are used, which are public.
        channel: The wire.
        folder: The run directory. If it holds a run already, that one goes on.
        identity: The server's private Ed25519 key.
        roster: Identities of all clients; their order is their numbers, and never changes.
        seconds: How long a question waits for answers.
        fewest: How many clients must be connected before a round is begun.
        wait: How long to wait for these.
        data_folder: Where the server's images are; None: DPFEDMETA_DATA.
        secure_rng: Noise and cohorts straight from the operating system.
        callbacks: Told what happens, as in a simulation.
        heard: Told how each question went; who answered is as secret as the cohort.
        blamed: Told, in one line each, whose shares under secure aggregation were wrong.
        names: Of the clients, by number, for these lines.
        waiting: Told every ten seconds for how many clients it waits.
        page: Writes the page of the run's end, while nobody else may write the run.

    Returns:
        The run directory, and how the run ended.

    Raises:
        InputError: Something does not fit, or the run that is there began with other settings.
        RefusedPlan: A guarantee that is asked for would not hold among real clients.
        TooFew: Too few clients were connected or took part; the run ended cleanly, and the same call goes on with it.
    """
    settings = _as_run(settings, folder)
    check_federation(settings, roster)
    federation = Federation(
        channel=channel,
        identity=identity,
        roster=tuple(roster),
        seconds=seconds,
        fewest=fewest,
        wait=wait,
        heard=heard,
        blamed=blamed,
        names=tuple(names),
        waiting=waiting,
    )
    told = (*callbacks, Presence(federation=federation, fewest=fewest, seconds=wait, waiting=waiting))
    options = RunOptions(data_folder=data_folder, secure_rng=secure_rng, page=page, elsewhere=federation)
    before = RunDirectory(folder)

    def train(settings: Settings, options: RunOptions) -> tuple[RunDirectory, Status]:
        run, status = run_training(settings, options, told)
        if status in WITH_RESULT:
            federation.hand_out(run)
        return run, status

    try:
        if not before.ledger.exists():
            return train(settings, options)
        return go_on(
            before,
            lambda: _kept_settings(before, settings),
            lambda kept: train(kept, replace(options, resume=before, secure_rng=False)),
            told=lambda _: federation.hand_out_again(before),
            page=page,
        )
    except CallbackFailed as failed:
        # What the operator can mend, in its own words.
        raise failed.__cause__ if isinstance(failed.__cause__, TooFew) else failed from None


def _as_run(settings: Settings, folder: Path) -> Settings:
    """In this run directory, of real clients; a checkpoint after every round, since they answer none but the last."""
    run = replace(settings.run, dir=str(folder.absolute().parent), name=folder.name, checkpoint_every=1)
    return replace(settings, run=run, population=replace(settings.population, kind="real"))


def _kept_settings(run: RunDirectory, settings: Settings) -> Settings:
    """Return the settings that the run began with, after a comparison with those of today."""
    kept = settings_of_run(run, {})
    given = replace(settings, run=replace(settings.run, noise_seed=kept.run.noise_seed))
    check_same_settings(run, kept, given, ", or choose another folder")
    return kept
