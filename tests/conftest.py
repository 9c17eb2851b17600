import gc
import io
import logging
import os
import signal
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CellType, FunctionType

import pytest
import yaml
from _pytest import logging as captured

from dpfedmeta.__main__ import main

# PyTorch keeps to one thread, as the workers do. Tests that need it import it; a file of others takes 2 s.
os.environ["OMP_NUM_THREADS"] = "1"

THOROUGH = captured.catching_logs.__enter__
TINY = {
    "name": "tiny",
    "source": {"reader": "strokes", "seed": 1, "variation": 1.0},
    "split": {"train": 12, "val": 8, "test": 8},
    "image_size": 28,
    "channels": 1,
    "images_per_class": 20,
    "train_rotations": 4,
}


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a command leaves behind: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self):
        """The one line that says what is wrong; beside it only warnings, and that a slow machine is still reading."""
        lines = (line for line in self.err.splitlines() if not line.startswith("warning: "))
        (line,) = (line for line in lines if not line.endswith(" s so far"))
        return line


def dpfedmeta(*words, folder=None, code=0):
    """`dpfedmeta WORDS` typed in a folder, in this process: a start of one's own takes seconds.

    What escapes the command as anything but an exit code is a traceback to the user, and fails the test.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            redirect_stdout(io.StringIO()) as out,
            redirect_stderr(io.StringIO()) as err,
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            pytest.raises(SystemExit) as end,
        ):
            # A process prints warnings; here they are errors otherwise.
            warnings.simplefilter("always", UserWarning)
            if folder is not None:
                patch.chdir(folder)
            main([str(word) for word in words])
    finally:
        signal.signal(signal.SIGTERM, handler)
    left = Left(code=end.value.code, out=out.getvalue(), err=err.getvalue())
    assert left.code == code, left.out + left.err
    return left


@pytest.fixture(scope="session", name="dpfedmeta")
def the_command(own_cache):
    """The command as its function; see there."""
    return dpfedmeta


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Thousands of tests are no garbage: they are not searched while they are read (9 s instead of 16), nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Unless the test reads what was logged, pytest listens at the root alone.

    Six times a test it looks for loggers that keep to themselves, among the thousands of all libraries: a third of what
    a test costs besides itself.
    """
    if "caplog" in item.fixturenames:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured.catching_logs, "__enter__", _at_the_root)
        return (yield)


def _at_the_root(self):
    if self.level is not None:
        return THOROUGH(self)
    logging.getLogger().addHandler(self.handler)
    self.attached_loggers.append(logging.getLogger())
    return self.handler


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Folders of this session in the place of the user's cache and state.

    Workers share the cache: what one has drawn or decoded, the others read.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_CACHE", str(folder))
        patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def disk_is_not_waited_for():
    """Flushes guard against a machine that loses power, which no test has. They took a tenth of five folders' time.

    Tests of their order and of failing ones put a function of their own in the place of this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


# Folders and files whose tests end in reports and look at other things: pictures would be a sixth of the suite's time.
BESIDE = (
    "api",
    "auditing",
    "cli",
    "documentation",
    "examples",
    "faults",
    "federation",
    "golden",
    "integration",
    "planning",
    "seams",
    "simulation",
    "training",
    "test_page.py",
)


# Folders about what is done with a plan: what is computed of one is computed once.
SOLVED_ONCE = (
    "analytics", "api", "cli", "documentation", "examples", "faults",
    "federation", "integration", "privacy", "reporting", "simulation", "training",
)  # fmt: skip
PURE = (
    ("accounting.calibration", "calibrate"),
    ("analytics.analysis_request", "calibrate"),
    ("privacy.rounds.promise", "calibrate"),
    ("accounting.divergences.participation_counts", "mixture_epsilon"),
)

PATCHED = {"pictures": False, "quick": False, "solved": False}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Where the test is about something else: pictures of one point, and runs that do not measure how fast they are.

    For fixtures of its module and session too.
    """
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    quick = folder in BESIDE or item.path.name in BESIDE
    PATCHED["quick"] = quick and item.get_closest_marker("pictures") is None
    _measure_speed(not quick or item.get_closest_marker("speed") is not None)
    if PATCHED["quick"] and not PATCHED["pictures"]:
        _patch_pictures()
    PATCHED["solved"] = folder in SOLVED_ONCE
    keep_what_dp_accounting_computes()
    solve_once()


