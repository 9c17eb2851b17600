"""W&B as its users know it: read back by W&B's own `wandb sync`, which sends to a stand-in on this machine."""

import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.reporting.html.pictures import draw_pictures
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.trackers import Tracked
from dpfedmeta.training.trackers.wandb_tracker import WeightsAndBiases, check_wandb, wandb_mode
from dpfedmeta.training.tracking.callbacks import Callback, JsonLines
from dpfedmeta.training.tracking.flatten_rows import (
    evaluation_sheet,
    flat,
    flat_settings,
    flat_summary,
    guarantee_sheet,
)
from tests.training.tracking.wandb_stand_in import KEY, stand_in

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TINY = {
    "model.width": "4", "server.rounds": "4", "population.cohort": "6", "population.clients": "60", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2",
    "evaluation.episodes": "2", "run.workers": "1", "clip.window": "2", "server.noise_multiplier": "1.5",
}  # fmt: skip
ROWS = [
    {"round": number, "clip": 0.5, "epsilons": {"client_public": 0.1, "client_server": None}} for number in range(5)
]
SUMMARY = {"status": "completed", "rounds": 5, "accuracy": {"mean": 0.8, "ci95": 0.1, "episodes": 2},
           "task": {"ways": 3, "shots": 2, "queries": 2}}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nobodys_wandb(tmp_path_factory):
    """No key, no settings and no cache of whoever runs the tests; W&B's process ends with them."""
    import wandb

    own = tmp_path_factory.mktemp("wandb-own")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
            patch.setenv(f"WANDB_{name}", str(own))
        patch.setenv("NETRC", str(own / "netrc"))
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        wandb.teardown()
        yield
        wandb.teardown()


@pytest.fixture
def environment(monkeypatch):
    """Sets W&B's variables as a shell does; W&B reads them once in a process, so its settings begin anew."""
    import wandb

    def given(**variables):
        wandb.teardown()
        for name, value in variables.items():
            monkeypatch.setenv(f"WANDB_{name}", value)

    yield given
    monkeypatch.undo()
    wandb.teardown()


