"""The border between secret and released values, as imports: who may see what."""

import ast
import re
from collections import Counter
from functools import cache

import pytest

from tests.parsed import PACKAGE, modules, nodes_of, tree_of


@cache
def names_used(path):
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_the_seal_stays_inside_mechanisms():
    users = [p for p in modules() if "_SEAL" in names_used(p)]
    assert [p.name for p in users] == ["mechanisms.py"]


# Files that turn secret values into released ones, and where each release is compared with its charge.
RELEASING = {
    # The client level: by Journal.release.
    "privacy/mechanisms.py", "privacy/integer_mechanism.py", "privacy/noises/independent.py",
    "privacy/matrix_mechanism.py", "privacy/thresholded_counts.py", "analytics/secure_counts.py",
    # The record level: by ClientRunner, before a message leaves its client.
    "learning/record_dp/local_training.py", "learning/record_dp/moment_messages.py",
    "learning/record_dp/noisy_steps.py",
    "learning/record_dp/micro_episode_gradients.py",
    # The record level of a loop of one's own: by ClientRounds.message, for an attempt in the client's ledger.
    "federation/client_rounds.py",
    # No release: a copy of one for a clip policy, and made-up numbers to try a policy on.
    "privacy/clip_policies/policy_checks.py",
}  # fmt: skip
# Journal.release, which compares with the charge; UncheckedDoor, for clients that an audit makes up.
DOORS = {"privacy/rounds/round_journal.py": "Journal", "auditing/observed_loop.py": "UncheckedDoor"}


def users_of(*names):
    return {str(p.relative_to(PACKAGE)) for p in modules() if names_used(p) & {*names}}


def test_what_releases_is_known_and_comes_through_one_door():
    mechanisms = ("GaussianMechanism", "WholeNumberMechanism", "NoMechanism", "release_with", "post_process")
    assert users_of(*mechanisms) == RELEASING
    # Nobody draws the server's noise besides the door.
    assert users_of("SERVER_NOISE") == {"core/random/random_sources.py", "privacy/charged.py"}
    assert users_of("noise_of_attempt") == {*DOORS}
    for file, name in DOORS.items():
        found = [node for node in tree_of(PACKAGE / file).body if holds(node, "noise_of_attempt")]
        assert [node.name for node in found] == [name]
    assert users_of("UncheckedDoor") == {"auditing/observed_loop.py"}
    # Sums become releases where a door is at hand.
    assert users_of("release_sum") == {"privacy/rounds/charged_rounds.py", "training/loop.py"}
    assert users_of("Threshold") == {"analytics/analyses/heavy_hitters.py"}
    assert users_of("released_counts") == {"analytics/secure_counts.py"}
    # Clients are made in one place, with the noise that their messages have to state.
    assert users_of("record_noises") == {"simulation/client_runner.py", "training/build_data.py"}
    assert calls_of("ClientRunner") == {"training/build_data.py"}


def test_audits_open_nobodys_data():
    for path in (PACKAGE / "auditing").rglob("*.py"):
        assert not names_used(path) & {"open_dataset", "open_images", "Federation", "RealClient"}, path


def holds(node, name):
    return not isinstance(node, ast.ImportFrom) and name in {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name)
    }


def calls_of(name):
    found = set()
    for path in modules():
        calls = (node for node in nodes_of(path) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id == name for call in calls):
            found.add(str(path.relative_to(PACKAGE)))
    return found


DEFINED = re.compile(r"(?m)^\s*(?:def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ")


@cache
def known_names():
    """Every module and what it defines, by each ending of its dotted name; by lines, since trees take seconds."""
    found = set()
    for path in modules():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        inside = {match[1] or match[2] for match in DEFINED.finditer(path.read_text())}
        for start in range(len(parts)):
            module = ".".join(parts[start:])
            found |= {module, *(f"{module}.{name}" for name in inside)}
    exported = re.findall(r"\w+", (PACKAGE / "__init__.py").read_text())
    return found | {f"dpfedmeta.{name}" for name in exported}


@cache
def last_names():
    return {name.rpartition(".")[2] for name in known_names()}


NAMED = re.compile(r"(?<![\w./-])((?:dpfedmeta\.)?[a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w/-])")
# Dotted names that begin like a room and are settings.
SETTING = re.compile(r"(privacy\.(client|record|spent_before)|evaluation|data\.(to|cpu))\b")
FILE = re.compile(r"\.(json|jsonl|yaml|html|txt|csv|py|bin|md|npz|key|pem|log)$")


def prose_of(path):
    """Docstrings and comments of a module, or a page's text."""
    text = path.read_text()
    if path.suffix == ".md":
        return text
    return "\n".join([*re.findall(r'(?s)"""(.*?)"""', text), *re.findall(r"(?m)(?:^|\s)#\s(.*)$", text)])


