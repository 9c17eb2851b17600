"""Files that are kept line by line: half a last line that a crash left spoils nothing that is appended later."""

import json

import numpy as np
import pytest
import torch

from dpfedmeta.cli.sweeps.sweep_file import Trial
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder
from dpfedmeta.core.files.atomic_files import mend_last_line
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines
from dpfedmeta.privacy.rounds.cohort_log import Participations, _read, participations_file
from dpfedmeta.privacy.rounds.round_sum import keep_left_out
from dpfedmeta.privacy.rounds.stored_release import SumDigests
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.state.private_timings import keep_seconds, seconds_before
from dpfedmeta.training.tracking.callbacks import JsonLines
from dpfedmeta.training.verification.verify import left_out

TORN = [b'{"round": 9', b"{", b"\0\0\0\0", b'{"round": 9}\0\0']


def query(value):
    return Bounded(value={"w": torch.full((2,), float(value))}, sensitivity=1.0)


def sums(run, number):
    assert SumDigests(run).keep(number, 0, query(number))


def sum_count(run):
    found = SumDigests(run)
    return sum(len(found.of(number, 0)) for number in range(3))


def trial(number):
    return Trial(number=number, name=f"t{number}", key=str(number), parameters={"run.seed": number}, fixed={})


# (what writes line `number`, how many lines are read).
KEPT = {
    "rounds": (lambda run, n: JsonLines(run.path).on_round({"round": n}), lambda run: len(run.rounds())),
    "sums": (sums, sum_count),
    "left out": (lambda run, n: keep_left_out(run, n, 5), lambda run: len(left_out(run))),
    "seconds": (lambda run, n: keep_seconds(run, n, 1.0), lambda run: round(seconds_before(run))),
    "trials": (lambda run, n: SweepFolder(run.path).note(trial(n)), lambda run: len(SweepFolder(run.path).noted())),
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "rounds.jsonl").touch()
    return RunDirectory(tmp_path)


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("kind", KEPT)
def test_a_line_behind_a_torn_one_is_read(run, kind, torn):
    write, count = KEPT[kind]
    write(run, 0)
    (path,) = [path for path in run.path.rglob("*.jsonl") if path.read_bytes()]
    with path.open("ab") as file:
        file.write(torn)
    write(run, 1)
    write(run, 2)
    assert [json.loads(line) for line in path.read_text().splitlines()]
    assert len(path.read_text().splitlines()) == 3
    assert count(run) == 3


@pytest.mark.parametrize("lines", [0, 1, 900])
@pytest.mark.parametrize("torn", ["", *TORN, b"x" * 9000, b"\0" * 9000, b"x" * 9000 + b"\0\n"])
def test_only_the_torn_line_goes(tmp_path, lines, torn):
    path, whole = tmp_path / "lines", b"".join(b'{"line": %d}\n' % number for number in range(lines))
    path.write_bytes(whole + (torn or b""))
    mend_last_line(path)
    assert path.read_bytes() == whole
    append_lines(path, [{"more": 1}])
    assert path.read_bytes() == whole + b'{"more": 1}\n'


def test_what_is_absent_stays_absent(tmp_path):
    mend_last_line(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("again", [(), (1, 7)])
def test_a_cohort_comes_back_with_all_that_names_its_attempt(run, again):
    cohort = Cohort(round=3, clients=np.array([4, 2]), again=again)
    Participations(participations_file(run)).record(cohort)
    (found,) = _read(participations_file(run))
    assert (found.round, found.clients.tolist(), found.again) == (3, [4, 2], again)


def test_rounds_that_are_done_again_have_one_row_each(run):
    """A row of the round to which a run goes back is superseded too."""
    rows = JsonLines(run.path)
    for number in range(4):
        rows.on_round({"round": number, "of": "first"})
    for back in (4, 2):
        rows.on_rewind(back)
        assert [row["round"] for row in run.rounds()] == list(range(back))
    rows = JsonLines(run.path)
    for number in (1, 2, 3):
        rows.on_round({"round": number, "of": "second"})
    assert [(row["round"], row["of"]) for row in run.rounds()] == [
        (0, "first"), (1, "first"), (2, "second"), (3, "second"),
    ]  # fmt: skip
