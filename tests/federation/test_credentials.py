"""Keys, cards, rosters, invitations and certificates as files."""

import ssl
from datetime import UTC, datetime

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.identity import invitation
from dpfedmeta.federation.identity.credentials import (
    _CARD,
    _ORDER,
    _signed,
    card_line,
    named_on_card,
    read_card,
    read_identity,
    read_roster,
    wire_key,
    write_identity,
    write_node_keys,
)
from dpfedmeta.federation.identity.invitation import (
    INVITATION,
    Invitation,
    checked_address,
    make_certificates,
    make_operator,
    operator_identity,
    port_of,
    read_invitation,
    write_invitation,
)
from dpfedmeta.secure_aggregation.crypto.keys import Identity

ONE, TWO = bytes(range(32)), bytes(range(1, 33))


def test_a_card_says_whose_it_is():
    card = read_card(card_line(ONE, "clinic-1"))
    assert card.name == "clinic-1"
    assert card.identity == Identity(ONE).public
    point = wire_key(ONE).public_key().public_numbers()
    assert card.wire == bytes([2 + point.y % 2]) + point.x.to_bytes(32, "big")


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\x0c", "\r"])
def test_a_card_that_somebody_sent_adds_no_second_client(tmp_path, mark):
    """A roster has a client for each line, and its operator sees lines."""
    path = tmp_path / "roster.txt"
    line = card_line(ONE, "clinic-1").strip()
    path.write_text(f"{line} {mark}{card_line(TWO, 'clinic-2')}", encoding="utf-8", newline="")
    with pytest.raises(InputError, match=r"roster\.txt"):
        read_roster(path)
    path.write_text(f"{line}\n{card_line(TWO, 'clinic-2')}")
    assert [card.name for card in read_roster(path)] == ["clinic-1", "clinic-2"]


def test_wire_keys_follow_from_identities_and_differ():
    scalars = [wire_key(key).private_numbers().private_value for key in (ONE, ONE, TWO)]
    assert scalars[0] == scalars[1] != scalars[2]
    assert all(0 < scalar < _ORDER for scalar in scalars)
    assert scalars[0] not in (int.from_bytes(ONE, "big"), int.from_bytes(ONE, "little"))


def test_a_changed_card_is_no_card():
    magic, name, identity, wire, signature = card_line(ONE, "clinic").split()
    other = card_line(TWO, "clinic").split()
    for words in (
        [magic, "clinic2", identity, wire, signature],
        [magic, name, identity, other[3], signature],
        [magic, name, other[2], wire, signature],
        [magic, name, identity, wire],
        [magic, name, identity, "00" * 33, signature],
        _signed_card("clinic", _uncompressed(wire)),
        ["other", name, identity, wire, signature],
    ):
        with pytest.raises(InputError):
            read_card(" ".join(words))


def _uncompressed(wire):
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), bytes.fromhex(wire))
    return point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _signed_card(name, wire):
    """A client's card with a wire key that may be somebody else's."""
    identity = Identity(ONE)
    signature = identity.sign(_signed(name, wire))
    return [_CARD, name, identity.public.hex(), wire.hex(), signature.hex()]


