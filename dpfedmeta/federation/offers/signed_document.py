"""Common parts of all texts that a server signs: their form, the clients that they name, and their numbers."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import yaml

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import to_yaml
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.random.random_sources import GENERATOR
from dpfedmeta.core.version import __version__
from dpfedmeta.data.task import Task
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.offers.kept_settings import MOST_CHANGES, MOST_ROUNDS
from dpfedmeta.federation.offers.offered_settings import columns_of, form_of
from dpfedmeta.secure_aggregation.crypto.keys import Identity, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

_KEYS = {"format", "version", "generator", "run", "server", "roster", "task", "privacy", "promised"}
# Settings have some 3,000 letters.
MOST_LETTERS = 100_000
# Two machines may round the last digits of a solved noise otherwise.
_CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class OfferForm:
    """Form of one kind of signed text.

    Attributes:
        kind: Of what is offered: plan, or analysis.
        format: What the text says of itself.
        mark: What is signed before the text, so that no text of one kind is taken for one of the other.
        own: Keys that only this kind has.
    """

    kind: str
    format: str
    mark: bytes
    own: frozenset[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedOffer:
    """Common part of a signed plan and a signed analysis, as both sides hold them.

    Attributes:
        task: The form of the records.
        run: 32 bytes that no other run has.
        server: Public key of the server.
        roster: Identities of the clients by number, where they have to know each other (secure aggregation); else
            empty.
        text: What is signed.
        signature: The server's.
    """

    task: Task
    run: bytes
    server: bytes
    roster: tuple[bytes, ...]
    text: bytes
    signature: bytes

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of a vector's numbers in their order; empty where the server's data have none."""
        return columns_of(json.loads(self.text))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the text, by which questions name the offer."""
        return sha256(self.text).digest()


def signed_parts(
    form: OfferForm,
    server: Identity,
    task: Task,
    *,
    run: bytes,
    roster: Sequence[bytes],
    privacy: PrivacyPlan,
    promised: Iterable[Guarantee],
    **own: object,
) -> dict[str, Any]:
    """Write and sign the text of an offer; returns the fields of a `SignedOffer`.

    Args:
        form: Which kind of offer.
        server: Identity that signs.
        task: Form of the records.
        run: 32 bytes that no other run has.
        roster: Identities of the clients that the text names, by number.
        privacy: What a participation is charged as.
        promised: Its guarantees.
        own: What only this kind of offer says.
    """
    content = {
        "format": form.format,
        "version": __version__,
        "generator": GENERATOR,
        "run": run.hex(),
        "server": server.public.hex(),
        "roster": [identity.hex() for identity in roster],
        "task": form_of(task),
        "privacy": constants(privacy),
        "promised": [guarantee.as_json() for guarantee in promised],
        **own,
    }
    text = json.dumps(content, sort_keys=True, allow_nan=False).encode()
    names = {"run": run, "server": server.public, "roster": tuple(roster)}
    return {"task": task, **names, "text": text, "signature": server.sign(form.mark + text)}


def opened_parts(form: OfferForm, text: bytes, signature: bytes, server: bytes) -> dict[str, Any]:
    """The content of an offer that this server signed.

    Raises:
        Refused: Another server signed it, or it is no offer of this kind.
        InputError: It is of another version.
    """
    if not signed_by(server, signature, form.mark + text):
        raise Refused(f"the {form.kind} is not signed by the server whose key this client holds")
    return content_of(text, form)


def check_numbers(form: OfferForm, own: PrivacyPlan, content: Mapping[str, Any], source: str) -> None:
    """Compare the numbers of an offer with those that were made again here.

    Raises:
        Refused: They differ.
    """
    found = difference(json.loads(json.dumps(constants(own))), content["privacy"], "privacy")
    if found is not None:
        theirs = _version(content)
        words = f"the {form.kind} states other numbers than this client computes from its {source}: {found}"
        raise Refused(words if theirs == __version__ else f"{words} (version {theirs} there, {__version__} here)")


def _version(content: Mapping[str, Any]) -> str:
    return str(content.get("version"))[:60]


def content_of(text: bytes, form: OfferForm) -> dict[str, Any]:
    """Parse a signed text, and check that it is of a form that this program reads, whatever version wrote it.

    Raises:
        Refused: It is not a text of this form.
        InputError: It is of another version.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise Refused("this is not the plan of a federation")
        for key, own in (("format", form.format), ("generator", GENERATOR)):
            if content.get(key) != own:
                theirs = str(content.get(key))[:60]
                raise InputError(
                    f"the server's plan has {key} {theirs!r}, but this client has {own!r}: install the server's "
                    f"version of dpfedmeta ({_version(content)}), or ask its operator to install {__version__}"
                )
        if set(content) != _KEYS | form.own:
            raise Refused("this is not the plan of a federation")
        bytes.fromhex(content["run"])
        for entry in content["roster"]:
            bytes.fromhex(entry)
    except DAMAGED_JSON as error:
        raise Refused(f"this is not the plan of a federation ({type(error).__name__})") from error
    return content


