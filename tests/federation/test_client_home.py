"""A home belongs to images: what they spent is found again under a new key, a new home, with new images, and moved."""

import errno
import fcntl
import json
import math
import re
import shutil
import threading
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget, open_own_ledger
from dpfedmeta.accounting.ledger.ledger_register import lineage_folder
from dpfedmeta.accounting.participation_cost import Spending
from dpfedmeta.cli.commands.federate_command import main
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import cut_torn_line, replace_file
from dpfedmeta.data.user_sources.sound_rows import own_digests
from dpfedmeta.federation import entry_points as running
from dpfedmeta.federation.client import client_home
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import check_newest, claim, note_answered, open_home, rotate
from dpfedmeta.federation.flower import flower_client
from dpfedmeta.federation.identity import home_register
from dpfedmeta.federation.identity.credentials import read_card, read_identity, read_roster, write_identity
from dpfedmeta.federation.identity.home_register import HOME
from dpfedmeta.federation.identity.invitation import INVITATION
from dpfedmeta.federation.server.training_server import serve
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from tests.conftest import dpfedmeta
from tests.federation.in_process import InProcessChannel
from tests.federation.silos import make_silos, private_key, write_classes

OLD, NEW = private_key("old"), private_key("new")


@pytest.fixture
def data(tmp_path):
    write_classes(tmp_path / "images", range(50, 53), images=2)
    return tmp_path / "images"


@pytest.fixture
def home(tmp_path, data):
    """One that took part."""
    claim(tmp_path / "old.home", data, OLD)
    (tmp_path / "old.home" / "ledger.jsonl").write_text("spent")
    return tmp_path / "old.home"


def moved(data):
    return data.rename(data.parent / "elsewhere")


def copied(data):
    shutil.copytree(data, data.parent / "copy")
    return data.parent / "copy"


def grown(data):
    """With a class and images that nobody saw, elsewhere."""
    place = copied(data)
    write_classes(place, [60], images=3)
    shutil.copy(place / "character060" / "0.png", place / "character050" / "new.png")
    return place


def shrunk(data):
    """One image is left of it, under another name and class."""
    (data.parent / "rest" / "only").mkdir(parents=True)
    shutil.copy(data / "character051" / "1.png", data.parent / "rest" / "only" / "a.png")
    return data.parent / "rest"


def replaced(data):
    """Other images in the same folder."""
    shutil.rmtree(data)
    write_classes(data, [61], images=2)
    return data


@pytest.mark.parametrize("change", [lambda data: data, moved, copied, grown, shrunk, replaced])
def test_images_are_known_again_under_another_key_and_home(tmp_path, data, home, change):
    place = change(data)
    with pytest.raises(InputError, match=r"a new key does not start a new budget.*--rotate") as refused:
        claim(tmp_path / "new.home", place, NEW)
    assert "\n" not in str(refused.value)
    assert str(home) in str(refused.value)
    assert not (tmp_path / "new.home").exists()
    # Under the old one it goes on, and other images have a home of their own.
    claim(home, place, OLD)
    write_classes(tmp_path / "others", [70], images=2)
    claim(tmp_path / "new.home", tmp_path / "others", NEW)


def _dated(image, path):
    words = PngInfo()
    words.add_text("exported", "2026-11-28")
    image.save(path.with_suffix(".png"), pnginfo=words)


SAVED_AGAIN = {
    "another compression": lambda image, path: image.save(path.with_suffix(".png"), compress_level=1),
    "a date in the header": _dated,
    "bitmap": lambda image, path: image.save(path.with_suffix(".bmp")),
    "another format": lambda image, path: image.save(path.with_suffix(".tiff")),
    "grey as colours": lambda image, path: image.convert("RGB").save(path.with_suffix(".png")),
    "with an opaque layer": lambda image, path: image.convert("RGBA").save(path.with_suffix(".png")),
}


def saved_again(data, place, save):
    for file in sorted(data.rglob("*.png")):
        made = place / file.relative_to(data)
        made.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as image:
            save(image.convert("L"), made)
    return place


@pytest.mark.parametrize("how", SAVED_AGAIN)
def test_images_that_were_saved_again_are_known_by_their_pixels(tmp_path, data, home, how):
    place = saved_again(data, tmp_path / "again", SAVED_AGAIN[how])
    # One that does not decode is none, and hides no other.
    (place / "character050" / "!.png").write_bytes(b"none")
    with pytest.raises(InputError, match="does not start a new budget"):
        claim(tmp_path / "new.home", place, NEW)
    # One pixel is another one: another image.
    other = saved_again(data, tmp_path / "other", lambda image, path: SAVED_AGAIN[how](changed(image), path))
    claim(tmp_path / "new.home", other, NEW)


def changed(image):
    image.putpixel((0, 0), 255 - image.getpixel((0, 0)))
    return image


def test_images_of_one_colour_belong_to_nobody(tmp_path, data, home):
    """They are equal without being the same; equal files are the same."""
    for folder, size in (("first", 28), ("second", 28)):
        for number in range(2):
            path = tmp_path / folder / f"c{number}" / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("L", (size, size), 7).save(path, compress_level=1 if folder == "first" else 9)
    claim(tmp_path / "one.home", tmp_path / "first", OLD)
    claim(tmp_path / "two.home", tmp_path / "second", NEW)


def test_what_a_home_took_part_with_once_belongs_to_it_for_ever(tmp_path, data, home):
    before = copied(data)
    claim(home, replaced(data), OLD)
    with pytest.raises(InputError, match="does not start a new budget"):
        claim(tmp_path / "new.home", before, NEW)


