"""Wrong inputs that people give, over all commands and the Python API, and what the line about each has to say.

`python tests/integration/wrong_inputs.py FOLDER TABLE.md` runs each in a process of its own and writes CPU seconds,
exit code and line as a table; tests/integration/test_wrong_inputs.py runs them in one process.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.accounting.ledger.hash_chain import VERSION, HashChain, read_chain
from dpfedmeta.accounting.ledger.population_register import begin_register

# What can be refused without data or a run has to come within so many CPU seconds.
QUICK = 2.0
# check-task says on standard output, with the rest of its report, that data cannot be used.
REPORT = "(stdout) "
TINY = """
name: tiny
source: {reader: strokes, seed: 1, variation: 1.0}
split: {train: 12, val: 8, test: 8}
image_size: 28
channels: 1
images_per_class: 20
train_rotations: 4
"""
SIZES = (
    "--model.width=4", "--rounds=2", "--ways=3", "--shots=2", "--task.queries=2", "--evaluation.every=2",
    "--evaluation.validation_episodes=4", "--evaluation.episodes=8", "--run.workers=1",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong input.

    Attributes:
        name: For people.
        words: What is typed behind `dpfedmeta`; or nothing.
        python: A program that has to end with an InputError; or nothing.
        says: What the line has to say: what is wrong, where, and what to type.
        quick: Whether it needs no data, network or run, so that QUICK holds.
        alone: Whether it takes seconds, or needs a process of its own.
    """

    name: str
    words: tuple[str, ...] = ()
    python: str = ""
    says: tuple[str, ...] = ()
    quick: bool = True
    alone: bool = False


def _train(name: str, *words: str, says: tuple[str, ...], algo: str = "dp-agr", **rest: bool) -> Wrong:
    return Wrong(name=name, words=("train", "--algo", algo, "--dataset", "strokes", *words), says=says, **rest)


def _file(name: str, file: str, *says: str) -> Wrong:
    return Wrong(name=name, words=("train", "--config", file), says=says)


def _task(name: str, file: str, *says: str) -> Wrong:
    return Wrong(name=name, words=("train", "--algo", "maml", "--dataset", file, *SIZES), says=says, quick=False)


def _python(name: str, program: str, *says: str, quick: bool = False) -> Wrong:
    return Wrong(name=name, python=f"import dpfedmeta as dp\n{program}", says=says, quick=quick)


def _any(name: str, *words: str, says: tuple[str, ...], **rest: bool) -> Wrong:
    return Wrong(name=name, words=words, says=says, **rest)


_BEFORE = ("has version 5", "0.3 or before")
_LOADED = "import torch\nstart = dp.load('runs/done')\n"
_IMAGES = "torch.zeros(3, 1, 28, 28, dtype=torch.uint8)"

