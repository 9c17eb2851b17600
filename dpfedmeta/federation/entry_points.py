"""A server and a client as the commands run them: keys and settings from files, Flower as the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.client.client_budget import Promise, limit_of
from dpfedmeta.federation.client.client_home import LEDGER, claim, note_answered, open_home
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, prepare_flower
from dpfedmeta.federation.identity.credentials import Card, checked_fewest, read_identity, read_roster
from dpfedmeta.federation.identity.invitation import (
    CERTIFICATE,
    CERTIFICATE_KEY,
    INVITATION,
    operator_identity,
    port_of,
    read_invitation,
)

if TYPE_CHECKING:
    from dpfedmeta.analytics.execute import AskedOf
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.federation.channel import Channel, Party
    from dpfedmeta.training.results.summary import Status
    from dpfedmeta.training.tracking.callbacks import Callback

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """A server of a federation, besides its settings.

    Attributes:
        keys: The operator's folder.
        roster: File of the clients' cards.
        host: To listen on.
        port: To listen on; None: as the invitation says.
        page_host: For the page.
        page: Port of the page; 0: any; None: no page.
        seconds: How long a question waits for answers.
        fewest: How many clients must be connected before a round begins; None: all.
        wait: Seconds to wait for them.
        data_folder: Where the server's public images are; None: DPFEDMETA_DATA.
    """

    keys: Path
    roster: Path
    host: str = "127.0.0.1"
    port: int | None = None
    page_host: str = "127.0.0.1"
    page: int | None = 0
    seconds: float = 60.0
    fewest: int | None = None
    wait: float = 600.0
    data_folder: Path | None = None


@contextmanager
def listening(options: ServerOptions, cards: Sequence[Card], say: Say = lambda line: None) -> Iterator[Channel]:
    """A wire to the clients of a roster.

    Raises:
        InputError: Keys or addresses cannot be used.
    """
    invitation = read_invitation(options.keys / INVITATION)
    prepare_flower(options.keys / "flower")
    from dpfedmeta.federation.flower.flower_channel import link_channel
    from dpfedmeta.federation.flower.superlink import Link

    port = port_of(invitation) if options.port is None else options.port
    files = {"certificate": options.keys / CERTIFICATE, "key": options.keys / CERTIFICATE_KEY}
    link = Link(cards, host=options.host, port=port, most_bytes=MOST_BYTES, **files)
    channel = link_channel(link)
    try:
        say(f"listening on {options.host}:{link.port} for {len(cards)} clients")
        yield channel
    finally:
        channel.close()


def run_server(
    options: ServerOptions,
    settings: Settings,
    cards: Sequence[Card],
    *,
    callbacks: Sequence[Callback] = (),
    say: Say = lambda line: None,
) -> tuple[RunDirectory, Status]:
    """Listen, train, hand out the model; or go on where a killed server stopped.

    Raises:
        InputError: Keys, addresses, settings or the run directory cannot be used, or fewer clients or more are to
            connect than there are.
        RefusedPlan: A guarantee would not hold.
    """
    fewest = checked_fewest(options.fewest, len(cards))
    private, _ = operator_identity(options.keys), read_invitation(options.keys / INVITATION)
    run = Path(settings.run.dir, str(settings.run.name))
    from dpfedmeta.federation.server.federation_checks import check_federation
    from dpfedmeta.federation.server.quorum import attendance
    from dpfedmeta.federation.server.status_page import Page, Progress
    from dpfedmeta.federation.server.training_server import serve
    from dpfedmeta.reporting.html.pictures import draw_pictures

    roster = [card.identity for card in cards]
    check_federation(settings, roster)
    with ExitStack() as open_:
        channel = open_.enter_context(listening(options, cards, say))
        names = {card.identity: card.name for card in cards}
        open_.enter_context(attendance(names, channel.present, say))
        progress = Progress(names, channel.present, say)
        if options.page is not None:
            page = Page(progress, options.page_host, options.page)
            open_.callback(page.close)
            say(f"page: {page.address}")
        return serve(
            settings,
            channel,
            run,
            identity=private,
            roster=roster,
            seconds=options.seconds,
            fewest=fewest,
            wait=options.wait,
            data_folder=options.data_folder,
            callbacks=[*callbacks, progress],
            heard=progress.heard,
            blamed=say,
            waiting=say,
            names=list(names.values()),
            page=draw_pictures,
        )


@contextmanager
def asking_clients(options: ServerOptions, cards: Sequence[Card], say: Say) -> Iterator[AskedOf]:
    """Real clients for an analysis, while the server listens.

    Raises:
        InputError: Keys or addresses cannot be used.
    """
    from dpfedmeta.federation.server.analytics_server import Company

    fewest, roster = checked_fewest(options.fewest, len(cards)), [card.identity for card in cards]
    private = operator_identity(options.keys)

    with listening(options, cards, say) as channel:
        yield Company(
            channel=channel,
            identity=private,
            roster=roster,
            seconds=options.seconds,
            fewest=fewest,
            wait=options.wait,
            heard=lambda heard: say(str(heard)),
            blamed=lambda blame: say(blame.text(lambda number: cards[number].name)),
            waiting=say,
            data_folder=options.data_folder,
        ).asked_of


def cards_of(path: Path) -> tuple[Card, ...]:
    """The clients of a roster file."""
    return read_roster(path)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """A client of a federation.

    Attributes:
        data: Its folder of images.
        invitation: The operator's file.
        identity: Its secret key file.
        home: Where it keeps its ledger, log and model.
        promise: What it lets a server learn.
        server: HOST:PORT, where it is reached otherwise than the invitation says.
        patience: Seconds without a server before it gives up.
        dry_run: Look at the plan, say what would be promised and sent, and end; nothing in its home changes.
        stay: Wait for further runs after the first.
        change_limit: The promise replaces the one that the home has.
        kept: Parts of the promise that nobody gave; under `change_limit` they stay as the home has them.
    """

    data: Path
    invitation: Path
    identity: Path
    home: Path
    promise: Promise
    server: str | None = None
    patience: float = 600.0
    dry_run: bool = False
    stay: bool = False
    change_limit: bool = False
    kept: frozenset[str] = frozenset()


@dataclass(kw_only=True, eq=False)
class Counted:
    """A party, how many questions it has answered, and how far its ledger goes, which is noted outside of its home.

    A dry run notes nothing. With `sure` no answer leaves that cannot be noted.
    """

    party: Party
    home: Path
    keep: bool = True
    sure: bool = False
    answered: int = 0
    _written: int | None = None

    def answer(self, question: bytes) -> bytes:
        """Answer a question, and count it.

        Raises:
            InputError: Another copy of the home answered meanwhile.
            OSError: It is `sure`, and the register cannot be written.
        """
        found = self.party.answer(question)
        self.answered += 1
        if self.keep and (written := _changed(self.home / LEDGER)) != self._written:
            # Before the answer leaves; where the register cannot be written, the start has said so.
            with suppress(*(() if self.sure else (OSError,))):
                note_answered(self.home)
            self._written = written
        return found


def run_client(options: ClientOptions, say: Say) -> Path | None:
    """Answer a server's questions until it hands out the model; the file of the adapted one.

    Returns:
        The adapted model; None: a dry run, or images that give none.

    Raises:
        InputError: Files cannot be used, the images belong to another home, the server does not take this client, or
            its plan cannot be answered here, or not within the client's limit.
        RuntimeError: No server for so long as the client has patience.
    """
    private, invitation = read_identity(options.identity), read_invitation(options.invitation)
    with _unnoticed(say):
        keep, accept = not options.dry_run, options.change_limit
        if told := open_home(options.home, options.data, private, accept=accept, keep=keep):
            say(told)
    promise = options.promise
    # An older copy that was taken may have a newer limit since whoever typed the options read it.
    if accept and options.kept and (limit := limit_of(options.home)):
        promise = replace(promise, **{name: limit[name] for name in options.kept})

    def claimed() -> None:
        with _unnoticed(say):
            claim(options.home, options.data, private, keep=keep)

    prepare_flower(None if options.dry_run else options.home / "flower")
    from dpfedmeta.federation.client.client import MODEL, RealClient
    from dpfedmeta.federation.flower.flower_client import attend
    from dpfedmeta.federation.flower.http_client import Wire

    party = RealClient(
        options.data,
        private,
        options.home / "ledger.jsonl",
        server=invitation.identity,
        promise=promise,
        say=say,
        dry_run=options.dry_run,
        change_limit=options.change_limit,
        claimed=claimed,
    )
    wire = Wire(
        server=options.server or invitation.server,
        authority=invitation.authority,
        private=private,
        patience=options.patience,
    )
    model = options.home / MODEL
    before, counted = _changed(model), Counted(party=party, home=options.home, keep=not options.dry_run)

    def over() -> bool:
        if options.dry_run:
            return counted.answered > 0
        if not options.stay and party.unfit is not None:
            return True
        # Not at the adapted model: whether the images give one would be told by a client that leaves or stays.
        return not options.stay and party.handed_out

    attend(counted, wire, over=over, say=say)
    if party.unfit is not None:
        raise InputError(party.unfit)
    return model if _changed(model) != before else None


@contextmanager
def _unnoticed(say: Say) -> Iterator[None]:
    """Say so where the register of homes cannot be read or written."""
    try:
        yield
    except OSError as error:
        unseen = "a second home for the same images, or an older copy of it, would go unnoticed here"
        say(f"{error.filename}: {error.strerror}; so {unseen}")


def _changed(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
