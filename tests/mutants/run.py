"""Plants mistakes one at a time and says which of them the tests see: make mutants.

A catalogue of plausible mistakes: what breaks a promise here is often a key left out or a write moved. machine.py makes
mistakes by rule.

    .venv/bin/python tests/mutants/run.py --only ledger --jobs 2 --json mutants.json
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mistakes import HERE, ROOT, Mutant, Stale, catalogue, changed

COPIED = ("dpfedmeta", "benchmarks", "tests", "configs", "tasks", "scripts", "docs", "examples")
# Imported once; every mutant is a fork of this process, which saves it these imports.
HEAVY = ("torch", "numpy", "scipy.stats", "dp_accounting.pld", "dp_accounting.rdp", "opacus", "numba", "pydantic",
         "safetensors.torch", "rich.console", "pytest", "torch.func", "platformdirs")  # fmt: skip
PASSED, FAILED_TESTS, BROKEN_IMPORT, NOT_FOUND, NO_TESTS, WRONG_COPY = 0, 1, 2, 4, 5, 90


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        name: Its name.
        verdict: killed, survived, time-out.
        seen_by: The first test that failed.
        seconds: How long its tests took.
    """

    name: str
    verdict: str
    seen_by: str
    seconds: float


class Slot:
    """A copy of the tree that takes one mistake after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            # Compiled kernels come along: they are found again by the time of their source.
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc", "_build"))
        for name in (
            "pyproject.toml",
            "setup.cfg",
            "Makefile",
            "constraints.txt",
            *(path.name for path in ROOT.glob("*.md")),
        ):
            shutil.copy2(ROOT / name, folder / name)
        # The environment maps these two beside the package.
        for name in ("configs", "tasks"):
            (folder / "dpfedmeta" / name).symlink_to(folder / name)
        self._changes = 0

    def plant(self, mutant: Mutant) -> None:
        """Write the mistake into the copy."""
        target = self.folder / "dpfedmeta" / mutant.file
        target.write_text(changed(mutant))
        # A time that no version before had, so that no compiled file of another one is taken for this one's.
        self._changes += 1
        os.utime(target, (10**9 + 2 * self._changes,) * 2)

    def start(self, mutant: Mutant | None, tests: Sequence[tuple[str, ...]]) -> int:
        """Plant it and start its tests in a process of their own; the process's number."""
        if mutant is not None:
            self.plant(mutant)
        child = os.fork()
        if not child:
            _run_tests(self.folder, tests)
        return child

    def restore(self, mutant: Mutant | None) -> None:
        """Take the mistake back."""
        if mutant is not None:
            shutil.copy2(ROOT / "dpfedmeta" / mutant.file, self.folder / "dpfedmeta" / mutant.file)

    @property
    def output(self) -> Path:
        """What the tests printed."""
        return self.folder / "output.txt"


def enter(folder: Path) -> None:
    """Make the copy of the tree the one that is imported.

    Raises:
        Stale: Another one is.
    """
    import pytest

    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path or ".").resolve() not in (ROOT, HERE))]
    # Worker processes of the tests import the main file again, as under `python -m pytest`.
    main = sys.modules["__main__"]
    main.__spec__, main.__file__ = None, str(Path(pytest.__file__).with_name("__main__.py"))
    import dpfedmeta

    print(dpfedmeta.__file__, flush=True)
    if not Path(dpfedmeta.__file__).is_relative_to(folder):
        raise Stale(f"{dpfedmeta.__file__} was imported in place of the copy in {folder}")


def _run_tests(folder: Path, tests: Sequence[tuple[str, ...]]) -> None:
    """In the child: never returns."""
    os.setsid()
    handle = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    status = WRONG_COPY
    try:
        import pytest

        enter(folder)
        words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--basetemp={folder / 'temporary'}"]
        # File by file: most mistakes are seen by the first, and the others need not even be collected.
        for test in tests:
            status = int(pytest.main([*words, *test]))
            if status not in (PASSED, NO_TESTS):
                break
        else:
            status = PASSED
    except Stale as error:
        print(error, flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
        status = BROKEN_IMPORT
    finally:
        sys.stdout.flush()
        os._exit(status)


def _outcome(name: str, slot: Slot, status: int | None, seconds: float) -> Outcome:
    text = slot.output.read_text(errors="replace")
    if status is None:
        return Outcome(name=name, verdict="time-out", seen_by="", seconds=seconds)
    if status == PASSED:
        return Outcome(name=name, verdict="survived", seen_by="", seconds=seconds)
    if status not in (FAILED_TESTS, BROKEN_IMPORT, NOT_FOUND):
        raise Stale(f"{name}: the tests did not run (status {status}):\n{text[-2000:]}")
    seen = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE)
    return Outcome(name=name, verdict="killed", seen_by=seen[0] if seen else "import", seconds=seconds)


