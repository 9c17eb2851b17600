"""The plan of a federation as one text, which the server signs once and every question names by its hash.

A client believes none of its numbers: it makes the plan again from the settings, computes the guarantees itself, and
takes no part where anything differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpfedmeta.accounting.events import Earlier
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.config import resolve_text, to_yaml
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.words import offered_words
from dpfedmeta.ledger.versions import constants
from dpfedmeta.models.initial import BUILT_IN
from dpfedmeta.parameters import Params
from dpfedmeta.planning.plan import Plan, make_plan
from dpfedmeta.randomness import GENERATOR
from dpfedmeta.sections import RunSettings, TrackSettings
from dpfedmeta.secure_aggregation.agreement import Agreement, agreed
from dpfedmeta.secure_aggregation.keys import Identity, signed_by
from dpfedmeta.secure_aggregation.refusals import Refused
from dpfedmeta.settings import Settings
from dpfedmeta.version import __version__

FORMAT = "dpfedmeta federation plan 1"
_SIGNED = b"dpfedmeta federation plan"
# Two machines may round the last digits of a solved noise otherwise.
_CLOSE = 1e-9
# What names code or files is refused: a server may not choose what runs on a client.
_MEMBERS = ("aggregation.mode", "clip.policy", "meta.method", "model.name", "record.release", "server.noise")
_KEYS = {
    "format",
    "version",
    "generator",
    "run",
    "server",
    "clients",
    "roster",
    "settings",
    "task",
    "privacy",
    "promised",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedPlan:
    """A plan, as both sides hold it.

    Attributes:
        plan: Every constant of the run.
        task: The form of the records.
        run: 32 bytes that no other run has.
        server: Public key of the server.
        roster: Identities of the clients by number, where they have to know each other (secure aggregation); else
            empty.
        text: What is signed.
        signature: The server's.
    """

    plan: Plan
    task: Task
    run: bytes
    server: bytes
    roster: tuple[bytes, ...]
    text: bytes
    signature: bytes

    @cached_property
    def digest(self) -> bytes:
        """What questions name it by."""
        return sha256(self.text).digest()

    @property
    def privacy(self) -> PrivacyPlan:
        """What a participation is charged as."""
        return self.plan.privacy

    @property
    def masked(self) -> bool:
        """Whether its sums are those of secure aggregation."""
        return self.plan.privacy.secure is not None

    def agreement(self, round_: int, invited: int) -> Agreement:
        """As `Signed`."""
        whole = self.plan.privacy.at(round_).whole
        assert whole is not None
        if not whole.least <= invited <= whole.most:
            raise Refused(f"{invited} invited clients; the plan counts with {whole.least} to {whole.most}")
        return agreement_of(self.plan, round_, invited)

    def words(self) -> Iterator[str]:
        """As `Signed`."""
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
    """What a server sends to its clients.

    Args:
        plan: The run's.
        task: Its data set; of images.
        run: 32 bytes that no other run has.
        server: Who signs.
        roster: Identities of all clients, by number.

    Raises:
        InputError: Something of the plan cannot be said to a client.
    """
    plan, settings = plan.among_real_clients(), for_clients(plan.settings, task)
    named = tuple(roster) if plan.privacy.secure is not None else ()
    content = {
        "format": FORMAT,
        "version": __version__,
        "generator": GENERATOR,
        "run": run.hex(),
        "server": server.public.hex(),
        "clients": plan.privacy.clients,
        "roster": [identity.hex() for identity in named],
        "settings": to_yaml(settings),
        "task": form_of(task),
        "privacy": constants(plan.privacy),
        "promised": [guarantee.as_json() for guarantee in plan.planned],
    }
    text = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    return SignedPlan(
        plan=replace(plan, settings=settings),
        task=task,
        run=run,
        server=server.public,
        roster=named,
        text=text,
        signature=server.sign(_SIGNED + text),
    )


def opened_plan(text: bytes, signature: bytes, server: bytes) -> SignedPlan:
    """A plan that this server signed, made again here.

    Raises:
        Refused: Another server's, or not what its settings give here.
        InputError: Of another version.
    """
    if not signed_by(server, signature, _SIGNED + text):
        raise Refused("the plan is not signed by the server whose key this client holds")
    content = content_of(text, FORMAT, _KEYS)
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
        adversarial=plan.settings.aggregation.adversarial,
        dropout=whole.dropout,
        malicious=True,
        fewest=whole.fewest(invited),
    )


def content_of(text: bytes, form: str, keys: Set[str]) -> dict[str, Any]:
    """What a signed text says, whose own version this is.

    Raises:
        Refused: It is none of this form.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise Refused("no plan of a federation")
        for key, own in (("format", form), ("version", __version__), ("generator", GENERATOR)):
            if content.get(key) != own:
                theirs = str(content.get(key))[:60]
                raise InputError(
                    f"a plan of another version: {key} {theirs!r}, here {own!r}: install the server's dpfedmeta, or "
                    "ask its operator for this one"
                )
        if set(content) != keys:
            raise Refused("no plan of a federation")
        bytes.fromhex(content["run"])
        for entry in content["roster"]:
            bytes.fromhex(entry)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"no plan of a federation ({type(error).__name__})") from error
    return content


