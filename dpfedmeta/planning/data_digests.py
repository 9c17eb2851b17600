"""Digests of the data that clients hold, kept among a run's secrets: a repeated round must see the same data."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.run_directory import LEDGER, RunDirectory, write_text
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.populations.population import Population, clients_digest

NO_DIGEST = (
    "after a crash it is not known whether these clients still hold the same data (no digest), so a repeated round is "
    "a new release and charged again, and a checkpoint is written after every round"
)
_DATA = "data.json"


@dataclass(frozen=True, kw_only=True)
class HeldData:
    """SECRET: functions of private data, so they stay in the server's `secret/`.

    Attributes:
        sha256: Digest of the training images, and of how clients are made of them.
        own: Whether the clients were the caller's own instead.
        clients: Digest of what those hold; None: not own, or their population cannot say.
        decoded: Digest of the decoded images of all splits.
        source: Where the images came from.
    """

    sha256: str
    own: bool
    clients: str | None
    decoded: str
    source: str

    @property
    def people(self) -> str | None:
        """Digest of all that anybody holds; None: nobody can say."""
        return self.clients if self.own else self.decoded

    @property
    def known(self) -> bool:
        """True if a change of the data would be noticed."""
        return not self.own or self.clients is not None


def held_data(dataset: Dataset, own: Population | None) -> HeldData:
    """Return the digests of the clients' data, made of the data set or given by the caller."""
    decoded = dataset.train.decoded_digest()
    digest, targets = dataset.train.digest(decoded), dataset.task.targets
    if targets is not None:
        # The loss and the range of numbers to predict are in no record, and change every message.
        digest = hashlib.sha256(f"{digest} {targets!r}".encode()).hexdigest()
    return HeldData(
        sha256=digest,
        own=own is not None,
        clients=None if own is None else clients_digest(own),
        decoded=decoded,
        source=dataset.task.source.name,
    )


def keep_data(run: RunDirectory, held: HeldData) -> None:
    """Remember it, for the server alone."""
    write_text(run.secret / _DATA, json.dumps(asdict(held)) + "\n", mode=SECRET)


def kept_data(run: RunDirectory) -> HeldData:
    """Read the digests of the data that the clients of a run held when it began.

    Raises:
        InputError: The file is lost or damaged.
    """
    path = run.secret / _DATA
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content["sha256"], str):
            raise TypeError
        return HeldData(**content)
    except (OSError, *DAMAGED_JSON) as error:
        raise InputError(f"{path}: lost or damaged; restore it from a backup") from error


def changed_since(run: RunDirectory, dataset: Dataset) -> str | None:
    """Words for an evaluation on other images than those that a run began with; None: the same, or nobody knows."""
    try:
        kept = kept_data(run).decoded
    except InputError:
        return None  # a copy without secret/
    if kept == dataset.train.decoded_digest():
        return None
    return f"THE IMAGES OF {dataset.task.name} HAVE CHANGED since this run began: not comparable with its summary"


def trained_before(folder: Path, held: HeldData) -> str | None:
    """Words on the runs of a folder that charged clients of the same data; None: there is none."""
    people, found = held.people, list[str]()
    for path in sorted(folder.glob(f"*/{LEDGER}")):
        with suppress(InputError):  # a copy without secret/
            kept = kept_data(RunDirectory(path.parent))
            if people is not None and kept.people == people:
                found.append(path.parent.name)
    if not found:
        return None
    return (
        f"{counted_words(len(found), 'run')} in {folder} ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}) "
        "trained on the same people; promises add up, and none of these counts the others: give all of them one "
        "--population.register FILE (dpfedmeta account --population FILE --promise EPSILON DELTA)"
    )


def check_data(run: RunDirectory, held: HeldData, name: str) -> bool:
    """Refuse to go on with other data: a round that is done again would be another release for one charge.

    Args:
        run: The run that goes on.
        held: What the clients hold now.
        name: Of the data set.

    Returns:
        Whether it is known that they hold the same; if not, no round may be done again with the same noise.

    Raises:
        InputError: They differ, or nobody knows.
    """
    kept = kept_data(run)
    if kept.own and not held.own:
        raise InputError(
            f"{run.path}: it began with clients of your own, and none were handed over; resume it from Python with the "
            "same population: dpfedmeta.train(resume=..., population=...)"
        )
    if held.own and not kept.own:
        raise InputError(
            f"{run.path}: its clients were made of {name} as its settings say; resume it without a population of "
            "your own, or start a new run with it"
        )
    if kept.sha256 != held.sha256:
        raise InputError(
            f"{run.path}: the training images of {name} are not those that this run began with; give the same data "
            "(its folder), or start a new run"
        )
    if not (kept.known and held.known):
        return False
    if kept.clients != held.clients:
        raise InputError(
            f"{run.path}: the clients handed over hold other data than those that this run began with; hand over the "
            "same population, or start a new run"
        )
    return True
