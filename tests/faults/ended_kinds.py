"""What the harness of endings.py ends: each kind of work in a folder, and all that it publishes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

import dpfedmeta as dp
from dpfedmeta.__main__ import main as dpfedmeta
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.accounting.ledger.ledger import read
from dpfedmeta.accounting.ledger.population_register import begin_register, read_register
from dpfedmeta.analytics.verification import verify
from dpfedmeta.cli.sweeps.runner import run_sweep
from dpfedmeta.cli.sweeps.sweep_file import read_sweep
from dpfedmeta.cli.sweeps.sweep_folder import SweepOptions
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
from dpfedmeta.core.params import digest
from dpfedmeta.federation.identity.credentials import card_line, read_card, read_identity, write_identity
from dpfedmeta.federation.identity.home_register import HOME
from dpfedmeta.federation.identity.invitation import INVITATION, operator_identity, read_invitation
from dpfedmeta.federation.server import training_server
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from dpfedmeta.reporting.html.run_page import BLOCK
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.training.personal.personal_model import load_personal
from dpfedmeta.training.verification.verify import audit
from tests.cli.sweeps.conftest import FILE, write_program
from tests.faults.ended_wire import Restarting
from tests.faults.kills import fingerprint
from tests.federation.silos import CLIENTS, MICRO, NOISE, SECURE, Silos, private_key

TINY = [
    "--dataset=strokes", "--model.width=4", "--cohort=6", "--clients=400", "--ways=3", "--shots=2",
    "--task.queries=2", "--evaluation.every=2", "--evaluation.validation_episodes=2", "--evaluation.episodes=4",
    "--evaluation.queries=2", "--window=2", "--rounds=3", "--delta=1e-4", "--run.workers=1", "--run.dir=.",
    "--run.name=r", "--run.noise_seed=11", "--run.checkpoint_every=2",
]  # fmt: skip
REGISTER = "register.jsonl"
# A command that was ended with its last step behind it says so.
DONE = ("exists already; choose another name", "there is a key already; it is not replaced")
_CHANGES = re.compile(r"[0-9a-f]{16,}|[0-9]+(\.[0-9]+)? ?(s|min|ms|MB|clients/s)\b|/\S+|\.[0-9a-zA-Z-]+\.[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Work that may be ended.

    Attributes:
        words: Of the command; empty: `call` is a Python program.
        call: That program.
        prepare: Makes what it needs in an empty folder.
        published: All that it publishes, of an uninterrupted and of an interrupted one the same.
        like: The kind by which places of both are tried by every sort of fault.
        children: It has processes of its own.
        share: It is slow: of the places of both kinds it takes every so-manieth.
    """

    published: Callable[[Path], Mapping[str, object]]
    words: Sequence[str] = ()
    call: Callable[[], object] = lambda: None
    prepare: Callable[[Path], object] = lambda folder: None
    like: str = ""
    children: bool = False
    share: int = 1


def text_of(path: Path) -> str:
    """Without digests, times and places of one run, and without the JSON that a page holds of them."""
    whole = path.read_text(encoding="utf-8")
    return _CHANGES.sub("*", re.sub(f"{re.escape(BLOCK)}.*?</script>", "", whole))


def published_run(folder: Path) -> dict[str, object]:
    """Weights, scores, page, ledger, register."""
    run = RunDirectory(folder / "r")
    found = fingerprint_of(run)
    verified = audit(run)
    found |= {"page": text_of(run.path / "report.html"), "unverified": verified.unverified}
    for name in ("config.yaml", "episodes.json"):
        if (run.path / name).exists():
            found[name] = text_of(run.path / name)
    return found | {"plan": {name: value for name, value in run.read_json("plan.json").items() if name != "cost"}}


def registered(folder: Path) -> dict[str, object]:
    """A run whose noise nobody chose: what it was charged, and what its population's register holds for it."""
    run, register = RunDirectory(folder / "r"), read_register(folder / REGISTER)
    verified, summary = audit(run), run.read_json("summary.json")
    return {"runs": len(register.runs), "spent": register.spent, "lines": register.lines,
            "charges": [(charge.round, charge.attempt) for charge in read(run.ledger)[1]],
            "status": summary["status"], "guarantees": summary["guarantees"], "planned": summary["planned"],
            "rows": len(run.rounds()), "unverified": verified.unverified}  # fmt: skip