def test_a_home_of_another_key_is_refused(tmp_path, data, home):
    before = (home / HOME).read_bytes()
    with pytest.raises(InputError, match=r"is the home of another key.*--rotate OLD\.pem"):
        claim(home, data, NEW)
    assert (home / HOME).read_bytes() == before


def test_a_home_may_be_moved_and_the_register_lost(tmp_path, data, home):
    home.rename(tmp_path / "there")
    with pytest.raises(InputError, match=r"no ledger is there now.*if it was moved"):
        claim(tmp_path / "new.home", data, NEW)
    shutil.rmtree(tmp_path / "state")
    claim(tmp_path / "there", data, OLD)
    with pytest.raises(InputError, match="does not start a new budget"):
        claim(tmp_path / "new.home", data, NEW)


def test_a_dry_run_is_told_and_notes_nothing(tmp_path, data):
    claim(tmp_path / "dry.home", data, OLD, keep=False)
    assert not (tmp_path / "dry.home").exists()
    claim(tmp_path / "new.home", data, NEW)
    with pytest.raises(InputError):
        claim(tmp_path / "dry.home", data, OLD, keep=False)


def test_images_are_read_once_until_they_change(tmp_path, data, home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_bytes", lambda path: pytest.fail(f"{path} was read"))
        claim(home, data, OLD)
    # A changed image of equal size is another one.
    shutil.copy(data / "character051" / "1.png", data / "character050" / "0.png")
    known = set(json.loads((home / HOME).read_text())["images"])
    write_classes(data, [62], images=1)
    claim(home, data, OLD)
    assert known < set(json.loads((home / HOME).read_text())["images"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 1}', "\xff"])
def test_a_damaged_note_is_one_line(tmp_path, data, home, content):
    (home / HOME).write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"home\.json: damaged; it says which records"):
        claim(home, data, OLD)


def test_both_are_for_their_owner_alone(tmp_path, home):
    for path in (home / HOME, *(tmp_path / "state" / "homes").glob("*.json")):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def said(capsys):
    def run(*words):
        code = main([str(word) for word in words], Console(soft_wrap=True, width=400))
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def client(tmp_path, data, said):
    """A client that took part twice by the command, of three times that it promises."""
    said("keys", "--server", "--out", tmp_path / "operator", "--host", "127.0.0.1", "--port", 9)
    said("keys", "--out", tmp_path / "clinic.pem")
    started(tmp_path, "clinic.pem", data, spend=2)
    return tmp_path


def started(folder, key, data, spend=0, **given):
    """`federate client` up to its first question; with participations, as a server would ask for them."""
    options = running.ClientOptions(
        data=data,
        invitation=folder / "operator" / INVITATION,
        identity=folder / key,
        home=(folder / key).with_suffix(".home"),
        promise=Promise(participations=3),
        patience=0.1,
        **given,
    )
    with pytest.raises(RuntimeError, match="the server did not answer"):
        running.run_client(options, lambda line: None)
    party = RealClient(
        data, read_identity(folder / key), options.home / "ledger.jsonl", server=bytes(32), promise=options.promise
    )
    for number in range(spend):
        party._ledger.charge(number, Spending(mus={"zero-out": 0.5}), run="00", question="q", fresh="00")
    return party._ledger


def test_a_rotated_key_goes_on_with_what_was_spent(client, data, said):
    """By the commands: old key, refused fresh key, rotation, new key; the operator's line is printed."""
    said("keys", "--out", client / "fresh.pem")
    with pytest.raises(InputError, match="does not start a new budget"):
        started(client, "fresh.pem", data)
    code, text = said("keys", "--rotate", client / "clinic.pem", "--out", client / "second.pem")
    assert code == 0
    line = text.strip().splitlines()[-1]
    card = read_card(line)
    assert card.name == "clinic"
    assert card.identity == Identity(read_identity(client / "second.pem")).public
    (client / "roster.txt").write_text(line + "\n")
    assert read_roster(client / "roster.txt") == (card,)
    assert (client / "second.card").read_text().strip() == line
    ledger = started(client, "second.pem", data)
    assert ledger.participations == 2
    assert not (client / "clinic.home").exists()
    identities = json.loads((client / "second.home" / HOME).read_text())["identities"]
    assert identities == [Identity(read_identity(client / name)).public.hex() for name in ("clinic.pem", "second.pem")]
    # The old one is of this home too, and begins nothing anew.
    with pytest.raises(InputError, match="does not start a new budget"):
        started(client, "clinic.pem", data)
    said("keys", "--rotate", client / "second.pem", "--out", client / "third.pem", "--name", "other")
    assert started(client, "third.pem", data).participations == 2


def test_a_rotated_key_may_keep_the_name_before_its_last_dot(client, data, said):
    said("keys", "--rotate", client / "clinic.pem", "--out", client / "clinic.new", "--flower")
    assert (client / "clinic.flower").exists()
    assert (
        read_card((client / "clinic.card").read_text()).identity
        == Identity(read_identity(client / "clinic.new")).public
    )
    assert started(client, "clinic.new", data).participations == 2


def test_a_home_of_its_own_place_stays_there(client, data, said):
    (client / "clinic.home").rename(client / "place")
    said("keys", "--rotate", client / "clinic.pem", "--home", client / "place", "--out", client / "second.pem")
    claim(client / "place", data, read_identity(client / "second.pem"))


def test_a_home_of_an_earlier_version_is_taken_over(client, data, said):
    """It says nothing of images and keys."""
    shutil.rmtree(client / "state")
    (client / "clinic.home" / HOME).unlink()
    said("keys", "--rotate", client / "clinic.pem", "--out", client / "second.pem")
    assert started(client, "second.pem", data).participations == 2
    said("keys", "--out", client / "fresh.pem")
    with pytest.raises(InputError, match="does not start a new budget"):
        started(client, "fresh.pem", data)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rotate", "clinic.pem", "--out", "clinic.pem"], "clinic.pem: there is a key already; it is not replaced"),
        (["--rotate", "nowhere.pem", "--out", "second.pem"], "the identity key cannot be read"),
        (["--rotate", "other.pem", "--out", "second.pem"], r"other\.home: is not a client's home"),
        (["--rotate", "other.pem", "--home", "clinic.home", "--out", "second.pem"], "is the home of another key"),
        (["--home", "clinic.home", "--out", "second.pem"], "it goes with --rotate KEY"),
        (["--rotate", "clinic.pem", "--out", "taken.pem"], r"taken\.home: exists already"),
    ],
)
def test_a_rotation_that_cannot_be(client, said, monkeypatch, words, reason):
    monkeypatch.chdir(client)
    write_identity(client / "other.pem", OLD)
    (client / "taken.home").mkdir()
    before = sorted(path.name for path in client.iterdir())
    with pytest.raises(InputError, match=reason):
        said("keys", *words)
    assert sorted(path.name for path in client.iterdir()) == before


