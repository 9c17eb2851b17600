"""What a run published is what its ledger holds: every file that is exchanged is found, and what cannot be, is said."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dpfedmeta.accounting.ledger.charges import Closing
from dpfedmeta.accounting.ledger.hash_chain import heads_of, read_chain
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.ledger.published import check_weights
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.round_journal import Journal
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.loop import Training
from dpfedmeta.training.results.run_archive import archive, check_manifest, not_compared
from dpfedmeta.training.verification.verify import audit, compose
from tests.training.runs.test_extend import extend
from tests.training.runs.test_resume import Killed, begin, killed_in_round, resume

NOT_CLOSED = "the last release and the weights (it was stopped, or goes on"
OF_THREE = {"server.rounds": "3", "run.checkpoint_every": "1", "population.max_participations": "null",
            "record.client_ledgers": "false", "server.noise_multiplier": "2"}  # fmt: skip
KINDS = {
    "messages": {"algo": "dp-agr"},
    "records": {"algo": "dp-agrlr-micro", "server.noise_multiplier": "null"},
    "sums": {"algo": "dp-agr-secure", "population.sampler": "fixed", "population.cohort": "20"},
    "averaged": {"algo": "dp-agr", "server.average": "0.9"},
    "correlated": {"algo": "dp-agr-correlated"},
    "one round": {"algo": "dp-agr", "server.rounds": "1"},
    "no privacy": {"algo": "maml", "server.noise_multiplier": "null"},
}


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def ended(tiny_task_file, tmp_path_factory):
    """One run of each kind; made once."""
    made = {}

    def run_of(kind, folder):
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
                made[kind] = begin(tiny_task_file, tmp_path_factory.mktemp("runs"), **{**OF_THREE, **KINDS[kind]})[0]
                write_report(made[kind])
        return RunDirectory(shutil.copytree(made[kind].path, folder / "r"))

    return run_of


def test_a_checkpoint_of_another_run_with_as_many_lines_is_refused(ended, tmp_path):
    """Its hash decides and not the number alone: a run that goes on has no closing line that would hold its weights."""
    run = ended("messages", tmp_path)
    content = read_content(run.ledger)
    for lines in (1, len(content.heads)):
        assert check_weights(run, content, {"a": (lines, content.heads[lines - 1])}, stage="running") == []
        with pytest.raises(InputError, match=f"was saved after line {lines} of a ledger"):
            check_weights(run, content, {"a": (lines, "0" * 64)}, stage="running")


def closings(run):
    return [line for line in read_content(run.ledger).lines if isinstance(line, Closing)]


def cut(run, lines):
    """A prefix of the ledger, as it was."""
    run.ledger.write_text("".join(run.ledger.read_text().splitlines(keepends=True)[:lines]))


def without(run, *names):
    for name in names:
        for path in run.path.glob(name):
            path.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_every_release_and_every_file_of_weights_is_held(ended, tmp_path, kind):
    run = ended(kind, tmp_path)
    content, rows, names = read_content(run.ledger), run.rounds(), {p.name for p in run.weights.parent.iterdir()}
    assert [charge.release for charge in content.charges] == ["", *(row["release"] for row in rows[:-1])]
    (closing,) = closings(run)
    assert (closing.rounds, closing.release, set(closing.weights)) == (len(rows), rows[-1]["release"], names)
    assert {"model.safetensors", "initial.safetensors"} < names
    found = audit(run)
    assert f"checkpoint/: {len(names)} of {len(names)} files of weights are those that the closing line names" in (
        found.remarks
    )
    assert "closing line" not in found.unverified
    assert "noise was drawn" in found.unverified


@pytest.mark.parametrize("name", ["model", "initial", "round-000003", "round-000002"])
@pytest.mark.parametrize("kind", ["messages", "averaged"])
def test_no_file_of_weights_is_exchanged(ended, tmp_path, kind, name):
    """Neither by weights of a run without privacy, nor by those of another round of the same run."""
    run, other = ended(kind, tmp_path), ended("no privacy", tmp_path / "other")
    path = run.weights.with_name(f"{name}.safetensors")
    before = path.read_bytes()
    kept = load_file(sorted(run.weights.parent.glob("round-*"))[-1])
    # Those before they were averaged, or before the last round.
    raw = {key.removeprefix("model/"): value for key, value in kept.items() if key.startswith("model/")}
    others = {other.weights.read_bytes(), other.weights.with_name(path.name).read_bytes()} - {before}
    for exchanged in (*others, before[:-4] + b"\1\1\1\1", None):
        if exchanged is None:
            save_file(raw, path)
        else:
            path.write_bytes(exchanged)
        assert path.read_bytes() != before
        with pytest.raises(InputError, match=f"{name}.safetensors: (is not what was published|was saved after line)"):
            audit(run)
        with pytest.raises(InputError, match=r"is not what was published|was saved after line"):
            archive(run, tmp_path / "archive")
        assert not (tmp_path / "archive").exists()
    path.write_bytes(before)
    audit(run)


def test_a_checkpoint_that_was_never_published_is_none(ended, tmp_path):
    run = ended("messages", tmp_path)
    latest = max(run.weights.parent.glob("round-*"))
    shutil.copy(latest, latest.with_name("round-000001.safetensors"))
    with pytest.raises(InputError, match="the ledger's closing line names no such file"):
        audit(run)
    latest.with_name("round-000001.safetensors").unlink()
    # One that is not here any more is no claim.
    latest.unlink()
    assert "checkpoint/: 3 of 4 files" in " ".join(audit(run).remarks)


@pytest.mark.parametrize("kind", ["messages", "sums"])
def test_a_row_states_the_release_that_the_ledger_holds(ended, tmp_path, kind):
    run = ended(kind, tmp_path)
    for number in range(3):
        rows = run.rounds()
        rows[number]["release"] = "0" * 64
        text = run.rounds_file.read_text()
        run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(InputError, match=f"the release of round {number} has the digest 0000"):
            audit(run)
        run.rounds_file.write_text(text)


@pytest.mark.parametrize("kind", ["messages", "one round", "records"])
def test_a_prefix_of_a_ledger_does_not_pass_beside_the_weights_of_all_rounds(ended, tmp_path, kind, dpfedmeta):
    run = ended(kind, tmp_path)
    lines = len(read_content(run.ledger).heads)
    for left in range(1, lines):
        run = RunDirectory(shutil.copytree(run.path, tmp_path / f"cut{left}"))
        cut(run, left)
        with pytest.raises(InputError, match=r"lines|does not end as"):
            audit(run)
        without(run, "summary.json", "report.html", "*.png")
        rows = run.rounds()[: max(left - 1, 0)]
        run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if left < lines - 1:
            with pytest.raises(InputError, match=r"was saved after line \d of a ledger, which .* does not have"):
                audit(run)
            # Then weights are left of which nothing says when they were saved, and that is said.
            without(run, "checkpoint/round-*")
        assert NOT_CLOSED in audit(run).unverified
        assert NOT_CLOSED in dpfedmeta("account", "--verify", run.path).out.replace("\n", " ")
        run = RunDirectory(tmp_path / "r")


def anew(run, bodies):
    """A ledger with every hash computed anew, and a summary that ends with it."""
    texts = [json.dumps({**body, "previous": head}, sort_keys=True) for body, head in zip(
        bodies, ["0" * 64, *heads_of(bodies)[:-1]], strict=True)]  # fmt: skip
    run.ledger.write_text("".join(text + "\n" for text in texts))
    summary = run.read_json("summary.json")
    summary["ledger"]["head"] = heads_of(bodies)[-1]
    run.write_json("summary.json", summary)
    without(run, "report.html")


def test_an_end_without_a_closing_line_is_none(ended, tmp_path):
    run = ended("messages", tmp_path)
    bodies, _ = read_chain(run.ledger, "ledger")
    anew(run, bodies[:-1])
    with pytest.raises(InputError, match="has no closing line, but the run has ended"):
        audit(run)


def test_a_forged_closing_line_is_seen_by_whoever_kept_the_hash_and_by_nobody_else(ended, tmp_path):
    """Not promised: a chain is not signed."""
    run, other = ended("messages", tmp_path), ended("no privacy", tmp_path / "other")
    bodies, head = read_chain(run.ledger, "ledger")
    weights = other.weights.read_bytes()
    run.weights.write_bytes(weights)
    without(run, "checkpoint/round-*")
    with pytest.raises(InputError, match="is not what was published"):
        audit(run)
    # By a summary that was left alone it is seen as well.
    summary = (run.path / "summary.json").read_text()
    from dpfedmeta.accounting.ledger.published import published

    bodies[-1]["closed"]["weights"] = published(run)
    anew(run, bodies)
    found = audit(run)
    assert found.proven.content.heads[-1] != head
    assert "that nobody wrote the ledger and all files anew (compare the hash of its last line" in found.unverified
    (run.path / "summary.json").write_text(summary)
    with pytest.raises(InputError, match="does not end as summary"):
        audit(run)


# A run is killed before its round is released, before its ledger is closed, or before its summary is written.
def stopped(patch, where, action):
    if where == "round":
        killed_in_round(patch, 1, action)
        return

    def killed(*words, **more):
        raise Killed

    owner, name = {"closing": (Journal, "close"), "summary": (run_module, "summary_of")}[where]
    with patch.context() as inner:
        inner.setattr(owner, name, killed)
        with pytest.raises(Killed):
            action()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("where", ["round", "closing", "summary"])
def test_a_run_that_was_killed_goes_on_to_one_closing_line(tiny_task_file, tmp_path, monkeypatch, where, secure):
    stopped(monkeypatch, where, lambda: begin(tiny_task_file, tmp_path, secure=secure, **OF_THREE, algo="dp-agr"))
    run = RunDirectory(tmp_path / "r")
    assert len(closings(run)) == (where == "summary")
    assert (NOT_CLOSED in audit(run).unverified) == (where != "summary")
    # An attempt that is made up for takes the place of the last round.
    assert resume(run)[1] == ("budget" if secure and where == "round" else "completed")
    assert len(closings(run)) == 1
    assert read_content(run.ledger).closing is not None
    found = audit(run)
    assert NOT_CLOSED not in found.unverified
    assert [charge.attempt for charge in found.charges].count(1) == (secure and where == "round")


def interrupted_after(round_, patch, action):
    honest = Training._released

    def released(self, state, *others):
        if state.round == round_:
            raise KeyboardInterrupt
        return honest(self, state, *others)

    with patch.context() as inner:
        inner.setattr(Training, "_released", released)
        return action()


@pytest.mark.parametrize("round_", [0, 2])
def test_an_interrupted_run_is_closed_and_goes_on_after_that_line(tiny_task_file, tmp_path, monkeypatch, round_):
    run, status = interrupted_after(
        round_, monkeypatch, lambda: begin(tiny_task_file, tmp_path, **OF_THREE, algo="dp-agr")
    )
    assert status == "interrupted"
    assert closings(run)[0].rounds == round_
    assert NOT_CLOSED not in audit(run).unverified
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    assert resume(run)[1] == "completed"
    assert [each.rounds for each in closings(run)] == [round_, 3]
    alone = audit(run)
    assert len(alone.charges) == 3
    assert compose([run, copy]).charges == alone.charges
    # Weights of before it went on are stale.
    shutil.copy(copy.weights, run.weights)
    with pytest.raises(InputError, match=r"model\.safetensors: is not what was published"):
        audit(run)


def test_an_extended_run_keeps_the_line_that_closed_it_and_both_weights_are_compared(tiny_task_file, tmp_path):
    run = begin(tiny_task_file, tmp_path, **OF_THREE, algo="dp-agr")[0]
    first = closings(run)
    extend(run, 5)
    assert closings(run)[:1] == first
    assert [each.rounds for each in closings(run)] == [3, 5]
    assert "after-3-rounds/: 1 of 1 files" in " ".join(audit(run).remarks)
    assert "after-3-rounds/model.safetensors" not in not_compared(run)
    old = run.path / "after-3-rounds" / "model.safetensors"
    for path, other in ((old, run.weights), (run.weights, old)):
        before = path.read_bytes()
        shutil.copy(other, path)
        with pytest.raises(InputError, match=f"{path.parent.name}/model.safetensors: is not what was published"):
            audit(run)
        path.write_bytes(before)
    audit(run)


def test_an_aborted_round_leaves_the_release_before_it_in_force(tiny_task_file, tmp_path):
    given = {"algo": "dp-const", "server.abort_on_failure": "true", "population.dropout": "0.1", "server.rounds": "6",
             "population.sampler": "fixed"}  # fmt: skip
    run = begin(tiny_task_file, tmp_path, **{**OF_THREE, **given})[0]
    rows = run.rounds()
    assert 0 < sum(row["release"] == "aborted" for row in rows) < 6
    last = ""
    for charge, row in zip(read_content(run.ledger).charges, rows, strict=True):
        assert charge.release == last
        last = last if row["release"] == "aborted" else row["release"]
    assert closings(run)[0].release == last
    audit(run)


def test_a_round_that_comes_out_otherwise_under_one_charge_is_charged_again(tiny_task_file, tmp_path, monkeypatch):
    """Where its row is lost, the ledger knows what it was."""
    stopped(monkeypatch, "round", lambda: begin(tiny_task_file, tmp_path, **OF_THREE, algo="dp-agr"))
    run = RunDirectory(tmp_path / "r")
    run.rounds_file.unlink()
    honest = Training._released

    def other(self, state, *words):
        released, following = honest(self, state, *words)
        if state.round == 0 and not words[1].again:
            object.__setattr__(released, "value", {name: 2 * value for name, value in released.value.items()})
        return released, following

    monkeypatch.setattr(Training, "_released", other)
    resume(run)
    charges = [(charge.round, charge.attempt) for charge in read_content(run.ledger).charges]
    assert charges == [(0, 0), (1, 0), (0, 1)]
    audit(run)


def test_copies_that_released_two_sums_under_one_charge_are_refused(ended, tmp_path):
    """The charge is the same, so is the noise; what came after it shows that the sums were not."""
    run = ended("messages", tmp_path)
    other = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    bodies, _ = read_chain(run.ledger, "ledger")
    bodies[2]["release"] = "1" * 64
    anew(other, bodies)
    with pytest.raises(InputError, match="with the same noise in round 0"):
        compose([run, other])


def test_an_archive_with_other_weights_at_its_top_is_refused(ended, tmp_path):
    run, other = ended("messages", tmp_path), ended("no privacy", tmp_path / "other")
    archive(run, tmp_path / "archive")
    packed = RunDirectory(tmp_path / "archive")
    assert "Not verified: accuracies" in (packed.path / "README.md").read_text()
    assert audit(packed).unverified == audit(run).unverified
    assert "files are as they were archived" in check_manifest(packed)[0]
    (packed.path / "model.safetensors").write_bytes(other.weights.read_bytes())
    manifest = packed.read_json("MANIFEST.json")
    del manifest["sha256"]["model.safetensors"]
    packed.write_json("MANIFEST.json", manifest)
    with pytest.raises(InputError, match=r"archive/model\.safetensors: has other weights than"):
        check_manifest(packed)


@pytest.mark.parametrize("kind", ["messages", "one round"])
def test_what_is_not_verified_is_said_in_the_last_line_on_the_page_and_in_json(ended, tmp_path, kind, dpfedmeta):
    run = ended(kind, tmp_path)
    words = audit(run).unverified
    assert words.startswith("not verified: ")
    assert dpfedmeta("account", "--verify", run.path).out.splitlines()[-1] == words
    assert json.loads(dpfedmeta("account", "--verify", run.path, "--json").out)["unverified"] == words
    assert dpfedmeta("account", "--statement", run.path).out.splitlines()[-1] == words
    page = Path(run.path / "report.html")
    # Pages of before say nothing of copies.
    assert words.partition("; that no copy of this run")[0] in page.read_text()
    page.write_text(page.read_text().replace("that the noise was drawn", "that nothing was drawn"))
    dpfedmeta("account", "--verify", run.path, code=2)


def test_a_summary_of_an_earlier_interruption_counts_charges_and_not_lines(tiny_task_file, tmp_path, monkeypatch):
    """Between them stand lines that closed the run and extended it."""
    run = begin(tiny_task_file, tmp_path, **OF_THREE, algo="dp-agr")[0]
    interrupted_after(4, monkeypatch, lambda: extend(run, 7))
    stopped_at = read_content(run.ledger)
    killed_in_round(monkeypatch, 6, lambda: resume(run))
    assert "summary.json, of an earlier interruption, agrees" in audit(run).remarks
    assert len(read_content(run.ledger).until(stopped_at.heads[-1]).charges) == len(stopped_at.charges) == 5
