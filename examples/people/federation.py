"""Four hospitals as real clients: a server and four processes with tables of their own, records protected under sums.

    python examples/people/federation.py --data heart-disease --out federation --epsilon 1

Each hospital has all its patients in a table of its own, whose column split says from the start on which it is judged:
its client trains on those of train alone. The server has public constants and made-up patients. Afterwards each one
evaluates the model on its own table.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from people import write_table, write_task
from populations import COMMON, HEART, OF_RECORDS, half_of

from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.federation.identity.credentials import card_line, write_identity
from dpfedmeta.federation.identity.invitation import INVITATION, ROSTER, make_operator
from dpfedmeta.learning.evaluation.people import RecordSplit, overall


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings_of(epsilon: float, hospitals: int) -> list[str]:
    """Settings of the server's command line."""
    given = {**COMMON, **OF_RECORDS, "model.name": "linear", "evaluation.steps": 20, "evaluation.lr": 0.1}
    given |= {"population.clients": hospitals, "population.cohort": hospitals, "population.kind": "natural"}
    given |= {"privacy.record.epsilon": epsilon, "evaluation.every": 10}
    return [word for name, value in given.items() for word in (f"--{name}", "null" if value is None else str(value))]


def started(words: Sequence[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one process of the federation."""
    command = [sys.executable, "-m", "dpfedmeta", "federate", *words]
    with log.open("wb") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)


def main(words: Sequence[str] | None = None) -> None:
    """Write tables and keys, start everybody, wait, judge."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--data", type=Path, required=True, help="folder with the four published files")
    made.add_argument("--out", type=Path, required=True, help="a new folder")
    made.add_argument("--epsilon", type=float, default=1.0, help="of a record towards who sees sums, at 1e-4 (1)")
    made.add_argument("--split", type=int, default=0, help="number of the split (0)")
    options = made.parse_args(words)
    out, operator = options.out, options.out / "operator"
    held = [half_of(own, number, options.split) for number, own in enumerate(HEART.read(options.data))]
    file = write_task(HEART, out / "server")
    make_operator(operator, ["127.0.0.1", "localhost"], free_port(), os.urandom(32))
    cards, clients = [], []
    for own in held:
        home, private = out / own.name, os.urandom(32)
        home.mkdir()
        write_table(HEART, home / "patients.csv", [own], {})
        write_identity(home / "identity.pem", private)
        cards.append(card_line(private, own.name))
        clients.append([
            *("client", "--data", str(home / "patients.csv"), "--invitation", str(operator / INVITATION)),
            *("--identity", str(home / "identity.pem"), "--home", str(home), "--epsilon", str(options.epsilon)),
            *("--delta", "1e-4", "--patience", "600"),
        ])  # fmt: skip
    (operator / ROSTER).write_text("".join(f"{card}\n" for card in cards))
    server = ["server", "--keys", str(operator), "--roster", str(operator / ROSTER), "--dataset", str(file)]
    server += ["--algo", "dp-agrlr-secure", "--run.dir", str(out), "--run.name", "run"]
    server += ["--wait", "600", "--seconds", "300"]
    with ExitStack() as running:
        for own, client in zip(held, clients, strict=True):
            # One machine stands for four.
            state = {"DPFEDMETA_STATE": str(out / own.name / "state")}
            process = started(client, out / own.name / "log.txt", state)
            running.callback(process.terminate)
        code = started([*server, *settings_of(options.epsilon, len(held))], out / "server.txt", {}).wait()
    if code:
        raise SystemExit(f"the server ended with exit code {code}; see {out / 'server.txt'}")
    split = RecordSplit(shots=None, repeats=2, seed=0)
    tables = [out / own.name / "patients.csv" for own in held]
    scores = [each for table in tables for each in evaluate_people(out / "run", table, split).scores]
    for each in scores:
        print(each.name, {name: round(value, 3) for name, value in each.first.items()})
    for name, mean in overall(scores).items():
        print(f"{name}: accuracy {mean.people:.3f}, balanced {mean.others['balanced']:.3f}")


if __name__ == "__main__":
    main()