def test_one_wire_key_stands_in_a_roster_once(tmp_path):
    other = card_line(TWO, "b")
    stolen = " ".join(_signed_card("a", bytes.fromhex(other.split()[3])))
    assert read_card(stolen).name == "a"
    path = tmp_path / "roster.txt"
    path.write_text(f"{other}\n{stolen}\n")
    with pytest.raises(InputError, match="two clients have the same wire key"):
        read_roster(path)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a\n", "a ", "a\x1b[2J", "x" * 41, "../x", "é"])
def test_names_are_plain_words(name):
    with pytest.raises(InputError):
        card_line(ONE, name)


def test_a_roster_keeps_its_order_and_names_everybody_once(tmp_path):
    path = tmp_path / "roster.txt"
    lines = [card_line(TWO, "b"), card_line(ONE, "a")]
    path.write_text("# clients\n\n" + "\n".join(lines))
    assert [card.name for card in read_roster(path)] == ["b", "a"]
    for second, reason in ((card_line(TWO, "c"), "clients have the same key"), (card_line(ONE, "b"), "the same name")):
        path.write_text(f"{lines[0]}\n{second}\n")
        with pytest.raises(InputError, match=reason):
            read_roster(path)
    path.write_text(f"{lines[0]}\nnonsense\n")
    with pytest.raises(InputError, match="line 2"):
        read_roster(path)
    path.write_text("# nobody\n")
    with pytest.raises(InputError, match="the roster is empty"):
        read_roster(path)


def test_a_key_is_its_owner_s_and_is_never_replaced(tmp_path):
    path = tmp_path / "key.pem"
    write_identity(path, ONE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_identity(path) == ONE
    with pytest.raises(InputError, match="not replaced"):
        write_identity(path, TWO)
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_identity(path)
    other = tmp_path / "tls.key"
    other.write_bytes(make_certificates(["x"]).key)
    with pytest.raises(InputError, match="is not an Ed25519 private key"):
        read_identity(other)


def test_an_invitation_is_what_the_operator_has(tmp_path):
    made = make_operator(tmp_path / "operator", ["fed.example.org", "10.0.0.7"], 9443, ONE)
    path = tmp_path / "operator" / INVITATION
    assert read_invitation(path) == made
    assert made.server == "fed.example.org:9443"
    assert made.identity == Identity(ONE).public
    secret = {file.name for file in path.parent.iterdir() if file.stat().st_mode & 0o077 == 0}
    assert secret == {"identity.pem", "authority.key", "tls.key"}
    for text in ("", "{", "format: x", path.read_text().replace(made.identity.hex(), "abc")):
        path.write_text(text)
        with pytest.raises(InputError):
            read_invitation(path)


@pytest.mark.parametrize("address", [
    "host", "host:0", "host:65536", "https://host:1", "a b:1", "host:1/x",
    "[1.2.3.4]:1", "[abc]:1", "[::1::]:1", "a..b:1", f"{'a' * 64}.example:1",
])  # fmt: skip
def test_addresses(address):
    with pytest.raises(InputError, match=r": expected HOST:PORT, such as fed\.example\.org:9443"):
        checked_address(address)


def test_a_key_that_is_there_leaves_a_folder_as_it_is(tmp_path, monkeypatch):
    """And what goes wrong with a certificate leaves none."""
    with monkeypatch.context() as patch:
        patch.setattr(invitation, "make_certificates", lambda hosts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_operator(tmp_path / "operator", ["x"], 7, ONE)
    assert not (tmp_path / "operator").exists()
    make_operator(tmp_path / "operator", ["x"], 7, ONE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "operator").iterdir()}
    with pytest.raises(InputError, match="there is a key already"):
        make_operator(tmp_path / "operator", ["y"], 7, TWO)
    assert {path.name: path.read_bytes() for path in (tmp_path / "operator").iterdir()} == before


@pytest.mark.parametrize("wrong", ["ünï.de", "", "a b", "a..b", "x:1"])
def test_every_name_of_a_server_is_looked_at_before_a_key_is_written(tmp_path, wrong):
    for hosts in ([wrong, "x"], ["x", "10.0.0.7", wrong]):
        with pytest.raises(InputError, match="expected HOST:PORT"):
            make_operator(tmp_path / "operator", hosts, 7, ONE)
        assert not (tmp_path / "operator").exists()
    make_operator(tmp_path / "operator", ["x", "10.0.0.7"], 7, ONE)


def test_the_authority_can_sign_only_for_its_own_and_the_server_cannot_sign():
    made = make_certificates(["fed.example.org", "10.0.0.7", "::1"])
    authority, server = (x509.load_pem_x509_certificate(pem) for pem in (made.authority, made.certificate))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    for certificate, signs in ((authority, True), (server, False)):
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is signs
        assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is signs
        assert certificate.not_valid_before_utc < datetime.now(UTC) < certificate.not_valid_after_utc
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=made.authority.decode())


@pytest.mark.parametrize("bit", range(9))
def test_a_key_that_anybody_else_may_touch_is_refused(tmp_path, bit):
    path = tmp_path / "key.pem"
    write_identity(path, ONE)
    path.chmod(0o600 | 1 << bit)
    if bit < 6:
        with pytest.raises(InputError, match="other users can read this key; type: chmod 600"):
            read_identity(path)
    else:
        assert read_identity(path) == ONE


def test_the_keys_of_a_node_are_those_of_its_card_and_are_never_replaced(tmp_path):
    path = tmp_path / "node.key"
    write_node_keys(path, ONE)
    assert path.stat().st_mode & 0o777 == 0o600
    private = load_ssh_private_key(path.read_bytes(), None)
    assert private.private_numbers() == wire_key(ONE).private_numbers()
    public = load_ssh_public_key((tmp_path / "node.key.pub").read_bytes())
    assert public.public_numbers() == private.public_key().public_numbers()
    before = path.read_bytes()
    with pytest.raises(InputError, match="there is a key already; it is not replaced"):
        write_node_keys(path, TWO)
    assert path.read_bytes() == before


@pytest.mark.parametrize("address", ["host:1", "10.0.0.7:65535", "[::1]:9443", "fed.example.org:80"])
def test_an_address_is_taken_as_it_is(address):
    assert checked_address(address) == address
    assert port_of(Invitation(server=address, identity=bytes(32), authority=b"")) == int(address.rpartition(":")[2])


@pytest.mark.parametrize("hosts", [["::1", "x"], ["x", "::1"]])
def test_an_invitation_names_the_first_address_in_the_form_of_an_address(tmp_path, hosts):
    first = "[::1]" if hosts[0] == "::1" else "x"
    assert make_operator(tmp_path / "operator", hosts, 7, ONE).server == f"{first}:7"


@pytest.mark.parametrize("key", ["format", "server", "identity", "authority"])
def test_an_invitation_lacks_nothing(tmp_path, key):
    path = tmp_path / "invitation.yaml"
    write_invitation(path, Invitation(server="x:1", identity=bytes(32), authority=b"PEM"))
    content = yaml.safe_load(path.read_text())
    assert read_invitation(path).authority == b"PEM"
    del content[key]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"is not an invitation|key is missing or invalid"):
        read_invitation(path)