def test_a_rotation_that_is_cut_off_loses_neither_key(client, data, monkeypatch):
    write_identity(client / "second.pem", NEW)
    monkeypatch.setattr("pathlib.Path.rename", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    private = read_identity(client / "clinic.pem")
    with pytest.raises(KeyboardInterrupt):
        rotate(private, NEW, client / "clinic.home", client / "second.home")
    monkeypatch.undo()
    monkeypatch.setenv("DPFEDMETA_STATE", str(client / "state"))
    claim(client / "clinic.home", data, NEW)
    claim(client / "clinic.home", data, private)


def test_a_rotation_to_another_disk_takes_all_of_the_home_along(client, data, said, monkeypatch):
    """Where a rename cannot go; and where there is no room the old key goes on as before."""
    before = {
        path.name: path.read_bytes()
        for path in (client / "clinic.home").iterdir()
        if path.is_file() and path.name != HOME
    }
    (client / "disk").mkdir()
    rename, words = Path.rename, ("--rotate", client / "clinic.pem", "--out", client / "disk" / "second.pem")

    def within_a_disk(self, target):
        if self.parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", within_a_disk)
    with monkeypatch.context() as full:
        full.setattr(shutil, "copytree", lambda *given: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            said("keys", *words)
    assert started(client, "clinic.pem", data).participations == 2
    for _ in range(2):  # the same command goes on, and has nothing left to do
        assert said("keys", *words)[0] == 0
        home = client / "disk" / "second.home"
        assert {
            path.name: path.read_bytes() for path in home.iterdir() if path.is_file() and path.name != HOME
        } == before
        assert not (client / "clinic.home").exists()
        assert not [path for path in client.rglob(".*") if path.name != ".lock"]
    shutil.copytree(client / "operator", client / "disk" / "operator")
    assert started(client / "disk", "second.pem", data).participations == 2


def test_another_key_in_the_new_one_s_place_is_not_taken_for_a_rotation_that_was_cut_off(client, data, said):
    write_identity(client / "second.pem", NEW)
    before = {path: path.read_bytes() for path in client.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"second\.pem: there is a key already; it is not replaced"):
        said("keys", "--rotate", client / "clinic.pem", "--out", client / "second.pem")
    assert {path: path.read_bytes() for path in client.rglob("*") if path.is_file()} == before


def test_the_register_is_free_while_a_table_is_read(home, tmp_path, data, monkeypatch):
    """Other clients of this machine note their answers meanwhile."""
    register, honest, free = tmp_path / "state" / "homes" / ".lock", own_digests, []

    def slow(path):
        with register.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(path)
        return honest(path)

    monkeypatch.setattr(client_home, "own_digests", slow)
    claim(home, data, OLD)
    assert free == [data]


@pytest.mark.parametrize("writes", [1, 2])
def test_a_home_that_was_cut_off_at_its_first_claim_is_taken_up_by_its_key_alone(tmp_path, data, monkeypatch, writes):
    """A full disk between the register and the home, or the note that it is there."""
    home, honest, written = tmp_path / "first.home", replace_file, []

    def full(path, *rest):
        written.append(path)
        if len(written) > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(path, *rest)

    with monkeypatch.context() as cut:
        cut.setattr(home_register, "replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            claim(home, data, OLD)
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "second.home", data, OLD)
    with pytest.raises(InputError, match="took part from" if writes == 1 else "is the home of another key"):
        claim(home, data, NEW)
    claim(home, data, OLD)
    assert len(list((tmp_path / "state" / "homes").glob("*.json"))) == 1
    if writes == 1:
        shutil.rmtree(home)
        with pytest.raises(InputError, match="no ledger is there now: what they spent is not known"):
            claim(home, data, OLD)


def test_a_home_that_is_noted_is_known_to_its_machine(tmp_path, data, monkeypatch):
    """Cut off between the two, the images are refused to another home rather than forgotten."""
    honest, written = replace_file, []

    def once(path, *rest):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        honest(path, *rest)

    with monkeypatch.context() as cut:
        cut.setattr(home_register, "replace_file", once)
        with pytest.raises(KeyboardInterrupt):
            claim(tmp_path / "first.home", data, OLD)
    assert not (tmp_path / "first.home" / HOME).exists()
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "second.home", data, NEW)


LIMIT = RecordBudget(epsilon=9.0, delta=1e-5)


def spent_of(home):
    """(Participations, epsilon)."""
    ledger, _ = open_own_ledger(home / "ledger.jsonl")
    return ledger.participations, ledger.epsilon


def answered(home, rounds):
    """A ledger after so many answers."""
    (home / "ledger.jsonl").unlink(missing_ok=True)
    ledger = ClientLedger(home / "ledger.jsonl", LIMIT)
    for number in range(rounds):
        ledger.charge(number, Spending(mus={"zero-out": 0.5}), run="00", question="q", fresh=f"{number:02}")
    note_answered(home)


def test_an_older_copy_of_a_whole_home_is_refused_on_its_machine(home, tmp_path):
    answered(home, 2)
    shutil.copytree(home, tmp_path / "backup")
    answered(home, 5)
    assert check_newest(home) is None
    newest = (home / "ledger.jsonl").read_bytes()
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    with pytest.raises(InputError, match=r"is an older copy; .* went on to line 6, and this one has 3"):
        check_newest(home)
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home, keep=False)
    before = (home / "ledger.jsonl").read_bytes()
    assert "taken all the same" in check_newest(home, accept=True, keep=False)  # a dry run, which changes nothing
    assert (home / "ledger.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home)
    assert "taken all the same (--change-limit), and what is missing is charged again" in check_newest(
        home, accept=True
    )
    assert check_newest(home) is None
    assert check_newest(home, accept=True) is None
    # The newest copy is an older one now: it lacks the line that says what happened.
    (home / "ledger.jsonl").write_bytes(newest)
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home)


