"""Mistakes made by rule rather than by hand: a sample of them is an honest estimate of how many the tests do not see.

Every change of one expression or statement that a rule below makes belongs to a kind (a guard left out, a comparison at
its boundary, a field's neighbour). A kind is drawn first, then one of its places, so that rare kinds are met as often.
The tests that reach the changed lines run, a file's own first and the quick before the slow. Neither mutmut (no
decorated functions: no property, no context manager) nor cosmic-ray (all tests, in a new process, for each) does this.

    .venv/bin/python tests/mutants/machine.py --of privacy/ accounting/ --count 60 --seed 1 --lines lines.json

Mistakes that are written down run this way too, in seconds each; what none of those tests sees, run.py has to try.
Of a mistake that the file of --json knows from an earlier run, the test that saw it then is tried first:

    .venv/bin/python tests/mutants/machine.py --written "ledger" --lines lines.json --json outcomes.json
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from mistakes import ROOT, Mutant, Stale, tests_of
from rules import PACKAGE, Change, as_change, chosen
from run import HEAVY, Outcome, Slot, enter, killed_before, run_all, wanted

PROMISING = ["privacy/", "accounting/", "secure_aggregation/", "core/random/", "federation/client/", "training/loop.py"]
VERDICTS = ("killed", "time-out", "survived", "unreached")
PASSED = "passed"
Work = tuple[Mutant, Change, Sequence[str]]


class Reached:
    """Which tests reach which lines, read from what `--cover` wrote."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self._lines: dict[tuple[str, int], set[str]] = {}
        self._files: dict[str, set[str]] = {}
        for path in files:
            content = json.loads(path.read_text())
            tests = [test for test, _ in content["tests"]]
            self.seconds.update(content["tests"])
            for file, lines in content["lines"].items():
                for line, numbers in lines.items():
                    here = {tests[number] for number in numbers}
                    self._lines.setdefault((file, int(line)), set()).update(here)
                    self._files.setdefault(file, set()).update(here)

    def tests(self, change: Change, budget: float, named: Sequence[str] = ()) -> list[str]:
        """Those that reach the change, within the budget: half of it for those that are named and the file's own.

        A test that is named by its function runs whatever it costs. Of a condition, those come first that reach what it
        opens: no other test can see that it never holds.
        """
        first, last = change.lines
        reaching = self._reaching(change.file, range(first, last + 1))
        opened = self._reaching(change.file, opened_by(change))
        anywhere = self._files.get(change.file, set())
        try:
            own = tests_of(change.file)
        except KeyError:  # only files that a written mistake changes are listed
            own = ()
        # A value that is kept from an earlier test, or made at the import, is reached by no test of its own, and what
        # is compiled by none at all.
        pools = (
            [test for test in reaching if test.startswith(own)],
            reaching,
            [test for test in anywhere or self.seconds if test.startswith(own)],
        )
        if not change.within:
            folder = f"tests/{change.file.partition('/')[0]}/"
            pools = (*pools, list(anywhere) or [test for test in self.seconds if test.startswith(folder)])
        # They may be younger than the map.
        functions = [name for name in named if "::" in name]
        picked = dict.fromkeys(functions)
        spent = 0.0
        pools = (opened, [test for test in reaching if test.startswith(tuple(named))] if named else [], *pools)
        for pool, until in zip(pools, (budget / 2, budget / 2, budget / 2, budget, budget, budget), strict=False):
            for test in sorted(pool, key=lambda each: (self.seconds[each], each)):
                known = test in picked or any(is_of(test, name) for name in functions)
                if not known and spent + self.seconds[test] <= until:
                    picked[test] = None
                    spent += self.seconds[test]
        return list(picked)

    def _reaching(self, file: str, lines: Iterable[int]) -> set[str]:
        return set[str]().union(*(self._lines.get((file, line), set()) for line in lines))


