"""An analysis from its request to its folder: charged before it is released, gone on with, verified, counted."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.ledger.charges import Charge, planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, head, read_content, spent
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics import execute
from dpfedmeta.analytics.analyses import heavy_hitters
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.execute import Place, begin, found_digest, resume, summary_content
from dpfedmeta.analytics.simulated_clients import SimulatedClients
from dpfedmeta.analytics.statement import STATEMENT, statement
from dpfedmeta.analytics.verification import check_counted, is_analysis, verify
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run
from dpfedmeta.core.files.run_directory import PLAN, SUMMARY, RunDirectory, write_text
from dpfedmeta.planning.caveats import SIMULATION
from dpfedmeta.planning.privacy.prior_spending import check_still_there, earlier_releases
from dpfedmeta.training.state.resume import settings_of_run
from dpfedmeta.training.verification.verify import audit
from tests.seams.test_strangers import stripes_in

LINES = ["often\trare"] * 60 + [f"alone {index}" for index in range(20)]


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def request_of(folder, **changes):
    path = folder / "names.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return Request(
        **{
            "kind": "heavy-hitters", "epsilon": 4.0, "delta": 1e-3, "cohort": 80.0, "clients": 80,
            "own": {"most_names": 1, "length": 8}, "names": str(path), "noise_seed": 3, **changes,
        }
    )  # fmt: skip


def done(tmp_path, name="a", **changes):
    return begin(request_of(tmp_path, **changes), Place(folder=str(tmp_path), name=name))


def test_that_there_is_no_register_is_said(tmp_path, monkeypatch):
    """A copy of the analysis could go on unnoticed."""
    (tmp_path / "state").write_text("a file")
    with pytest.warns(UserWarning, match="cannot be written, so a copy of this run could be resumed unnoticed"):
        begin(request_of(tmp_path), Place(folder=tmp_path, name="a"))


def test_an_analysis_is_charged_and_states_what_it_found(tmp_path):
    run = done(tmp_path)
    summary = run.read_json(SUMMARY)
    assert list(summary["found"]["names"]) == ["often"]
    assert summary["guarantees"][0]["epsilon"] <= 4.0
    assert summary["guarantees"][1]["epsilon"] is None
    assert summary["guarantees"] == summary["planned"]
    text = (run.path / "statement.txt").read_text()
    assert "also those of one client" in text
    assert "alone " not in json.dumps(summary["found"])
    assert is_analysis(run.path)
    assert "statement.txt agrees" in verify(run).remarks


def test_it_is_charged_before_it_is_released_and_not_twice(tmp_path, monkeypatch):
    whole = done(tmp_path)

    class Killed(Exception):
        pass

    def stop(self, *given):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(heavy_hitters.HeavyHitters, "released", stop)
        with pytest.raises(Killed):
            done(tmp_path, "b")
    path = tmp_path / "b"
    assert len(read_content(path / "ledger.jsonl").charges) == 1
    assert not (path / SUMMARY).exists()
    # A last line that a crash tore was never charged.
    ledger = (path / "ledger.jsonl").read_text()
    (path / "ledger.jsonl").write_text(ledger + '{"round": 0, "att')
    again = resume(path)
    assert len(read_content(path / "ledger.jsonl").charges) == 1
    assert again.read_json(SUMMARY)["found"] == whole.read_json(SUMMARY)["found"]
    before = (path / SUMMARY).read_bytes()
    resume(path)
    assert (path / SUMMARY).read_bytes() == before


class Crash(Exception):
    """Of the process, at a write."""


@pytest.mark.parametrize("before", [STATEMENT, SUMMARY])
def test_a_crash_between_the_last_files_leaves_one_that_goes_on_to_all_of_them(tmp_path, monkeypatch, before):
    """Where the summary is, an analysis is complete: nothing may be missing by then."""
    whole = done(tmp_path)
    write_json = RunDirectory.write_json

    def at(name):
        if name == before:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(
            execute, "write_text", lambda path, *rest, **more: (at(path.name), write_text(path, *rest, **more))
        )
        patched.setattr(RunDirectory, "write_json", lambda run, name, *rest: (at(name), write_json(run, name, *rest)))
        with pytest.raises(Crash):
            done(tmp_path, "b")
    path = tmp_path / "b"
    assert (path / STATEMENT).exists() == (before == SUMMARY)
    assert not (path / SUMMARY).exists()
    again = resume(path)
    assert (path / STATEMENT).read_text() == (whole.path / STATEMENT).read_text()
    assert again.read_json(SUMMARY)["found"] == whole.read_json(SUMMARY)["found"]
    assert len(read_content(again.ledger).charges) == 1
    assert "statement.txt agrees" in verify(again).remarks


@pytest.mark.parametrize(("secure", "charges"), [(False, 1), (True, 2)])
def test_a_ledger_says_whether_its_draws_can_be_repeated_and_else_is_charged_again(tmp_path, secure, charges):
    request = request_of(tmp_path, noise_seed=None)
    run = begin(request, Place(folder=str(tmp_path), name="a"), secure_rng=secure)
    assert read_content(run.ledger).identity.secure is secure
    (run.path / SUMMARY).unlink()
    resume(run.path)
    assert len(read_content(run.ledger).charges) == charges


def test_a_reader_that_the_task_names_is_code_of_the_users_own(tmp_path):
    settings = resolve("dp-agr", str(stripes_in(tmp_path)), None, {"population.clients": "80"})
    request = request_of(tmp_path, kind="histogram", own={}, names=None, settings=settings)
    assert "tests.seams.own_reader" in execute._own_code(request, SimulatedClients(request, tmp_path))


@pytest.mark.parametrize(("edited", "charges"), [(False, 1), (True, 2)])
def test_an_analysis_whose_code_was_edited_is_another_release(tmp_path, monkeypatch, edited, charges):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / f"own_analysis_{charges}.py"
    module.write_text(
        "from dpfedmeta.analytics.analyses.heavy_hitters import HeavyHitters\n\n\nclass Own(HeavyHitters):\n    pass\n"
    )
    run = done(tmp_path, kind=f"{module.stem}:Own")
    (run.path / SUMMARY).unlink()
    if edited:
        module.write_text(module.read_text() + "# another line\n")
    resume(run.path)
    assert len(read_content(run.ledger).charges) == charges


def test_on_one_machine_a_copy_without_its_charge_is_refused(tmp_path):
    run = done(tmp_path)
    shutil.copytree(run.path, tmp_path / "copy")
    copy = RunDirectory(tmp_path / "copy")
    copy.ledger.write_text(copy.ledger.read_text().splitlines(keepends=True)[0])
    (copy.path / SUMMARY).unlink()
    with pytest.raises(InputError, match="a stale copy"):
        resume(copy.path)


def test_other_data_are_no_way_to_go_on(tmp_path):
    run = done(tmp_path)
    (run.path / SUMMARY).unlink()
    (tmp_path / "names.txt").write_text("other\n" * 80)
    with pytest.raises(InputError, match="other data"):
        resume(run.path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SUMMARY, lambda content: content["guarantees"][0].update(epsilon=0.1)),
        (SUMMARY, lambda content: content["guarantees"][1].update(epsilon=1.0)),
        (SUMMARY, lambda content: content.update(server_sees="nothing")),
        (SUMMARY, lambda content: content["found"]["names"].update(others=77)),
        (PLAN, lambda content: content["planned"][0].update(epsilon=0.1)),
        (PLAN, lambda content: content["phases"][0]["event"]["noise"].update(multiplier=99.0)),
    ],
)
def test_a_file_that_says_something_else_is_found(tmp_path, name, change):
    run = done(tmp_path)
    content = run.read_json(name)
    change(content)
    run.write_json(name, content)
    with pytest.raises(InputError, match=f"{name}|statement.txt"):
        verify(run)


def test_a_name_with_marks_is_stated_as_a_plain_line(tmp_path):
    """A statement that is gone is not said to agree."""
    run = done(tmp_path)
    content = run.read_json(SUMMARY)
    content["found"]["names"] = {"soft\xadhyphen": 99}
    lines = run.ledger.read_text().splitlines(keepends=True)[:-1]  # the closing line names what was found
    run.ledger.write_text("".join(lines))
    content["ledger"] = {"head": head(run.ledger), "lines": len(lines)}
    run.write_json(SUMMARY, content)
    path = run.path / "statement.txt"
    own = read_content(run.ledger)
    cells = spent(own.plan, own.charges)
    due = statement(content, heavy_hitters.HeavyHitters().words(content["found"]), cells)
    assert r"soft\xadhyphen" in due
    path.write_text(due)
    assert "statement.txt agrees" in verify(run).remarks
    for mark in ("\xad", "-"):
        path.write_text(due.replace(r"\xad", mark))
        with pytest.raises(InputError, match="does not agree with summary"):
            verify(run)
    path.unlink()
    assert verify(run).remarks[-1] == "summary.json agrees"


def test_what_was_found_is_what_the_ledger_holds(tmp_path):
    run = done(tmp_path)
    content = read_content(run.ledger)
    assert content.closing.release == found_digest(run.read_json(SUMMARY)["found"])
    assert "closing line" not in verify(run).unverified
    summary = run.read_json(SUMMARY)
    summary["found"]["names"]["often"] += 1
    run.write_json(SUMMARY, summary)
    words = heavy_hitters.HeavyHitters().words(summary["found"])
    write_text(run.path / STATEMENT, statement(summary, words, spent(content.plan, content.charges)))
    with pytest.raises(InputError, match=r"summary\.json: the release of round 0 has the digest"):
        verify(run)


@pytest.mark.parametrize("otherwise", [False, True])
def test_an_analysis_that_was_killed_before_its_summary_closes_its_ledger_once(tmp_path, monkeypatch, otherwise):
    with monkeypatch.context() as patch:
        patch.setattr(execute, "summary_content", lambda *words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            done(tmp_path)
    run = RunDirectory(tmp_path / "a")
    lines = run.ledger.read_text()
    assert "it has not finished" in verify(run).remarks[-1]
    if otherwise:
        honest = execute.found_digest
        monkeypatch.setattr(execute, "found_digest", lambda found: honest({"other": 1}))
        with pytest.raises(InputError, match="comes to something else now, which no charge covers"):
            resume(run.path)
        assert not (run.path / SUMMARY).exists()
    else:
        resume(run.path)
        verify(run)
    assert run.ledger.read_text() == lines


def test_an_edited_ledger_is_found(tmp_path):
    run = done(tmp_path)
    text = (run.path / "ledger.jsonl").read_text().replace("epsilon: 4.0", "epsilon: 2.0")
    (run.path / "ledger.jsonl").write_text(text)
    with pytest.raises(InputError, match="hash chain"):
        verify(run)


SIMULATED = {"run.noise_seed": "3", "population.clients": "80", "population.cohort": "8"}


def settings(*folders, **given):
    counted = {"privacy.spent_before": ",".join(map(str, folders))} if folders else {}
    return resolve("dp-agr", "strokes", None, {**counted, **SIMULATED, **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"population.clients": "81"}, "asked 80 clients, but population.clients = 81; name only analyses"),
        ({"population.kind": "disjoint"}, "population.kind = virtual, but this run has population.kind = disjoint"),
        ({"population.records": "400"}, "with population.records = 500, but this run has population.records = 400"),
        ({"run.seed": "4"}, "with run.seed = 0, but this run has run.seed = 4"),
        ({"dataset": "textures"}, "with dataset = strokes, but this run has dataset = textures"),
    ],
)
def test_an_analysis_of_other_clients_is_not_counted_for_these(tmp_path, given, words):
    plan = PrivacyPlan(clients=80, cohort=80.0, rounds=1, noise_multiplier=9.0)
    text = "analysis: {noise_seed: 3}\n---\n" + to_yaml(settings())
    ledger = Ledger(tmp_path / "ledger.jsonl", plan, RunIdentity(run="a", config=text))
    ledger.charge(planned_charge(plan, 0))
    (tmp_path / SUMMARY).write_text("{}")
    assert len(earlier_releases(settings(tmp_path))) == 1
    now = replace(settings(tmp_path), dataset=given["dataset"]) if "dataset" in given else settings(tmp_path, **given)
    with pytest.raises(InputError, match=words):
        earlier_releases(now)


def test_training_counts_what_the_ledger_charges(tmp_path):
    run = done(tmp_path)
    (found,) = earlier_releases(settings(run.path))
    content = read_content(run.ledger)
    assert found == Earlier(run=content.identity.run, head=content.heads[-1], phases=content.plan.phases)
    agrees = [f"spent before: {run.path} agrees"]
    assert check_still_there(settings(run.path), (found,)) == agrees
    with run.ledger.open("a") as file:
        file.write('{"round": 1, "att')  # a crash tore what was never charged
    assert check_still_there(settings(run.path), (found,)) == agrees
    louder = replace(found, phases=(replace(found.phases[0], rounds=2),))
    with pytest.raises(InputError, match=r"other charges than those that privacy\.spent_before counted"):
        check_still_there(settings(run.path), (louder,))
    (run.path / "ledger.jsonl").rename(tmp_path / "gone")
    assert "is not here" in check_still_there(settings(run.path), (found,))[0]
    other = done(tmp_path, "other")
    with pytest.raises(InputError, match="is not the ledger"):
        check_still_there(settings(other.path), (found,))
    with pytest.raises(InputError, match="names 2 ledgers"):
        check_still_there(settings(other.path, run.path), (found,))


def test_what_cannot_be_counted_is_refused(tmp_path):
    run = done(tmp_path)
    other, copied = done(tmp_path, "other"), shutil.copytree(run.path, tmp_path / "copied")
    (tmp_path / "link").symlink_to(run.path)
    for again in (run.path, f"{run.path}/.", tmp_path / "link", copied):
        with pytest.raises(InputError, match=f"= {again}: the same ledger as {run.path}; name it once"):
            earlier_releases(settings(run.path, other.path, again))
    with pytest.raises(InputError, match=r"no ledger\.jsonl"):
        earlier_releases(settings(tmp_path))
    real = settings(run.path)
    with pytest.raises(InputError, match="is a simulation"):
        earlier_releases(replace(real, run=replace(real.run, noise_seed=None)))
    # Charged, or not: as long as it is not finished it may still be.
    summary = (run.path / SUMMARY).read_bytes()
    (run.path / SUMMARY).unlink()
    with pytest.raises(InputError, match="not finished"):
        earlier_releases(settings(run.path))
    (run.path / SUMMARY).write_bytes(summary)
    lines = run.ledger.read_text().splitlines(keepends=True)
    run.ledger.write_text(lines[0])
    with pytest.raises(InputError, match="not finished"):
        earlier_releases(settings(run.path))


def test_a_ledger_that_was_written_anew_with_more_noise_is_found(tmp_path):
    run = done(tmp_path)
    content = read_content(run.ledger)
    noise = 10.0 * content.plan.noise_multiplier
    run.ledger.unlink()
    forged = replace(content.plan, noise_multiplier=noise)
    Ledger(run.ledger, forged, content.identity).charge(replace(content.charges[0], event=forged.at(0)))
    assert check_still_there(settings(run.path), earlier_releases(settings(run.path)))
    with pytest.raises(InputError, match=r"ledger\.jsonl: plan\.(planned|phases).*: states"):
        check_counted([str(run.path)])


def test_an_analysis_is_no_training_run(tmp_path):
    run = done(tmp_path)
    files = sorted(path.name for path in run.path.iterdir())
    for ask in (audit, lambda other: settings_of_run(other, {}), lambda other: check_is_run(other.path)):
        with pytest.raises(InputError, match="is an analysis and no training run"):
            ask(run)
    assert sorted(path.name for path in run.path.iterdir()) == files


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("fixed", [None, object()])
def test_a_summary_states_each_number_from_where_it_is_known(seed, fixed):
    plan = PrivacyPlan(clients=100, cohort=10, rounds=1, noise_multiplier=2.0)
    charges = (Charge(round=0, event=plan.phases[0].event, inputs="x"),)
    asked: Any = SimpleNamespace(
        kind="quantile", clients=100, cohort=10.0, fixed=fixed, noise_seed=seed,
        analysis=SimpleNamespace(server_sees="the sum"),
    )  # fmt: skip
    content: Any = SimpleNamespace(plan=plan, charges=charges, heads=("first", "second"))
    stated = summary_content(asked, content, {"bound": 0.5})
    assert stated.pop("versions")
    assert stated.pop("simulation") == (None if seed is None else SIMULATION)
    assert stated == {
        "status": "completed", "analysis": "quantile", "clients": 100, "cohort": 10.0,
        **({} if fixed is None else {"sampler": "fixed"}), "found": {"bound": 0.5}, "server_sees": "the sum",
        "guarantees": [cell.as_json() for cell in spent(plan, charges)],
        "planned": [cell.as_json() for cell in guarantees(plan)],
        # The last line's: the head of a ledger says how far it went.
        "ledger": {"head": "second", "lines": 2},
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2**128 - 1])
def test_an_analysis_whose_noise_seed_was_chosen_is_a_simulation_whatever_the_seed(tmp_path, seed):
    plan = PrivacyPlan(clients=80, cohort=80.0, rounds=1, noise_multiplier=9.0)
    now = replace(settings(tmp_path), run=replace(settings().run, noise_seed=None))
    for noise_seed in (seed, None):
        text = f"analysis: {{noise_seed: {'null' if noise_seed is None else noise_seed}}}\n---\n" + to_yaml(settings())
        (tmp_path / "ledger.jsonl").unlink(missing_ok=True)
        ledger = Ledger(tmp_path / "ledger.jsonl", plan, RunIdentity(run="a", config=text))
        ledger.charge(planned_charge(plan, 0))
        (tmp_path / SUMMARY).write_text("{}")
        if noise_seed is None:
            assert len(earlier_releases(now)) == 1
        else:
            with pytest.raises(InputError, match="is a simulation"):
                earlier_releases(now)


def test_draws_of_the_system_have_no_seed_and_are_not_for_real_clients(tmp_path):
    """Each of the two is refused by itself, and leaves nothing."""
    request, place = request_of(tmp_path), Place(folder=str(tmp_path), name="a")
    with pytest.raises(InputError, match="--secure-rng takes no seed, and --noise-seed sets one"):
        begin(request, place, secure_rng=True)
    with pytest.raises(InputError, match="--secure-rng: real clients answer once"):
        begin(replace(request, noise_seed=None), place, secure_rng=True, asked_of=lambda request: pytest.fail("asked"))
    assert not (tmp_path / "a").exists()


class Waiting:
    """Clients that note in which order they are asked."""

    def __init__(self, path, calls, digest="d"):
        self.path, self.calls, self.digest = path, calls, digest
        self.ground: Any = SimpleNamespace(task=None)

    def check(self, analysis):
        self.calls.append(("check", self.path.exists()))

    def ready(self):
        self.calls.append(("ready", self.path.exists()))

    def sums(self, analysis, asking, told, run):
        charges = len(read_content(run.ledger).charges)
        self.calls.append(("sums", charges))
        raise InputError("too few answered")


@pytest.mark.parametrize("seed", [3, None])
def test_clients_are_checked_and_waited_for_before_the_charge_and_asked_after_it(tmp_path, seed):
    path, calls = tmp_path / "a", []
    request = request_of(tmp_path, noise_seed=seed)
    with pytest.raises(InputError, match="too few answered"):
        begin(request, Place(folder=str(tmp_path), name="a"), asked_of=lambda request: Waiting(path, calls))
    assert calls == [("check", False), ("ready", False), ("sums", 1)]
    assert json.loads((path / "secret/data.json").read_text()) == {"digest": "d"}
    assert (path / "secret/data.json").stat().st_mode & 0o777 == 0o600
    assert not (path / SUMMARY).exists()
    calls.clear()
    # Gone on with, they are waited for once more, and charged no more.
    with pytest.raises(InputError, match="too few answered"):
        resume(path, asked_of=lambda request: Waiting(path, calls))
    assert calls == [("ready", True), ("sums", 1)]
    calls.clear()
    with pytest.raises(InputError, match="the clients hold other data"):
        resume(path, asked_of=lambda request: Waiting(path, calls, digest="e"))
    assert calls == []


OF_SUMMARY = {
    "status": "stopped", "analysis": "histogram", "clients": 81, "cohort": 79.0, "sampler": "fixed", "simulation": None,
    "server_sees": "nothing", "planned": [], "ledger": {"head": "f" * 64, "lines": 2}, "guarantees": [],
}  # fmt: skip


@pytest.mark.parametrize("field", OF_SUMMARY)
def test_each_field_of_a_summary_is_what_the_ledger_gives(tmp_path, field):
    run = done(tmp_path)
    content = run.read_json(SUMMARY)
    run.write_json(SUMMARY, {**content, field: OF_SUMMARY[field]})
    with pytest.raises(InputError, match=rf"summary\.json: {field}"):
        verify(run)
    if field != "sampler":
        run.write_json(SUMMARY, {name: value for name, value in content.items() if name != field})
        with pytest.raises(InputError, match=rf"summary\.json: {field}"):
            verify(run)


def test_what_was_found_may_lack_nothing(tmp_path):
    run = done(tmp_path)
    content = run.read_json(SUMMARY)
    del content["found"]["threshold"]
    run.write_json(SUMMARY, content)
    with pytest.raises(InputError, match=r"summary\.json: found: incomplete"):
        verify(run)


def test_an_analysis_that_was_stopped_is_verified_as_far_as_it_went(tmp_path):
    run = done(tmp_path)
    found = verify(run)
    assert found.remarks[:3] == ("1 round, hash chain intact", "its request fits its plan", "plan.json agrees")
    assert found.remarks[-2:] == ("summary.json agrees", "statement.txt agrees")
    assert found.simulation == "a simulation: the noise seed was chosen"
    assert [cell.epsilon for cell in found.guarantees] == [cell.epsilon for cell in spent(found.plan, found.charges)]
    (run.path / SUMMARY).unlink()
    with run.ledger.open("a") as file:
        file.write('{"round": 0, "att')
    stopped = verify(run)
    assert stopped.remarks[-1] == f"it has not finished: go on with dpfedmeta analyse --resume {run.path}"
    assert stopped.charges == found.charges


@pytest.mark.parametrize("run", [None, "RUN"])
def test_a_register_that_does_not_count_an_analysis_is_not_passed_over_in_silence(tmp_path, run):
    """Settings that name one are refused; of a run that is in one it is said, since nothing else can be typed."""
    settings = resolve("dp-agr", "strokes", None, {"population.register": "people.jsonl"})
    request = SimpleNamespace(settings=settings, run=run)
    if run is None:
        place = Place(folder=str(tmp_path), name="a")
        changes = {"kind": "quantile", "own": {}, "names": None, "noise_seed": None, "settings": settings}
        with pytest.raises(InputError, match=r"population\.register = people\.jsonl: does not count what an analysis"):
            begin(request_of(tmp_path, **changes), place)
        assert not (tmp_path / "a").exists()
    else:
        with pytest.warns(UserWarning, match=r"RUN: its register people\.jsonl does not count what this analysis"):
            execute._check_uncounted(request)
    execute._check_uncounted(request_of(tmp_path))
    execute._check_uncounted(SimpleNamespace(settings=resolve("dp-agr", "strokes", None, {}), run=run))
