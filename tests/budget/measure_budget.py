"""The numbers of the budget: how much there is of the package, and how much of it a run needs.

    python tests/budget/measure_budget.py                    # the table, and what is now
    python tests/budget/measure_budget.py --write [NAME ...] # today's numbers into budget.yaml: all, or those named
    python tests/budget/measure_budget.py --write --headroom 2   # with 2% of room

The commit that raises a number says why.
"""

import argparse
import ast
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.budget.probe import HOOK  # noqa: E402
from tests.parsed import PACKAGE, modules, nodes_of  # noqa: E402

FILE = Path(__file__).with_name("budget.yaml")
HEAD = """\
# What the package may come to: tests/budget/test_budget.py holds every number, and measure_budget.py says how each is
# counted. A number is raised only in a commit that says why:
#
#     python tests/budget/measure_budget.py --write "lines of data"
#
# Medians and means may not fall: many small functions and files are what a reader has to hold together. Below the
# numbers stand the imports of a feature's file by files of the core; there may be fewer. CPU seconds to the first
# release are timings, so no test holds them, but the calls before it. python -m benchmarks.first_release: 12.2 (10.9 to
# 12.7) on two cores shared with others, at commit 65207be9.
"""
# Files that `train` on published data does not need, by path below the package: the first pattern that fits names the
# feature. All others are the core.
FEATURES = {
    "real federation": r"^federation/|plan_sites|server_arguments|commands/federate|client_ledger|client_inspection|"
    r"participation_cost",
    "analytics": r"^analytics/|analyse_command|thresholded",
    "own loop": r"rounds/(private|promise|round_sum|verify)",
    "secure sums": r"^secure_aggregation/|protocol_rounds|aggregations/secure|masking_graph|secure_sum|secure_round|"
    r"integer_sum|discrete_|concentrated|sum_cost",
    "auditing": r"^auditing/|api/audit|audit_command",
    "verification": r"verification/|verify|account_of_runs|run_statement|cli/papers|dp_events|other_accountants|"
    r"population_statement|results/snapshot",
    "sweeps, private selection": r"sweeps/|sweep_command|private_selection",
    "registers": r"population_register|registered_budget|prior_spending|state/extend",
    "correlated noise, turns": r"toeplitz|matrix_mechanism|correlated_cost|noises/(blt|banded)|"
    r"participation_(pattern|ledger)|cyclic_sampler|compare_noises|cli/advise",
    "check-ins": r"check_ins|random_allocation|replaced_allocation|allocated_cost",
    "own data": r"user_sources/|data/(inspection|names|parts|repeated)|populations/(from_|capacity)|task_file|"
    r"check_task|image_codecs|user_inputs|solved_model",
    "whole clients, people, targets": r"whole|people|own_records|own_test|targets|target_kind|held_out_clients|natural",
    "encoders": r"data/encoders|adapters|encode_command|pretraining_overlap|prototype_gradients",
    "ranks and GPU": r"simulation/distributed|gpu_batches|gpu_sampling|device_test",
    "kernels": r"kernels/|layers/(conv|norm)|partwise|_jit|core/jit",
    "trials of networks": r"network_trial|user_modules|data_digests",
}
# Where lines could move to from the package, and what of it is no Python.
BESIDE = {
    "benchmarks": ("benchmarks/**/*.py",),
    "examples": ("examples/**/*.py",),
    "scripts": ("scripts/**/*.py",),
    "tables": ("configs/**/*.yaml", "tasks/**/*.yaml"),
    "templates": ("dpfedmeta/**/*.j2", "dpfedmeta/**/*.html", "dpfedmeta/**/*.css", "dpfedmeta/**/*.yaml"),
}
# The runs of probe.py.
LOADED = {"dp-agr": "dp-agr", "dp-agrlr-secure": "dp-agrlr-secure", "client": "a real client"}


@cache
def lines_of(path):
    return Path(path).read_bytes().count(b"\n")


def feature_of(file):
    """The feature that a file below the package belongs to; None: the core."""
    return next((name for name, pattern in FEATURES.items() if re.search(pattern, file)), None)


def inside(path):
    return path.relative_to(PACKAGE).as_posix()


@cache
def by_name():
    """Files by the dotted names of their modules."""
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in modules()}