@pytest.mark.parametrize("count", [30, 31, 33, 64])
def test_a_card_has_an_identity_of_its_length(count):
    words = card_line(ONE, "clinic").split()
    words[2] = (Identity(ONE).public * 2)[:count].hex()
    with pytest.raises(InputError, match="this is not a client's card"):
        read_card(" ".join(words))


def test_the_name_on_a_card_is_read_where_there_is_one(tmp_path):
    path = tmp_path / "own.card"
    assert named_on_card(path) is None
    path.write_text(card_line(ONE, "clinic"))
    assert named_on_card(path) == "clinic"
    for content in (b"no card", b"\xff", card_line(ONE, "clinic").replace("clinic", "other").encode()):
        path.write_bytes(content)
        assert named_on_card(path) is None


@pytest.mark.parametrize("folder", ["nowhere", "a file", "operator"])
def test_a_server_s_key_is_in_the_folder_that_was_made(tmp_path, folder):
    make_operator(tmp_path / "operator", ["x"], 7, ONE)
    (tmp_path / "a file").write_text("")
    words = {"nowhere": "no such folder", "a file": "is a file; name the folder"}
    if folder == "operator":
        assert operator_identity(tmp_path / folder) == ONE
        for name in ("tls.key", "authority.key", "identity.pem"):
            (tmp_path / folder / name).chmod(0o640)
            with pytest.raises(InputError, match=rf"{name}: other users can read this key; type: chmod 600 "):
                operator_identity(tmp_path / folder)
            (tmp_path / folder / name).chmod(0o600)
        (tmp_path / folder / "authority.key").unlink()
        assert operator_identity(tmp_path / folder) == ONE
        return
    with pytest.raises(InputError, match=words[folder]):
        operator_identity(tmp_path / folder)