def checked_names(content: Mapping[str, Any], server: bytes, clients: int, *, masked: bool) -> tuple[bytes, ...]:
    """The roster that a signed text has, where clients have to know each other.

    Raises:
        Refused: It names another server, no run, or not each of the clients once.
    """
    run, roster = bytes.fromhex(content["run"]), tuple(bytes.fromhex(entry) for entry in content["roster"])
    if content["server"] != server.hex() or len(run) != IDENTITY_BYTES:
        raise Refused("the plan names another server, or no run")
    if masked:
        lengths = {len(identity) for identity in roster}
        if lengths != {IDENTITY_BYTES} or len({*roster}) != clients:
            raise Refused(f"the plan does not name each of {clients} clients once")
    return roster


def task_of(content: Mapping[str, Any]) -> Task:
    """The form of the records, without a place for them.

    Raises:
        ValidationError: It is none.
    """
    return TypeAdapter(Task).validate_python({**content["task"], "source": {"reader": "folder", "path": "."}})


@lru_cache(maxsize=2)
def _made(text: bytes) -> tuple[Plan, Task]:
    """The plan that the settings give here: solving it takes a second, and clients of one process share it."""
    content = content_of(text, FORMAT, _KEYS)
    try:
        settings = resolve_text(content["settings"], "the server's plan")
        task = task_of(content)
        check_own(settings)
        earlier = tuple(Earlier.from_json(each) for each in content["privacy"].get("earlier", ()))
        plan = make_plan(settings, task, earlier=earlier).among_real_clients()
    except (InputError, ValidationError, TypeError, LookupError, AttributeError) as error:
        raise Refused(f"the plan is refused here: {error}") from error
    found = difference(json.loads(json.dumps(constants(plan.privacy))), content["privacy"], "privacy")
    if found is not None:
        raise Refused(f"the plan's numbers are not what its settings give here: {found}")
    if plan.privacy.clients != content["clients"]:
        raise Refused("the plan names two numbers of clients")
    return plan, task


def for_clients(settings: Settings, task: Task) -> Settings:
    """Without what is the server's alone: its secret seed, its folders, its trackers, its limits of the machine.

    Raises:
        InputError: Something of them cannot be said to a client.
    """
    run = RunSettings(seed=settings.run.seed, precision=settings.run.precision, device="cpu", dir="", name="federation")
    # What other ledgers charged is among the plan's numbers.
    privacy = replace(settings.privacy, spent_before=())
    found = replace(settings, dataset=task.name, run=run, track=TrackSettings(), privacy=privacy)
    problem = foreign(found)
    if problem is not None:
        raise InputError(f"a federation with {problem}: clients run no code and read no file that a server names")
    if task.form.kind != "images" or task.shared_classes is not None:
        raise InputError(f"dataset = {task.name}: clients of a federation hold folders of images, few-shot")
    return found


def check_own(settings: Settings) -> None:
    """Whether nothing of a server's settings names code or files.

    Raises:
        Refused: Something does.
    """
    problem = foreign(settings)
    if problem is not None:
        raise Refused(f"the plan has {problem}")


def foreign(settings: Settings) -> str | None:
    """What of the settings names code or files, in words."""
    for name in _MEMBERS:
        section, key = name.split(".")
        value = getattr(getattr(settings, section), key)
        if ":" in value or value == "own":
            return f"{name} = {value}"
    if settings.model.initial not in (None, BUILT_IN):
        return f"model.initial = {settings.model.initial}"
    return None


def form_of(task: Task) -> dict[str, Any]:
    """What clients have to know of the records: public constants."""
    names = ("name", "image_size", "channels", "train_rotations", "train_flip", "mean", "deviation")
    return {name: getattr(task, name) for name in names}


def difference(own: Any, stated: Any, place: str) -> str | None:
    """Where two numbers, or more, are not the same, in words."""
    if isinstance(own, Mapping) and isinstance(stated, Mapping) and own.keys() == stated.keys():
        found = (difference(own[key], stated[key], f"{place}.{key}") for key in own)
        return next((each for each in found if each), None)
    if isinstance(own, list) and isinstance(stated, list) and len(own) == len(stated):
        found = (difference(a, b, place) for a, b in zip(own, stated, strict=True))
        return next((each for each in found if each), None)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (own, stated))
    same = math.isclose(own, stated, rel_tol=_CLOSE) if numbers else own == stated
    return None if same else f"{place} = {str(stated)[:40]}, here {str(own)[:40]}"