def _patch_pictures():
    from matplotlib.figure import Figure

    point = b"\x89PNG\r\n\x1a\n" + bytes.fromhex(
        "0000000d4948445200000001000000010800000000"
        "3a7e9b550000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
    )
    laid_out, saved = Figure.tight_layout, Figure.savefig
    Figure.tight_layout = lambda *given, **more: None if PATCHED["quick"] else laid_out(*given, **more)
    Figure.savefig = lambda figure, file, **more: file.write(point) if PATCHED["quick"] else saved(figure, file, **more)
    PATCHED["pictures"] = True


def _measure_speed(real):
    """Let runs measure their speed, or say 100 clients/s: it takes as long as two rounds, and most tests have few."""
    module = sys.modules.get("dpfedmeta.training.run_training")
    if module is not None:
        measured = sys.modules["dpfedmeta.training.throughput"].clients_per_second
        vars(module)["clients_per_second"] = measured if real else lambda *given: 100.0


KEPT = {}


def keep_what_dp_accounting_computes():
    """The same noises come back in hundreds of tests, and are a tenth of all their time: the same bits, kept.

    Where cohorts have a fixed size, the differences for one order are the first of those for a higher one.
    """
    rdp = sys.modules.get("dp_accounting.rdp.rdp_privacy_accountant")
    pld = sys.modules.get("dp_accounting.pld.privacy_loss_distribution")
    if rdp is not None and "rdp" not in KEPT:
        KEPT["rdp"] = vars(rdp)["_get_forward_diffs"]
        differences = lru_cache(maxsize=256)(lambda code, noise, orders: KEPT["rdp"](_of_noise(code, noise), orders))

        def first_differences(function, orders):
            (noise,) = function.__closure__
            most = next((most for most in (64, 256) if orders <= most), orders)
            return tuple(every[: orders + 2] for every in differences(function.__code__, noise.cell_contents, most))

        vars(rdp)["_get_forward_diffs"] = first_differences
    if pld is not None and "pld" not in KEPT:
        KEPT["pld"] = vars(pld)["from_gaussian_mechanism"]
        vars(pld)["from_gaussian_mechanism"] = lru_cache(maxsize=8)(KEPT["pld"])


def solve_once():
    """Noise and mixtures are functions of a plan, and take a fifth of the time of many folders."""
    for place in PURE:
        module = sys.modules.get(f"dpfedmeta.{place[0]}")
        if module is not None and place not in KEPT:
            KEPT[place] = vars(module)[place[1]]
            vars(module)[place[1]] = once(KEPT[place])


def once(function):
    kept = lru_cache(maxsize=4096)(function)

    def called(*given, **named):
        given = tuple(tuple(each) if isinstance(each, list) else each for each in given)
        try:
            hash((given, *named.items()))
        except TypeError:  # parts of one's own
            return function(*given, **named)
        return (kept if PATCHED["solved"] else function)(*given, **named)

    return called


def _of_noise(code, noise):
    """The function of dp-accounting for this noise."""
    return FunctionType(code, {}, closure=(CellType(noise),))


@pytest.fixture(scope="session")
def tiny_task_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def tiny_strokes(tiny_task_file, own_cache):
    from dpfedmeta.data.dataset import open_dataset

    return open_dataset(str(tiny_task_file))


@pytest.fixture(scope="session")
def data_folder():
    """The real images, for tests marked `data`."""
    named = os.environ.get("DPFEDMETA_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "omniglot").is_dir():
        pytest.skip("no real images: set DPFEDMETA_DATA to the folder with omniglot/")
    return folder


@pytest.fixture(scope="session")
def only_ours():
    """A check that passes on the product and fails on every planted mistake."""

    def check_all(check, ours, *planted):
        """The check passes on our code and fails on each planted mistake."""
        check(ours)
        for mistake in planted:
            with pytest.raises(AssertionError):
                check(mistake)

    return check_all
