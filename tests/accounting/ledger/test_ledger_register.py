import stat

import pytest

from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity
from dpfedmeta.accounting.ledger.ledger_register import Latest, Lineage, registered
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
