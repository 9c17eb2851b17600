"""Keys and certificate that an operator keeps in a folder, and the public invitation file for its clients."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.read_files import read_text
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.identity.credentials import check_no_key, check_own, read_identity, write_identity
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
    address, *_ = [checked_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") for host in hosts]
    check_no_key(folder / IDENTITY)
    made = make_certificates(hosts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = ((_AUTHORITY_KEY, made.authority_key), (CERTIFICATE_KEY, made.key))
    for name, content in secret:
        replace_file(folder / name, content, SECRET)
    for name, content in ((_AUTHORITY, made.authority), (CERTIFICATE, made.certificate)):
        replace_file(folder / name, content)
    invitation = Invitation(server=address, identity=Identity(random).public, authority=made.authority)
    write_invitation(folder / INVITATION, invitation)
    # Last: with it the folder is whole, and without it the same command makes all of it anew.
    write_identity(folder / IDENTITY, random)
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
        content = read_yaml(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: the invitation cannot be read ({error.strerror})") from None
    except YAML_ERRORS:  # those of the encoding, too
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{path}: is not an invitation to a federation; ask the server's operator for the file")
    try:
        server, identity, authority = (str(content[key]) for key in ("server", "identity", "authority"))
        known = bytes.fromhex(identity)
    except (KeyError, ValueError):
        known = b""
    if len(known) != IDENTITY_BYTES:
        raise InputError(f"{path}: the server's key is missing or invalid; ask the operator for the file again")
    return Invitation(server=checked_address(server), identity=known, authority=authority.encode())


def checked_address(address: str) -> str:
    """HOST:PORT.

    Raises:
        InputError: It is not one.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536 or not _is_host(found[1]):
        raise InputError(f"{address}: expected HOST:PORT, such as fed.example.org:9443")
    return address


def _is_host(host: str) -> bool:
    try:
        return bool(IPv6Address(host[1:-1]) if host.startswith("[") else host.encode("idna"))
    except ValueError:  # labels that are empty or too long, too
        return False


def port_of(invitation: Invitation) -> int:
    """Return the server's port."""
    return int(invitation.server.rpartition(":")[2])


def operator_identity(folder: Path) -> bytes:
    """The server's private key.

    Raises:
        InputError: No such folder or file, or others can read one of the keys in it.
    """
    if folder.is_file():
        raise InputError(f"{folder}: is a file; name the folder that `dpfedmeta federate keys --server` made")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `dpfedmeta federate keys --server --out {folder}` makes it")
    private = read_identity(folder / IDENTITY)
    for name in (CERTIFICATE_KEY, _AUTHORITY_KEY):
        if (folder / name).exists():  # the authority's may lie elsewhere
            check_own(folder / name)
    assert len(private) == SECRET_BYTES
    return private


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """PEM texts of a server.

    Attributes:
        authority: Certificate of the authority; clients get it and trust nothing else.
        authority_key: Its private key: whoever has it can stand in for the server on the wire (not in what it signs).
        certificate: The server's.
        key: Its private key.
    """

    authority: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def make_certificates(hosts: Sequence[str], *, days: int = 825, now: datetime | None = None) -> Certificates:
    """A new authority, and a certificate for these names and addresses (ECDSA over P-256, SHA-256).

    Args:
        hosts: Names and IP addresses by which clients reach the server.
        days: How long both hold.
        now: From when; None: this moment, less five minutes for clocks that go wrong.
    """
    start = now or datetime.now(UTC) - timedelta(minutes=5)
    until = start + timedelta(days=days)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfedmeta federation")])
    authority = (
        _begun(name, name, authority_key.public_key(), start, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(authority_key, SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _begun(subject, name, key.public_key(), start, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, SHA256())
    )
    return Certificates(
        authority=authority.public_bytes(Encoding.PEM),
        authority_key=_pem(authority_key),
        certificate=certificate.public_bytes(Encoding.PEM),
        key=_pem(key),
    )


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
