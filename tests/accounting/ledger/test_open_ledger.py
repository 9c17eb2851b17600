import pytest

from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, head, read_content
from dpfedmeta.accounting.ledger.ledger_register import Lineage
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource

RUN = "0123456789abcdef" * 2
PLAN = PrivacyPlan(clients=100, cohort=10, rounds=4, noise_multiplier=1.0)


@pytest.mark.parametrize("environment", ["the same", None])
@pytest.mark.parametrize(
    "source", [KeyedSource(5), FreshSource(5), OperatingSystemSource()], ids=lambda s: type(s).__name__
)
def test_a_line_that_a_crash_tore_may_be_lacking_only_where_it_comes_out_again(
    tmp_path, monkeypatch, source, environment
):
    """Its bytes of chance are lost with it, and so is what ran where nobody knows the environment."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    ledger = Ledger(run.ledger, PLAN, RunIdentity(run=RUN))
    ledger.charge(planned_charge(PLAN, 0))
    ledger.charge(planned_charge(PLAN, 1))
    lineage = Lineage(RUN)
    try:
        lineage.follow(ledger.lines, ledger.head)
        run.ledger.write_bytes(run.ledger.read_bytes()[:-9])
        if isinstance(source, KeyedSource) and environment is not None:
            opened = open_ledger(run, PLAN, source, environment, lineage)
            assert (len(opened.content.charges), opened.restorable) == (1, True)
        else:
            with pytest.raises(InputError, match="a stale copy, or lines are lost"):
                open_ledger(run, PLAN, source, environment, lineage)
    finally:
        lineage.close()


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    for folder in (run.path, run.path / "checkpoint", run.path / "releases", run.secret):
        folder.mkdir()
    ledger = Ledger(run.ledger, PLAN, RunIdentity(run=RUN))
    ledger.charge(planned_charge(PLAN, 0))
    return run


@pytest.mark.parametrize("folder", [".", "checkpoint", "releases", "secret"])
def test_what_a_killed_process_left_unfinished_goes_and_nothing_else(run, folder):
    place = run.path / folder
    gone = [place / ".noise_seed.json.4711", place / ".a.b.1"]
    stays = [place / name for name in (".lock", "model.safetensors", ".x", ".hidden.txt", "a.12", ".7", ".a.12b")]
    for path in (*gone, *stays):
        path.write_text("x")
    (place / ".folder.12").mkdir()
    open_ledger(run, PLAN, KeyedSource(5), "e", None)
    assert not any(path.exists() for path in gone)
    assert all(path.read_text() == "x" for path in stays)
    assert (place / ".folder.12").is_dir()


@pytest.mark.parametrize("folder", ["checkpoint", "releases", "secret"])
def test_a_folder_that_is_not_there_holds_nothing_unfinished(run, folder):
    (run.path / folder).rmdir()
    assert len(open_ledger(run, PLAN, KeyedSource(5), "e", None).content.charges) == 1


@pytest.mark.parametrize(
    ("source", "environment", "reproducible", "restorable"),
    [
        (KeyedSource(5), "e", True, True),
        (KeyedSource(5), "", True, True),
        (KeyedSource(5), None, False, False),
        (FreshSource(5), "e", True, False),
        (FreshSource(5), None, False, False),
        (OperatingSystemSource(), "e", False, False),
    ],
)
@pytest.mark.parametrize("torn", ["", '{"round": 1, "att'])
def test_an_opened_ledger_says_what_can_be_done_again(run, torn, source, environment, reproducible, restorable):
    with run.ledger.open("a") as file:
        file.write(torn)
    opened = open_ledger(run, PLAN, source, environment, None)
    assert (opened.reproducible, opened.restorable) == (reproducible, restorable)
    said = "the ledger's last line was never finished, so its release was never used: dropped"
    assert opened.remarks == ((said,) if torn else ())
    assert [charge.round for charge in opened.content.charges] == [0]
    # What is charged next follows the whole lines.
    opened.ledger.charge(planned_charge(PLAN, 1))
    opened.ledger.charge(planned_charge(PLAN, 2))
    assert [charge.round for charge in read_content(run.ledger).charges] == [0, 1, 2]
    assert (opened.ledger.head, opened.ledger.lines) == (head(run.ledger), 4)


def test_a_ledger_of_the_plan_that_is_no_sequence_of_its_rounds_is_not_gone_on_with(run):
    opened = open_ledger(run, PLAN, KeyedSource(5), "e", None)
    opened.ledger.charge(planned_charge(PLAN, 2))
    with pytest.raises(RefusedPlan, match="round 2, where round 1 is due"):
        open_ledger(run, PLAN, KeyedSource(5), "e", None)