def fingerprint_of(run: RunDirectory) -> dict[str, object]:
    """As of killed runs, and the checkpoints."""
    found = dict(fingerprint(run))
    for path in sorted((run.path / "checkpoint").glob("[!.]*")):
        # Their words name the ledger's head, which is of one run.
        arrays = sorted(load_weights(path).items())
        found[path.name] = hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in arrays)).hexdigest()
    return found


def with_register(folder: Path) -> None:
    """A population's, with room for one run."""
    begin_register(folder / REGISTER, 30.0, 1e-4)


def people(folder: Path) -> None:
    """A table of clients that are sampled whole."""
    coins = random.Random(1)
    with (folder / "people.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["client", "split", "class", "a", "b", "c"])
        for person in range(40):
            split = "train" if person < 28 else "val" if person < 34 else "test"
            means = [[coins.gauss(0, 2) for _ in range(3)] for _ in range(2)]
            for number in range(12):
                values = (f"{coins.gauss(each, 1):.3f}" for each in means[number % 2])
                written.writerow([f"p{person}", split, "uv"[number % 2], *values])


def analysed(folder: Path) -> dict[str, object]:
    """The findings, the statement and what was charged."""
    run = RunDirectory(folder / "r")
    summary = run.read_json("summary.json")
    stated = {name: summary[name] for name in ("status", "found", "guarantees", "clients", "cohort")}
    return {"summary": stated, "statement": text_of(run.path / "statement.txt"),
            "charges": [vars(charge) for charge in read(run.ledger)[1]], "cells": verify(run).guarantees}  # fmt: skip


def swept() -> None:
    """A sweep over runs of a program that takes no time."""
    options = SweepOptions(out=Path("out"), jobs=2, train=(sys.executable, "program.py"))
    status = run_sweep(read_sweep(Path("sweep.yaml")), options, Console(file=sys.stdout, width=200))
    sys.exit({"completed": 0, "failed": 1, "interrupted": 130}[status])


def sweep_files(folder: Path) -> None:
    """Of two runs."""
    write_program(folder / "program.py")
    parameters = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}, "run.seed": {"values": [0, 1]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**FILE, "parameters": parameters}))


def results(folder: Path) -> dict[str, object]:
    """The table and the runs; what was set aside is counted elsewhere."""
    out = folder / "out"
    return {"results": json.loads((out / "results.json").read_text()), "table": (out / "results.csv").read_text(),
            "page": text_of(out / "report.html"), "runs": sorted(path.name for path in (out / "runs").iterdir()),
            "orphans": sum(b"program.py" in path.read_bytes() and str(folder).encode() in path.read_bytes()
                           for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path))}  # fmt: skip


def _left(path: Path) -> bool:
    """Return whether a killed process left half a file, which nobody reads."""
    return re.fullmatch(r"\..*\.\d+", path.name) is not None


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def looped(noise_seed: int | None = None) -> None:
    """Rounds of a loop of one's own, with chosen noise or with secret one."""
    model = np.zeros(40, dtype=np.float32)
    with dp.PrivateRounds(
        clients=200, cohort=20, rounds=4, promise=dp.Promise(epsilon=6.0, delta=1e-4), like={"w": model},
        clip=dp.clip.Constant(initial=1.0), run_dir="mine", noise_seed=noise_seed,
    ) as private, Path("handed.jsonl").open("a", encoding="utf-8") as handed:  # fmt: skip
        for round_ in private:
            for client in round_.cohort:
                round_.add(client, {"w": np.full(40, client / 200, dtype=np.float32) - model})
            mean = round_.release()
            handed.write(json.dumps({"round": round_.number, "release": digest(mean)}) + "\n")
            handed.flush()
            model = model + mean["w"]


def handed(folder: Path) -> dict[str, Any]:
    """The releases of each round, which is one, and its charges."""
    releases: dict[int, set[str]] = {}
    content = (folder / "handed.jsonl").read_text()
    for line in map(json.loads, content[: content.rfind("\n") + 1].splitlines()):
        releases.setdefault(line["round"], set()).add(line["release"])
    run = RunDirectory(folder / "mine")
    verify_rounds(run)
    return {"releases": {round_: sorted(found) for round_, found in releases.items()},
            "charges": [(charge.round, charge.attempt) for charge in read(run.ledger)[1]]}  # fmt: skip