def went_back(home):
    """The first lines of it."""
    (home / "ledger.jsonl").write_bytes(b"".join((home / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:3]))


def went_on_apart(home):
    """As long as the other, with charges that nobody else knows."""
    went_back(home)
    ledger = ClientLedger(home / "ledger.jsonl", LIMIT)
    for number in range(2, 5):
        ledger.charge(number, Spending(mus={"zero-out": 0.5}), run="00", question="other", fresh=f"f{number}")


def went_back_and_was_taken_in_part(home):
    """A power cut while what was missing was written."""
    went_back(home)
    check_newest(home, accept=True)
    path = home / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    (note,) = (lineage_folder().parent / "homes").glob("*.ledger")
    note.write_bytes((home / "noted").read_bytes())


def is_gone(home):
    (home / "ledger.jsonl").unlink()


OLDER = [went_back, went_on_apart, went_back_and_was_taken_in_part, is_gone]


@pytest.mark.parametrize("kind", OLDER, ids=lambda kind: kind.__name__)
def test_an_older_copy_that_is_taken_counts_no_less_than_was_spent(home, kind):
    """Whatever it lacks is charged again, once, and its ledger says for ever that lines were missing."""
    answered(home, 5)
    _, true = spent_of(home)
    (note,) = (lineage_folder().parent / "homes").glob("*.ledger")
    shutil.copy(note, home / "noted")
    kind(home)
    apart = 3 if kind is went_on_apart else 0
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home)
    check_newest(home, accept=True)
    ledger, _ = open_own_ledger(home / "ledger.jsonl")
    assert ledger.epsilon == pytest.approx(gaussian_epsilon(0.5 * math.sqrt(5 + apart), 1e-5))
    assert ledger.epsilon >= true
    assert all(each.restored for each in ledger.older_copies)
    assert ledger.older_copies[0].missing == {went_back: 3, went_on_apart: 3, is_gone: 6}.get(kind, 3)
    assert not ledger.accepts(Spending(mus={"zero-out": 9.0}))
    for limit in (50.0, 9.0, 50.0):  # lines of the same words, which are not taken for each other
        again = ClientLedger(home / "ledger.jsonl", replace(LIMIT, epsilon=limit), change=True)
    again.charge(9, Spending(mus={"zero-out": 0.5}), run="01", question="q")
    note_answered(home)
    said = dpfedmeta("account", "--statement", str(home)).out
    assert "Attention: an older copy was taken after participation" in said
    assert f"over {5 + apart + 1} participations" in said
    assert "what they charged is counted again" in said
    text = (home / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (home / "ledger.jsonl").write_bytes(b"".join(text[:-3]))  # of its limits 50, 9, 50 the first one is left
    check_newest(home, accept=True)
    found, budget = open_own_ledger(home / "ledger.jsonl")
    assert (found.epsilon, found.participations) == (again.epsilon, again.participations)
    assert (budget.epsilon, [words for words, _ in found.former_limits]) == (50.0, [w for w, _ in again.former_limits])


@pytest.mark.parametrize("part", ["epsilon", "delta", "participations", "relation"])
@pytest.mark.parametrize("lost", ["a note of before", "a damaged note"])
def test_where_what_was_spent_is_not_known_no_limit_is_raised_any_more(home, lost, part):
    """A note that holds no copy of the ledger, or says nothing."""
    before = RecordBudget(epsilon=9.0, delta=1e-5, participations=40, relation="zero-out")
    ledger = ClientLedger(home / "ledger.jsonl", before) if (home / "ledger.jsonl").unlink() is None else None
    for number in range(5):
        ledger.charge(number, Spending(mus={"zero-out": 0.5, "row-deleted": 1.0}), run="00", question="q")
    note_answered(home)
    (note,) = (lineage_folder().parent / "homes").glob("*.ledger")
    note.write_bytes(note.read_bytes().partition(b"\n")[0] if lost == "a note of before" else b"[")
    went_back(home)
    assert "what is missing is counted nowhere" in check_newest(home, accept=True)
    assert check_newest(home) is None
    more = {"epsilon": 9.5, "delta": 1e-4, "participations": None, "relation": "row-deleted"}[part]
    less = {"epsilon": 8.5, "delta": 1e-6, "participations": 30, "relation": "zero-out"}[part]
    path, text = home / "ledger.jsonl", (home / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match=f"its limit is never raised: give no other --{part} than that of epsilon"):
        ClientLedger(path, replace(before, **{part: more}), change=True)
    assert path.read_bytes() == text
    found = ClientLedger(path, replace(before, **{part: less}), change=True).older_copies
    assert [(each.missing, each.restored) for each in found] == [(3 if lost == "a note of before" else None, False)]
    assert "what they spent is in no number here" in dpfedmeta("account", "--statement", str(home)).out


def test_a_ledger_that_is_gone_and_known_to_nobody_is_not_begun_anew(home):
    answered(home, 2)
    (note,) = (lineage_folder().parent / "homes").glob("*.ledger")
    note.write_bytes(note.read_bytes().partition(b"\n")[0])
    is_gone(home)
    with pytest.raises(InputError, match="is gone, and what it held is not known on this machine"):
        check_newest(home, accept=True)
    assert not (home / "ledger.jsonl").exists()


def test_records_that_took_part_since_belong_to_an_older_copy_too(tmp_path, data, home):
    backup = (home / HOME).read_bytes()
    write_classes(data, [70], images=1)
    claim(home, data, OLD)
    (home / HOME).write_bytes(backup)
    shutil.copytree(data / "character070", tmp_path / "late" / "character070")
    shutil.rmtree(data / "character070")
    write_classes(data, [71], images=1)
    claim(home, data, OLD)
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", tmp_path / "late", NEW)


@pytest.mark.parametrize("content", [b"", b"[12, 3", b"{}", b"[1, 2]", b"\xff"])
def test_a_note_that_was_emptied_or_cut_lets_no_older_copy_pass(home, content):
    """It was written whole, so it says nothing of a home that was never here."""
    answered(home, 1)
    (note,) = (lineage_folder().parent / "homes").glob("*.ledger")
    note.write_bytes(content)
    with pytest.raises(InputError, match=r"may be an older copy; .*\.ledger, which says .* is damaged. Restore the "):
        check_newest(home)
    # Its owner lowers the limit, and the note is as it should be again.
    assert "it is taken all the same" in check_newest(home, accept=True)
    assert check_newest(home) is None


def test_a_ledger_that_grew_by_other_answers_is_no_newer_copy(home):
    """Two copies that went on apart: as many lines, but not those that were written here."""
    answered(home, 4)
    (home / "ledger.jsonl").write_text("header\n" + "".join(f'{{"round": {7 + each}}}\n' for each in range(6)))
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home)