def named(path, nodes, name_of):
    """Dotted names that a file imports, wherever it does, but for those that only a type checker reads."""
    typed = [n for n in nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    unread = {each for block in typed for each in ast.walk(block)}
    for node in nodes:
        if isinstance(node, ast.Import) and node not in unread:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in unread:
            own = name_of(path).split(".")
            base = own[: len(own) - node.level + (path.name == "__init__.py")] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def arrows_of(path, nodes=None):
    """Files of features that a file of the core imports."""
    known = by_name()
    names = named(path, nodes_of(path) if nodes is None else nodes, lambda p: next(n for n in known if known[n] == p))
    files = {known.get(name) or known.get(name.rpartition(".")[0]) for name in names} - {None}
    return sorted(file for file in map(inside, files) if feature_of(file))


def arrows():
    """By file of the core."""
    found = {inside(path): arrows_of(path) for path in modules() if not feature_of(inside(path))}
    return {file: targets for file, targets in found.items() if targets}


def functions():
    """Lines of each function, with what stands inside it."""
    every = (node for path in modules() for node in nodes_of(path))
    return [n.end_lineno - n.lineno + 1 for n in every if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def sizes():
    """What is counted in the source."""
    rooms, sizes_of = {}, {path: lines_of(path) for path in modules()}
    for path, lines in sizes_of.items():
        room = path.relative_to(PACKAGE).parts[0]
        room = "the root" if room.endswith(".py") else room
        rooms[room] = rooms.get(room, 0) + lines
    for name, patterns in BESIDE.items():
        files = (file for pattern in patterns for file in ROOT.glob(pattern))
        rooms[name] = sum(lines_of(file) for file in files)
    lengths = functions()
    return {
        **{f"lines of {room}": lines for room, lines in rooms.items()},
        "lines of the package": sum(sizes_of.values()),
        "lines of the core of it": sum(n for path, n in sizes_of.items() if not feature_of(inside(path))),
        "files": len(sizes_of),
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
        "mean lines of a function": round(statistics.mean(lengths), 2),
        "median lines of a file": statistics.median(sizes_of.values()),
    }


def probed(*options):
    """What probe.py prints, run with nobody's caches and state."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        own = {f"DPFEDMETA_{place}": str(folder / place.lower()) for place in ("CACHE", "STATE")}
        path = os.pathsep.join([str(folder / "hook"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "tests.budget.probe", name, *options],
            env={**os.environ, **own, "PYTHONPATH": path, "BUDGET_PACKAGE": str(PACKAGE), "OMP_NUM_THREADS": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def needs(found):
    """What is counted in what probe.py notes."""
    counted = {
        "functions of a round of dp-agr": len(found["round"]),
        "files of a round of dp-agr": len({function.split()[0] for function in found["round"]}),
        "calls of dp-agr before the first release": found["calls"],
    }
    for run, words in LOADED.items():
        counted[f"files that {words} loads"] = len(found[run])
        counted[f"lines that {words} loads"] = sum(map(lines_of, found[run]))
    return counted


def recorded():
    return yaml.safe_load(FILE.read_text())


def broken(limits, counted):
    """A sentence for each number that left the table."""
    for name, found in counted.items():
        falls, limit = is_floor(name), limits.get(name)
        if limit is None:
            yield f"{name}: {found}, and tests/budget/budget.yaml says nothing of it. {_to_do(name)}"
        elif (found < limit) if falls else (found > limit):
            word = "at least" if falls else "at most"
            yield f"{name}: {word} {limit} in tests/budget/budget.yaml, now {found}. {_to_do(name)}"


def is_floor(name):
    """True if a number may not fall; others may not rise."""
    return name.startswith(("median", "mean"))


def _to_do(name):
    return (
        "Take away as much elsewhere; or type python tests/budget/measure_budget.py --write "
        f'"{name}" and say why in the commit'
    )


def new_arrows(known, found):
    """A sentence for each import of a feature by the core that the table has not."""
    for file, targets in found.items():
        for target in sorted({*targets} - {*known.get(file, ())}):
            yield (
                f"{file} is core and imports {target}, which is of {feature_of(target)}. Let the feature be found by "
                "its registry; or type python tests/budget/measure_budget.py --write arrows and say why in the commit"
            )


def with_room(name, number, percent):
    if is_floor(name):
        return math.floor(number * (100 - percent)) / 100
    return math.ceil(number * (100 + percent) / 100)


def main():
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--write", nargs="*", metavar="NAME", help="write today's numbers: all, or those named")
    parsed.add_argument("--headroom", type=float, default=0.0, metavar="PERCENT", help="room above them")
    given = parsed.parse_args()
    table, counted = recorded() if FILE.exists() else {"numbers": {}, "arrows": {}}, {**sizes(), **needs(probed())}
    unknown = {*(given.write or ())} - {*counted, "arrows"}
    if unknown:
        parsed.error(f"no number is called {', '.join(sorted(unknown))}; they are arrows, {', '.join(counted)}")
    for name, found in counted.items():
        was = table["numbers"].get(name)
        if given.write is not None and (not given.write or name in given.write):
            table["numbers"][name] = with_room(name, found, given.headroom)
        now = table["numbers"].get(name)
        print(f"{name}: {found}, allowed {was}" + (f" -> {now}" if now != was else ""))
    imported = arrows()
    print(
        f"imports of a feature by the core: {sum(map(len, imported.values()))}",
        *new_arrows(table["arrows"], imported),
        sep="\n",
    )
    if given.write is not None:
        if not given.write:
            table["numbers"] = {name: table["numbers"][name] for name in counted}
        if not given.write or "arrows" in given.write:
            table["arrows"] = imported
        numbers = yaml.safe_dump({"numbers": table["numbers"]}, sort_keys=False)
        imports = yaml.safe_dump({"arrows": table["arrows"]}, width=110, default_flow_style=None)
        FILE.write_text(HEAD + numbers + imports)


if __name__ == "__main__":
    main()
