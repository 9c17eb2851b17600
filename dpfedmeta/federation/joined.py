"""A run that a client has joined: the plan as it made it itself, what it computes there, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.durable import SECRET, replace_file
from dpfedmeta.errors import InputError
from dpfedmeta.federation.messages import Attempt, Floats, Task
from dpfedmeta.federation.own_images import OwnImages, open_images
from dpfedmeta.federation.promise import Promise, epsilon_after, most_participations
from dpfedmeta.federation.signed_plan import SignedPlan
from dpfedmeta.parameters import Params, dimension, unflatten
from dpfedmeta.randomness import GENERATOR, IntArray, KeyedSource, draw_secret_seed
from dpfedmeta.secure_aggregation.refusals import Refused
from dpfedmeta.simulation.client_side import ClientSide
from dpfedmeta.simulation.secure_sums import rounded_messages
from dpfedmeta.training.data import client_side

_OFFER, _NOISE, _ANSWER, _REVEALED = "plan.bin", "noise.json", "last_answer.bin", "revealed.json"
_RUNS, _NAME = "runs", 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """What a client holds of one run.

    Attributes:
        signed: The plan.
        number: The client's.
        side: What it computes, on its own images, with noise of a key that no other run has.
        most: How many of the rounds its promise allows.
        folder: Where it keeps what must survive.
    """

    signed: SignedPlan
    number: int
    side: ClientSide
    images: OwnImages
    most: int
    folder: Path

    @property
    def dimension(self) -> int:
        """Weights that are learned."""
        return dimension(self.signed.learned)

    def vector(self, task: Task, attempt: Attempt) -> Floats:
        """What the client sends to a server that sees messages, [d]: clipped, with the noise that the plan gives it.

        Guarantee:
            The release that `most` and the client's ledger count. The same question gives the same bits.

        Raises:
            Refused: The client's images are not what the plan counts with.
        """
        side = self._at(attempt)
        (values,) = side.sent(self._model(task), task.bound, attempt.round, [self.number])
        if values is None:
            raise Refused("the images are not what the plan counts with")
        return np.asarray(values.cpu().numpy())

    def whole(self, task: Task, attempt: Attempt, invited: int) -> IntArray:
        """What the client hands to secure aggregation, modulo 2^b: its rounded message and its share of the noise.

        Args:
            task: What it computes from.
            attempt: At which round.
            invited: How many clients are invited; the share follows from it.
        """
        side = self._at(attempt)
        assert side.whole is not None
        arrays = {name: value.numpy() for name, value in self._model(task).items()}
        common = (arrays, (task.bound, side.whole.share(invited)), attempt.round, [self.number])
        (vector,) = rounded_messages(side, *common, side.source)
        return vector & ((1 << side.whole.bits) - 1)

    def _at(self, attempt: Attempt) -> ClientSide:
        return replace(self.side, source=self.side.source.again(attempt.again))

    def _model(self, task: Task) -> Params:
        return unflatten(torch.from_numpy(np.array(task.model)), self.signed.learned)

    def once(self, attempt: Attempt, asked: str, make: Callable[[], bytes]) -> bytes:
        """What is asked again gets the same bytes: kept before they leave, and made where they never left.

        Args:
            attempt: At which round; the ledger holds it.
            asked: Digest of the task.
            make: Computes them.
        """
        path, name = self.folder / _ANSWER, _mark(attempt.key, asked)
        content = path.read_bytes() if path.exists() else b""
        if content[: len(name)] == name:
            return content[len(name) :]
        made = make()
        replace_file(path, name + made, SECRET)
        return made

    def may_reveal(self, attempt: Attempt, survivors: frozenset[int]) -> bool:
        """Whether to agree to these survivors: to one set for each vector, and again only to the same one.

        Two sums of the same vectors over two sets of clients would give a client away by their difference.
        """
        path, told = self.folder / _REVEALED, {"key": list(attempt.key), "survivors": sorted(survivors)}
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["key"] == told["key"]:
                return bool(before == told)
        replace_file(path, json.dumps(told).encode(), SECRET)
        return True


def join(
    signed: SignedPlan, number: int, *, images: Path, folder: Path, promise: Promise, noise_seed: int | None
) -> Joined:
    """Look at a plan as a client does, and get ready for it; of what it finds nothing is told to the server.

    Args:
        signed: The plan.
        number: The client's.
        images: Its folder of images.
        folder: The client's own folder, for what it keeps.
        promise: What it promises.
        noise_seed: Given, in a simulation; None: drawn once for the run, and kept.

    Raises:
        Refused: The promise allows no round.
        InputError: The images cannot be read, or are not what the plan counts with.
    """
    plan = signed.plan
    most = most_participations(plan.privacy, promise)
    if not most:
        one = epsilon_after(plan.privacy, promise, 1)
        raise Refused(
            f"one round alone would cost epsilon {one:.3g} for ({promise.unit}, server), and the promise is "
            f"{promise.words}"
        )
    pool = open_images(images, signed.task, folder / "images")
    own = OwnImages(
        pool=pool, shape=plan.shape, clients=plan.privacy.clients, number=number, seed=plan.settings.run.seed
    )
    inside = folder / _RUNS / signed.run.hex()[:_NAME]
    inside.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = KeyedSource(_noise_seed(inside, noise_seed))
    side = client_side(plan, own, source, torch.device("cpu"))
    problem = side.data_form.problem(own, number)
    if problem is not None:
        raise InputError(f"{images}: not what the plan counts with: {problem}")
    return Joined(signed=signed, number=number, side=side, images=own, most=most, folder=inside)


def _noise_seed(folder: Path, given: int | None) -> int:
    """A key of this run's own: with one key for two runs, two messages could share their noise."""
    path = folder / _NOISE
    if path.exists():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            seed, generator = content["seed"], content["generator"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path}: the noise key of this run is damaged; restore it from a backup") from error
        if generator != GENERATOR or type(seed) is not int:
            raise InputError(f"{path}: a noise key for another generator; go on with the version that made it")
        return seed
    seed = draw_secret_seed() if given is None else given
    replace_file(path, json.dumps({"seed": seed, "generator": GENERATOR}).encode(), SECRET)
    return seed


def _mark(key: tuple[int, ...], asked: str) -> bytes:
    return sha256(f"{key} {asked}".encode()).digest()


def forgotten(folder: Path, charged: Iterable[tuple[str, tuple[int, ...], str]]) -> Path | None:
    """An answer that the ledger knows nothing of: the ledger is an older copy, and forgot what was spent.

    Args:
        folder: The client's own folder.
        charged: (run, attempt at a round, digest of what was asked), of each line of the ledger.
    """
    known = {(run[:_NAME], _mark(key, asked)) for run, key, asked in charged}
    for path in sorted((folder / _RUNS).glob(f"*/{_ANSWER}")):
        with path.open("rb") as file:
            if (path.parent.name, file.read(32)) not in known:
                return path
    return None


def asked_digest(task: Task, invited: Sequence[int] = ()) -> str:
    """What a participation is charged for: the same noise must never answer another task, or other company."""
    found = sha256(task.encode())
    found.update(np.asarray(invited, dtype="<i8").tobytes())
    return found.hexdigest()


def keep_offer(joined: Joined, offer: bytes) -> None:
    """So that a client that was started again still knows the plan."""
    replace_file(joined.folder / _OFFER, offer, SECRET)


def kept_offer(folder: Path, run: bytes) -> bytes | None:
    """The plan of a run that the client joined before it was started again."""
    path = folder / _RUNS / run.hex()[:_NAME] / _OFFER
    return path.read_bytes() if path.exists() else None
