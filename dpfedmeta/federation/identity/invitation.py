"""Keys that an operator keeps in a folder, and the public invitation file that it gives to its clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.read_files import WrongEncoding, read_text
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.identity.certificates import make_certificates
from dpfedmeta.federation.identity.credentials import read_identity, write_identity
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Identity

IDENTITY, INVITATION, ROSTER = "identity.pem", "invitation.yaml", "roster.txt"
CERTIFICATE, CERTIFICATE_KEY = "tls.pem", "tls.key"
_AUTHORITY, _AUTHORITY_KEY = "authority.pem", "authority.key"
_FORMAT = "dpfedmeta invitation 1"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Invitation to a server: what a client needs before it connects. Public, but it must reach the client unaltered.

    Attributes:
        server: HOST:PORT.
        identity: The server's public Ed25519 key, which signs its questions.
        authority: PEM text of the certificate authority of its TLS certificate.
    """

    server: str
    identity: bytes
    authority: bytes


def make_operator(folder: Path, hosts: Sequence[str], port: int, random: bytes) -> Invitation:
    """A new server's keys and certificates, and the invitation to it.

    Args:
        folder: For all of it; made.
        hosts: Names and addresses of the server; the first stands in the invitation.
        port: Of the server.
        random: 32 secret bytes, which become its identity.

    Raises:
        InputError: There are keys already, or the address is none.
    """
    host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
    address = checked_address(f"{host}:{port}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_identity(folder / IDENTITY, random)
    made = make_certificates(hosts)
    secret = ((_AUTHORITY_KEY, made.authority_key), (CERTIFICATE_KEY, made.key))
    for name, content in secret:
        replace_file(folder / name, content, SECRET)
    for name, content in ((_AUTHORITY, made.authority), (CERTIFICATE, made.certificate)):
        replace_file(folder / name, content)
    invitation = Invitation(server=address, identity=Identity(random).public, authority=made.authority)
    write_invitation(folder / INVITATION, invitation)
    return invitation


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Write an invitation as a YAML file."""
    content = {
        "format": _FORMAT,
        "server": invitation.server,
        "identity": invitation.identity.hex(),
        "authority": invitation.authority.decode("ascii"),
    }
    text = yaml.safe_dump(content, sort_keys=False, default_style=None)
    replace_file(path, text.encode())


def read_invitation(path: Path) -> Invitation:
    """An operator's invitation.

    Raises:
        InputError: It cannot be read, or is none.
    """
    try:
        content = yaml.safe_load(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: no invitation can be read ({error.strerror})") from None
    except (yaml.YAMLError, WrongEncoding):
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{path}: no invitation to a federation; its operator's `federate keys --server` writes one")
    try:
        server, identity, authority = (str(content[key]) for key in ("server", "identity", "authority"))
        known = bytes.fromhex(identity)
    except (KeyError, ValueError):
        known = b""
    if len(known) != IDENTITY_BYTES:
        raise InputError(f"{path}: the server's key is missing, or none; ask its operator for the file again")
    return Invitation(server=checked_address(server), identity=known, authority=authority.encode())


def checked_address(address: str) -> str:
    """HOST:PORT.

    Raises:
        InputError: It is not one.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"{address}: expected HOST:PORT, such as fed.example.org:9443")
    return address


def port_of(invitation: Invitation) -> int:
    """Return the server's port."""
    return int(invitation.server.rpartition(":")[2])


def operator_identity(folder: Path) -> bytes:
    """The server's private key.

    Raises:
        InputError: No such folder or file.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `federate keys --server --out {folder}` makes one")
    private = read_identity(folder / IDENTITY)
    assert len(private) == SECRET_BYTES
    return private
