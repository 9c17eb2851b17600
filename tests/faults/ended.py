"""End each kind of work at every place where it changes a file, go on as it says, and compare all that it publishes.

    python tests/faults/ended.py --kind train --faults SIGKILL ENOSPC --folder /tmp/ended

Places are those of endings.py; a federation is ended at each question besides (`--questions`). Taken are those that
differ (`chosen`); `--every 7` takes every seventh by every fault, from the first on, whatever they are.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from dpfedmeta.federation.flower.flower_environment import prepare_flower
from tests import conftest
from tests.faults import ended_kinds as kinds
from tests.faults.ended_kinds import KINDS, Kind
from tests.faults.ended_wire import QUESTIONS
from tests.faults.endings import FAULTS, Fault, Place, chosen, ended, printed, started
from tests.federation.silos import make_silos

# Tries until it is through; the first one is ended.
TRIES = 6
# A process that goes on after a signal ends in this time.
PATIENCE = 90.0


@dataclass(kw_only=True)
class Trial:
    """One kind, its uninterrupted example, and what happened to the others."""

    name: str
    folder: Path
    whole: dict[str, object] = field(default_factory=dict)
    places: tuple[Place, ...] = ()
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """What is ended."""
        return KINDS[self.name]

    def begin(self) -> None:
        """The uninterrupted example, and its places."""
        folder = self._prepared("whole")
        code, _ = self._run(folder, self.kind.words, None)
        assert code == 0, self._said(folder)
        self.places = tuple(map(Place.read, (folder / "places.txt").read_text().splitlines()))
        self.whole = self._published(folder)

    def warm_up(self) -> None:
        """Once in this process, whose libraries all others inherit."""
        quiet = contextlib.redirect_stdout(io.StringIO())
        with contextlib.chdir(self._prepared("warm")), quiet, contextlib.suppress(SystemExit):
            kinds.called(self.kind, self.kind.words)()

    def _prepared(self, name: str) -> Path:
        folder = self.folder / f"{self.name}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.environ["DPFEDMETA_STATE"] = str(folder / "state")
        self.kind.prepare(folder)
        return folder

    def _run(
        self, folder: Path, words: Sequence[str], fault: Fault | None, call: Callable[[], object] | None = None
    ) -> tuple[int, str]:
        before = (folder / "output.txt").stat().st_size if (folder / "output.txt").exists() else 0
        chosen = call or kinds.called(self.kind, words)
        state = {"DPFEDMETA_STATE": str(folder / "state")}
        child = started(chosen, folder, state, fault)
        code = ended(child, PATIENCE)
        if code is None:
            os.killpg(child, signal.SIGKILL)
            ended(child, None)
            raise AssertionError(f"hangs for {PATIENCE:g} s")
        return code, (folder / "output.txt").read_bytes()[before:].decode()

    def _said(self, folder: Path) -> str:
        return (folder / "output.txt").read_text()[-2500:]

    def _published(self, folder: Path) -> dict[str, object]:
        os.environ["DPFEDMETA_STATE"] = str(folder / "state")
        return dict(self.kind.published(folder))

    def ended_at(self, fault: Fault) -> None:
        """Once at one place."""
        label = f"{fault.kind} {fault.place}"
        folder = self._prepared(label.replace(" ", "-"))
        # A client whose disk fails declines, or sends noise alone: another sum. Its own images are nobody's to tell of.
        silent = self.name.startswith("federation") and fault.kind in ("ENOSPC", "EIO")
        names = ("due", "charged") if silent else self.whole
        self._gone_on(label, folder, fault.kind, lambda: self._run(folder, self.kind.words, fault), names)

    def asked_at(self, how: str, at: int, algo: str) -> None:
        """Once at one question."""
        label = f"{how} {at}"
        folder = self._prepared(label.replace(" ", "-"))
        call = partial(kinds.federated, algo, how, at)
        # A client that forgot its keys of a protocol falls silent in it: another sum, with all that is due.
        silent = "secure" in algo and how.startswith("client")
        names = ("due", "models", "charged") if silent else self.whole
        self._gone_on(label, folder, how, lambda: self._run(folder, (), None, call), names)

    def _gone_on(
        self,
        label: str,
        folder: Path,
        how: str,
        first: Callable[[], tuple[int, str]],
        names: Iterable[str] = (),
    ) -> None:
        self.done[how] += 1
        try:
            code, text = first()
            codes = [code]
            while code != 0 and len(codes) < TRIES:
                # A program of one's own shows the error of its disk as Python does.
                own = code == 98 and not self.kind.words and how in ("ENOSPC", "EIO")
                assert own or (code not in (98, 99) and "Traceback" not in text), "an error that nobody words"
                if code == 2 and any(words in text for words in kinds.DONE):
                    code = 0  # it had done all
                    break
                words = printed(text, self.kind.words) if self.kind.words else []
                code, text = self._run(folder, words, None)
                codes.append(code)
            assert code == 0, f"does not go on: {codes}"
            found = self._published(folder)
            differs = [name for name in names or self.whole if found.get(name) != self.whole[name]]
            assert not differs, f"differs in {differs}, codes {codes}"
        except Exception as error:
            place = _place(folder, label)
            self.wrong.append(f"{self.name}: {label} ({place}): {type(error).__name__}: {str(error)[:600]}")
            print(f"WRONG {self.wrong[-1]}\n    {folder}", flush=True)
            return
        shutil.rmtree(folder)


def _place(folder: Path, label: str) -> str:
    number = label.rsplit(" ", 1)[1]
    lines = (folder / "places.txt").read_text().splitlines()
    return next((line for line in lines if line.startswith(f"{number} ")), "no place")


def trial(made: Trial, faults: Sequence[str], every: int = 0, first: int = 0) -> Trial:
    """End a kind where its places differ, or at every so-manieth place by each fault in turn."""
    made.begin()
    known: tuple[Place, ...] = ()
    if made.kind.like and not every:
        other = Trial(name=made.kind.like, folder=made.folder / "like")
        other.begin()
        known = other.places
    if every:
        due = [
            Fault(kind=kind, place=place)
            for number, kind in enumerate(faults)
            for place in range((first + number) % every, len(made.places), every)
        ]
    else:
        due = chosen(made.places, known, children=made.kind.children, share=made.kind.share)
    for fault in due:
        if fault.kind in faults:
            made.ended_at(fault)
    return made


def questions(made: Trial, every: int = 0, first: int = 0) -> Trial:
    """End a federation's server and a client at each question, before and after it in turn, or as `trial` does."""
    made.begin()
    algo = {"federation": "dp-agrlr-micro", "federation-secure": "dp-agrlr-secure"}[made.name]
    count = (made.folder / f"{made.name}-whole" / "output.txt").read_text().splitlines().count("?")
    for number, how in enumerate(QUESTIONS):
        for at in range((first + number) % (every or 2), count, every or 2):
            made.asked_at(how, at, algo)
    return made