class Planter:
    """A pytest plugin: the tests are collected once, then each mistake is planted and tested in a fork.

    In the fork the changed functions get the code of the mistake; the file of the copy is changed as well, for modules
    that are imported later and for processes that the tests start.
    """

    def __init__(
        self,
        slot: Slot,
        work: Sequence[Work],
        limit: float,
        seconds: float,
        keep: Callable[[Change, Outcome], None],
    ) -> None:
        self.slot, self.work, self.limit, self.seconds, self.keep = slot, work, limit, seconds, keep

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of pytest's own."""
        items = list(session.items)
        gc.unfreeze()  # what the tests' own conftest has frozen is looked at too
        gc.collect()
        functions = functions_by_file(self.slot.folder)
        gc.freeze()
        for mutant, change, tests in self.work:
            began = time.monotonic()
            self.slot.plant(mutant)
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                picked = [item for test in tests for item in items if is_of(item.nodeid, test)]
                with_code = functions.get(str(self.slot.folder / "dpfedmeta" / change.file), [])
                self._test(session, change, with_code, list(dict.fromkeys(picked)), writer)
            os.close(writer)
            late = not select.select([reader], [], [], self.limit)[0]
            seen = "" if late else os.read(reader, 10_000).decode()
            os.close(reader)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self.slot.restore(mutant)
            if seen.startswith("no test"):
                raise Stale(f"{mutant.name} was not planted: {seen}")
            verdict = "time-out" if late else "killed" if seen != PASSED else "survived"
            seconds = time.monotonic() - began
            self.keep(change, Outcome(name=mutant.name, verdict=verdict, seen_by=seen, seconds=seconds))
        return True

    def _test(
        self,
        session: pytest.Session,
        change: Change,
        functions: Sequence[FunctionType],
        items: list[pytest.Item],
        writer: int,
    ) -> None:
        """In the fork: never returns."""
        os.setpgid(0, 0)
        answer = "no test"
        try:
            after = self.slot.folder / "dpfedmeta" / change.file
            exchange_code(PACKAGE / change.file, after, functions)
            if not functions and str(after) in {getattr(each, "__file__", None) for each in sys.modules.values()}:
                raise Stale("its module is imported, and no function of it was found")
            for item, following in itertools.zip_longest(items, items[1:]):
                if sum(os.times()[:4]) > self.seconds:
                    answer = PASSED
                    break
                answer = item.nodeid
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    break
            else:
                answer = PASSED
        except BaseException as error:
            answer = f"{answer}: {error!r}"
        finally:
            os.write(writer, answer.encode()[:4000])
            signal.pause()


def opened_by(change: Change) -> set[int]:
    """Lines of what the conditions on the changed lines lead into."""
    first, last = change.lines
    tree = ast.parse((PACKAGE / change.file).read_text()) if change.within else ast.Module([], [])
    found = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and first <= (node.test.end_lineno or 0) and node.test.lineno <= last
    ]
    return {line for body in found for line in range(body[0].lineno, (body[-1].end_lineno or 0) + 1)}


def is_of(test: str, name: str) -> bool:
    """Whether the test is the one that is named, or stands in the file or class of the name."""
    return test == name or test.startswith((f"{name}::", f"{name}["))


def functions_by_file(folder: Path) -> dict[str, list[FunctionType]]:
    """All functions that exist and whose code stands in a file of this folder."""
    found: dict[str, list[FunctionType]] = {}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename.startswith(f"{folder}/"):
            found.setdefault(function.__code__.co_filename, []).append(function)
    return found


def exchange_code(before: Path, after: Path, functions: Sequence[FunctionType]) -> None:
    """Give the functions of an imported module the code of its changed file.

    Functions are known by where they stood `before`; of two with one name (a property's two sides) the first is the
    first.
    """
    old, new = (_codes(path, after) for path in (before, after))
    exchanged = {
        (name, old[name, number].co_firstlineno): code for (name, number), code in new.items() if (name, number) in old
    }
    for function in functions:
        place = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        function.__code__ = exchanged.get(place, function.__code__)


def _codes(path: Path, imported: Path) -> dict[tuple[str, int], CodeType]:
    found: dict[tuple[str, int], CodeType] = {}
    left = [compile(path.read_text(), str(imported), "exec")]
    while left:
        inner = [each for each in left.pop(0).co_consts if isinstance(each, CodeType)]
        for code in inner:
            found[code.co_qualname, sum(name == code.co_qualname for name, _ in found)] = code
        left += inner
    return found


