"""A certificate authority of one federation, and the server's TLS certificate from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


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