def gone(text):
    """Names of modules, or of what is in one, that resolve to nothing."""
    rooms, known, defined = {room for rooms in ROOMS for room in rooms}, known_names(), last_names()
    for match in NAMED.finditer(text):
        name = match[1]
        first, last = name.removeprefix("dpfedmeta.").split(".")[0], name.rpartition(".")[2]
        named = name.startswith("dpfedmeta.") or first in rooms or ("_" in first and last in defined)
        of_class = name.rpartition(".")[0] if name.split(".")[-2][:1].isupper() else name
        exported = name.startswith("dpfedmeta.") and first not in rooms and f"dpfedmeta.{first}" in known
        if (
            named
            and not {name, of_class} & known
            and not exported
            and not SETTING.match(name)
            and not FILE.search(name)
        ):
            yield name


def written():
    pages = [*(PACKAGE.parent / "docs").glob("*.md"), PACKAGE.parent / "README.md"]
    return [*modules(), *sorted(pages)]


def test_every_module_that_prose_names_exists():
    found = {str(path.relative_to(PACKAGE.parent)): sorted({*gone(prose_of(path))}) for path in written()}
    assert not {path: names for path, names in found.items() if names}


def test_a_module_that_is_gone_would_be_seen():
    assert [*gone("see accounting.whole_noise, key_streams.for_message and dpfedmeta.nowhere.at_all")] == [
        "accounting.whole_noise", "key_streams.for_message", "dpfedmeta.nowhere.at_all",
    ]  # fmt: skip
    assert not [*gone("privacy.client.epsilon, accounting.calibration, keyed_streams.for_message, data.task.Task")]


def blind():
    rooms = [
        *sorted((PACKAGE / "privacy/clip_policies").glob("*.py")),
        *sorted((PACKAGE / "learning/server_optimizers").glob("*.py")),
        PACKAGE / "learning/server_step.py",
    ]
    after = ("tracking", "trackers", "terminal", "personal")
    folders = ("learning/evaluation", "reporting", *(f"training/{folder}" for folder in after))
    return rooms + [p for room in folders for p in sorted((PACKAGE / room).rglob("*.py"))]


@pytest.mark.parametrize("path", blind(), ids=lambda p: p.name)
def test_rooms_after_the_release_know_no_secret_values(path):
    assert not names_used(path) & {"Bounded", "Cohort", "Participations", "cohort_sum", "clipped_sum"}


def test_no_room_deserialises_code():
    for path in modules():
        used = names_used(path)
        if path.name == "safe_pickle.py":
            # Its own machine on top of the opcodes' names, which looks nothing up; what it refuses is tested beside it.
            assert not used & {"loads", "Unpickler", "exec", "eval"}, path
            continue
        # Ranks trust each other, and torch.distributed pickles what it sends (docs/cluster.md). Worker processes
        # are this process's own children, and Python's pools pickle what they send them too.
        trusted = (PACKAGE / "simulation/distributed/collective.py", PACKAGE / "core/worker_pool.py")
        pickles = {"pickle"} if path in trusted else set()
        assert not (used - pickles) & {"pickle", "unsafe_load", "full_load", "exec"}, path


# From the ground up: a room may use those below it, and nothing above it.
ROOMS = (
    ("core",),
    ("data",),
    ("config",),
    ("secure_aggregation",),
    ("accounting",),
    ("privacy",),
    ("learning",),
    ("planning",),
    ("simulation",),
    ("training",),
    ("analytics", "auditing", "reporting"),
    ("federation",),
    ("api",),
    ("cli",),
    ("__main__",),
)
# Nested in each member of a seam, so that the registry finds it.
MEMBERS_OWN = {"Settings"}
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def imports(path):
    """(what is imported, whether only where a function asks for it)."""
    for node in nodes_of(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from names


def room_of(module):
    return module.split(".")[1]


def place(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_room_has_its_place():
    assert {place(path) for path in modules()} - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("room", LEVEL)
def test_arrows_run_downwards(room):
    for path in modules():
        for name in imports(path) if place(path) == room else ():
            if name.startswith("dpfedmeta.") and name.split(".")[1] not in ("tasks", "configs"):
                assert room_of(name) == room or LEVEL[room_of(name)] < LEVEL[room], f"{path} imports {name}"


def public_classes(path):
    return [node.name for node in tree_of(path).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def test_nothing_is_loose_and_no_folder_is_crowded():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert len([path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]) <= 16
    counts = Counter(path.parent for path in modules())
    # Commands are found by name, one file each, and each is typed by itself.
    assert not {folder: count for folder, count in counts.items() if count > (14 if folder.name == "commands" else 12)}


def test_no_name_of_a_file_or_a_public_class_stands_twice():
    files = Counter(path.stem for path in modules() if path.stem != "__init__")
    assert not [name for name, count in files.items() if count > 1]
    classes = Counter(name for path in modules() for name in public_classes(path))
    assert not {name for name, count in classes.items() if count > 1} - MEMBERS_OWN


def test_an_arrow_upwards_would_be_seen(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text("def late():\n    from dpfedmeta.training import loop\n")
    assert [room_of(name) for name in imports(planted)] == ["training"]
    assert LEVEL["training"] > LEVEL["planning"]


@pytest.mark.parametrize("room", ["accounting", "secure_aggregation"])
def test_numbers_need_no_torch(room):
    for path in sorted((PACKAGE / room).rglob("*.py")):
        assert not {"torch", "opacus"} & {name.split(".")[0] for name in outside_functions(path)}, path


def outside_functions(path):
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