CASES = (
    # Numbers that are none, or out of range.
    _train("a network larger than the machine", "--model.width=100000", says=("GiB",)),
    _train("epsilon 1e9", "--epsilon", "1e9", says=("privacy.client.epsilon", "--algo maml")),
    _train("epsilon with a comma", "--epsilon", "1,5", says=("privacy.client.epsilon", "write 1.5")),
    _train("epsilon in percent", "--epsilon", "50%", says=("privacy.client.epsilon", "write 0.5")),
    _train("a delta above 1", "--delta", "2", says=("privacy.client.delta", "less than 1")),
    _train("an epsilon of 0", "--epsilon", "0", says=("privacy.client.epsilon", "greater than 0")),
    _train("a noise that is infinite", "--noise-multiplier", "inf", says=("server.noise_multiplier", "finite")),
    _train("noise and target", "--noise-multiplier", "1", "--epsilon", "1", says=("both given", "remove one")),
    _train("a percentile as a share", "--percentile", "150", says=("clip.percentile", "100")),
    _train("one way", "--ways", "1", says=("task.ways", "2")),
    _train("more ways than classes", "--ways", "500", says=("task.ways = 500", "400 classes")),
    _train("more shots than images", "--shots", "100", says=("images per class",)),
    _train("a cohort above the population", "--cohort", "500000", says=("population.cohort", "population.clients")),
    _train("a population below the cohort", "--clients", "10", says=("population.cohort", "population.clients")),
    _train("half a round", "--rounds", "1.5", says=("server.rounds", "whole number")),
    _train("a number with a unit", "--clients", "400k", says=("population.clients", "write 400000")),
    _train("a percentile that is a share", "--percentile", "0.5", says=("clip.percentile", "write 50")),
    _train("a number with marks in it", "--clients", "400,000", says=("population.clients", "write 400000")),
    _train("a comma that may be either", "--epsilon", "1,500", says=("privacy.client.epsilon", "write 1500 or 1.5")),
    _train("a share of clients", "--cohort", "10%", says=("population.cohort", "write how many clients")),
    _train("yes where a word is wanted", "--wandb", "yes", says=("track.wandb", "offline or online")),
    _any("an algorithm in capitals", "train", "--algo", "DP-AGR", "--dataset", "strokes",
         says=("did you mean dp-agr?",)),
    _train("an option with an underscore", "--dry_run", says=("did you mean --dry-run?",)),
    _any("names without options", "train", "dp-agr", "strokes", says=("did you mean --algo dp-agr?",)),
    _any("an option of a command with a comma", "analyse", "quantile", "--algo", "dp-agr", "--dataset", "strokes",
         "--epsilon", "1,5", says=("--epsilon", "write 1.5")),
    _train("channels that no groups divide", "--model.norm", "group", "--model.groups", "3",
           says=("model.width", "a multiple of 3")),
    _train("a built-in body of another network", "--model.initial", "textures", "--model.width", "9",
           says=("model.initial", "--model.initial null")),
    _train("a gain that nothing undoes", "--model.first_gain", "2", "--model.norm", "none",
           says=("model.first_gain", "leave it out")),
    _train("a precision without effect", "--run.precision", "tf32", "--model.name", "mlp",
           says=("run.precision", "leave it out")),
    _train("a time of day as rounds", "--rounds", "1:30", says=("1:30", "90", "plain number")),
    _train("a number with a leading zero", "--seed", "010", says=("010", "8", "plain number")),
    _train("a variable that is not set", "--epsilon", "", says=("--privacy.client.epsilon", "empty")),
    _train("a fraction", "--delta", "1/400000", says=("privacy.client.delta", "write 2.5e-06")),
    _train("minus one worker", "--run.workers", "-1", says=("run.workers", "1")),
    _train("a device that is none", "--device", "gpu", says=("run.device", "did you mean cuda")),
    _train("a value that is missing", "--rounds", says=("--rounds", "missing")),
    # Names.
    _any("no such command", "trian", says=("trian", "train")),
    _any("no such algorithm", "train", "--algo", "dp-agrl", "--dataset", "strokes", says=("did you mean",)),
    _any("no algorithm", "train", "--dataset", "strokes", says=("--algo",)),
    _any("no such data set", "train", "--algo", "dp-agr", "--dataset", "omniglott", says=("did you mean omniglot",)),
    _any("a folder that is not there", "train", "--algo", "dp-agr", "--dataset", "./none", says=("none", "no such")),
    _train("an unknown option", "--sever.rounds", "3", says=("did you mean --server.rounds",)),
    _train("half a name", "--epsilonn", "3", says=("did you mean --epsilon",)),
    _train("no such policy", "--clip.policy", "windows", says=("did you mean window",)),
    _train("no such network", "--model.name", "conv5", says=("model.name", "conv4")),
    _train("a network's file that is none", "--model.name", "nothere:make", says=("nothere",)),
    _train("a network's file as a path", "--model.name", "nets/own.py:make", says=("did you mean nets.own:make",)),
    _train("a network's module alone", "--model.name", "own:", says=("own:NAME",)),
    _train("an encoder that is none", "--model.encoder", "lite1", says=("did you mean lite0",)),
    _train("timm without a name", "--model.encoder", "timm:", says=("timm:NAME",)),
    _train("weights that are not there", "--model.initial", "none.safetensors", says=("none.safetensors",)),
    _train("a data folder that is not there", "--data-dir", "none", says=("--data-dir none",)),
    _train("a run that is there", "--run.name", "done", algo="maml", says=("done", "exists already")),
    _train("a run name with a slash", "--run.name", "a/b", algo="maml", says=("run.name",)),
    # Settings that do not fit each other.
    _train("a window longer than the run", "--rounds", "5", "--window", "9", says=("clip.window", "server.rounds")),
    _train("three silos", "--clients", "3", "--cohort", "3", algo="dp-agrlr-secure", says=("max_participations",),
           quick=False),  # needs the accountant, which takes two seconds to import
    _train("a target towards the server of messages", "--privacy.client.observer", "server",
           says=("--aggregation secure",)),
    _train("a fixed cohort with a cap", "--population.sampler", "fixed", "--population.max_participations", "1",
           says=("poisson",)),
    _train("bits without secure aggregation", "--aggregation.bits", "16", "--aggregation.mode", "secur",
           says=("aggregation.mode",)),
    _train("a chunk on two kinds of order", "--order", "3", says=("meta.order", "1 or 2")),
    _train("calibration without a dry run", "--calibration", "3", says=("--dry-run",)),
    _train("changed code of a new run", "--changed-code", says=("--resume",)),
    _train("a plan of nothing", "--epsilon", "1e-9", says=("privacy.client.epsilon", "0.1 to 10")),
    # Files of settings.
    _file("an old file", "old.yaml", "aggregation.coarse", "did you mean server.rounds"),
    _file("a file that is not there", "none.yaml", "none.yaml", "cross-silo"),
    _file("a list in place of sections", "list.yaml", "list.yaml", "sections"),
    _file("an empty file", "empty.yaml", "empty.yaml"),
    _file("a key twice", "twice.yaml", "rounds occurs twice"),
    _file("tabs", "tabs.yaml", "tabs.yaml", "line 3"),
    _file("a file that is a picture", "image.yaml", "image.yaml"),
    _file("a folder as a file", "images", "images"),
    _file("a section without keys", "bare.yaml", "server", "is a section", "server.rounds"),
    _file("a short form in a file", "short.yaml", "did you mean privacy.client.epsilon"),
    _file("a data set that YAML reads as no", "no.yaml", "dataset", "in quotes"),
    _file("a sweep as settings", "sweep.yaml", "dpfedmeta sweep sweep.yaml"),
    # Silos.
    _any("two silos", "train", "--config", "cross-silo", "--dataset", "strokes", "--clients", "2", "--cohort", "2",
         "--shots", "5", "--task.queries", "5", says=("invite more clients",), quick=False),  # needs the accountant
    # Data of one's own.
    _task("a table of a header", "header.csv", "no record in it"),
    _task("a missing class that has a name", "missing.csv", "class 'NaN'", "missing"),
    _task("a workbook as a table", "workbook.csv", "Excel"),
    _task("semicolons", "semicolons.csv", "class"),
    _task("a table without a class", "noclass.csv", "class"),
    _task("words as features", "words.csv", "not a number"),
    _task("text that is no UTF-8", "latin.csv", "UTF-8"),
    _task("vectors that are pixels", "bytes.npz", "uint8"),
    _task("an .npz without its arrays", "other.npz", "records"),
    _task("an .npz that is a web page", "page.npz", "page.npz"),
    _task("a folder of text", "texts", "texts"),
    _task("one class", "oneclass", "class"),
    _task("a folder of folders of folders", "deep", "deep"),
    _task("an image folder with a broken image", "broken", "repair or remove it"),
    _task("a task with an unknown key", "task.yaml", "chanels", "channels"),
    Wrong(name="a web page as an archive", words=("train", "--algo", "maml", "--dataset", "mini-imagenet", "--data-dir",
          "pages"), says=("web page",), quick=False),
    _any("check-task of nothing", "check-task", "none", says=("none",)),
    _any("check-task of a header", "check-task", "header.csv", says=("no record in it",), quick=False),
    # Runs.
    _any("resume of nothing", "train", "--resume", "none", says=("--resume none",)),
    _any("resume of what is no run", "train", "--resume", "images", says=("images",)),
    _any("resume with an algorithm", "train", "--resume", "runs/done", "--algo", "maml", says=("--algo",)),
    _any("resume with other rounds", "train", "--resume", "runs/done", "--rounds", "9", says=("--extend",),
         quick=False),
    _any("extend without rounds", "train", "--extend", "runs/done", says=("--rounds",)),
    _any("evaluate nothing", "evaluate", "none", says=("none",)),
    _any("evaluate a folder of runs", "evaluate", "runs", says=("runs",)),
    _any("evaluate with no shots", "evaluate", "runs/done", "--shots", "0", says=("shots = 0",)),
    _any("evaluate with one episode", "evaluate", "runs/done", "--episodes", "1", says=("episodes = 1",)),
    _any("evaluate on another folder", "evaluate", "runs/done", "--data-dir", "images", says=("--data-dir",),
         quick=False),
    _any("evaluate more ways than classes", "evaluate", "runs/done", "--ways", "99", says=("ways = 99", "--ways")),
    _any("evaluate more shots than images", "evaluate", "runs/done", "--shots", "1000", says=("1000 shots", "--shots")),
    # What is given twice counts as two.
    _any("evaluate a run twice", "evaluate", "runs/done", "runs/./done", says=("given twice",)),
    _any("evaluate with a seed twice", "evaluate", "runs/done", "--seeds", "1", "1", says=("seeds", "at most once")),
    _any("evaluate with shots twice", "evaluate", "runs/done", "--shots", "1", "1", says=("shots", "at most once")),
    _any("evaluate with ways twice", "evaluate", "runs/done", "--ways", "2", "2", says=("ways", "at most once")),
    _any("evaluate after steps twice", "evaluate", "runs/done", "--steps", "1", "1", says=("steps", "at most once")),
    _any("report on a run twice", "report", "runs/done", "runs/./done", says=("the same run as runs/done",)),
    _any("report on nothing", "report", "none", says=("none",)),
    _any("report on a file", "report", "list.yaml", says=("list.yaml",)),
    _any("a table for a paper as text", "report", "runs/done", "--latex", "a.txt", says=("--latex",)),
    _any("verify nothing", "account", "--verify", "none", says=("none",)),
    _any("verify a damaged ledger", "account", "--verify", "runs/damaged", says=("ledger.jsonl", "line"),
         quick=False),
    _any("archive of nothing", "archive", "none", says=("none",)),
    _any("archive into a missing folder", "archive", "runs/done", "--out", "none/a.zip", says=("none",)),
    _any("a picture as text", "account", "--algo", "dp-agr", "--plot", "a.txt", says=("--plot", ".png")),
    _any("solve without a target", "account", "--algo", "dp-agr", "--solve", "rounds", "--noise-multiplier", "1",
         "--epsilon", "null", says=("--epsilon",)),
    _any("account of an unknown key", "account", "--algo", "dp-agr", "--cohorts", "3", says=("--cohort",)),
    _any("audit of no privacy", "audit", "--algo", "maml", says=("maml",)),
    _any("audit of nothing", "audit", says=("--algo",)),
    _any("audit with a share as percent", "audit", "--algo", "dp-agr", "--confidence", "95", says=("confidence",)),
    _any("analyse an unknown question", "analyse", "median", "--algo", "dp-agr", "--dataset", "strokes",
         says=("median", "quantile")),
    _any("analyse an epsilon of 0", "analyse", "quantile", "--algo", "dp-agr", "--dataset", "strokes", "--epsilon", "0",
         says=("epsilon",)),
    _any("decompose a simulation of nothing", "decompose", "--algo", "dp-agr", "--dataset", "strokes", "--vary", "x",
         says=("--vary",)),
    # Sweeps.
    _any("a sweep that is not there", "sweep", "none.yaml", says=("none.yaml",)),
    _any("a sweep of a table", "sweep", "words.csv", says=("expected names and values",)),
    _any("a sweep of settings", "sweep", "settings.yaml", says=("settings.yaml",)),
    _any("a sweep of an unknown setting", "sweep", "sweep-unknown.yaml", says=("sever.rounds",)),
    _any("a sweep of a section", "sweep", "sweep-section.yaml", says=("server", "is a section", "server.rounds")),
    _any("a sweep of a wrong value", "sweep", "sweep-wrong.yaml", says=("task.ways",)),
    _any("a sweep with no jobs", "sweep", "sweep.yaml", "--jobs", "0", says=("--jobs",)),
    # Federations.
    _any("a client without images", "federate", "client", "--data", "none", "--invitation", "keys/invitation.yaml",
         "--identity", "a.pem", says=("none",)),
    _any("a client with texts", "federate", "client", "--data", "texts", "--invitation", "keys/invitation.yaml",
         "--identity", "a.pem", says=("texts",)),
    _any("a client with an open key", "federate", "client", "--data", "images", "--invitation", "keys/invitation.yaml",
         "--identity", "open.pem", says=("open.pem", "chmod 600")),
    _any("a client with a card as key", "federate", "client", "--data", "images", "--invitation",
         "keys/invitation.yaml", "--identity", "a.card", says=("a.card",)),
    _any("a client with no invitation", "federate", "client", "--data", "images", "--invitation", "none.yaml",
         "--identity", "a.pem", says=("none.yaml",)),
    _any("a client with an epsilon of -1", "federate", "client", "--data", "images", "--invitation",
         "keys/invitation.yaml", "--identity", "a.pem", "--epsilon", "-1", says=("epsilon",)),
    _any("a client without patience", "federate", "client", "--data", "images", "--invitation",
         "keys/invitation.yaml", "--identity", "a.pem", "--epsilon", "1", "--patience", "-5",
         says=("--patience -5", "above 0")),
    _any("a server of an empty roster", "federate", "server", "--keys", "keys", "--roster", "empty.yaml", "--algo",
         "dp-agrlr-micro", "--dataset", "strokes", says=("empty.yaml",)),
    _any("a server of a roster with a key in it", "federate", "server", "--keys", "keys", "--roster", "a.pem", "--algo",
         "dp-agrlr-micro", "--dataset", "strokes", says=("a.pem",)),
    _any("a server of a few clients and a cohort of many", "federate", "server", "--keys", "keys", "--roster",
         "roster.txt", "--algo", "dp-agrlr-micro", "--dataset", "strokes", says=("population.cohort",)),
    _any("a server without keys", "federate", "server", "--keys", "none", "--roster", "roster.txt", "--algo",
         "dp-agrlr-micro", "--dataset", "strokes", says=("none",)),
    _any("a port that is none", "federate", "server", "--keys", "keys", "--roster", "roster.txt", "--algo",
         "dp-agrlr-micro", "--dataset", "strokes", "--port", "99999", says=("--port 99999", "65535")),
    _any("a server that waits less than nothing", "federate", "server", "--keys", "keys", "--roster", "roster.txt",
         "--algo", "dp-agrlr-micro", "--dataset", "strokes", "--seconds", "-1", says=("--seconds -1", "above 0")),
    _any("keys that are there", "federate", "keys", "--out", "a.pem", says=("a.pem",)),
    _any("a demo of one client", "federate", "demo", "--clients", "1", says=("--clients",)),
    # Of a version before.
    *(_any(f"{words[0]} of a run of before", *words, says=_BEFORE, quick=False) for words in (
        ("train", "--resume", "before/run"), ("account", "--verify", "before/run"), ("report", "before/run"),
        ("evaluate", "before/run"), ("archive", "before/run", "--out", "before.zip"),
    )),
    _any("a client's home of before", "account", "--statement", "before/home", says=_BEFORE),
    _any("a client's home of before in a federation", "federate", "client", "--data", "images", "--invitation",
         "keys/invitation.yaml", "--identity", "a.pem", "--home", "before/home", "--epsilon", "9", "--patience", "1",
         says=_BEFORE, quick=False),
    _any("a register of before", "account", "--population", "before/register", says=_BEFORE),
    _train("a run with a register of before", "--population.register=before/register", says=_BEFORE, quick=False),
    _python("load of a run of before", "dp.load('before/run')", *_BEFORE),
    _python("resume of a run of before", "dp.train(resume='before/run')", *_BEFORE),
    # Python.
    _python("train with a dict", "dp.train({'server.rounds': 3})", "Settings.preset", quick=True),
    _python("a preset that is none", "dp.Settings.preset('dpagr', 'strokes')", "dp-agr", quick=True),
    _python("a preset with a number as text", "dp.Settings.preset('maml', 'strokes', {'server.rounds': '3'})",
            "server.rounds", quick=True),
    _python("a preset with an unknown key", "dp.Settings.preset('maml', 'strokes', {'rouns': 3})", "rouns", quick=True),
    _python("changed code of a new run", "dp.train(dp.Settings.preset('maml', 'strokes'), changed_code=True)",
            "changed_code", "resume"),
    _python("resume of nothing", "dp.train(resume='none')", "none"),
    _python("evaluate nothing", "dp.evaluate([])", "none is given"),
    _python("evaluate a folder", "dp.evaluate('images')", "images"),
    _python("load a file", "dp.load('list.yaml')", "list.yaml"),
    _python("load_personal of a run", "dp.load_personal('runs/done')", "dp.load"),
    _python("load_personal of a picture", "dp.load_personal('image.yaml')", "image.yaml"),
    _python("adapt to words", f"{_LOADED}start.adapt({_IMAGES}, ['cat', 'dog', 'cow'])", "class_names"),
    _python("adapt to colours", f"{_LOADED}start.adapt(torch.zeros(3, 3, 28, 28, dtype=torch.uint8), [0, 1, 2])",
            "1, 28, 28"),
    _python("adapt to too few labels", f"{_LOADED}start.adapt({_IMAGES}, [0, 1])", "2", "3"),
    _python("adapt to labels from 1", f"{_LOADED}start.adapt({_IMAGES}, [1, 2, 3])", "0"),
    _python("adapt to raw floats", f"{_LOADED}start.adapt(255 * torch.ones(3, 1, 28, 28), [0, 1, 2])", "uint8"),
    _python("save into a missing folder", f"{_LOADED}start.adapt({_IMAGES}, [0, 1, 2]).save('none/a.safetensors')",
            "none", "no folder"),
    _python("audit of a word", "dp.audit(dp.Settings.preset('dp-agr', 'strokes'), audits=['distinguis'])",
            "distinguish"),
    _python("plan of data as a dict", "dp.plan({'algo': 'maml'})", "Settings.preset"),
)  # fmt: skip


