"""Files and texts from outside, damaged or written by an enemy: one line that says which, and never a traceback."""

from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory, config_of
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import LEDGER, check_newest, claim, note_answered, open_home
from dpfedmeta.federation.client.client_state import Kept
from dpfedmeta.federation.client.training_participation import opened
from dpfedmeta.federation.identity.credentials import named_on_card, read_identity, read_roster
from dpfedmeta.federation.identity.home_register import HOME
from dpfedmeta.federation.identity.invitation import read_invitation
from dpfedmeta.federation.offers import signed_analysis, signed_plan
from dpfedmeta.federation.offers.rounds_offer import opened_rounds
from dpfedmeta.federation.offers.signed_document import content_of, difference
from dpfedmeta.federation.server.client_requests import Told
from dpfedmeta.federation.server.training_server import left_out
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.silos import private_key

AT = Attempt(run=bytes(range(32)), round=3)
LONG = b"9" * 5000
DAMAGE = {
    "nothing": b"",
    "deep lists": b"[" * 1_200,
    "closed ones": b"[" * 1_200 + b"]" * 1_200,
    "deep mappings": b'{"format":' * 1_200,
    "a date that is none": b"format: 2001-99-99\n",
    "a list": b"[1, 2]",
    "three of a kind": b'["a", {}, null]',
    "a number": b"7",
    "a text": b'"text"',
    "no value": b"null",
    "an empty mapping": b"{}",
    "other kinds of values": b'{"format": [], "key": 7, "clients": 7, "survivors": 7, "node": [], "seed": {}}',
    "wrong digits": b'{"key": [3], "survivors": ["xyz"], "clients": null, "seed": 1, "generator": 1, "node": "x"}',
    "infinity": b'{"format": 1e999, "key": 1e999, "node": 1e999, "seed": 1e999, "survivors": [1e999]}',
    "infinities": b"[1e999, 1e999, 1]",
    "not UTF-8": b'{"format": "\xe9"}',
    "UTF-16": '{"format": "x"}'.encode("utf-16"),
    "a long number": LONG,
    "a long number inside": b'{"format": ' + LONG + b', "key": ' + LONG + b"}",
    "a long hexadecimal number": b"format: dpfedmeta invitation 1\nserver: x:1\nauthority: x\nidentity: 0x" + LONG,
    "twice": b"format: dpfedmeta invitation 1\nformat: x\n",
    "anchors in themselves": b"&a [*a]",
}


def written(read, name="some.file", end=b""):
    def look(folder, content):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content + end * bool(content))
        path.chmod(0o600)
        return read(path)

    return look


# What refuses by an error of one line, by the name of the file in it.
FILES = {
    "invitation": written(read_invitation),
    "roster": written(read_roster),
    "identity": written(read_identity),
    "home": written(lambda path: check_newest(path.parent), HOME),
    "noise key": written(lambda path: Kept(folder=path.parent).source(None), "noise.json"),
    "a run's summary": written(lambda path: RunDirectory(path.parent).read_json(path.name)),
    "survivors at a client": written(lambda path: Kept(folder=path.parent).survivors(AT), "revealed.json"),
    "survivors at the server": written(lambda path: Told(path=path).survivors(AT)),
    "who is left out": written(lambda path: left_out(SimpleNamespace(secret=path.parent)), "faults.jsonl", b"\n"),
    "a client's ledger": written(lambda path: ClientLedger(path, Promise(participations=3).budget()), LEDGER, b"\n"),
    "a run's rounds": written(lambda path: RunDirectory(path.parent).rounds(), "rounds.jsonl", b"\n"),
}
# Objects that say nothing of this attempt, or are read by their names alone.
_OBJECTS = {"an empty mapping", "other kinds of values", "wrong digits", "infinity"}
FITS = {
    "a run's summary": _OBJECTS,
    "survivors at a client": {"other kinds of values", "infinity"},
    "a run's rounds": {"nothing", *_OBJECTS},
    # A line that a crash tore never counted; of faults none is whole where a zero byte stands behind it.
    "who is left out": {"nothing", "UTF-16"},
    "a client's ledger": {"nothing"},
}


def told(error):
    line = str(error)
    assert "\n" not in line
    assert len(line) < 1000
    return line


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_named_in_one_line(tmp_path, kind):
    for number, (name, content) in enumerate(DAMAGE.items()):
        folder = tmp_path / str(number)
        if name in FITS.get(kind, ()):
            FILES[kind](folder, content)
            continue
        with pytest.raises(InputError) as found:
            FILES[kind](folder, content)
        assert told(found.value).startswith(str(folder)), name


# What counts as absent where nobody can read it, as its docstring says.
@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_read_counts_as_absent(tmp_path, name):
    content = DAMAGE[name]
    for file in ("begun.json", "card", "ledger.jsonl"):
        (tmp_path / file).write_bytes(content)
    assert Kept(folder=tmp_path).began(AT) is False
    assert named_on_card(tmp_path / "card") is None
    assert config_of(tmp_path) == ""


def test_a_note_on_a_home_that_cannot_be_read_makes_it_an_older_copy(tmp_path):
    place, data = tmp_path / "own.home", tmp_path / "clinic.csv"
    data.write_text("class,age\nill,1\nwell,2\n")
    claim(place, data, private_key("one"))
    ClientLedger(place / LEDGER, Promise(participations=3).budget())
    note_answered(place)
    (note,) = (tmp_path / "state").rglob("*.ledger")
    for content in DAMAGE.values():
        note.write_bytes(content)
        with pytest.raises(InputError) as found:
            open_home(place, data, private_key("one"))
        assert told(found.value).startswith(f"{place}: may be an older copy; {note}")
        taken = open_home(place, data, private_key("one"), accept=True, keep=False)
        assert taken.startswith(f"{place}: may be an older copy; {note}")
    # A home in the register that cannot be read is named: it may be the one that these records belong to.
    (entry,) = (tmp_path / "state").rglob("homes/*.json")
    for content in DAMAGE.values():
        entry.write_bytes(content)
        with pytest.raises(InputError) as found:
            open_home(place, data, private_key("one"))
        assert told(found.value).startswith(f"{entry}: damaged")


SERVER = Identity(private_key("server"))
TEXTS = {
    "an offer": lambda text: opened(text, SERVER.sign(text), SERVER.public),
    "a plan": lambda text: content_of(text, signed_plan.FORM),
    "an analysis": lambda text: content_of(text, signed_analysis.FORM),
    "rounds": opened_rounds,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_a_server_is_refused_in_one_line(kind):
    for content in DAMAGE.values():
        with pytest.raises((InputError, Refused)) as found:
            TEXTS[kind](content)
        told(found.value)


def test_numbers_beyond_all_floats_differ_from_every_number():
    """A server may state them; what comes of it is a refusal, and no error of the program."""
    for own, stated in ((1.0, 10**400), (1, -(10**400)), (2.5, 10**400)):
        assert difference({"a": own}, {"a": stated}, "privacy").startswith("privacy.a = ")
