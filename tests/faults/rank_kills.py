"""Kill ranks at random instants, start all of them again as torchrun does, and compare with a run left alone.

    python -m tests.faults.rank_kills --kills 100 --seed 0 --folder /tmp/rank-kills

Like kills.py this process holds the libraries and forks; it does what torchrun's agent does: when a rank ends badly the
others get SIGTERM, after a while SIGKILL, and all start again with TORCHELASTIC_RESTART_COUNT one higher, sometimes
with fewer ranks. `--real N` lets N runs be launched by torchrun itself, which takes many seconds for each restart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.verification.verify import audit
from tests.faults.kills import COMMON, KEYED, fingerprint, progress, start, undisturbed, warm_up

MOST = 3  # ranks
# As torchrun waits before it kills.
PATIENCE = 30.0
Child = tuple[int, int]
"""(rank, process)."""


def on_ranks(words: list[str]) -> list[str]:
    """The same run, with as much work as ranks."""
    return [*(word for word in words if not word.startswith("--run.workers")), "--cohort=24"]


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(words: list[str], folder: Path, ranks: int, restarts: int) -> list[Child]:
    """All ranks of one try."""
    port = str(free_port())
    common = {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(restarts), "TORCHELASTIC_MAX_RESTARTS": "1000",
        "TORCHELASTIC_RUN_ID": words[-1], "TORCH_CPP_LOG_LEVEL": "FATAL",
    }  # fmt: skip
    names = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [(rank, start(words, folder, environment)) for rank, environment in enumerate(names)]


def ended(children: list[Child], seconds: float) -> dict[int, int]:
    """Exit statuses by rank of those that end within the time; all of them, or until one fails."""
    codes: dict[int, int] = {}
    limit = time.monotonic() + seconds
    while len(codes) < len(children) and time.monotonic() < limit and not any(codes.values()):
        for rank, child in children:
            if rank not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return codes


def stop(children: list[Child], codes: dict[int, int]) -> float:
    """What torchrun does with the others; seconds until the last of them was gone."""
    begun = time.monotonic()
    left = [(rank, child) for rank, child in children if rank not in codes]
    for _, child in left:
        os.kill(child, signal.SIGTERM)
    while left and time.monotonic() - begun < PATIENCE:
        left = [(rank, child) for rank, child in left if not os.waitpid(child, os.WNOHANG)[0]]
        time.sleep(0.01)
    for _, child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return time.monotonic() - begun


def harassed(words: list[str], name: str, folder: Path, chance: random.Random, life: float, most: int) -> Counter[str]:
    """Launch, kill a rank, let all be started again, ... until it is through."""
    happened: Counter[str] = Counter()
    run, restarts = folder / name, 0
    while True:
        ranks = MOST if not restarts else chance.choice([MOST, MOST, 2])
        children = launch([*COMMON, *words, f"--run.name={name}"], folder, ranks, restarts)
        spared, before = happened["kills"] >= most, progress(run)
        until = time.monotonic() + (600.0 if spared else chance.uniform(0.0, 2 * life))
        codes: dict[int, int] = {}
        # Anywhere, or, more often, soon after the rounds move on.
        anywhere = chance.random() < 0.25
        while not codes and time.monotonic() < until and (spared or anywhere or progress(run) == before):
            codes = ended(children, 0.05)
        if not codes and not spared:
            codes = ended(children, chance.uniform(0.0, 0.4))
        if not codes:
            rank, child = chance.choice(children)
            os.kill(child, signal.SIGKILL)
            happened["kills"] += 1
            happened["of rank 0" if rank == 0 else "of another rank"] += 1
            happened["after round 0 began"] += (run / "rounds.jsonl").exists()
            codes = ended(children, 10.0)
        if not any(codes.values()):
            codes |= ended([child for child in children if child[0] not in codes], 60.0)
        if len(codes) == len(children) and not any(codes.values()):
            return happened
        took = stop(children, codes)
        happened["slow stops"] += took > PATIENCE
        assert set(codes.values()) <= {0, -signal.SIGKILL, 1, 130}, (codes, output(folder))
        restarts += 1


def output(folder: Path) -> str:
    """The end of what was printed."""
    return (folder / "output.txt").read_text()[-3000:]


def launched_by_torchrun(words: list[str], name: str, folder: Path, chance: random.Random) -> int:
    """One launch with --max-restarts, some of whose ranks are killed; how many."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={MOST}",
               "--max-restarts=3", "-m", "dpfedmeta", "train", *COMMON, *words, f"--run.name={name}"]  # fmt: skip
    log = folder / f"{name}.log"
    with log.open("w") as said:
        agent = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
    kills, before = 0, 0
    while agent.poll() is None:
        if kills < 2 and progress(folder / name) > before:
            time.sleep(chance.uniform(0.0, 0.5))
            before = progress(folder / name)
            ranks = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
            os.kill(int(chance.choice(ranks)), signal.SIGKILL)
            kills += 1
        time.sleep(0.05)
    assert agent.returncode == 0, log.read_text()[-3000:]
    return kills


def trial(kills: int, real: int, seed: int, folder: Path) -> dict[str, object]:
    """Harass runs until so many kills are survived."""
    chance, total, runs = random.Random(seed), Counter[str](), []
    kinds = [on_ranks(words) for words in (KEYED if kills > 20 else KEYED[1:2])]
    for words in kinds:
        warm_up([*words, "--run.workers=1"])
    lives = [undisturbed([*words, "--run.workers=1"], f"whole{number}", folder) for number, words in enumerate(kinds)]
    while total["kills"] < kills:
        number, name = len(runs) % len(kinds), f"run{len(runs)}"
        happened = harassed(kinds[number], name, folder, chance, lives[number], min(8, kills - total["kills"]))
        total += happened
        runs.append(compared(folder, name, number, happened["kills"]))
    for each in range(real):
        done = launched_by_torchrun(kinds[0], f"real{each}", folder, chance)
        total += {"kills": done, "under torchrun": done}
        runs.append(compared(folder, f"real{each}", 0, done))
    identical = all(run["identical"] for run in runs)
    return {"tried": total["kills"], "happened": dict(total), "runs": runs, "identical": identical}


def compared(folder: Path, name: str, number: int, kills: int) -> dict[str, object]:
    """Whether a run came out as the one that nobody disturbed, with a whole ledger that charges nothing twice."""
    run, whole = RunDirectory(folder / name), RunDirectory(folder / f"whole{number}")
    audit(run)
    lines = {"name": name, "kills": kills, "identical": fingerprint(run) == fingerprint(whole)}
    print(json.dumps(lines), flush=True)
    return lines


def main() -> None:
    """Parse, try, report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--real", type=int, default=0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    os.nice(10)
    given.folder.mkdir(parents=True)
    os.environ["DPFEDMETA_STATE"] = str(given.folder / "state")
    begun = time.monotonic()
    result = trial(given.kills, given.real, given.seed, given.folder.resolve())
    result["seconds"] = round(time.monotonic() - begun)
    (given.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: result[key] for key in ("tried", "happened", "identical", "seconds")}))
    sys.exit(0 if result["identical"] else 1)


if __name__ == "__main__":
    main()
