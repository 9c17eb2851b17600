"""Every JSON file of a run, damaged in every way: whatever reads it says which file in one line, or does without it."""

import json
import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.comparison import check
from dpfedmeta.core.files.run_directory import RunDirectory, config_of
from dpfedmeta.core.random.fresh_seeds import secret_of_run
from dpfedmeta.planning.data_digests import kept_data
from dpfedmeta.privacy.rounds.stored_release import SumDigests
from dpfedmeta.reporting.compare import latex_tables
from dpfedmeta.reporting.compare.paired_runs import kept_episodes
from dpfedmeta.reporting.html import page
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.reporting.plots import comparison_plots, run_plots
from dpfedmeta.training.results.run_archive import check_manifest, manifest
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.state.private_timings import seconds_before
from dpfedmeta.training.verification.file_claims import check_plan_file, check_summary
from dpfedmeta.training.verification.verify import audit, left_out, realised

TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "6", "population.clients": "40", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "privacy.client.delta": "0.001", "clip.window": "2",
}  # fmt: skip
DEEP, HUGE = 200_000, "9" * 400
DAMAGES = {
    "nested": lambda text: "[" * DEEP + "\n",
    "nested in an object": lambda text: '{"a":' * DEEP + "\n",
    "not UTF-8": lambda text: b"\xff\xfe{}\n",
    "UTF-16": lambda text: text.encode("utf-16"),
    "no object": lambda text: "[1]\n",
    "a number": lambda text: "5\n",
    "empty": lambda text: "",
    "empty lines": lambda text: "\n\n",
    "cut": lambda text: text[: len(text) // 2] + "\n",
    "no keys": lambda text: "{}\n",
    "huge": lambda text: _all_numbers(text, HUGE),
    "infinite": lambda text: _all_numbers(text, "1e999"),
    "null": lambda text: _all_numbers(text, "null"),
    "digits": lambda text: "1" * 5000 + "\n",
}


def _all_numbers(text, new):
    """Each number at the place of its value."""

    def changed(value):
        if isinstance(value, dict):
            return {name: changed(each) for name, each in value.items()}
        if isinstance(value, list):
            return [changed(each) for each in value]
        return "@" if isinstance(value, int | float) and not isinstance(value, bool) else value

    whole = text.lstrip().startswith("{\n")
    parts = [text] if whole else text.splitlines()
    return "\n".join(json.dumps(changed(json.loads(part))).replace('"@"', new) for part in parts) + "\n"


@pytest.fixture(scope="module")
def ended(tiny_task_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = resolve("dp-agr", str(tiny_task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r"})
    run = run_training(settings)[0]
    (run.path / "MANIFEST.json").write_bytes(manifest(run, {"config.yaml": (run.path / "config.yaml").read_bytes()}))
    (run.secret / "left-out.jsonl").write_text('{"round": 1, "messages": 2}\n')
    (run.secret / "sums.jsonl").write_text('{"round": 1, "attempt": 0, "sum": "ab"}\n')
    return run


def _seed(run):
    secret_of_run(run, None, secure=False)


def _realised(run):
    content = read_content(run.ledger)
    realised(run, content.plan, content.charges)


READERS = {
    "plan.json": (audit,),
    "ledger.jsonl": (audit, lambda run: config_of(run.path)),
    "rounds.jsonl": (audit, write_report, seconds_before),
    "summary.json": (audit, write_report),
    "episodes.json": (kept_episodes,),
    "MANIFEST.json": (audit, check_manifest),
    "secret/participations.jsonl": (_realised,),
    "secret/left-out.jsonl": (left_out, _realised),
    "secret/sums.jsonl": (SumDigests,),
    "secret/noise_seed.json": (_seed,),
    "secret/data.json": (kept_data,),
    "secret/seconds.jsonl": (seconds_before,),
}


def refusal(read, run):
    try:
        read(run)
    except InputError as error:
        return str(error)
    return ""


def test_every_json_file_of_a_run_is_in_this_table(ended):
    found = {path.relative_to(ended.path).as_posix() for path in ended.path.rglob("*.json*")}
    assert found <= set(READERS), found - set(READERS)
    assert set(READERS) <= found, set(READERS) - found


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_in_one_line(ended, tmp_path, name):
    run = RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))
    sound, refused = (run.path / name).read_text(), set()
    for damage, make in DAMAGES.items():
        content = make(sound)
        for read in READERS[name]:
            (run.path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            if said := refusal(read, run):
                assert name.rpartition("/")[2] in said or "rounds.jsonl or summary.json" in said, damage
                assert "\n" not in said, damage
                refused.add(damage)
    # Only the time that a run took is worth no refusal.
    assert name.endswith("seconds.jsonl") or {"nested", "nested in an object", "not UTF-8", "digits"} <= refused
    (run.path / name).write_text(sound)
    for read in READERS[name]:
        read(run)


@pytest.mark.parametrize("line", [0, 1])
def test_a_deep_line_of_a_ledger_is_one_line_of_the_command(ended, tmp_path, dpfedmeta, line):
    run = RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))
    lines = run.ledger.read_text().splitlines()
    lines[line] = "[" * DEEP
    run.ledger.write_text("\n".join(lines) + "\n")
    said = dpfedmeta("account", "--verify", run.path, code=2).error
    assert f"ledger.jsonl, line {line + 1}: the hash chain breaks here" in said


@pytest.mark.parametrize("clients", ["[[1]]", '["a"]', "[null]", "5", '{"a": 1}', "[1e999]"])
def test_participants_that_are_no_numbers_are_not_counted(ended, tmp_path, clients):
    run = RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))
    with (run.secret / "participations.jsonl").open("a") as file:
        file.write(f'{{"round": 2, "clients": {clients}}}\n')
    with pytest.raises(InputError, match=r"participations\.jsonl: damaged: a line is not"):
        _realised(run)


