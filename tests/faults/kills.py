"""Kill training at random instants, resume, and compare with runs that nobody interrupted.

    python -m tests.faults.kills --kills 200 --seed 0 --folder /tmp/kills

This process holds the libraries and forks one training process after the other, so that a start takes seconds and most
kills hit the run itself. Each runs `dpfedmeta train` as a user would and is ended by SIGKILL, SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from dpfedmeta.__main__ import main as dpfedmeta
from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.verification.verify import audit
from tests.faults.endings import ended, started

COMMON = [
    "--dataset=strokes", "--model.width=4", "--cohort=8", "--clients=2000", "--delta=1e-4", "--ways=3", "--shots=2",
    "--task.queries=2", "--evaluation.every=10", "--evaluation.validation_episodes=4", "--evaluation.episodes=20",
    "--window=2", "--run.dir=.",
]  # fmt: skip
# What is done again identically, by every kind of client and clip policy; and what is charged again.
KEYED = [
    ["--algo=dp-agrlr-micro", "--run.noise_seed=11", "--rounds=160", "--run.checkpoint_every=4", "--run.workers=1",
     "--record.client_ledgers=true", "--population.max_participations=2", "--clients=700"],
    ["--algo=dp-agr", "--run.noise_seed=12", "--rounds=80", "--run.checkpoint_every=7", "--run.workers=1",
     "--server.average=0.5"],
    ["--algo=dp-aqc", "--run.noise_seed=13", "--rounds=80", "--run.checkpoint_every=1", "--run.keep_checkpoints=1",
     "--clip.count_noise=0.6",
     "--run.workers=1"],
    ["--algo=maml", "--run.noise_seed=14", "--rounds=80", "--run.checkpoint_every=20", "--run.workers=1"],
]  # fmt: skip
SECURE = ["--algo=dp-agrlr-micro", "--rounds=60", "--secure-rng", "--run.workers=1",
          "--population.max_participations=2", "--clients=700"]  # fmt: skip
# By the report, and by the second opinion on a ledger.
IMPORTED_LATE = ("dpfedmeta.reporting.html.page", "scipy.stats")
SIGNALS = [signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGINT]


def start(words: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> int:
    """Fork a training process, with these variables besides; its output goes to a file."""
    return started(lambda: dpfedmeta(["train", *words]), folder, environment or {}, None, noted=False)


def warm_up(words: list[str]) -> None:
    """What every child would do first, and then inherits: the plan's privacy, and what is imported late."""
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    output = os.dup(1)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        dpfedmeta(["train", *COMMON, *words, "--dry-run", "--calibration=0.1"])
    except SystemExit as end:
        if end.code:
            raise AssertionError(f"{words} is refused") from end
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


def until_an_instant(child: int, run: Path, chance: random.Random, life: float) -> int | None:
    """Wait for a random instant: anywhere, or, more often, soon after the rounds move on."""
    if chance.random() < 0.25:
        return ended(child, chance.uniform(0.0, 0.5 * life))
    before, limit = progress(run), time.monotonic() + chance.uniform(0.0, 2 * life)
    while progress(run) == before and time.monotonic() < limit:
        code = ended(child, 0.02)
        if code is not None:
            return code
    return ended(child, chance.uniform(0.0, 0.4))


def progress(run: Path) -> int:
    """How far the ledger is."""
    try:
        return (run / "ledger.jsonl").stat().st_size
    except OSError:
        return 0


def undisturbed(words: list[str], name: str, folder: Path) -> float:
    """One whole run; seconds."""
    begun = time.monotonic()
    code = ended(start([*COMMON, *words, f"--run.name={name}"], folder), None)
    assert code == 0, (folder / "output.txt").read_text()[-3000:]
    return time.monotonic() - begun


