"""Golden runs of another commit and of this checkout as it stands, on this machine, compared bit for bit.

    make same-as BASE=COMMIT               # all golden runs; those on real images where DPFEDMETA_DATA has them
    make same-as BASE=COMMIT RUNS="maml dp-agr"

It prints what differs and exits with 1: weights, releases, cohorts, rows, ledgers and guarantees, without times, names
of runs and digests that hold the program's own source.
"""

import argparse
import hashlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What two runs of one commit differ in, too: names that are drawn, times, and digests of either or of the source.
BY_NATURE = {"run", "inputs", "previous", "head", "seconds", "clients_per_second", "peak_memory_mb", "environment"}
CELLS = ("guarantees", "planned", "accuracy")
MOST_SHOWN = 20


def facts_of(run):
    """All of a run's folder that two commits have to agree on."""
    import yaml
    from safetensors.numpy import load_file

    weights = load_file(run / "checkpoint" / "model.safetensors")
    summary = json.loads((run / "summary.json").read_text())
    ledger = _lines(run / "ledger.jsonl")
    config = ledger[0].get("identity", {}).get("config")
    if isinstance(config, str):
        ledger[0]["identity"]["config"] = yaml.safe_load(config)
    for line in ledger:
        if "closed" in line:
            # A file of weights holds such names and digests too; its weights are compared as such.
            line["closed"]["weights"] = sorted(line["closed"]["weights"])
    return {
        "weights": {
            name: [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()[:32]]
            for name, value in weights.items()
        },
        "cohorts": _lines(run / "secret" / "participations.jsonl"),
        "rounds": _lines(run / "rounds.jsonl"),
        "ledger": ledger,
        **{name: summary.get(name) for name in CELLS},
    }


def _lines(path):
    return [_alike(json.loads(line)) for line in path.read_text().splitlines()]


def _alike(value):
    if isinstance(value, dict):
        return {name: _alike(each) for name, each in value.items() if name not in BY_NATURE}
    return [_alike(each) for each in value] if isinstance(value, list) else value


def differences(base, now, path=""):
    """Where two runs differ, in the last bit too."""
    if isinstance(base, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*base, *now]):
            if name in base and name in now:
                yield from differences(base[name], now[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: {'is gone' if name in base else 'is new'}"
    elif isinstance(base, list) and isinstance(now, list) and len(base) == len(now):
        for number, pair in enumerate(zip(base, now, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif type(base) is not type(now) or (base != now and not _both_nan(base, now)):
        yield f"{path}: {_short(base)} became {_short(now)}"


def _both_nan(*values):
    return all(isinstance(value, float) and math.isnan(value) for value in values)


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def run_here(folder, names):
    """In a tree's own process: its golden runs, one JSON line each. Without names: which there are."""
    import golden_runs
    import torch

    torch.set_num_threads(1)
    data = os.environ.get("DPFEDMETA_DATA")
    known = [*golden_runs.RUNS, *(golden_runs.REAL if data and Path(data, "omniglot").is_dir() else ())]
    if not names:
        print(json.dumps(known))
    for name in names:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            golden_runs.golden_run(name, folder, Path(data) if data else None)
            found = {"facts": facts_of(folder / name)}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": name, **found}), flush=True)


def of_tree(tree, folder, names=()):
    """What run_here prints in a process with this tree's package and golden runs, line by line."""
    path = os.pathsep.join([str(tree), str(tree / "tests" / "golden")])
    # Both trees read what one of them has drawn and decoded, at one place: configurations name it.
    own = {f"DPFEDMETA_{place}": str(folder / place.lower()) for place in ("CACHE", "STATE")}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__)), "--here", str(folder / "runs"), *names],
        env={**os.environ, **own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            if line.startswith(("{", "[")):
                yield json.loads(line)
    if process.returncode:
        sys.exit(f"error: golden runs of {tree} ended with {process.returncode}")


def compare(base, now, folder, wanted=()):
    """Print what differs between two trees; the number of runs that are not the same.

    Args:
        base, now: Checkouts.
        folder: For what the runs write.
        wanted: Names; none: all that both have.
    """
    (old,), (new,) = of_tree(base, folder), of_tree(now, folder)
    for words, missing in (
        ("only in the base", [n for n in old if n not in new]),
        ("only here", [n for n in new if n not in old]),
    ):
        if missing:
            print(f"not compared, {words}: {', '.join(missing)}")
    common = [name for name in new if name in old and (not wanted or name in wanted)]
    unknown = [name for name in wanted if name not in common]
    if unknown or not common:
        sys.exit(
            f"error: no run of both is called {', '.join(unknown) or 'anything'}; there are {', '.join(common or new)}"
        )
    before = {each["name"]: each for each in of_tree(base, folder, common)}
    wrong = 0
    for each in of_tree(now, folder, common):
        name, was = each["name"], before[each["name"]]
        if "failed" in each or "failed" in was:
            found = [f"{place} {one['failed']}" for place, one in (("base:", was), ("here:", each)) if "failed" in one]
        else:
            found = [*differences(was["facts"], each["facts"])]
        wrong += bool(found)
        print(f"{name}: {'differs' if found else 'the same'}", flush=True)
        print(*(f"  {line}" for line in found[:MOST_SHOWN]), sep="\n", end="\n" if found else "")
        if len(found) > MOST_SHOWN:
            print(f"  and {len(found) - MOST_SHOWN} more")
    return wrong


def exported(commit, folder):
    """The files of a commit in a folder."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"error: {commit}: {done.stderr.decode().strip()}; type make same-as BASE=COMMIT")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def main():
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("base", help="the commit to compare with")
    parsed.add_argument("runs", nargs="*", metavar="RUN", help="names of golden runs (default: all)")
    given = parsed.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = exported(given.base, Path(name) / "base")
        wrong = compare(base, ROOT, Path(name), given.runs)
    if wrong:
        sys.exit(f"{wrong} golden runs are not the same as those of {given.base}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        run_here(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
