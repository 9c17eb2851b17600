"""A whole federation on this machine: a server and clients as processes, with TLS, keys, and images of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote

from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.storage.downloads import default_data_folder
from dpfedmeta.federation.identity.credentials import card_line, write_identity
from dpfedmeta.federation.identity.invitation import INVITATION, ROSTER, make_operator

# Of each client's characters; the last drawings of each stay out of its folder, to try its model on.
_CHARACTERS, _TRIED = 10, 5
_FEWEST, _MOST = 3, 50
_END_SECONDS = 120.0
_STATE = "DPFEDMETA_STATE"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """A demonstration.

    Attributes:
        clients: N.
        out: Folder for everything; None: runs/federation-TIME.
        dataset: omniglot or strokes; None: omniglot where it is.
        rounds: T.
        plain: The server sees messages; else their sum under secure aggregation.
        data_folder: Where omniglot is; None: DPFEDMETA_DATA.
    """

    clients: int = 8
    out: Path | None = None
    dataset: str | None = None
    rounds: int = 20
    plain: bool = False
    data_folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class _Client:
    name: str
    holds: str
    folder: Path
    tried: tuple[tuple[ImageArray, ...], ...]

    @property
    def home(self) -> Path:
        """Beside its images: a home has a folder `images` of its own."""
        return self.folder / "home"

    @property
    def state(self) -> Path:
        """Register of a machine: the next demo has the same drawings under other keys, so each client has its own."""
        return self.folder / "state"

    @property
    def statement(self) -> str:
        """Command on what it spent, with the register that knows its home."""
        return f"{_STATE}={quote(str(self.state))} dpfedmeta account --statement {quote(str(self.home))}"


def run_demo(options: DemoOptions, say: Say) -> int:
    """Make keys and folders, start everybody, wait, and say how it ended; the exit code.

    Raises:
        InputError: The options fit no federation.
        RuntimeError: A process ended with an error.
    """
    if not _FEWEST <= options.clients <= _MOST:
        raise InputError(f"--clients {options.clients}: from {_FEWEST} to {_MOST} on one machine")
    if options.rounds < 1:
        raise InputError(f"--rounds {options.rounds}: at least 1")
    begun, dataset = time.monotonic(), options.dataset or _available(options.data_folder)
    out = (options.out or Path("runs") / f"federation-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: there is something already; choose another --out")
    operator = out / "operator"
    make_operator(operator, ["127.0.0.1", "localhost"], _free_port(), os.urandom(32))
    clients = _clients(open_dataset(dataset, options.data_folder).train, out, options.clients)
    cards = [_enrolled(client) for client in clients]
    replace_file(operator / ROSTER, "".join(f"{card}\n" for card in cards).encode())
    for client in clients:
        say(f"{client.name}: {len(client.tried)} characters of {client.holds}")
    with ExitStack() as running:
        server = running.enter_context(_process(_server_words(options, operator, dataset, out)))
        taking_part = [
            (client, running.enter_context(_process(_client_words(client, operator), client))) for client in clients
        ]
        code = server.wait()
        if code:
            raise RuntimeError(f"the server ended with exit code {code}; see above")
        for client, process in taking_part:
            if process.wait(timeout=_END_SECONDS):
                raise RuntimeError(f"{client.name} ended with an error; see {client.folder / 'output.txt'}")
    for client in clients:
        say(_tried(client))
    say(f"what a client spent, on the machine that it plays: {clients[0].statement}")
    say(f"{out}: report {out / 'run' / 'report.html'}; {time.monotonic() - begun:.0f} s in all")
    return 0


def _available(data_folder: Path | None) -> str:
    folder = data_folder or default_data_folder()
    return "omniglot" if (folder / "omniglot" / "images_background.zip").is_file() else "strokes"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _clients(pool: ClassPool, out: Path, count: int) -> list[_Client]:
    """Alphabets where the characters have some, else characters in a row; nobody shares one."""
    found: dict[str, list[int]] = {}
    for index in range(pool.classes):
        group = pool.groups[index] if pool.groups else f"drawn alphabet {index * count // pool.classes + 1}"
        found.setdefault(group, []).append(index)
    largest = sorted(found, key=lambda group: (-len(found[group]), group))[:count]
    if len(largest) < count:
        raise InputError(f"--clients {count}: the data have {len(found)} alphabets, one for each client")
    return [_client(pool, out / f"client-{n}", group, found[group]) for n, group in enumerate(largest, 1)]


def _client(pool: ClassPool, folder: Path, group: str, indices: Sequence[int]) -> _Client:
    tried = []
    for index in indices[:_CHARACTERS]:
        first, images = pool.first[index], pool.counts[index]
        inside = folder / "images" / Path(pool.names[index]).name
        inside.mkdir(parents=True)
        for place in range(images - _TRIED):
            Image.fromarray(pool.images[first + place, 0]).save(inside / f"{place:02d}.png")
        tried.append(tuple(pool.images[first + images - _TRIED + place] for place in range(_TRIED)))
    return _Client(name=folder.name, holds=group, folder=folder, tried=tuple(tried))


def _enrolled(client: _Client) -> str:
    private = os.urandom(32)
    write_identity(client.folder / "identity.pem", private)
    return card_line(private, client.name)


def _server_words(options: DemoOptions, operator: Path, dataset: str, out: Path) -> list[str]:
    n = str(options.clients)
    words = ["server", "--keys", str(operator), "--roster", str(operator / ROSTER), "--dataset", dataset]
    words += ["--run.dir", str(out), "--run.name", "run", "--rounds", str(options.rounds), "--run.workers", "1"]
    # The preset of silos, for the 15 drawings of a character that each has.
    words += ["--config", str(files("dpfedmeta.configs").joinpath("federations/cross-silo.yaml"))]
    words += ["--clients", n, "--cohort", n, "--shots", "7", "--task.queries", "7", "--privacy.record.epsilon", "8"]
    # As many as may collude where a server picks them (cohort_collusion); of at most 20 silos one.
    words += ["--privacy.client.colluding", str(-(-options.clients // 20))]
    words += ["--evaluation.queries", "10", "--evaluation.episodes", "100", "--evaluation.validation_episodes", "60"]
    words += ["--seconds", "60", "--wait", "180"]
    # A target for silos as a whole is out of reach, and what the clients add covers their records.
    words += ["--algo", "dp-agrlr-micro", "--noise-multiplier", "1"] if options.plain else []
    return words + ([] if options.data_folder is None else ["--data-dir", str(options.data_folder)])


def _client_words(client: _Client, operator: Path) -> list[str]:
    words = ["client", "--data", str(client.folder / "images"), "--invitation", str(operator / INVITATION)]
    words += ["--identity", str(client.folder / "identity.pem"), "--home", str(client.home)]
    return [*words, "--epsilon", "8", "--patience", "240"]


@contextmanager
def _process(words: Sequence[str], client: _Client | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start one process of the federation, and end it with the context."""
    command = [sys.executable, "-m", "dpfedmeta", "federate", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if client is not None:
        environment |= {_STATE: str(client.state)}
    with ExitStack() as opened:
        output = None if client is None else opened.enter_context((client.folder / "output.txt").open("wb"))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tried(client: _Client) -> str:
    """Return a line on the accuracy of the client's own model on drawings that were in no folder."""
    import numpy as np

    from dpfedmeta.federation.client.client import MODEL
    from dpfedmeta.training.personal.personal_model import load_personal

    model = load_personal(client.home / MODEL)
    images = np.stack([image for character in client.tried for image in character])
    labels = np.repeat(np.arange(len(client.tried)), _TRIED)
    right = float((model.logits(images).argmax(1).numpy() == labels).mean())
    return f"{client.name}: own model {client.home / MODEL}, {right:.0%} of {len(labels)} drawings it never saw"
