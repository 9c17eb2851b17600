"""A run that another process writes: a ledger and rows that grow under a held lock, without a training."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from dpfedmeta.accounting.honest_norm import planned_deviation
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, read_content
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.api.run import Run
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import being_written, ending, only_writer
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines, create, write_text
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.secure_sum_settings import noise_of_unit_bound
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.reporting.compare.seed_groups import group_runs
from dpfedmeta.reporting.html import page as page_module
from dpfedmeta.reporting.html.page import watch, write_report
from dpfedmeta.reporting.html.run_page import AGREES, check_report, rendered, shown_in
from dpfedmeta.training.results import snapshot
from dpfedmeta.training.results.facts import plan_facts
from dpfedmeta.training.results.snapshot import read_run, stage_of
from dpfedmeta.training.verification.proven import Proven
from dpfedmeta.training.verification.verify import audit
from tests.training.described import described, identity

GIVEN = {"server.rounds": "8", "server.noise_multiplier": "1.0", "population.clients": "1000"}


class Writer:
    """What a training writes, round by round, in its order."""

    def __init__(self, folder, **of_clients):
        self.run = create(folder, "r")
        self.settings = resolve("dp-agr", "strokes", None, GIVEN | {"population.cohort": "10"})
        self.plan = make_privacy(self.settings, load_task("strokes")[0])
        write_text(self.run.path / "config.yaml", to_yaml(self.settings))
        self.ledger = Ledger(self.run.ledger, self.plan, identity(self.settings, self.plan, **of_clients))
        data = described(self.settings, self.plan, **of_clients)
        self.run.write_json("plan.json", plan_facts(self.settings, self.plan, guarantees(self.plan), data))

    def round(self):
        done = self.ledger.rounds
        self.ledger.charge(planned_charge(self.plan, done))
        cells = guarantees(self.plan, rounds=done + 1)
        epsilons = {f"{cell.unit}_{cell.observer}": cell.as_json()["epsilon"] for cell in cells}
        row = {"round": done, "clip": 0.3, "clip_mode": "constant", "aggregate_norm": 0.2, "epsilons": epsilons}
        append_lines(self.run.rounds_file, [row | {"noise_norm_expected": self._noise(done), "seconds": None}])

    def _noise(self, done):
        unit = noise_of_unit_bound(self.settings, load_task("strokes")[0], self.plan)
        return unit * 0.3 * planned_deviation(self.plan.at(done), done) / self.plan.cohort

    def rounds(self, count):
        for _ in range(count):
            self.round()

    def end(self, status, released=None):
        accuracies = ("", "_before_adaptation", "_untrained", "_pixel_prototype", "_pixel_neighbour")
        proven = Proven.of(self.run, read_content(self.run.ledger, torn=True))
        ended = {
            "status": status, "rounds": self.ledger.rounds if released is None else released,
            **proven.summary_facts(), **dict.fromkeys(f"accuracy{name}" for name in accuracies),
            "seconds": 60.0, "clients_per_second": 9.0, "peak_memory_mb": 9.0, "versions": {"torch": "1"},
        }  # fmt: skip
        self.run.write_json("summary.json", ended)


@pytest.fixture
def writer(tmp_path, monkeypatch):
    # Somebody else's accountant has tests of its own, and takes longer than everything here.
    monkeypatch.setattr("dpfedmeta.accounting.other_accountants.second_opinion", lambda *_: None)
    return Writer(tmp_path)


def test_what_is_read_fits_together_whatever_is_written_between_two_reads(writer, monkeypatch):
    writer.rounds(2)

    def then_a_round(read):
        def reads(*given, **more):
            found = read(*given, **more)
            writer.round()
            return found

        return reads

    monkeypatch.setattr(RunDirectory, "rounds", then_a_round(RunDirectory.rounds))
    monkeypatch.setattr(snapshot, "read_content", then_a_round(read_content))
    with only_writer(writer.run.path):
        found = audit(writer.run)
    assert (len(found.charges), writer.ledger.rounds) == (3, 4)
    assert found.snapshot is not None
    assert found.snapshot.words == "running: 3 of 8 rounds so far"
    assert "rounds.jsonl agrees" in found.remarks


def test_the_last_page_of_a_run_that_was_interrupted_tells_of_its_end(writer):
    writer.rounds(3)
    with only_writer(writer.run.path):
        assert stage_of(writer.run) == "running"
        writer.end("interrupted")
        # Another thread, or a run that goes on from an interruption.
        assert read_run(writer.run).stage == "running"
        with ending(writer.run.path):
            found = read_run(writer.run)
            assert (found.stage, stage_of(writer.run), found.written) == ("interrupted", "interrupted", True)
            page = write_report(writer.run).read_text()
        assert stage_of(writer.run) == "running"
    assert "INTERRUPTED after 3 of 8 rounds, to which all results refer" in page
    assert "running:" not in page
    assert 'http-equiv="refresh"' not in page


def half_written(run):
    for path in (run.rounds_file, run.ledger):
        path.write_bytes(path.read_bytes() + b'{"round": 3, "ep')


def test_half_a_line_is_no_damage_while_the_run_lives_and_afterwards_it_is_said(writer):
    writer.rounds(3)
    half_written(writer.run)
    with only_writer(writer.run.path):
        alive = audit(writer.run)
    crashed = audit(writer.run)
    assert len(alive.charges) == len(crashed.charges) == 3
    assert not any("never finished" in remark for remark in alive.remarks)
    assert sum("its last line was never finished" in remark for remark in crashed.remarks) == 2
    assert crashed.snapshot is not None
    words = crashed.snapshot.words or ""
    assert words.startswith("stopped after 3 of 8 rounds")
    assert f"dpfedmeta train --resume {writer.run.path}" in words
    writer.end("interrupted")
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 4"):
        audit(writer.run)


def test_a_run_that_went_on_after_an_interruption_keeps_its_older_summary_true(writer):
    writer.rounds(3)
    writer.end("interrupted")
    assert (stage_of(writer.run), read_run(writer.run).stage) == ("interrupted", "interrupted")
    writer.rounds(2)
    assert read_run(writer.run).stage == "stopped"
    with only_writer(writer.run.path):
        assert "summary.json, of an earlier interruption, agrees" in audit(writer.run).remarks
        assert len(audit(writer.run).charges) == 5
        summary = writer.run.read_json("summary.json")
        summary["guarantees"][0]["epsilon"] *= 0.9
        writer.run.write_json("summary.json", summary)
        with pytest.raises(InputError, match=r"summary\.json: guarantees \(client, public\)"):
            audit(writer.run)
        summary["ledger"]["head"] = "0" * 64
        writer.run.write_json("summary.json", summary)
        with pytest.raises(InputError, match="lines at the end are lost or were added"):
            audit(writer.run)


def verified(run):
    found = audit(run)
    assert found.proven is not None
    assert found.snapshot is not None
    return check_report(found.snapshot, found.proven)


def test_the_page_of_a_running_run_reads_itself_again_and_stays_true(writer):
    writer.rounds(3)
    with only_writer(writer.run.path):
        page = write_report(writer.run).read_text()
        assert '<meta http-equiv="refresh"' in page
        assert "running: 3 of 8 rounds so far" in page
        writer.rounds(2)
        assert verified(writer.run) == [f"report.html, written after 3 rounds, {AGREES}"]
        shown = str(shown_in(page).summary["guarantees"][0]["epsilon"])
        (writer.run.path / "report.html").write_text(page.replace(shown, "0.001", 1))
        with pytest.raises(InputError, match=r"report\.html: guarantees \(client, public\)"):
            verified(writer.run)
    (writer.run.path / "report.html").write_text(page)
    writer.rounds(3)
    writer.end("completed")
    with only_writer(writer.run.path):
        # Its last page is still to be written.
        assert verified(writer.run) == [f"report.html, written after 3 rounds, {AGREES}"]
    with pytest.raises(InputError, match=r"3 charges, but the run has 8; write it again: dpfedmeta report"):
        verified(writer.run)
    assert "refresh" not in write_report(writer.run).read_text()
    assert verified(writer.run) == [f"report.html {AGREES}"]


def test_a_page_that_a_run_outruns_while_it_is_drawn_is_never_shown(writer, monkeypatch):
    writer.rounds(3)
    written, draw = [], rendered
    held = contextlib.ExitStack()
    held.enter_context(only_writer(writer.run.path))

    def draws(*given, **values):
        if not writer.run.path.joinpath("summary.json").exists():
            writer.rounds(5)
            writer.end("completed")
            held.close()
        return draw(*given, **values)

    monkeypatch.setattr(page_module, "rendered", draws)
    monkeypatch.setattr(page_module, "write_text", lambda path, text: written.append(text) or write_text(path, text))
    write_report(writer.run)
    assert ["refresh" in text for text in written] == [False]
    assert verified(writer.run) == [f"report.html {AGREES}"]


def test_a_watched_page_follows_the_run_to_its_end(writer, monkeypatch):
    writer.rounds(1)
    pages = []
    monkeypatch.setattr("dpfedmeta.reporting.html.page.write_report", lambda run: pages.append(read_run(run).words))

    def meanwhile(seconds):
        assert seconds >= 5
        if len(pages) == 1 and writer.ledger.rounds == 1:
            return  # nothing happened, so nothing is written
        writer.rounds(2) if writer.ledger.rounds < 8 else writer.end("completed")

    with only_writer(writer.run.path):
        writer.rounds(1)
        watch([writer.run], 5.0, meanwhile)
    assert pages == [*(f"running: {done} of 8 rounds so far" for done in (2, 4, 6, 8)), None]


def test_a_comparison_and_the_python_door_say_that_a_run_goes_on(writer):
    writer.rounds(2)
    with only_writer(writer.run.path):
        (group,) = group_runs([writer.run])
        assert (group.label, group.accuracy(), group.minutes) == ("r (RUNNING)", None, None)
        assert Run(writer.run.path).status == "running"
        assert "running: 2 of 8 rounds so far" in repr(Run(writer.run.path))
    assert Run(writer.run.path).status == "stopped"


def test_whoever_looks_whether_a_run_is_written_keeps_nobody_from_writing(tmp_path):
    assert not being_written(tmp_path)
    assert not list(tmp_path.iterdir())
    ended = threading.Event()

    def look():
        while not ended.is_set():
            being_written(tmp_path)

    looks = [threading.Thread(target=look) for _ in range(2)]
    with only_writer(tmp_path):
        assert being_written(tmp_path)
        for thread in looks:
            thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        for _ in range(20):
            with only_writer(tmp_path):
                pass
    assert not being_written(tmp_path)


@pytest.mark.slow
def test_a_training_process_is_verified_and_reported_while_it_writes(tiny_task_file, tmp_path):
    words = [
        "--algo=dp-agr", f"--dataset={tiny_task_file}", "--model.width=4", "--rounds=240", "--cohort=6",
        "--clients=2000", "--delta=1e-4", "--ways=3", "--shots=2", "--evaluation.every=50", "--run.workers=1",
        "--evaluation.episodes=8", "--evaluation.validation_episodes=4", f"--run.dir={tmp_path}", "--run.name=r",
    ]  # fmt: skip
    training = subprocess.Popen([sys.executable, "-m", "dpfedmeta", "train", *words])
    run, looked = RunDirectory(tmp_path / "r"), 0
    try:
        while training.poll() is None:
            if run.rounds_file.exists():
                verified(run)
                looked += 1
                if looked % 5 == 0:
                    write_report(run)
            time.sleep(0.02)
    finally:
        training.kill()
    assert training.returncode == 0
    assert looked >= 10
    assert verified(run) == [f"report.html {AGREES}"]


def test_a_round_that_was_cut_off_is_charged_and_not_done(writer):
    writer.rounds(3)
    writer.ledger.charge(planned_charge(writer.plan, 3))
    writer.end("interrupted", released=3)
    assert "INTERRUPTED after 3 of 8 rounds (1 more charged), to which" in write_report(writer.run).read_text()