def ready(folder: Path, name: str) -> Trial:
    """One of a kind, with what all of it share."""
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("federation"):
        kinds._SILOS[:] = [make_silos(folder / f"silos-{name}")]
    if name.startswith("archive"):
        made = Trial(name="train", folder=folder / name)
        made.begin()
        kinds._ENDED[:] = [folder / name / "train-whole" / "r"]
    return Trial(name=name, folder=folder)


def main() -> None:
    """Parse, try, report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kind", nargs="+", default=[*KINDS], choices=[*KINDS])
    options.add_argument("--faults", nargs="*", default=[*FAULTS], choices=FAULTS)
    options.add_argument("--questions", action="store_true")
    options.add_argument("--every", type=int, default=0)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    prepare_flower()
    # As in the suite: pictures of one point, no measured speed, and no power cut.
    os.fsync = lambda handle: None
    conftest.PATCHED["quick"] = True
    conftest._patch_pictures()
    importlib.import_module("dpfedmeta.training.run_training")
    importlib.import_module("dpfedmeta.training.throughput")
    conftest._measure_speed(False)
    wrong: list[str] = []
    for name in given.kind:
        begun, made = time.monotonic(), ready(given.folder.resolve(), name)
        made.warm_up()
        # What is here is no garbage of a child, whose search would copy every page of it.
        gc.collect()
        gc.freeze()
        if given.questions:
            questions(made, given.every, given.first)
        else:
            trial(made, given.faults, given.every, given.first)
        wrong += made.wrong
        took = round(time.monotonic() - begun)
        print(json.dumps({"kind": name, "places": len(made.places), "ended": made.done, "wrong": len(made.wrong),
                          "seconds": took}), flush=True)  # fmt: skip
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
