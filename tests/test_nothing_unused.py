"""Whatever is imported, defined or handed in is used: a call that was lost leaves a name behind that nobody needs."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache

from tests.parsed import PACKAGE, modules, nodes_of, tree_of

# Used from outside: by programs of users, the examples, the documentation's generator, and tests of what it is for.
DOORS = {
    "accounting/divergences/pld_composition.py forget", "cli/commands/federate_command.py parsers_of",
    "config/presets.py claimed_of", "data/populations/from_pairs.py from_torchmeta",
    "data/populations/from_pairs.py from_learn2learn", "federation/flower/flower_apps.py server_app",
    "federation/flower/flower_apps.py client_app", "federation/flower/private_strategy.py clip_mod",
    "learning/meta/inner_loop.py adapted_logits",
}  # fmt: skip
# Functions that stand in a table beside others, which need what these do not.
ONE_OF_A_TABLE = {
    "auditing/attacks/server_attack.py the_message", "cli/commands/evaluate_command.py on_workers",
    "data/user_sources/folder.py people", "data/user_sources/manifest.py people", "data/user_sources/tokens.py people",
    "data/user_sources/folder.py remarks", "data/user_sources/manifest.py remarks",
    "data/user_sources/tokens.py remarks",
    "data/user_sources/tokens.py key", "data/user_sources/vectors.py people", "data/user_sources/vectors.py key",
    "simulation/cohort_sums.py added_up", "cli/arguments.py _interrupt",
}  # fmt: skip
# Options that a call leaves out although a parameter or attribute of its own has their name, with the reason.
LEFT_OUT = {
    ("api/evaluate.py", "evaluations", "workers"): "they stand in the request",
    ("api/train.py", "RunOptions", "extend_to"): "given where it is known, below",
    ("api/train.py", "RunOptions", "population"): "given where it is known, below",
    ("api/train.py", "RunOptions", "resume"): "given where it is known, below",
    ("api/train.py", "RunOptions", "secure_rng"): "given where it is known, below",
    ("data/storage/decoded_cache.py", "_write_whole", "before"): "the one of a folder, not of a file",
    ("data/task.py", "RecordForm", "missing"): "only tables have some",
    ("training/personal/user_inputs.py", "RecordForm", "missing"): "of what a network takes, which misses nothing",
    ("data/task.py", "RecordForm", "targets"): "features of an encoder and images are no numbers to predict from",
    ("data/task.py", "RecordForm", "vocabulary"): "only sequences have one",
    ("learning/models/spec.py", "RecordForm", "vocabulary"): "only sequences have one",
    ("federation/pre_flight.py", "ClientLedger", "change"): "of a new ledger, which has no limit to change",
    ("federation/server/training_server.py", "ClientRequests", "blamed"): "set when the run is known",
    ("learning/algorithms/moments.py", "DataNeeds", "layout"): "records of a fixed shape have none",
    ("learning/record_dp/shared_moments.py", "MomentBlock", "labels"): "the block of all records",
    ("learning/record_dp/shared_moments.py", "MomentBlocks", "labels"): "numbers to predict have none",
    ("planning/network_trial/device_test.py", "RehearsedClients", "device"): "the trial compares with the CPU",
    ("planning/network_trial/pretraining_overlap.py", "load_task", "data_folder"): "a published task has no folder",
    ("planning/privacy/solve.py", "most_rounds", "limit"): "another limit: an epsilon",
    ("privacy/rounds/charged_rounds.py", "new_source", "secure_rng"): "with a seed there is none",
    ("privacy/rounds/cohort_log.py", "Participations", "cohorts"): "they are checked one after the other",
    ("secure_aggregation/simulated_round.py", "sum", "run"): "the name of the run, not who computes",
    ("simulation/distributed/launch.py", "Launch", "timeout"): "of the start alone",
}
# A cohort is drawn once, and its attempt is added where it is charged.
LEFT_OUT |= {
    (f"privacy/samplers/{name}_sampler.py", "Cohort", "again"): "added where the attempt is charged"
    for name in ("check_ins", "cyclic", "fixed", "poisson")
}


@cache
def files():
    own = [path for path in modules() if path.relative_to(PACKAGE).parts[0] not in ("configs", "tasks")]
    return {str(path.relative_to(PACKAGE)): path for path in own}


@cache
def trees():
    return {file: tree_of(path) for file, path in files().items()}


@cache
def nodes():
    return {file: nodes_of(path) for file, path in files().items()}


@cache
def read_in(file):
    """Names that are read, attributes, and the words of short texts (annotations and names of members)."""
    found = set()
    for node in nodes()[file]:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            found.update(re.findall(r"\w+", node.value))
    return found


@cache
def read_anywhere():
    imported = {
        alias.name
        for own in nodes().values()
        for node in own
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return imported.union(*map(read_in, nodes()))


def test_every_import_is_used():
    unused = []
    for file, own in nodes().items():
        if file.endswith("__init__.py"):
            continue  # what a package offers
        known = read_in(file)
        for node in own:
            if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
                names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
                unused += [f"{file} {name}" for name in sorted(names - known)]
    assert not unused


def names_of(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_whatever_is_defined_is_used():
    """A function, class or constant of a module, and a method whose name says that it is the class's own."""
    unused = set()
    for file, tree in trees().items():
        private = [
            node.name
            for node in nodes()[file]
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.endswith("__")
        ]
        names = [name for node in tree.body for name in names_of(node) if not name.startswith("__")] + private
        unused |= {f"{file} {name}" for name in names if name not in read_anywhere()}
    assert unused == DOORS