def test_a_home_that_comes_from_elsewhere_is_told(home, monkeypatch, tmp_path):
    answered(home, 3)
    assert check_newest(home) is None
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
    assert "was not used on this machine before; its ledger counts 3 answers" in check_newest(home)
    note_answered(home)
    assert check_newest(home) is None
    assert check_newest(tmp_path / "new.home") is None


def test_a_backup_of_a_ledger_alone_is_told_too(home, data, monkeypatch, tmp_path):
    """Its note of which records it belongs to is gone; a claim that writes a new one knows nothing of the ledger."""
    answered(home, 3)
    (home / HOME).unlink()
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "another machine"))
    claim(home, data, OLD)
    assert "was not used on this machine before; its ledger counts 3 answers" in check_newest(home)


def test_a_key_that_is_replaced_keeps_what_is_noted(home, tmp_path):
    answered(home, 3)
    rotate(OLD, NEW, home, tmp_path / "new.home")
    assert check_newest(tmp_path / "new.home") is None
    (tmp_path / "new.home" / "ledger.jsonl").write_text("header\n")
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(tmp_path / "new.home")


def test_an_answer_is_noted_before_it_leaves(home):
    """So a home that is set back behind it is refused, whichever part of it is."""

    class Charging:
        def answer(self, question):
            with (home / "ledger.jsonl").open("a") as ledger:
                ledger.write('{"round": 0}\n')
            return question

    answered(home, 1)
    before = (home / "ledger.jsonl").read_bytes()
    counted = running.Counted(party=Charging(), home=home)
    assert [counted.answer(each) for each in (b"a", b"b")] == [b"a", b"b"]
    assert check_newest(home) is None
    (home / "ledger.jsonl").write_bytes(before)
    with pytest.raises(InputError, match=r"went on to line 4, and this one has 2"):
        check_newest(home)


class Charged:
    """Charges each answer to a home's ledger."""

    def __init__(self, home):
        self.ledger = home / "ledger.jsonl"

    def answer(self, question):
        with self.ledger.open("a") as ledger:
            ledger.write(json.dumps({"round": question.decode()}) + "\n")
        return question


def test_two_copies_of_a_home_do_not_answer_side_by_side(home, tmp_path):
    """Both were the newest when they started; the second to answer ends before its answer leaves."""
    answered(home, 2)
    other = shutil.copytree(home, tmp_path / "copy")
    first, second = (running.Counted(party=Charged(each), home=each) for each in (home, other))
    assert check_newest(home) is check_newest(other) is None
    assert first.answer(b"a") == b"a"
    with pytest.raises(InputError, match="is an older copy"):
        second.answer(b"b")
    assert first.answer(b"c") == b"c"


