"""Identities of a federation as files: a secret key, and the public card by which an operator lets its holder in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.read_files import WrongEncoding, read_lines
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Identity, derived, signed_by

_CARD, _SIGNED = "dpfedmeta-card-1", b"dpfedmeta card 1\0"
_CONTEXT = b"dpfedmeta key of the wire 1"
_WIRE_BYTES = 33  # one form of a key alone, so that two cards with one key are told
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve's group (FIPS 186-4)


@dataclass(frozen=True, kw_only=True)
class Card:
    """Public card of a client: its name and public keys.

    Attributes:
        name: Name for people, on the server's page and in its log.
        identity: Public Ed25519 key, 32 bytes.
        wire: Public key by which Flower knows the client's node: a point of P-256, compressed, 33 bytes.
    """

    name: str
    identity: bytes
    wire: bytes

    @property
    def wire_pem(self) -> bytes:
        """The wire key as PEM, in the form in which Flower compares keys."""
        key = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, self.wire)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def wire_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    """The key by which Flower authenticates a node: it follows from the identity, so that there is one file to keep.

    Args:
        private: The identity's 32 bytes.
    """
    scalar = int.from_bytes(derived(private, _CONTEXT, 48), "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(scalar, _CURVE)


def card_line(private: bytes, name: str) -> str:
    """The card of an identity, signed by it, as one line.

    Raises:
        InputError: A name that is no plain word.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"name {name!r}: use at most 40 letters, digits, dots and dashes")
    identity = Identity(private)
    wire = wire_key(private).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    signature = identity.sign(_signed(name, wire))
    return " ".join([_CARD, name, identity.public.hex(), wire.hex(), signature.hex()])


def read_card(line: str) -> Card:
    """A card that its identity signed.

    Raises:
        InputError: It is not one.
    """
    try:
        magic, name, *keys = line.split()
        identity, wire, signature = map(bytes.fromhex, keys)
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, wire)
        if len(wire) != _WIRE_BYTES:
            raise ValueError("not compressed")
    except ValueError:
        raise InputError("this is not a client's card; `dpfedmeta federate keys` writes one") from None
    if magic != _CARD or not _NAME.fullmatch(name) or len(identity) != IDENTITY_BYTES:
        raise InputError("this is not a client's card; `dpfedmeta federate keys` writes one")
    if not signed_by(identity, signature, _signed(name, wire)):
        raise InputError(f"the card of {name} was changed: its signature is wrong; ask the client for its card again")
    return Card(name=name, identity=identity, wire=wire)


def named_on_card(path: Path) -> str | None:
    """The name on a card's file; None: there is none that can be read."""
    try:
        return read_card(path.read_text(encoding="utf-8")).name
    except (OSError, UnicodeDecodeError, InputError):
        return None


def read_roster(path: Path) -> tuple[Card, ...]:
    """The clients of a federation, one card a line; their order gives their numbers, so new ones go last.

    Raises:
        InputError: No file, no card in it, one that is not whole, or a client twice.
    """
    try:
        lines = read_lines(path)
    except (OSError, WrongEncoding) as error:
        raise InputError(f"{path}: the roster cannot be read ({getattr(error, 'strerror', None) or error})") from None
    cards: list[Card] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cards.append(read_card(line))
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not cards:
        raise InputError(f"{path}: the roster is empty; add the card of each client, one per line")
    _check_once(path, cards)
    return tuple(cards)


def checked_fewest(fewest: int | None, clients: int) -> int:
    """Return the number of clients that must be connected before a round begins.

    Args:
        fewest: As it was given; None: all.
        clients: Of the roster.

    Raises:
        InputError: So many will never come, or nobody would be waited for.
    """
    if fewest is not None and not 1 <= fewest <= clients:
        raise InputError(f"--fewest {fewest}: expected 1 to {clients}, the number of clients in the roster")
    return clients if fewest is None else fewest


def _check_once(path: Path, cards: Sequence[Card]) -> None:
    for what, values in (
        ("name", [card.name for card in cards]),
        ("key", [card.identity.hex() for card in cards]),
        ("wire key", [card.wire.hex() for card in cards]),
    ):
        twice = first_twice(values)
        if twice is not None:
            raise InputError(f"{path}: two clients have the same {what}, {twice[:40]}; remove one of the lines")


def first_twice(values: Iterable[str]) -> str | None:
    """The first value that was there before."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def check_no_key(path: Path) -> None:
    """Check that a key may be written here.

    Raises:
        InputError: There is a file already: a key is never replaced.
    """
    if path.exists():
        raise InputError(f"{path}: there is a key already; it is not replaced")


def write_identity(path: Path, private: bytes) -> None:
    """Write an identity as PEM (PKCS 8), readable by its owner alone.

    Raises:
        InputError: There is a file already: a key is never replaced.
    """
    check_no_key(path)
    key = Ed25519PrivateKey.from_private_bytes(private)
    replace_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), SECRET)


def write_node_keys(path: Path, private: bytes) -> None:
    """The key of the wire as `flower-supernode --auth-supernode-private-key` reads it, and its public half (.pub).

    Raises:
        InputError: There is a file already.
    """
    check_no_key(path)
    key = wire_key(private)
    replace_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), SECRET)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    replace_file(path.with_suffix(path.suffix + ".pub"), public + b"\n")


def read_identity(path: Path) -> bytes:
    """The 32 bytes of an identity.

    Raises:
        InputError: No such file, or it holds another kind of key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the identity key cannot be read ({error.strerror})") from None
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path}: is not an Ed25519 private key in PEM; `dpfedmeta federate keys` writes one")
    check_own(path)
    private = key.private_bytes_raw()
    if len(private) != SECRET_BYTES:
        raise InputError(f"{path}: the key has {len(private)} bytes, expected {SECRET_BYTES}")
    return private


def check_own(path: Path) -> None:
    """Check that nobody but its owner can read a secret key.

    Raises:
        InputError: Somebody can; says what to type.
    """
    if path.stat().st_mode & 0o077:
        raise InputError(f"{path}: other users can read this key; type: chmod 600 {path}")


def _signed(name: str, wire: bytes) -> bytes:
    return _SIGNED + name.encode() + b"\0" + wire