def test_every_parameter_of_a_function_is_used():
    unused = set()
    for file, tree in trees().items():
        for node in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            used = {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
            if any(arg.arg not in used and not arg.arg.startswith("_") for arg in given):
                unused.add(f"{file} {node.name}")
    assert unused - {"core/random/noise_jit.py _at_the_edge"} == ONE_OF_A_TABLE


def fields_of(node):
    return [
        part
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
        and not (part.value is not None and "init=False" in ast.unparse(part.value))
    ]


def signature(node, method):
    """(names by position, those with a default) of a function or method."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    optional = {*names[len(names) - len(node.args.defaults) :]} if node.args.defaults else set()
    optional |= {
        arg.arg for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if default is not None
    }
    static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
    return names[method and not static :], optional


@cache
def signatures():
    """Of every function and class of the package whose name only one has."""
    found = defaultdict(list)
    for own_nodes in nodes().values():
        methods = set()
        for node in own_nodes:
            if isinstance(node, ast.ClassDef):
                own = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                methods |= {*own}
                for part in own:
                    if part.name == "__init__" or not part.name.startswith("__"):
                        found[node.name if part.name == "__init__" else part.name].append(signature(part, True))
                if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                    parts = fields_of(node)
                    names = [part.target.id for part in parts]
                    found[node.name].append((names, {part.target.id for part in parts if part.value is not None}))
            elif isinstance(node, ast.FunctionDef) and node not in methods:
                found[node.name].append(signature(node, False))
    return {name: each[0] for name, each in found.items() if len(each) == 1}


def calls(node, scope=frozenset()):
    """(call, names of parameters and of one's own fields at it)."""
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.FunctionDef):
            given = (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs)
            inner = scope | {arg.arg for arg in given}
        elif isinstance(child, ast.ClassDef):
            inner = frozenset(part.target.id for part in fields_of(child))
        if isinstance(child, ast.Call):
            yield child, inner
        yield from calls(child, inner)


def name_called(node):
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def test_an_option_whose_value_is_at_hand_is_handed_on():
    """A value that never arrives: the call works, with the default."""
    left_out, known = Counter(), signatures()
    for file, tree in trees().items():
        for call, scope in calls(tree):
            name, given = name_called(call.func), call.args
            if name == "partial" and given:
                name, given = name_called(given[0]), given[1:]
            keys = {key.arg for key in call.keywords}
            if name not in known or None in keys or any(isinstance(each, ast.Starred) for each in given):
                continue
            names, optional = known[name]
            for option in (optional - keys - {*names[: len(given)]}) & scope:
                left_out[file, name, option] += 1
    assert left_out.keys() == LEFT_OUT.keys()
