"""`make gpu` without a GPU: what it refuses, how it keeps its time, and its CPU half."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks import device_rounds, gpu, gpu_plot
from benchmarks.gpu_runs import joined_archives, whole_runs

ROOT = Path(__file__).parents[2]
MACHINE = {"torch": torch.__version__}


def part(name, code, *, most=20.0, least=0.0, **more):
    """A part that runs Python code; {json} and {most} are filled in."""
    return gpu.Part(name=name, words="a part", command=["-S", "-c", code], most=most, least=least, **more)


ROWS = """{{"rows": [{{"case": "dp-agr, order 1", "clients_per_second": 5.0}}]}}"""
WRITES = f"import sys; open('{{json}}', 'w').write('{ROWS}')"


def measured(chosen, folder, seconds=40.0):
    said = []
    clock = gpu.Clock(seconds=seconds, begun=time.monotonic())
    gpu.measure(chosen, folder, clock, said.append, {"machine": MACHINE})
    found = json.loads((folder / "gpu.json").read_text())
    return {each["name"]: each for each in found["parts"]}, said


def test_parts_that_fail_hang_or_do_not_fit_cost_the_others_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_GRACE", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    found, said = measured(
        [
            part("fails", f"print('why it failed'); {WRITES}; sys.exit(3)"),
            part("late", f"import time; {WRITES}; time.sleep(60)", most=0.5),
            part("deaf", f"{deaf}{WRITES}; time.sleep(60)", most=0.5),
            part("absent", "never", absent="no images"),
            part("too long", "never", least=1000.0),
            part("unreadable", "open('{json}', 'w').write('half')"),
            part("sound", WRITES),
        ],
        tmp_path,
    )
    ended = {name: each["ended"] for name, each in found.items()}
    assert ended.pop("unreadable").startswith("done; what it left cannot be read: JSONDecodeError")
    assert ended == {
        "fails": "failed with exit code 3; see log.txt",
        "late": "out of time",
        "deaf": "out of time",
        "absent": "skipped",
        "too long": "skipped",
        "sound": "done",
    }
    assert found["absent"]["why"] == "no images"
    assert re.fullmatch(r"\d+ s were left, and it takes 1000 at least", found["too long"]["why"])
    # What they wrote before they ended is there.
    assert all(found[name]["found"]["rows"] for name in ("fails", "late", "deaf", "sound"))
    assert "why it failed" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "gpu.png").stat().st_size > 3000
    assert "sound: done" in said[-1]


def test_all_of_it_ends_by_its_own_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_GRACE", 0.2)
    begun = time.monotonic()
    found, _ = measured(
        [part(str(n), "import time; time.sleep(60)", least=0.1) for n in range(5)], tmp_path, seconds=20.6
    )
    assert time.monotonic() - begun < 10.0
    assert [each["ended"] for each in found.values()] == ["out of time", *["skipped"] * 4] or found["1"][
        "seconds"
    ] < 0.6


def test_a_part_that_was_interrupted_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_GRACE", 0.2)
    code = (
        "import subprocess, sys, time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)']); "
        f"open('{tmp_path}/pid', 'w').write(str(child.pid)); time.sleep(60)"
    )
    measured([part("a tree", code, most=1.0)], tmp_path)
    child = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 5.0
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_all_that_the_issue_asks_for_is_among_the_parts(tmp_path):
    (tmp_path / "cifar-fs").mkdir()
    (tmp_path / "cifar-fs" / "cifar100.zip").write_bytes(b"")
    parts = {each.name: each for each in gpu.parts("cuda", tmp_path, tmp_path)}
    assert list(parts) == ["tests", "rounds", "engines, paper", "dp-agr on omniglot, preset",
                           "dp-agr on cifar-fs, preset", "dp-agr on cifar-fs", "dp-agr on mini-imagenet",
                           "engines, cifar-fs"]  # fmt: skip
    assert "tests/simulation/test_devices.py" in parts["tests"].command
    assert parts["dp-agr on cifar-fs"].absent is None
    assert "its images are not here" in parts["dp-agr on mini-imagenet"].absent
    # Together within nine minutes, but for the last, which takes what is left.
    assert sum(each.most for each in list(parts.values())[:-1]) <= 9 * 60 - 20
    for each in parts.values():
        assert each.command[0] == "-m" or (ROOT / each.command[0]).is_file()
        # Braces in a command are only these two.
        [word.format(most=1.0, json="x") for word in each.command]


def test_the_full_runs_are_of_600_000_participations(tmp_path):
    for run in whole_runs("cuda", tmp_path, tmp_path)[2:]:
        given = yaml.safe_load((ROOT / run.command[run.command.index("--config") + 1]).read_text())
        assert given["population"]["cohort"] * given["server"]["rounds"] == 600_000
        assert run.folder == tmp_path / run.command[run.command.index("--run.name") + 1]


def test_archives_that_came_in_pieces_are_put_together(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT / "scripts"))
    import gpu_data

    monkeypatch.setattr(gpu_data, "MOST", 2**21)
    content = os.urandom(5 * 2**20 + 17)
    source = tmp_path / "source"
    for dataset, size in (("cifar-fs", len(content)), ("mini-imagenet", 100)):
        (source / dataset).mkdir(parents=True)
        (source / dataset / "archive.zip").write_bytes(content[:size])
    gpu_data.main(source, tmp_path / "carried")
    sizes = [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
             for folder in (tmp_path / "carried").iterdir()]  # fmt: skip
    assert len(sizes) == 4
    assert max(sizes) <= 2**21
    monkeypatch.delenv("DPFEDMETA_DATA", raising=False)
    data = joined_archives(tmp_path / "carried", tmp_path / "data")
    assert (data / "cifar-fs" / "archive.zip").read_bytes() == content
    assert (data / "mini-imagenet" / "archive.zip").read_bytes() == content[:100]
    assert joined_archives(tmp_path / "nothing", tmp_path / "other") is None
    monkeypatch.setenv("DPFEDMETA_DATA", str(source))
    assert joined_archives(tmp_path / "carried", tmp_path / "data") == source


def test_bars_name_whose_they_are(tmp_path):
    rows = [{"setting": "paper", "algorithm": "maml-1", "engine": name, "clients_per_second": 7.0}
            for name in ("float32", "learn2learn")]  # fmt: skip
    found = {"machine": {**MACHINE, "gpu": "a GPU"}, "parts": [
        {"name": "rounds", "found": {"rows": [{"case": "dp-agr, order 1", "clients_per_second": 4000.0}]}},
        {"name": "engines", "found": {"device": [{"rows": rows}]}},
        {"name": "tests", "found": {"last_line": "2 passed"}},
        {"name": "absent", "found": None},
        {"name": "dp-agr on cifar-fs", "found": {"clients_per_second": 100.0}},
    ]}  # fmt: skip
    assert gpu_plot.bars(found) == [
        ("dp-agr, order 1", 4000.0, False),
        ("paper: maml-1, float32", 7.0, False),
        ("paper: maml-1, learn2learn", 7.0, True),
        ("run: dp-agr on cifar-fs", 100.0, False),
    ]


def typed(*words, **more):
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False, **more
    )


def test_without_a_gpu_or_pytorch_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import gpu as script

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script.check_device("cpu")
    for found, words in ((object(), "sees no CUDA device here; make gpu DEVICE=cpu"), (None, "has no PyTorch; type")):
        monkeypatch.setattr(script, "find_spec", lambda name, found=found: found)
        with pytest.raises(SystemExit) as end:
            script.check_device("cuda")
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line


def test_what_is_missing_comes_from_the_wheels_or_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import gpu as script

    monkeypatch.setattr(script, "NEEDED", ("json", "only_in_a_wheel"))
    with pytest.raises(SystemExit) as end:
        script.unpacked(tmp_path)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this Python lacks only_in_a_wheel; fetch wheels")
    about = "only_in_a_wheel-1.dist-info"
    with zipfile.ZipFile(tmp_path / "only_in_a_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("only_in_a_wheel.py", "HERE = True\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: only-in-a-wheel\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    found = importlib.util.find_spec
    monkeypatch.setattr(script, "find_spec", lambda name: None if name == "wandb" else found(name))
    site = script.unpacked(tmp_path)
    assert (site / "only_in_a_wheel.py").is_file()
    # A run without W&B starts there; one with it ends by a sentence.
    done = typed("-c", "from dpfedmeta.core.dependencies import missing; print(missing()); import wandb",
                 env={**os.environ, "PYTHONPATH": str(site)})  # fmt: skip
    assert done.stdout.strip() == "[]"
    assert done.stderr.strip().endswith("ImportError: make gpu logs nothing to W&B")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    # A checkout that is not installed: what lies beside the package is found through it.
    code = "import dpfedmeta.tasks, dpfedmeta.configs, dpfedmeta; print(dpfedmeta.configs.__file__)"
    done = typed("-c", code, env={**os.environ, "PYTHONPATH": str(site)})
    assert done.stdout.strip() == str(ROOT / "configs" / "__init__.py")


@pytest.mark.slow
def test_the_cpu_half_measures_everything_at_tiny_sizes(tmp_path):
    done = typed("scripts/gpu.py", "--device", "cpu", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gpu.json", "gpu.png", "log.txt"]
    parts = {each["name"]: each for each in json.loads((tmp_path / "out" / "gpu.json").read_text())["parts"]}
    assert {each["ended"] for each in parts.values()} == {"done"}
    assert parts["tests"]["found"]["last_line"].startswith("2 passed")
    assert parts["rounds"]["found"]["left_out"] == []
    assert parts["rounds"]["found"]["all_clients"]["how"].startswith("extrapolated from ")
    (engines,) = parts["engines, tiny"]["found"]["device"]
    assert {row["algorithm"] for row in engines["rows"]} == {"maml-1", "maml-2", "divided", "dp-agrlr"}
    run = parts["dp-agr on strokes"]["found"]
    assert (run["rounds"], run["planned_rounds"], run["cohort"]) == (2, 2, 4)
    assert run["clients_per_second"] > 0
    assert (tmp_path / "out" / "gpu.png").read_bytes()[:4] == b"\x89PNG"


def test_whole_rounds_are_timed_in_float32_as_a_run_computes_them(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # PyTorch's default
    monkeypatch.setattr(device_rounds, "make_plan", lambda settings, task: torch.backends.cudnn.allow_tf32)
    monkeypatch.setattr(device_rounds, "population", lambda allowed, dataset: pytest.fail(f"TF32: {allowed}"))
    with pytest.raises(pytest.fail.Exception, match="TF32: False"):
        device_rounds._backend(torch.device("cpu"), "dp-agr", {})