def check_text(key: str, text: str) -> None:
    """Refuse a YAML text that is longer than any settings are, or names a part of itself: it may grow without bound.

    Raises:
        Refused: It does.
    """
    if len(text) > MOST_LETTERS:
        raise Refused(f"the plan's {key} have {len(text):,} letters: a client reads at most {MOST_LETTERS:,}")
    try:
        alias = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    except yaml.YAMLError as error:
        raise Refused(f"the plan's {key} are not valid YAML ({' '.join(str(error).split())})") from error
    if alias:
        raise Refused(f"the plan's {key} name a part of themselves; a client reads no such text")


def checked_names(content: Mapping[str, Any], server: bytes, clients: int, *, masked: bool) -> tuple[bytes, ...]:
    """The roster that a signed text has, where clients have to know each other.

    Raises:
        Refused: It names another server, no run, or not each of the clients once.
    """
    run, roster = bytes.fromhex(content["run"]), tuple(bytes.fromhex(entry) for entry in content["roster"])
    if content["server"] != server.hex() or len(run) != IDENTITY_BYTES:
        raise Refused("the plan is from another server, or names no run")
    if masked:
        lengths = {len(identity) for identity in roster}
        if lengths != {IDENTITY_BYTES} or len({*roster}) != clients:
            raise Refused(f"the plan does not name each of {clients} clients once")
    return roster


def earlier_of(privacy: Mapping[str, Any]) -> tuple[Earlier, ...]:
    """Earlier charges of other ledgers that a plan's text states: so many rounds, each of which costs something.

    Raises:
        Refused: It counts rounds that are none, which would take cost away, or more than a client adds up.
    """
    found = tuple(Earlier.from_json(each) for each in privacy.get("earlier", ()))
    rounds = [phase.rounds for each in found for phase in each.phases]
    if not all(type(number) is int and number >= 1 for number in rounds):
        raise Refused("the plan counts earlier releases of no whole number of rounds")
    if len(rounds) > MOST_CHANGES or sum(rounds) > MOST_ROUNDS:
        raise Refused(f"the plan counts more than {MOST_ROUNDS:,} earlier rounds, or {MOST_CHANGES} kinds of them")
    return found


def name_of(settings: Settings, task: Task, privacy: PrivacyPlan, asked: str = "") -> str:
    """Digest of what is offered, by what it is here: not by the run, the roster, or how the server wrote it down.

    Args:
        settings: Of the offer.
        task: Form of the records.
        privacy: What a participation is charged as.
        asked: What an analysis asks besides.
    """
    content = [to_yaml(settings), form_of(task), constants(privacy), asked]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def difference(own: Any, stated: Any, place: str) -> str | None:
    """Return the first place where two values differ, in words; None if they agree.

    Numbers that differ by no more than rounding agree.
    """
    if isinstance(own, Mapping) and isinstance(stated, Mapping) and own.keys() == stated.keys():
        found = (difference(own[key], stated[key], f"{place}.{key}") for key in own)
        return next((each for each in found if each), None)
    if isinstance(own, list) and isinstance(stated, list) and len(own) == len(stated):
        found = (difference(a, b, place) for a, b in zip(own, stated, strict=True))
        return next((each for each in found if each), None)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (own, stated))
    try:
        same = math.isclose(own, stated, rel_tol=_CLOSE) if numbers else own == stated
    except OverflowError:  # a whole number beyond all floats
        same = False
    return None if same else f"{place} = {str(stated)[:40]}, but here {str(own)[:40]}"