def harassed(words: list[str], name: str, folder: Path, chance: random.Random, life: float, most: int) -> Counter[str]:
    """Start, kill, resume, kill, ... until it is through; what happened, by signal and exit status."""
    happened: Counter[str] = Counter()
    while True:
        # There is a directory with all that is needed to go on, or there is none.
        on = ["--resume", name] if (folder / name).exists() else [*COMMON, *words, f"--run.name={name}"]
        child = start(on, folder)
        spared = happened["kills"] >= most
        code = ended(child, None) if spared else until_an_instant(child, folder / name, chance, life)
        if code is None:
            which = chance.choice(SIGNALS)
            os.kill(child, which)
            code = ended(child, 60.0)
            assert code is not None, f"deaf to signal {which}"
            assert code in (0, 130, -which), (code, which, (folder / "output.txt").read_text()[-3000:])
            happened["kills"] += 1
            happened[signal.Signals(which).name] += 1
            if (folder / name / "rounds.jsonl").exists():
                happened["kills after round 0 began"] += 1
            continue
        assert code == 0, (folder / "output.txt").read_text()[-3000:]
        return happened


def fingerprint(run: RunDirectory) -> dict[str, object]:
    """Everything that must come out the same."""
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "clients_per_second")} for row in run.rounds()]
    summary = run.read_json("summary.json")
    stated = [key for key in summary if key.startswith("accuracy") or key in ("status", "guarantees", "rounds")]
    clients = sorted((run.secret / "clients").glob("*")) if (run.secret / "clients").exists() else []
    return {
        "weights": hashlib.sha256(run.weights.read_bytes()).hexdigest(),
        "rounds": rows,
        "ledger": [vars(event) for event in read(run.ledger)[1]],
        "participations": (run.secret / "participations.jsonl").read_text(),
        "clients": {path.name: path.read_text() for path in clients},
        "summary": {key: summary[key] for key in stated},
    }


def whole_accounts(run: RunDirectory, cap: int) -> dict[str, int]:
    """What --secure-rng promises: every release and every invitation is charged, within budget and cap."""
    found = audit(run)
    lines = [json.loads(line) for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [event.round for event in found.charges]
    counts = Counter(client for line in lines for client in line["clients"])
    assert max(counts.values()) <= cap
    summary = run.read_json("summary.json")
    assert summary["status"] in ("completed", "budget")
    for spent, planned in zip(found.guarantees, summary["planned"], strict=True):
        assert planned["epsilon"] is None or spent.epsilon <= planned["epsilon"]
    return {"charges": len(found.charges), "rounds": len({event.round for event in found.charges})}


def trial(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Harass runs until so many kills are survived."""
    chance, total, runs = random.Random(seed), Counter[str](), []
    many = kills > 20
    kinds = KEYED if many else [[*KEYED[0], "--rounds=8", "--evaluation.episodes=4"]]
    for words in (*kinds, SECURE) if many else kinds:
        warm_up(words)
    lives = [undisturbed(words, f"whole{number}", folder) for number, words in enumerate(kinds)]
    while total["kills"] < kills:
        number, name = len(runs) % len(kinds), f"run{len(runs)}"
        words = kinds[number]
        most = kills - total["kills"]
        happened = harassed(words, name, folder, chance, lives[number], most)
        same = fingerprint(RunDirectory(folder / name)) == fingerprint(RunDirectory(folder / f"whole{number}"))
        audit(RunDirectory(folder / name))
        total += happened
        runs.append({"run": name, "algo": words[0], "kills": happened["kills"], "identical": same})
        print(json.dumps(runs[-1]), flush=True)
        if len(runs) == 2 and many:
            secure = harassed(SECURE, "secure", folder, chance, lives[0], 20)
            runs.append(
                {"run": "secure", "kills": secure["kills"], **whole_accounts(RunDirectory(folder / "secure"), 2)}
            )
            print(json.dumps(runs[-1]), flush=True)
            total += secure
    identical = all(run.get("identical", True) for run in runs)
    return {"tried": total["kills"], "happened": dict(total), "runs": runs, "identical": identical}


def main() -> None:
    """Parse, try, report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.kills > 20:
        os.nice(10)
    given.folder.mkdir(parents=True)
    os.environ["DPFEDMETA_STATE"] = str(given.folder / "state")
    result = trial(given.kills, given.seed, given.folder.resolve())
    (given.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: result[key] for key in ("tried", "happened", "identical")}))
    sys.exit(0 if result["identical"] else 1)


if __name__ == "__main__":
    main()