class Said(Callback):
    def __init__(self):
        self.lines = []

    def on_remark(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def sent(tiny_task_file, tmp_path_factory):
    """A private run, tracked offline, and what a server got of it by the very command that the run printed."""
    import wandb

    folder, said = tmp_path_factory.mktemp("tracked"), Said()
    asked = {"wandb": "offline", "tags": "a, b", "group": "both", "model": "true"}
    given = {**TINY, **{f"track.{name}": value for name, value in asked.items()}, "run.dir": "runs", "run.name": "r"}
    settings = resolve("dp-agr", str(tiny_task_file), None, given)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run, _ = run_training(settings, RunOptions(pictures=draw_pictures), [said])
        run = replace(run, path=folder / run.path)
    wandb.teardown()  # its process writes the last block when it ends
    (line,) = (line for line in said.lines if line.startswith("W&B"))
    command = line.removeprefix("W&B: send it with: ").split()
    with stand_in() as server:
        environment = {**os.environ, "WANDB_BASE_URL": server.address, "WANDB_API_KEY": KEY}
        words = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = server.history
    return SimpleNamespace(run=run, settings=settings, command=command, server=server, name=name)


def test_every_round_is_in_the_history_with_its_own_step_and_no_time_of_its_own(sent):
    rows = [dict(row) for row in sent.server.history[sent.name]]
    for row in rows:
        del row["_runtime"]  # since W&B began, which is when the run ended
    last = {name: rows[-1].pop(name) for name in list(rows[-1]) if name.startswith(("tables/", "pictures/"))}
    assert rows == [{**flat(row), "_step": row["round"], "_timestamp": row["round"]} for row in sent.run.rounds()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert {name: entry["_type"] for name, entry in last.items()} == {
        "tables/guarantees": "table-file", "tables/evaluation": "table-file",
        "pictures/accuracy": "image-file", "pictures/clip": "image-file", "pictures/guarantees": "image-file",
    }  # fmt: skip


def test_no_folder_name_or_repository_of_the_machine_is_in_the_file(sent):
    (file,) = sent.run.path.rglob("*.wandb")
    content = file.read_bytes()
    assert b"dp-agr" in content  # it is not compressed
    for told in (sys.executable, "CPython", "git@", "https://github"):
        assert told.encode() not in content


def test_it_has_the_columns_of_sweep_files_and_its_place(sent):
    about = sent.server.upserts[sent.name]
    config = {name: entry["value"] for name, entry in json.loads(about["config"]).items() if name != "_wandb"}
    written = json.loads(json.dumps(flat_settings(sent.settings)))
    assert config == {name: value for name, value in written.items() if value != {}}
    assert set(config) <= {name for name, _, _ in setting_fields()}
    assert not any(isinstance(value, dict) for value in config.values())
    assert config["clip.window"] == 2
    assert (about["groupName"], about["tags"], about["displayName"]) == ("both", ["a", "b"], "r")
    assert about["project"] == "dpfedmeta"


def test_the_summary_has_the_names_of_summary_json(sent):
    summary = sent.run.read_json("summary.json")
    uploaded = json.loads(sent.server.uploads["wandb-summary.json"])
    assert uploaded["status"] == "completed"
    assert uploaded["accuracy/mean"] == summary["accuracy"]["mean"]
    for name, value in flat_summary(summary).items():
        if not isinstance(value, list):
            assert uploaded[name] == value
    epsilon = summary["guarantees"][0]["epsilon"]
    assert uploaded["guarantees/client_public/epsilon"] == epsilon > 0


def test_guarantees_and_evaluation_are_tables_and_the_pictures_those_of_the_report(sent):
    summary, uploads = sent.run.read_json("summary.json"), sent.server.uploads
    tables = {Path(name).name.split("_")[0]: json.loads(body) for name, body in uploads.items() if "/table/" in name}
    for name, sheet in (("guarantees", guarantee_sheet(summary)), ("evaluation", evaluation_sheet(summary))):
        assert tables[name]["columns"] == list(sheet.columns)
        assert tables[name]["data"] == [list(row) for row in sheet.rows]
    pictures = {Path(name).name.split("_")[0]: body for name, body in uploads.items() if name.endswith(".png")}
    assert pictures == {path.stem: path.read_bytes() for path in sent.run.path.glob("*.png")}
    assert set(pictures) == {"accuracy", "clip", "guarantees"}


def wandb_records(path):
    """All that W&B wrote, by its own description of it: LevelDB's log of protocol buffers, block by block."""
    from wandb.proto import wandb_internal_pb2

    content, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(part))  # type: ignore[attr-defined]
            part = b""
    return found


def test_the_artifact_is_the_released_model_and_nothing_secret_is_there(sent):
    (file,) = sent.run.path.glob("wandb/offline-run-*/run-*.wandb")
    records = wandb_records(file)
    kinds = {record.WhichOneof("record_type") for record in records}
    assert {"history", "config", "artifact"} & kinds
    assert {"stats", "output", "output_raw"} & kinds == set()
    (model,) = (record.artifact for record in records if record.artifact.type == "model")
    held = {entry.path: Path(entry.local_path).read_bytes() for entry in model.manifest.contents}
    assert set(held) == {"model.safetensors", "config.yaml", "summary.json"}
    assert held["model.safetensors"] == sent.run.weights.read_bytes()
    assert "r-model" in [artifact["artifactCollectionName"] for artifact in sent.server.artifacts]
    assert json.loads(model.metadata)["guarantees/client_public/epsilon"] > 0
    everything = b"".join(path.read_bytes() for path in (sent.run.path / "wandb").rglob("*") if path.is_file())
    seed = str(json.loads((sent.run.secret / "noise_seed.json").read_text())["seed"]).encode()
    assert len(seed) > 20
    assert seed not in everything + b"".join(sent.server.uploads.values()) + b"".join(held.values())


def test_the_line_at_the_end_is_the_command(sent):
    assert sent.command[:2] == ["wandb", "sync"]
    assert re.fullmatch(r"runs/r/wandb/offline-run-\d+_\d+-\w+", sent.command[2])


MODES = ("off", "offline", "online")


@pytest.mark.parametrize("said", ["online", "offline", "dryrun", "disabled"])
def test_the_environment_makes_it_quieter_and_never_louder(environment, said):
    environment(MODE=said)
    limit = {"dryrun": "offline", "disabled": "off"}.get(said, said)
    for asked in MODES:
        track = resolve("dp-agr", "strokes", None, {"track.wandb": asked}).track
        assert wandb_mode(track) == MODES[min(MODES.index(asked), MODES.index(limit))]
    if said in ("offline", "disabled"):
        lines = []
        check_wandb(track, lines.append)
        assert len(lines) == 1
        assert "WANDB_MODE" in lines[0]


REFUSED = {
    "no key": ({}, "no API key; run `wandb login` or set WANDB_API_KEY; or --wandb offline"),
    "no network": ({"BASE_URL": "http://127.0.0.1:9", "API_KEY": KEY, "HTTP_TIMEOUT": "1"}, "check the network and"),
    "a short key": ({"API_KEY": "abc"}, "API key must have 40+ characters"),
    "no such mode": ({"MODE": "quiet"}, "mode = quiet (WANDB_MODE, or its settings file)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_missing_is_one_line_and_no_half_run(environment, dpfedmeta, tmp_path, case):
    variables, said = REFUSED[case]
    environment(**variables)
    words = ["train", "--algo", "dp-agr", "--dataset", "strokes", "--epsilon", "2", "--wandb", "online"]
    assert said in dpfedmeta(*words, folder=tmp_path, code=2).error
    assert list(tmp_path.iterdir()) == []


class Begun:
    """Stands in for wandb.init and for the run that it gives; `step` as of a run that goes on."""

    def __init__(self, step=0, fails_at=None):
        self.step, self.fails_at, self.given, self.logged, self.offline = step, fails_at, {}, {}, True
        self.summary, self.settings = {}, SimpleNamespace(sync_dir="/elsewhere/offline-run-1")

    def __call__(self, **given):
        self.given = given
        return self

    def log(self, row, step):
        if step == self.fails_at:
            self.fails_at = None
            raise ConnectionError("the service\nwent away.")
        self.logged.setdefault(step, {}).update(row)

    def finish(self):
        self.finished = True


@pytest.fixture
def tracked(tmp_path, tiny_task_file):
    run = create(tmp_path, "r")
    settings = resolve("dp-agr", "strokes", None, {**TINY, "track.wandb": "offline"})
    given = {"identity": "0" * 32, "pictures": lambda run: ()}
    return Tracked(run=run, settings=settings, timed=True, **given)


def told(tracked, rows, begun, monkeypatch):
    monkeypatch.setattr("wandb.init", begun)
    said, lines = [], JsonLines(tracked.run.path)
    tracker = WeightsAndBiases(tracked, said.append)
    for row in rows:
        lines.on_round(row)
        tracker.on_round(row)
    tracker.on_end(SUMMARY)
    return said


def test_a_run_that_goes_on_sends_what_the_process_before_did_not(tracked, monkeypatch):
    lines = JsonLines(tracked.run.path)
    for row in ROWS[:3]:
        lines.on_round(row)
    begun = Begun(step=2)
    told(tracked, ROWS[3:], begun, monkeypatch)
    assert list(begun.logged) == [2, 3, 4]
    assert all(begun.logged[number].items() >= flat(ROWS[number]).items() for number in (2, 3, 4))


def test_trouble_with_wandb_is_a_line_and_every_round_gets_there_all_the_same(tracked, monkeypatch):
    begun = Begun(fails_at=2)
    said = told(tracked, ROWS, begun, monkeypatch)
    assert said[0] == "W&B: the service went away; training goes on, and W&B is tried again at its end"
    assert list(begun.logged) == [0, 1, 2, 3, 4]
    assert said[1:] == ["W&B: send it with: wandb sync /elsewhere/offline-run-1"]


def test_trouble_at_the_end_leaves_the_run_whole(tracked, monkeypatch):
    late = replace(tracked, timed=False)
    begun = Begun(fails_at=0)
    assert told(late, ROWS, begun, monkeypatch) == ["W&B: the service went away; the run itself is complete"]


def test_a_network_that_is_gone_at_the_end_leaves_files(tracked, monkeypatch):
    import wandb

    begun = Begun()

    def init(**given):
        if given["mode"] == "online":
            raise wandb.errors.CommError("timed out")
        return begun(**given)

    online = replace(tracked.settings, track=replace(tracked.settings.track, wandb="online"))
    said = told(replace(tracked, timed=False, settings=online), ROWS, init, monkeypatch)
    assert said[0] == "W&B: timed out; it goes into files instead"
    assert said[1].startswith("W&B: send it with: wandb sync")
    assert list(begun.logged) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "variables", "meant"),
    [
        ({}, {}, {"project": "dpfedmeta", "entity": None, "group": "dp-agr-strokes", "tags": ["dp-agr", "strokes"]}),
        ({}, {"PROJECT": "p", "RUN_GROUP": "g", "TAGS": "x", "NAME": "n"},
         {"project": None, "group": None, "tags": None, "name": None}),
        ({"project": "own", "entity": "team", "group": "g", "tags": "x,y"},
         {"PROJECT": "p", "RUN_GROUP": "h", "TAGS": "z"},
         {"project": "own", "entity": "team", "group": "g", "tags": ["x", "y"]}),
        ({}, {"SWEEP_ID": "abc"}, {"project": None}),
    ],
)  # fmt: skip
def test_settings_are_stronger_than_variables_and_these_than_defaults(
    environment, tracked, monkeypatch, given, variables, meant
):
    environment(**variables)
    asked = replace(tracked.settings.track, **{k: tuple(v.split(",")) if k == "tags" else v for k, v in given.items()})
    begun = Begun()
    told(replace(tracked, settings=replace(tracked.settings, track=asked)), [], begun, monkeypatch)
    assert {name: begun.given[name] for name in meant} == meant


@pytest.mark.parametrize("timed", [False, True])
def test_nothing_is_told_of_the_machine_that_a_run_with_a_guarantee_had(tracked, monkeypatch, timed):
    """Its folders, its name, its repository with its commit; W&B's own defaults hold for other runs."""
    begun = Begun()
    told(replace(tracked, timed=timed), [], begun, monkeypatch)
    asked = begun.given["settings"]
    for left_out in ("disable_git", "x_disable_meta", "x_disable_stats"):
        assert bool(getattr(asked, left_out)) is not timed
    assert (asked.console == "off") is not timed


def test_files_go_into_the_run_or_where_the_variable_says(environment, tracked, tmp_path, monkeypatch):
    for variables, place in (({}, str(tracked.run.path)), ({"DIR": str(tmp_path / "elsewhere")}, None)):
        environment(**variables)
        begun = Begun()
        told(tracked, [], begun, monkeypatch)
        assert begun.given["dir"] == place


def test_a_tracker_that_cannot_begin_leaves_no_half_run(tiny_task_file, tmp_path, monkeypatch):
    import wandb

    def refuse(**given):
        raise wandb.errors.CommError("project not\nfound.")

    monkeypatch.setattr("wandb.init", refuse)
    given = {**TINY, "track.wandb": "offline", "run.noise_seed": "1", "run.dir": str(tmp_path / "runs")}
    with pytest.raises(InputError, match=r"^track\.wandb = offline: project not found; "):
        run_training(resolve("dp-agr", str(tiny_task_file), None, given))
    assert list((tmp_path / "runs").iterdir()) == []


def test_nested_rows_become_flat_and_lose_what_is_null():
    assert flat({"a": 1, "b": {"c": 2.0, "d": {"e": None, "f": "x"}}, "g": None}) == {"a": 1, "b/c": 2.0, "b/d/f": "x"}


def test_what_is_infinite_is_empty_and_said_in_words():
    cell = {"unit": "client", "observer": "server", "epsilon": None, "delta": 1e-6, "adjacency": "replace-one",
            "method": "none"}  # fmt: skip
    sheet = guarantee_sheet({"guarantees": [cell], "planned": [cell]})
    assert sheet.rows == (("client", "server", None, None, 1e-6, "replace-one", "none", "nothing is promised"),)


def test_an_online_run_that_is_resumed_is_one_run_there(environment, tracked):
    import wandb

    online = replace(tracked.settings, track=replace(tracked.settings.track, wandb="online"))
    with stand_in() as server:
        environment(BASE_URL=server.address, API_KEY=KEY)
        lines = JsonLines(tracked.run.path)
        for part in (ROWS[:2], ROWS[2:]):
            check_wandb(online.track, print)
            tracker = WeightsAndBiases(replace(tracked, settings=online), print)
            for row in part:
                lines.on_round(row)
                tracker.on_round(row)
            tracker.on_end(SUMMARY)
        wandb.teardown()
        assert {name: [row["round"] for row in rows] for name, rows in server.history.items()} == {
            tracked.identity: [0, 1, 2, 3, 4]
        }


def test_shipped_sweeps_and_the_settings_use_the_same_names():
    swept = yaml.safe_load((Path(__file__).parents[3] / "configs/sweeps/window.yaml").read_text())["parameters"]
    assert set(swept) <= set(flat_settings(resolve("dp-agr", "strokes", None, {})))