def _places(content, depth=3):
    """Every key down to some depth, the first of a list in its place."""
    items = content.items() if isinstance(content, dict) else enumerate(content[:2])
    for key, value in items:
        yield (key,)
        if depth > 1 and isinstance(value, dict | list):
            yield from ((key, *more) for more in _places(value, depth - 1))


def _without(content, place):
    changed = json.loads(json.dumps(content))
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    del inside[place[-1]]
    return changed


def _with(content, place, value):
    changed = json.loads(json.dumps(content))
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return changed


# What says what is promised and spent.
STATED = ("planned", "privacy", "phases", "guarantees", "ledger")


def checked(name, proven, run):
    if name == "plan.json":
        check_plan_file(run, proven)
    else:
        check_summary(read_run(run), proven)


@pytest.mark.parametrize("name", ["plan.json", "summary.json"])
def test_whatever_key_a_file_lacks_or_has_null_is_one_line_about_it(ended, tmp_path, name):
    """Any one, wherever it stands: an error of that file or none, and no key that states a guarantee may be gone."""
    run = RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))
    found = audit(run)
    sound, passes = run.read_json(name), set()
    for place in _places(sound):
        for how, content in (
            ("gone", _without(sound, place)),
            ("null", _with(sound, place, None)),
            ("x", _with(sound, place, "x")),
        ):
            run.write_json(name, content)
            said = refusal(partial(checked, name, found.proven), run) if content != sound else name + str(run.path)
            assert not said or (name in said and str(run.path) in said), (place, how, said)
            if not said:
                passes.add((place, how))
    # A sentence that is gone claims nothing, and a constant that is gone is the default.
    claimed = {(place, how) for place, how in passes if place[0] in STATED and how != "gone"}
    assert not claimed, sorted(claimed, key=str)


@pytest.mark.parametrize("kind", DAMAGED_JSON)
def test_what_fails_on_a_damaged_run_is_an_error_of_its_files(ended, tmp_path, monkeypatch, kind):
    """Whatever a page, a comparison or a table stumbles over."""

    def fails(*given):
        raise kind("what")

    run = RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))
    monkeypatch.setattr(run_plots, "accuracy_plot", fails)
    monkeypatch.setattr(comparison_plots, "final_plot", fails)
    monkeypatch.setattr(latex_tables, "csv_table", fails)
    groups = [SimpleNamespace(runs=[run]), SimpleNamespace(runs=[RunDirectory(tmp_path / "other")])]
    with pytest.raises(InputError, match=rf"^{run.path}: rounds\.jsonl or summary\.json is incomplete"):
        write_report(run)
    both = rf"^{run.path}, {tmp_path / 'other'}: "
    with pytest.raises(InputError, match=both + r"rounds\.jsonl or summary\.json is incomplete"):
        page.write_comparison(groups, tmp_path / "page.html")
    with pytest.raises(InputError, match=both + "a file of a run is incomplete"):
        list(latex_tables.write_paper(groups, None, tmp_path / "t.csv", None))


@pytest.mark.parametrize(
    ("stated", "found", "same"),
    [
        (1.0, 1.0 + 1e-10, True), (1.0, 1.0 + 1e-3, False), (1, 1, True), (1, 2, False), (1, 1.0 + 1e-10, False),
        (1.0 + 1e-10, 1, False), (True, 1, False), (1, True, False), (True, True, True), (False, 0.0, False),
        (None, 1.0, False), (1.0, None, False), (None, None, True), ("1.0", 1.0, False), (1.0, "1.0", False),
        ("a", "a", True), ("a", "b", False), ([1.0], [1.0 + 1e-10], True), ([1.0], [1.0, 2.0], False),
        ({"a": 1}, {"a": 1, "b": None}, False), ({"a": 1, "b": None}, {"a": 1}, False),
        ({"a": {"b": 1}}, {"a": 1}, False),
    ],
)  # fmt: skip
def test_only_the_last_digits_of_two_floats_may_differ(tmp_path, stated, found, same):
    said = refusal(lambda path: check(path, "key", stated, found), tmp_path)
    assert bool(said) != same, said
