import stat

import pytest

from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, read_content
from dpfedmeta.accounting.ledger.ledger_register import (
    Latest,
    Lineage,
    check_lineage,
    holds,
    lineage_folder,
    registered,
)
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory

RUN, HEAD = "0123456789abcdef" * 2, "f" * 64


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path))


def test_the_latest_line_is_remembered(tmp_path):
    lineage = Lineage(RUN)
    assert lineage.latest is None
    for lines in (1, 2, 117):
        lineage.follow(lines, HEAD)
    lineage.close()
    again = Lineage(RUN)
    assert again.latest == Latest(lines=117, head=HEAD)
    assert stat.S_IMODE(again.path.stat().st_mode) == 0o600
    again.close()


def test_one_writer_on_a_machine():
    lineage = Lineage(RUN)
    with pytest.raises(InputError, match="another process is writing this run"):
        Lineage(RUN)
    lineage.close()
    Lineage(RUN).close()


@pytest.mark.parametrize("content", [b"", b"x", b"1 2\n", b"\0" * 80, b"9" * 200])
def test_an_unreadable_entry_says_nothing(content):
    lineage = Lineage(RUN)
    lineage.path.write_bytes(content)
    assert lineage.latest is None
    lineage.close()


@pytest.mark.parametrize("name", ["", "../x", "A" * 32, "0" * 31, "0" * 32 + "\n"])
def test_a_name_that_was_edited_is_refused(name):
    with pytest.raises(InputError, match="edited"):
        Lineage(name)


@pytest.mark.parametrize("torn", ["", '{"round": 0, "atte'])
def test_a_last_line_that_a_crash_tore_changes_nothing(tmp_path, torn):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    Ledger(run.ledger, PrivacyPlan(clients=100, cohort=10, rounds=1, noise_multiplier=1.0), RunIdentity(run=RUN))
    with run.ledger.open("a") as file:
        file.write(torn)
    with registered(run) as (lineage, why):
        assert why is None
        assert RUN in str(lineage.path)


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    plan = PrivacyPlan(clients=100, cohort=10, rounds=1, noise_multiplier=1.0)
    Ledger(run.ledger, plan, RunIdentity(run=RUN))
    with registered(run) as (lineage, why):
        assert lineage is not None
        assert why is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "file"))
    with registered(run) as (lineage, why):
        assert lineage is None
        assert "could be resumed unnoticed" in why


def content_of(run, lines):
    """A ledger of so many charges, as it is read."""
    plan = PrivacyPlan(clients=100, cohort=10, rounds=9, noise_multiplier=1.0)
    run.path.mkdir(exist_ok=True)
    ledger = Ledger(run.ledger, plan, RunIdentity(run=RUN))
    for round_ in range(lines):
        ledger.charge(planned_charge(plan, round_))
    return read_content(run.ledger)


@pytest.mark.parametrize("lines", range(7))
@pytest.mark.parametrize("own", [True, False], ids=["its own hash", "another hash"])
def test_a_ledger_holds_the_lines_that_it_has_and_no_others(tmp_path, lines, own):
    content = content_of(RunDirectory(tmp_path / "run"), 3)
    assert len(content.heads) == 4
    head = content.heads[lines - 1] if own and 0 < lines <= 4 else HEAD
    assert holds(content, lines, head) is (own and 0 < lines <= 4)
    assert not holds(content, -1, content.heads[-1])
    assert not holds(content, 0, content.heads[-1])


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("own", [True, False], ids=["its own hash", "another hash"])
def test_a_copy_may_lack_the_one_line_that_was_torn_and_no_other(tmp_path, more, mended, own):
    """One line that comes out again; two that are lacking, or another line in its place, are lost."""
    run = RunDirectory(tmp_path / "run")
    content, lineage = content_of(run, 3), Lineage(RUN)
    try:
        check_lineage(run, content, lineage, mended=mended)  # nothing was noted yet
        number = 4 + more
        lineage.follow(number, content.heads[number - 1] if own and more <= 0 else HEAD)
        if (own and more <= 0) or (mended and more == 1):
            check_lineage(run, content, lineage, mended=mended)
        else:
            with pytest.raises(InputError, match=f"ends with line 4, but on this machine .* went on to line {number}:"):
                check_lineage(run, content, lineage, mended=mended)
    finally:
        lineage.close()


def test_the_register_is_where_the_environment_says_or_the_users_own(tmp_path, monkeypatch):
    assert lineage_folder() == tmp_path / "lineage"
    monkeypatch.setenv("DPFEDMETA_STATE", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    assert lineage_folder() == tmp_path / "mine" / "dpfedmeta" / "lineage"


def test_a_relative_place_would_be_another_register_in_each_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFEDMETA_STATE", "state")
    with pytest.raises(
        InputError, match=rf"DPFEDMETA_STATE = state: is relative, .*: DPFEDMETA_STATE={tmp_path}/state"
    ):
        lineage_folder()
    # Of the user's own place the library ignores a relative one.
    monkeypatch.setenv("DPFEDMETA_STATE", "")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert lineage_folder().is_absolute()


def test_the_register_is_for_its_owner_alone_and_given_back_after_an_error(tmp_path):
    run = RunDirectory(tmp_path / "run")
    content_of(run, 1)
    with pytest.raises(RuntimeError, match="stop"), registered(run) as (lineage, _):
        assert stat.S_IMODE(lineage.path.parent.stat().st_mode) == 0o700
        with pytest.raises(InputError, match="this process itself holds this run, or a copy"), registered(run):
            pass
        raise RuntimeError("stop")
    with registered(run) as (lineage, _):
        assert lineage is not None
