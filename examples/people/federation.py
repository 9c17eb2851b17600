"""Hospitals, or wearers, as real clients: a server and processes with tables of their own, records under sums.

    python examples/people/federation.py --data heart-disease --out federation --epsilon 1
    python examples/people/federation.py --data heart-disease --out moments --epsilon 1 --moments
    python examples/people/federation.py --data wisdm --out wearers --epsilon 2.5 --moments --population wisdm

Everybody has all its records in a table of its own, whose column split says from the start on which it is judged: its
client trains on those of train alone. The server has public constants and made-up people. One client may tell the
server all that it knows, and one may be lost. Afterwards each one evaluates the model on its own table; of wearers
those that did not train are judged.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from people import trials_of, write_table, write_task
from populations import COMMON, OF_RECORDS, POPULATIONS, PeopleTask

from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.federation.identity.credentials import card_line, write_identity
from dpfedmeta.federation.identity.invitation import INVITATION, ROSTER, make_operator
from dpfedmeta.learning.evaluation.people import RecordSplit, overall

# So few clients withstand one that tells the server all, and none that is lost.
_FEW = 4


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings_of(task: PeopleTask, epsilon: float, clients: int, *, moments: bool) -> list[str]:
    """Settings of the server's command line."""
    given = {**COMMON, **OF_RECORDS, "model.name": "linear", "evaluation.steps": 20, "evaluation.lr": 0.1}
    given |= {"evaluation.every": 10, "population.kind": "natural"}
    if moments:
        # One of them may be lost, where masks withstand it besides one that tells all: not of four. The shares of so
        # few have to be drawn, on a grid that is a little coarser.
        lost = 1.0 / clients if clients > _FEW else 0.0
        given = {**task.moments, "population.kind": "real", "population.sampler": "fixed", "meta.own.scale": 30}
        given |= {"aggregation.dropout": lost, "aggregation.adversarial": 1.0 / clients}
        given |= {"population.max_participations": None}
    given |= {"population.clients": clients, "population.cohort": clients, "privacy.record.epsilon": epsilon}
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
    made.add_argument("--data", type=Path, required=True, help="folder with the published files")
    made.add_argument("--out", type=Path, required=True, help="a new folder")
    made.add_argument("--population", choices=POPULATIONS, default="heart", help="whose records (heart)")
    made.add_argument("--moments", action="store_true", help="one round of moments, not ten of gradients")
    made.add_argument("--epsilon", type=float, default=1.0, help="of a record towards who sees sums (1)")
    made.add_argument("--split", type=int, default=0, help="number of the split, or of the fold (0)")
    options = made.parse_args(words)
    out, operator, task = options.out, options.out / "operator", POPULATIONS[options.population]
    (trial,) = trials_of(task, task.read(options.data), options.split, 1, development=False)
    held = trial.trained if task.left_out else trial.judged
    file = write_task(task, out / "server")
    make_operator(operator, ["127.0.0.1", "localhost"], free_port(), os.urandom(32))
    delta = task.moments.get("privacy.record.delta", 1e-4) if options.moments else 1e-4
    cards, clients = [], []
    for own in held:
        home, private = out / own.name, os.urandom(32)
        home.mkdir()
        write_table(task, home / "own.csv", [own], {own.name: "train"} if task.left_out else {})
        write_identity(home / "identity.pem", private)
        cards.append(card_line(private, own.name))
        clients.append([
            *("client", "--data", str(home / "own.csv"), "--invitation", str(operator / INVITATION)),
            *("--identity", str(home / "identity.pem"), "--home", str(home), "--epsilon", str(options.epsilon)),
            *("--delta", str(delta), "--patience", "600"),
        ])  # fmt: skip
    (operator / ROSTER).write_text("".join(f"{card}\n" for card in cards))
    server = ["server", "--keys", str(operator), "--roster", str(operator / ROSTER), "--dataset", str(file)]
    server += ["--algo", "moments-agrlr-secure" if options.moments else "dp-agrlr-secure"]
    server += ["--run.dir", str(out), "--run.name", "run", "--wait", "600", "--seconds", "300"]
    server += settings_of(task, options.epsilon, len(held), moments=options.moments)
    start = time.monotonic()
    with ExitStack() as running:
        processes = []
        for own, client in zip(held, clients, strict=True):
            # One machine stands for all.
            state = {"DPFEDMETA_STATE": str(out / own.name / "state")}
            processes.append(started(client, out / own.name / "log.txt", state))
            running.callback(processes[-1].terminate)
        code = started(server, out / "server.txt", {}).wait()
        for process in processes if not code else ():
            process.wait(600)
    if code:
        raise SystemExit(f"the server ended with exit code {code}; see {out / 'server.txt'}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    each = (used.ru_utime + used.ru_stime) / (len(held) + 1)
    print(f"{len(held)} clients and a server: {time.monotonic() - start:.0f} s")
    print(f"of each {each:.1f} CPU s, and {used.ru_maxrss / 2**20:.2f} GiB at most")
    tables = [out / own.name / "own.csv" for own in held]
    if task.left_out:
        tables = [out / "judged.csv"]
        write_table(task, tables[0], trial.judged, {})
    split = RecordSplit(shots=None, repeats=2, seed=0)
    scores = [each for table in tables for each in evaluate_people(out / "run", table, split).scores if each.judged]
    if not task.left_out:
        for one in scores:
            print(one.name, {name: round(value, 3) for name, value in one.first.items()})
    for name, mean in overall(scores).items():
        others = ", ".join(f"{other} {value:.3f}" for other, value in mean.others.items() if value is not None)
        print(f"{name}: {mean.people:.3f} ({others})")


if __name__ == "__main__":
    main()