def make_files(folder: Path) -> None:
    """All files that the cases name but for runs and keys."""
    texts = {
        "old.yaml": "algo: dp-agr\ndataset: strokes\naggregation: {coarse: true}\nserver: {round: 3}\n",
        "bare.yaml": "algo: dp-agr\ndataset: strokes\nserver:\n",
        "short.yaml": "algo: dp-agr\ndataset: strokes\nepsilon: 3\n",
        "no.yaml": "algo: dp-agr\ndataset: no\n",
        "missing.csv": "class,a\n" + "".join(f"{'NaN' if n == 4 else f'c{n}'},{n}\n" for n in range(9)),
        "workbook.csv": "PK\x03\x04\x14\n",
        "list.yaml": "- a\n- b\n",
        "empty.yaml": "",
        "twice.yaml": "algo: dp-agr\ndataset: strokes\nserver:\n  rounds: 3\n  rounds: 4\n",
        "tabs.yaml": "algo: dp-agr\nserver:\n\trounds: 3\n",
        "settings.yaml": "algo: maml\ndataset: strokes\nserver: {rounds: 3}\n",
        "sweep.yaml": "program: scripts/train.py\nmethod: grid\nparameters:\n  algo: {value: maml}\n"
        "  dataset: {value: tiny.yaml}\n  server.rounds: {values: [2, 3]}\n",
        "header.csv": "class,a,b\n",
        "semicolons.csv": "class;a;b\nx;1;2\n",
        "noclass.csv": "a,b\n1,2\n",
        "words.csv": "class,a\n" + "".join(f"c{n},red\n" for n in range(9)),
        "tiny.yaml": TINY,
        "task.yaml": TINY.replace("channels", "chanels"),
        "texts/a/a.txt": "x",
    }
    texts["sweep-unknown.yaml"] = texts["sweep.yaml"].replace("server.rounds", "sever.rounds")
    texts["sweep-section.yaml"] = texts["sweep.yaml"].replace("server.rounds:", "server:")
    texts["sweep-wrong.yaml"] = texts["sweep.yaml"].replace("server.rounds: {values: [2", "task.ways: {values: [1")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "latin.csv").write_bytes("class,a\nGr\xf6\xdfe,1\n".encode("latin-1"))
    page = b"<!DOCTYPE html>\n<html><body>Sign in</body></html>"
    (folder / "page.npz").write_bytes(page)
    (folder / "pages" / "mini-imagenet").mkdir(parents=True)
    for part in ("train", "val", "test"):
        (folder / "pages" / "mini-imagenet" / f"mini-imagenet-cache-{part}.pkl").write_bytes(page)
    classes = np.repeat([f"c{number}" for number in range(12)], 20)
    numbers = np.random.default_rng(0)
    np.savez(folder / "bytes.npz", records=numbers.integers(0, 255, (240, 16)).astype(np.uint8), classes=classes)
    np.savez(folder / "other.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    for kind, count in (("images", 12), ("oneclass", 1), ("broken", 12), ("deep/more", 12)):
        for number in range(count):
            place = folder / kind / f"c{number:02}"
            place /= "in" if kind == "deep/more" else ""
            place.mkdir(parents=True)
            for image in range(20):
                Image.new("L", (28, 28), int(numbers.integers(0, 255))).save(place / f"{image}.png")
    (folder / "broken" / "c00" / "0.png").write_bytes(b"\x89PNG nothing")
    (folder / "image.yaml").write_bytes((folder / "images" / "c00" / "0.png").read_bytes())


def first_words() -> tuple[tuple[str, ...], ...]:
    """The commands that make runs and keys in the folder."""
    run = ("train", "--algo", "maml", "--dataset", "tiny.yaml", *SIZES, "--clients=2000", "--cohort=6")
    return (
        (*run, "--run.name=done"),
        ("federate", "keys", "--server", "--out", "keys"),
        ("federate", "keys", "--out", "a.pem", "--name", "a"),
        ("federate", "keys", "--out", "open.pem", "--name", "open"),
    )


def make_last(folder: Path) -> None:
    """What is changed in what `first_words` made."""
    (folder / "open.pem").chmod(0o644)
    (folder / "roster.txt").write_text((folder / "a.card").read_text() + (folder / "open.card").read_text())
    damaged = folder / "runs" / "damaged"
    damaged.mkdir()
    for name in ("config.yaml", "plan.json"):
        (damaged / name).write_bytes((folder / "runs" / "done" / name).read_bytes())
    lines = (folder / "runs" / "done" / "ledger.jsonl").read_text().splitlines(keepends=True)
    (damaged / "ledger.jsonl").write_text("".join(lines[:1] + lines[2:]))
    before = folder / "before"
    shutil.copytree(folder / "runs" / "done", before / "run")
    (before / "home").mkdir()
    ClientLedger(before / "home" / "ledger.jsonl", RecordBudget(epsilon=9.0, delta=1e-5))
    begin_register(before / "register", 9.0, 1e-5)
    for path in (before / "run" / "ledger.jsonl", before / "home" / "ledger.jsonl", before / "register"):
        bodies, _ = read_chain(path, "ledger")
        path.unlink()
        chain = HashChain.start(path, {**bodies[0], "version": VERSION - 1})
        chain.append_all(bodies[1:])


PROGRAM = """
import sys
from dpfedmeta.core.errors import InputError
try:
    exec(sys.argv[1])
except InputError as error:
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    sys.exit(2)
"""


def started(case: Wrong, folder: Path) -> tuple[float, int, str]:
    """(CPU seconds, exit code, the line) of the case in a process of its own."""
    words = ["-c", PROGRAM, case.python] if case.python else ["-m", "dpfedmeta", *case.words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        # On a busy machine a step may take long enough to be told of.
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.endswith(" s so far")]
        line = " / ".join(lines) if len(lines) < 4 else f"{len(lines)} lines, the last: {lines[-1]}"
        return seconds, done.returncode, line or f"(stdout) {done.stdout.strip()[-200:]}"
    return 120.0, 124, "nothing within 120 s"


def main(folder: Path, table: Path, only: str = "", skip: str = "0") -> None:
    """Write the table."""
    if not folder.exists():
        folder.mkdir(parents=True)
        make_files(folder)
        for words in first_words():
            subprocess.run([sys.executable, "-m", "dpfedmeta", *words], cwd=folder, check=True, capture_output=True)
        make_last(folder)
    rows = ["| input | CPU s | code | line | judged |", "|---|---|---|---|---|"]
    begun = time.monotonic()
    for case in CASES[int(skip) :]:
        if only not in case.name:
            continue
        seconds, code, line = started(case, folder)
        lacking = [words for words in case.says if words not in line]
        verdict = "fine"
        if code == 0:
            verdict = "SILENT"
        elif code != 2 or not line.startswith(("error: ", "warning: ", REPORT)):
            verdict = "CODE"
        elif lacking:
            verdict = f"LACKS {lacking}"
        elif case.quick and seconds > QUICK:
            verdict = "SLOW"
        shown = line.replace("|", "\\|")
        rows.append(f"| {case.name} | {seconds:.2f} | {code} | {shown} | {verdict} |")
        print(rows[-1][:400], flush=True)
        table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows) - 2} inputs in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