def run_all(
    work: Sequence[tuple[str, Mutant | None, Sequence[tuple[str, ...]]]], jobs: int, limit: float, folder: Path
) -> Iterator[Outcome]:
    """Each mistake's outcome, `jobs` at a time, as they end."""
    free = [Slot(folder / str(number)) for number in range(jobs)]
    waiting, running = list(work), {}
    while waiting or running:
        while waiting and free:
            slot, (name, mutant, tests) = free.pop(), waiting.pop(0)
            running[slot.start(mutant, tests)] = (slot, name, mutant, time.monotonic())
        time.sleep(0.1)
        for child, (slot, name, mutant, started) in list(running.items()):
            seconds = time.monotonic() - started
            ended, raw = os.waitpid(child, os.WNOHANG)
            late = not ended and seconds > limit
            if late:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if ended or late:
                yield _outcome(name, slot, None if late else os.waitstatus_to_exitcode(raw), seconds)
                slot.restore(mutant)
                del running[child]
                free.append(slot)


def wanted(*only: str) -> list[Mutant]:
    """The mistakes that are asked for by these, in their order, each checked against the code."""
    known = catalogue()
    asked = [m for each in only for m in known if any(fnmatch.fnmatch(x, f"*{each}*") for x in (m.name, m.file))]
    found = list({mutant.name: mutant for mutant in asked}.values())
    for mutant in found:
        compile(changed(mutant), mutant.file, "exec")
    return found


def report(mutants: Sequence[Mutant], outcomes: Sequence[Outcome]) -> int:
    """Print what survived; how many of them no reason excuses."""
    known = {mutant.name: mutant for mutant in mutants}
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    unexcused = 0
    for outcome in outcomes:
        if outcome.verdict == "survived":
            mutant = known[outcome.name]
            unexcused += not mutant.why
            print(f"survived: {mutant.name} ({mutant.file}): {mutant.why or 'UNSEEN'}")
            if not mutant.why:
                print(f"    {mutant.old}\n -> {mutant.new}")
    return unexcused


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="part of a name or file, or a pattern with *")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for the tests of one mistake")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    parser.add_argument("--go-on", action="store_true", help="leave out what the file of --json says was killed")
    parser.add_argument("--check", action="store_true", help="only whether the catalogue fits the code")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass without a mistake")
    return parser.parse_args(words)


def killed_before(options: argparse.Namespace) -> list[Outcome]:
    """What the file of --json says was killed; nothing where there is none."""
    if not (options.json and options.json.exists()):
        return []
    found = [Outcome(**fields) for fields in json.loads(options.json.read_text())]
    return [outcome for outcome in found if outcome.verdict == "killed"]


def main() -> int:
    """0 if every mistake was seen or is harmless, 1 otherwise."""
    options = options_of()
    mutants = wanted(options.only)
    print(f"{len(mutants)} mistakes", flush=True)
    if options.check:
        return 0
    for name in HEAVY:
        importlib.import_module(name)
    outcomes = killed_before(options) if options.go_on else []
    done = {outcome.name for outcome in outcomes}
    mutants = [mutant for mutant in mutants if mutant.name not in done]
    everything = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        if not options.no_baseline:
            (baseline,) = run_all(
                [("baseline", None, [(test,) for test in everything])], 1, 10 * options.limit, Path(folder) / "baseline"
            )
            print(f"baseline: {baseline.verdict} after {baseline.seconds:.0f} s {baseline.seen_by}", flush=True)
            if baseline.verdict != "survived":
                raise Stale("the tests fail without any mistake")
        work = [(mutant.name, mutant, [(test,) for test in mutant.tests]) for mutant in mutants]
        for outcome in run_all(work, options.jobs, options.limit, Path(folder) / "mutants"):
            outcomes.append(outcome)
            print(f"{outcome.verdict:9} {outcome.seconds:5.0f} s  {outcome.name}  {outcome.seen_by}", flush=True)
            if options.json:
                options.json.write_text(json.dumps([vars(each) for each in outcomes], indent=1) + "\n")
    return int(report(mutants, outcomes) > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stale as error:
        sys.exit(f"mutants: {error}")