def test_of_two_copies_that_answer_at_the_same_time_one_passes(home, tmp_path, monkeypatch):
    """Also under --change-limit: what it accepts was noted at the start."""
    answered(home, 2)
    other = shutil.copytree(home, tmp_path / "copy")
    compared, passed, refused = client_home._compared, [], []

    def slowly(*given):
        found = compared(*given)
        time.sleep(0.3)  # the other one is there by now
        return found

    monkeypatch.setattr(client_home, "_compared", slowly)

    def answer(each):
        try:
            passed.append(running.Counted(party=Charged(each), home=each).answer(each.name.encode()))
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=answer, args=(each,)) for each in (home, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(passed), len(refused)) == (1, 1)
    assert "Another copy of this home answers on this machine" in refused[0]


def test_a_dry_run_does_not_make_an_older_copy_the_newest(home):
    answered(home, 2)
    before = (home / "ledger.jsonl").read_bytes()
    answered(home, 5)
    (home / "ledger.jsonl").write_bytes(before)
    running.Counted(party=Looking(), home=home, keep=False).answer(b"an offer")
    with pytest.raises(InputError, match="is an older copy"):
        check_newest(home)


class Looking:
    def answer(self, question):
        return question


def test_a_line_that_a_crash_tore_is_not_missed_when_it_is_cut(home):
    answered(home, 2)
    with (home / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"rou')
    note_answered(home)
    assert cut_torn_line(home / "ledger.jsonl")
    assert check_newest(home) is None


def test_whoever_makes_a_client_opens_its_home_and_notes_its_answers():
    """Every way into a federation, also one that comes later: a module that forgot both took restored homes."""
    package = Path(client_home.__file__).parents[2]
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    ways = {path.name for path, text in texts.items() if re.search(r"(?<!class )\bRealClient\(", text)}
    assert ways == {"entry_points.py", "flower_apps.py"}
    for path, text in texts.items():
        if path.name in ways:
            assert "open_home(" in text
            assert "Counted(party=" in text
        elif path.name == "client_rounds.py":  # a loop's client has no records to claim
            assert "name_home(" in text
            assert "note_answered(" in text
        # A statement and a look take part in nothing.
        elif path.name not in ("client_home.py", "run_statement.py", "pre_flight.py"):
            assert not re.search(r"\b(claim|check_newest)\(", text)


@pytest.mark.parametrize("stays", [False, True])
def test_after_a_rotation_the_home_s_place_is_where_it_lies(home, tmp_path, data, stays):
    """In the home and in the register: whoever comes with these records is sent there."""
    following = home if stays else tmp_path / "new.home"
    rotate(OLD, NEW, home, following)
    (entry,) = (tmp_path / "state").rglob("homes/*.json")
    for note in (entry, following / HOME):
        assert json.loads(note.read_text())["place"] == str(following.resolve())
    key = Identity(NEW).public.hex()[:8]
    with pytest.raises(InputError) as found:
        claim(tmp_path / "third.home", data, private_key("third"))
    assert str(found.value).startswith(f"{data}: these records took part from {following.resolve()} (key {key}), where")


def test_records_of_a_home_are_listed_in_one_order(tmp_path):
    """So a claim that finds nothing new writes nothing."""
    data, home = tmp_path / "clinic.csv", tmp_path / "own.home"
    data.write_text("class,age\n" + "".join(f"ill,{number}\n" for number in range(20)))
    claim(home, data, OLD)
    images = json.loads((home / HOME).read_text())["images"]
    assert len(images) == 40  # in the order of the file, and by names
    assert images == sorted(images)


def test_homes_share_what_lies_in_a_folder_of_both_or_has_a_record_of_both():
    def at(folders, images):
        return home_register.Home(name="n", identities=("i",), folders=folders, images=images)

    one = at(("a", "b"), ("1", "2"))
    for folders, images, due in (
        (("b", "c"), ("3",), True), (("c",), ("2", "3"), True), (("b",), ("1",), True), (("c",), ("3",), False),
        ((), (), False),
    ):  # fmt: skip
        assert client_home._share(one, at(folders, images)) == client_home._share(at(folders, images), one) == due


def test_a_home_does_not_lie_in_a_run(tmp_path, data):
    """A run may be published, and with it a home would be; its secret/ never is."""
    run = tmp_path / "run"
    (run / "secret").mkdir(parents=True)
    for name in ("config.yaml", "ledger.jsonl"):
        (run / name).touch()
    for place in (run / "home", run / "deep" / "home"):
        with pytest.raises(InputError, match=rf"--home {place}: is inside the run {run}, which may be published"):
            open_home(place, data, OLD)
        assert not place.exists()
    open_home(run / "secret" / "home", data, OLD)
    assert (run / "secret" / "home").exists()


TABLE = "class,age,pulse\nill,50,70\nwell,0,40\n"


def copied_table(folder, text):
    (folder / "copy").mkdir()
    (folder / "copy" / "b.csv").write_text(text)
    return folder / "copy" / "b.csv"


@pytest.mark.parametrize(
    "text",
    ["pulse,class,age\n7e1,ill,50\n", "class,pulse,age\nnew,1,2\nwell,40.0,-0\n", TABLE],
    ids=["other order", "one of them", "as it is"],
)
def test_a_table_whose_columns_stand_in_another_order_holds_the_same_records(tmp_path, text):
    data = tmp_path / "a.csv"
    data.write_text(TABLE)
    claim(tmp_path / "old.home", data, OLD)
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", copied_table(tmp_path, text), NEW)


@pytest.mark.parametrize(
    "text", ["class,age,pulse\nill,70,50\n", "class,pulse,age\nwell,70,50\n", "class,z,y\nill,70,50\n"]
)
def test_other_numbers_in_the_columns_are_other_records(tmp_path, text):
    data = tmp_path / "a.csv"
    data.write_text(TABLE)
    claim(tmp_path / "old.home", data, OLD)
    claim(tmp_path / "new.home", copied_table(tmp_path, text), NEW)


def test_records_of_numbers_to_predict_are_known_in_any_order(tmp_path):
    data = tmp_path / "a.csv"
    data.write_text("target,age,pulse\n1.5,50,70\n")
    claim(tmp_path / "old.home", data, OLD)
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", copied_table(tmp_path, "pulse,age,target\n70,50,1.5\n"), NEW)


def test_records_with_missing_values_belong_to_one_home_too(tmp_path):
    """Whether a plan takes them or not; one without any number says nothing of its own."""
    rows = ["ill,?,2", "ill,,3", "well,nan,4", "well,?,NA", "well,5,6"]
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("\n".join(["class,age,pulse", *rows]))
    assert len(own_digests(first)) == 4
    claim(tmp_path / "a", first, private_key(1))
    for row, shared in zip(rows, [True, True, True, False, True], strict=True):
        second.write_text(
            "\n".join(["class,pulse,age", "ill,7,8", ",".join([row[: row.index(",")], *row.split(",")[:0:-1]])])
        )
        if shared:
            with pytest.raises(InputError, match="took part"):
                claim(tmp_path / "b", second, private_key(2))
        else:
            claim(tmp_path / "b", second, private_key(2), keep=False)


def test_a_home_of_before_knows_its_records_and_learns_their_names(tmp_path):
    """Earlier versions noted the numbers in the order of the file, and these alone."""
    data, home = tmp_path / "a.csv", tmp_path / "old.home"
    data.write_text(TABLE.replace("ill", "Ill").replace("well", "Well"))
    claim(home, data, OLD)
    (entry,) = (tmp_path / "state").rglob("homes/*.json")
    before = sorted(digest[:32] for _, digest in own_digests(data))
    for note in (entry, home / HOME):
        note.write_text(json.dumps(json.loads(note.read_text()) | {"images": before, "listed": "of before"}))
    copy = copied_table(tmp_path, data.read_text())
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", copy, NEW)
    claim(home, data, OLD)
    assert set(before) < set(json.loads((home / HOME).read_text())["images"])
    copy.write_text("class,pulse,age\nill,70,50\n")
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", copy, NEW)


def test_records_that_came_while_a_client_waited_belong_to_its_home_too(client, monkeypatch, tmp_path):
    """They are read when a plan is offered: a client that stays for months has others by then."""
    table, parties = tmp_path / "a.csv", []
    table.write_text(TABLE)
    monkeypatch.setattr(flower_client, "attend", lambda counted, *given, **named: parties.append(counted.party))
    options = running.ClientOptions(
        data=table, invitation=client / "operator" / INVITATION, identity=client / "clinic.pem",
        home=client / "table.home", promise=Promise(participations=3), stay=True,
    )  # fmt: skip
    running.run_client(options, print)
    table.write_text("class,age,pulse\nill,1,2\n")
    copy = copied_table(tmp_path, table.read_text())
    claim(tmp_path / "early.home", copy, NEW, keep=False)
    parties[0]._claimed()
    with pytest.raises(InputError, match="took part from"):
        claim(tmp_path / "new.home", copy, NEW)
    copy.write_text("class,age,pulse\nill,3,4\n")
    claim(tmp_path / "new.home", copy, NEW)
    table.write_text(copy.read_text())
    with pytest.raises(InputError, match="took part from"):
        parties[0]._claimed()


@pytest.mark.parametrize("other", ["Ill ", "2.0", "arrays", "tokens", "a"])
def test_records_are_known_however_their_class_is_spelled(tmp_path, other):
    """As check_spellings has it: one class; of a single letter `a` and `A` are two."""
    data, copy = tmp_path / "a.csv", tmp_path / "b.csv"
    label = {"Ill ": "ill", "tokens": "ill", "a": "A"}.get(other, "2")
    data.write_text(f"class,age,pulse\n{label},50,70\n")
    copy.write_text(f"class,pulse,age\n{other},70,50\n")
    if other == "arrays":
        copy = tmp_path / "b.npz"
        np.savez(copy, records=[[50.0, 70.0]], classes=np.array([2.0]))
    if other == "tokens":
        data.write_text("class,tokens\nham,3 5\n")
        copy.write_text("tokens,class\n3 5,Ham\n")
    claim(tmp_path / "old.home", data, OLD)
    if other == "a":
        claim(tmp_path / "new.home", copy, NEW)
    else:
        with pytest.raises(InputError, match="took part from"):
            claim(tmp_path / "new.home", copy, NEW)


def decoded(home):
    return sorted((home / "images").glob("*.npy"))


@pytest.mark.parametrize("change", ["withdrawn", "added", "exchanged", "none"])
def test_decoded_copies_are_of_the_records_that_a_client_holds(tmp_path, change):
    """A record that was withdrawn stays nowhere in a home, once its client starts again."""
    silos = make_silos(tmp_path / "silos", 2)
    few = {"population.clients": "2", "population.cohort": "2", "server.rounds": "1", "run.noise_seed": "1"}
    home, settings = tmp_path / "h", silos.settings("dp-agr", **few)
    one = sorted(silos.folders[0].rglob("*.png"))[0]
    pixels = np.asarray(Image.open(one))

    def served(name):
        parties = {silos.roster[number]: silos.client(number, home) for number in range(2)}
        channel = InProcessChannel(parties=parties)
        (_, status) = serve(settings, channel, home / name, identity=silos.server, roster=silos.roster)
        assert status == "completed"
        return decoded(home / "client0")

    (before,) = served("first")
    if change == "withdrawn":
        one.unlink()
    elif change == "exchanged":
        Image.fromarray(255 - pixels).save(one)
    elif change == "added":
        Image.fromarray(255 - pixels).save(one.with_name("new.png"))
    (after,) = served("second")
    assert (after == before) is (change == "none")
    held = np.load(after)
    assert (held.reshape(len(held), -1) == pixels.reshape(-1)).all(1).any() == (change in ("added", "none"))
    assert ((home / "client0" / "images").stat().st_mode & 0o777) == 0o700


WHOLE = RecordBudget(epsilon=5.0, delta=1e-6, participations=30, relation="row-exchanged")
OTHER = {"epsilon": "7", "delta": "1e-7", "participations": "40", "relation": "row-deleted"}


@pytest.mark.parametrize("part", [each.name for each in fields(RecordBudget)])
def test_a_part_of_a_limit_that_is_not_given_stays(tmp_path, data, said, monkeypatch, part):
    """By the command: --change-limit with one part. A relation that was not given became the usual one."""
    said("keys", "--server", "--out", tmp_path / "operator", "--host", "127.0.0.1", "--port", 9)
    said("keys", "--out", tmp_path / "clinic.pem")
    home = tmp_path / "clinic.home"
    budget = replace(WHOLE, unit="client", relation=None) if part == "unit" else WHOLE
    claim(home, data, read_identity(tmp_path / "clinic.pem"))
    ClientLedger(home / "ledger.jsonl", budget)
    words = ["client", "--data", data, "--invitation", tmp_path / "operator" / INVITATION, "--patience", "0.1"]
    words += ["--identity", tmp_path / "clinic.pem", "--change-limit"]
    # The unit of a home cannot change; left out, it is the home's.
    words += ["--epsilon", "7"] if part == "unit" else [f"--{part}", OTHER[part]]
    with pytest.raises(RuntimeError, match="the server did not answer"):
        said(*words)
    _, found = open_own_ledger(home / "ledger.jsonl")
    given = "epsilon" if part == "unit" else part
    assert asdict(found) == asdict(budget) | {given: type(getattr(budget, given))(OTHER[given])}


@pytest.mark.parametrize("given", [(), ("--delta", "1e-6"), ("--relation", "row-exchanged")])
@pytest.mark.parametrize("part", ["epsilon", "participations", None])
def test_a_start_without_a_limit_has_the_homes_and_says_it(tmp_path, data, said, capsys, part, given):
    """It was refused, though `--check` says to leave it out."""
    said("keys", "--server", "--out", tmp_path / "operator", "--host", "127.0.0.1", "--port", 9)
    said("keys", "--out", tmp_path / "clinic.pem")
    home = tmp_path / "clinic.home"
    words = ["client", "--data", data, "--invitation", tmp_path / "operator" / INVITATION, "--patience", "0.1"]
    words += ["--identity", tmp_path / "clinic.pem", *given]
    with pytest.raises(InputError, match="epsilon and participations are both missing"):
        said(*words)
    budget = replace(WHOLE, **({} if part is None else {part: None}))
    claim(home, data, read_identity(tmp_path / "clinic.pem"))
    ClientLedger(home / "ledger.jsonl", budget)
    before = (home / "ledger.jsonl").read_bytes()
    with pytest.raises(RuntimeError, match="the server did not answer"):
        said(*words)
    assert f"home {home}: {Promise(**asdict(budget)).words} is its limit\n" in capsys.readouterr().out
    assert (home / "ledger.jsonl").read_bytes() == before
    # Whatever else is given, none that differs is taken, and no higher one.
    with pytest.raises(InputError, match="change-limit"):
        said(*words, "--delta", "1e-4")


def test_a_relation_that_is_not_given_stays_in_python_too(tmp_path, data):
    ledger = tmp_path / "h" / "ledger.jsonl"
    ledger.parent.mkdir()
    ClientLedger(ledger, WHOLE)
    promise = Promise(epsilon=7.0, delta=1e-6, participations=30)
    party = RealClient(data, OLD, ledger, server=bytes(32), promise=promise, change_limit=True)
    with party._alone():  # also where another process wrote meanwhile
        party._size = 0
    with party._alone():
        assert party._ledger.relation == "row-exchanged"
    assert open_own_ledger(ledger)[1] == replace(WHOLE, epsilon=7.0)


def test_limits_that_are_kept_are_those_of_the_newest_copy(client, data):
    """Of an older copy that is taken: its own were replaced since."""
    home = client / "clinic.home"
    older = (home / "ledger.jsonl").read_bytes()
    ClientLedger(home / "ledger.jsonl", RecordBudget(epsilon=None, delta=1e-5, participations=9), change=True)
    note_answered(home)
    (home / "ledger.jsonl").write_bytes(older)
    options = running.ClientOptions(
        data=data, invitation=client / "operator" / INVITATION, identity=client / "clinic.pem", home=home,
        promise=Promise(epsilon=8.0, participations=3), patience=0.1, change_limit=True,
        kept=frozenset({"unit", "delta", "participations", "relation"}),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="the server did not answer"):
        running.run_client(options, lambda line: None)
    assert open_own_ledger(home / "ledger.jsonl")[1] == RecordBudget(epsilon=8.0, delta=1e-5, participations=9)