def cover(tests: Sequence[str], answer: Path) -> None:
    """Run these tests once in a copy of the tree and write which lines each reaches."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        slot = Slot(Path(folder))
        named = {"PACKAGE": slot.folder / "dpfedmeta", "ANSWER": answer.absolute()}
        environment = {**os.environ, **{f"LINES_REACHED_{name}": str(value) for name, value in named.items()}}
        paths = [str(slot.folder), str(slot.folder / "tests/mutants"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        words = ["-q", "-p", "lines_reached", "-p", "no:cacheprovider", "-m", "not slow"]
        subprocess.run([sys.executable, "-m", "pytest", *words, *tests], cwd=slot.folder, env=environment, check=False)
    if not answer.exists():
        raise Stale(f"{answer} was not written: the tests did not run to their end")


def sampled(options: argparse.Namespace) -> Iterator[tuple[Mutant, Change]]:
    """What rules make."""
    for number, change in list(enumerate(chosen(options.of, options.count, options.seed)))[options.first :]:
        name = f"{options.seed}.{number} {change.kind} in {change.file}:{change.lines[0]}"
        yield Mutant(name=name, file=change.file, old=change.old, new=change.new, tests=()), change


def plant(
    options: argparse.Namespace,
    folder: Path,
    known: Collection[str],
    seen_by: Mapping[str, str],
    keep: Callable[[Change, Outcome], None],
) -> None:
    """Hand on the outcome of each mistake, without those that are known by name.

    The test that saw a mistake in an earlier run is tried first.
    """
    reached = Reached(options.lines)
    inside, outside = list[Work](), list[Work]()
    mistakes = (
        sampled(options)
        if options.written is None
        else ((each, as_change(each)) for each in wanted(*options.written) if each.name not in known)
    )
    for mutant, change in mistakes:
        if mutant.name in seen_by:
            mutant = replace(mutant, first=(seen_by[mutant.name], *mutant.first))
        tests = reached.tests(change, options.budget, mutant.first) if options.lines else own_tests(mutant)
        if not tests:
            keep(change, Outcome(name=mutant.name, verdict="unreached", seen_by="", seconds=0.0))
        else:
            (inside if change.within else outside).append((mutant, change, tests))
    if options.written is None:
        # What stands outside functions is run by the import, so the import is done for each.
        changes = {mutant.name: change for mutant, change, _ in outside}
        imported = [(mutant.name, mutant, by_file(tests)) for mutant, _, tests in outside]
        for outcome in run_all(imported, 1, options.limit, folder):
            keep(changes[outcome.name], outcome)
    (folder / "inside").mkdir()
    # A fork computes anew what tests before it had kept, so what the map says of seconds may be far too little: what
    # passed in half of the time was not seen, and a time-out is one of a test.
    seconds = options.limit / 2 if options.lines else options.budget
    planter = Planter(Slot(folder / "inside"), inside, options.limit, seconds, keep)
    enter(planter.slot.folder)
    files = dict.fromkeys(test.partition("::")[0] for _, _, tests in inside for test in tests)
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-s", f"--basetemp={folder / 'temporary'}", *files],
        [planter],
    )


def own_tests(mutant: Mutant) -> list[str]:
    """Where nothing is known of lines: those named for it, then its file's own."""
    try:
        return [*mutant.first, *tests_of(mutant.file)]
    except KeyError:  # those that import it
        module = "dpfedmeta." + mutant.file.removesuffix(".py").replace("/", ".")
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        return [str(file.relative_to(ROOT)) for file in files if module in file.read_text()]


def by_file(tests: Sequence[str]) -> list[tuple[str, ...]]:
    """The tests of each file together, in their order."""
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(test.partition("::")[0], []).append(test)
    return [tuple(each) for each in found.values()]


def tell(done: Sequence[tuple[Change, Outcome]]) -> None:
    """What was not seen, and the counts of each folder and kind."""
    for change, outcome in done:
        if outcome.verdict not in ("killed", "time-out"):
            print(f"\n{outcome.verdict}: {outcome.name}\n{change.old}->\n{change.new}", end="")
    for title, key in (("folder", lambda c: c.file.split("/")[0]), ("kind", lambda c: c.kind)):
        counts = Counter((key(change), outcome.verdict) for change, outcome in done)
        print(f"\n{title:22}{'made':>6}" + "".join(f"{verdict:>10}" for verdict in VERDICTS))
        for name in sorted({name for name, _ in counts}):
            of_it = [counts[name, verdict] for verdict in VERDICTS]
            print(f"{name:22}{sum(of_it):6}" + "".join(f"{count:10}" for count in of_it))


def main() -> int:
    """The number of mistakes that no test saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cover", nargs="+", metavar="TESTS", help="only write to --lines what these tests reach")
    parser.add_argument("--lines", nargs="+", type=Path, default=[], help="what --cover wrote; without, own tests run")
    parser.add_argument(
        "--written", nargs="+", metavar="NAMES", help="those of the catalogue that stand in functions, not rules"
    )
    parser.add_argument("--json", type=Path, help="where to write the outcomes, for run.py --go-on")
    parser.add_argument("--go-on", action="store_true", help="leave out the written ones that --json says were killed")
    parser.add_argument("--of", nargs="+", default=PROMISING, help="files or folders below dpfedmeta/")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="leave out so many of them, which ran before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for a mistake")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which its tests are ended")
    options = parser.parse_args()
    if options.cover:
        cover(options.cover, options.lines[0])
        return 0
    for name in HEAVY:
        importlib.import_module(name)
    done = list[tuple[Change, Outcome]]()
    before = killed_before(options)
    seen_by = {each.name: each.seen_by for each in before if (ROOT / each.seen_by.partition("::")[0]).is_file()}
    if not options.go_on:
        before = []

    def keep(change: Change, outcome: Outcome) -> None:
        done.append((change, outcome))
        words = f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {outcome.name}  {outcome.seen_by}"
        print(words, file=sys.__stderr__, flush=True)
        if options.json:
            options.json.write_text(
                json.dumps([vars(each) for each in (*before, *(one for _, one in done))], indent=1) + "\n"
            )

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        plant(options, Path(folder), {each.name for each in before}, seen_by, keep)
    tell(done)
    return sum(outcome.verdict in ("survived", "unreached") for _, outcome in done)


if __name__ == "__main__":
    try:
        sys.exit(min(main(), 1))
    except Stale as error:
        sys.exit(f"mutants: {error}")