def counted(folder: Path) -> dict[str, object]:
    """As `handed`, of noise that nobody chose."""
    found = handed(folder)
    return found | {"releases": {round_: len(releases) for round_, releases in found["releases"].items()}}


def a_run(folder: Path) -> None:
    """One that has ended, once for all trials."""
    if not _ENDED:
        raise RuntimeError("the run to archive is made before")
    shutil.copytree(_ENDED[0], folder / "r")


_ENDED: list[Path] = []
"""A finished run, of `train`."""


def zipped(folder: Path) -> dict[str, object]:
    """The bytes of the archive."""
    with zipfile.ZipFile(io.BytesIO((folder / "r.zip").read_bytes())) as file:
        assert file.testzip() is None
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}


def unzipped(folder: Path) -> dict[str, object]:
    """Every file of a folder for the hub."""
    found = sorted(path for path in (folder / "hub").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def a_home(folder: Path) -> None:
    """A client's key, card and home, with what it has spent."""
    write_identity(folder / "old.pem", private_key("old"))
    (folder / "old.card").write_text(card_line(private_key("old"), "clinic") + "\n")
    home = folder / "old.home"
    home.mkdir()
    ClientLedger(home / "ledger.jsonl", RecordBudget(epsilon=3.0, delta=1e-5, participations=None, unit="record"))
    (home / "rows.key").write_bytes(bytes(32))
    (home / "images").mkdir()


def rotated(folder: Path) -> dict[str, object]:
    """Who may take part, from where, and with what."""
    home = folder / "disk" / "new.home"
    new = Identity(read_identity(folder / "disk" / "new.pem")).public
    card = read_card((folder / "disk" / "new.card").read_text())
    noted = json.loads((home / HOME).read_text())
    (entry,) = (folder / "state").rglob("homes/*.json")
    return {
        "files": sorted(str(path.relative_to(home)) for path in home.rglob("*") if not _left(path)),
        "ledger": (home / "ledger.jsonl").read_text(),
        "new key": (card.name, card.identity == new, noted["identities"][-1] == new.hex()),
        "old key": noted["identities"][0] == Identity(private_key("old")).public.hex(),
        "place": Path(noted["place"]) == home.resolve(),
        "noted": json.loads(entry.read_text()) == noted,
        "left": sorted(path.name for path in folder.glob("*old*")),
    }


def operator(folder: Path) -> dict[str, object]:
    """What the keys of a server are for: an identity, an invitation that names it, and a certificate."""
    place = folder / "operator"
    invitation, identity = read_invitation(place / INVITATION), operator_identity(place)
    return {"files": sorted(path.name for path in place.iterdir() if not _left(path)),
            "same": invitation.identity == Identity(identity).public}  # fmt: skip


def keys(folder: Path) -> dict[str, object]:
    """A client's key, its card, and its keys for Flower."""
    card = read_card((folder / "clinic.card").read_text())
    return {"files": sorted(path.name for path in folder.glob("clinic.*")), "name": card.name,
            "same": card.identity == Identity(read_identity(folder / "clinic.pem")).public}  # fmt: skip


_SILOS: list[Silos] = []
"""Where the folders and keys of all federations lie."""


def federated(algo: str, how: str = "", at: int = -1) -> int:
    """A server and its clients, in this folder; how many questions were asked."""
    (silos,) = _SILOS
    home = Path.cwd()
    given = MICRO if algo == "dp-agrlr-micro" else SECURE
    settings = silos.settings(algo, **given, **{"run.noise_seed": str(NOISE)})
    wire = Restarting(silos, home, how, at)
    # A page is a quarter of the time, and one kind's is enough.
    page = {"page": _page} if algo == "dp-agrlr-micro" else {}
    run, status = silos.serve(settings, home, wire, **page, wait=0.0, fewest=4)
    if status != "completed":
        sys.exit(130 if status == "interrupted" else 1)
    if (run.secret / training_server._OFFER).exists():
        sys.exit(75)  # it says who lacks the model, and to type the same command again
    return wire.count


def _page(run: RunDirectory) -> None:
    from dpfedmeta.reporting.html.pictures import draw_pictures

    draw_pictures(run)


def learned(folder: Path) -> dict[str, Any]:
    """Weights, scores and ledger of the server; who has the model; what each client's ledger says."""
    run = RunDirectory(folder / "run")
    found: dict[str, Any] = fingerprint_of(run)
    found |= {path.name: text_of(path) for path in run.path.glob("report.html")}
    found["due"] = [name for name in (training_server._OFFER, training_server._HANDED) if (run.secret / name).exists()]
    found |= {"models": [], "charged": [(charge.round, charge.attempt) for charge in read(run.ledger)[1]]}
    for number in range(CLIENTS):
        home = folder / f"client{number}"
        personal = home / "personal.safetensors"
        found["models"].append(load_personal(personal).class_names if personal.exists() else None)
        charged = map(json.loads, (home / "ledger.jsonl").read_text().splitlines())
        found[f"client {number}"] = [(line.get("round"), line.get("mu")) for line in charged]
    return found


def _words(*more: str) -> list[str]:
    return ["train", *TINY, *more]


KINDS: dict[str, Kind] = {
    "train": Kind(words=_words("--algo=dp-agr"), published=published_run),
    "train-registered": Kind(words=[*(word for word in _words("--algo=dp-agr") if "noise_seed" not in word),
                                    f"--population.register={REGISTER}"], prepare=with_register,
                             published=registered, like="train"),
    "train-records": Kind(words=_words("--algo=dp-agrlr-micro", "--record.client_ledgers=true",
                                       "--population.max_participations=2"), published=published_run,
                          like="train"),
    "train-workers": Kind(words=[*(word for word in _words("--algo=dp-agr") if "run.workers" not in word),
                                 "--run.workers=2"], published=published_run, like="train", children=True,
                          share=10),
    "train-secure": Kind(words=_words("--algo=dp-agrlr-secure", "--population.sampler=fixed", "--cohort=12",
                                      "--clients=60",
                                      "--record.micro_shots=1", "--record.micro_queries=1", "--aggregation.dropout=0.2",
                                      "--population.max_participations=null"), published=published_run, like="train"),
    "train-encoder": Kind(words=_words("--algo=dp-agr", "--model.encoder=tests.data.encoders.tiny_encoder:tiny",
                                       "--model.encoder_size=16"), published=published_run, like="train"),
    "train-whole": Kind(words=["train", "--algo=maml", "--dataset=people.csv", "--rounds=3", "--cohort=5",
                               "--population.episodes=whole", "--run.workers=1", "--run.dir=.", "--run.name=r",
                               "--run.noise_seed=11", "--evaluation.every=2", "--evaluation.validation_episodes=6",
                               "--evaluation.episodes=12"], prepare=people,
                        published=published_run, like="train"),
    "analyse": Kind(words=["analyse", "histogram", "--algo=dp-const", "--dataset=strokes", "--clients=300",
                           "--cohort=50", "--noise-seed=3", "--epsilon=1", "--run.dir=.", "--run.name=r"],
                    published=analysed),
    "sweep": Kind(call=swept, prepare=sweep_files, published=results, children=True),
    "loop": Kind(call=lambda: looped(5), published=handed),
    "loop-secret": Kind(call=looped, published=counted, like="loop"),
    "archive": Kind(words=["archive", "r", "--out", "r.zip"], prepare=a_run, published=zipped),
    "archive-hub": Kind(words=["archive", "r", "--out", "hub", "--license", "mit"], prepare=a_run, published=unzipped),
    "operator": Kind(words=["federate", "keys", "--server", "--out", "operator", "--host", "127.0.0.1"],
                     published=operator),
    "keys": Kind(words=["federate", "keys", "--out", "clinic.pem", "--flower"], published=keys),
    "rotation": Kind(words=["federate", "keys", "--rotate", "old.pem", "--out", "disk/new.pem"], prepare=a_home,
                     published=rotated),
    "federation": Kind(call=lambda: federated("dp-agrlr-micro"), published=learned),
    "federation-secure": Kind(call=lambda: federated("dp-agrlr-secure"), published=learned, like="federation",
                              share=2),
}  # fmt: skip


def called(kind: Kind, words: Sequence[str]) -> Callable[[], Any]:
    """The command of these words, or the kind's program."""
    return (lambda: dpfedmeta([*words])) if words else kind.call
