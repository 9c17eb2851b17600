"""`make gpu`: everything that is measured on a GPU, in an order of worth, within a time by its own clock.

Each part is a process of its own with a share of the time. One that fails or runs late costs the others nothing, and
what there is so far stands in the folder after each part: gpu.json (all numbers), gpu.png, log.txt.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_plot import save_gpu_plot
from benchmarks.gpu_runs import RunPart, joined_archives, whole_runs
from benchmarks.results import read, write

ROOT = Path(__file__).parents[1]
# For the picture and for what ends late.
_AT_THE_END = 20.0
# How long a part that was asked to end may take for it.
_GRACE = 12.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is measured.

    Attributes:
        name: In JSON and log.
        words: What it does, for people.
        command: Behind the name of this Python; {most} stands for its seconds, {json} for its file.
        most: Seconds that it gets at most.
        least: With fewer seconds left it is not begun.
        absent: Why it cannot be done here; None: it can.
        found: What it found, from its file and the words that it printed.
        environment: Variables besides.
    """

    name: str
    words: str
    command: Sequence[str]
    most: float
    least: float
    absent: str | None = None
    found: Callable[[Path, str], Any] = lambda path, _: read(path)
    environment: Mapping[str, str] = field(default_factory=dict)


def parts(device: str, scratch: Path, data: Path | None) -> list[Part]:
    """In the order in which they are done.

    Args:
        device: cuda, or cpu: the same code at tiny sizes.
        scratch: For runs.
        data: Where the images are, or None.
    """
    small = device == "cpu"
    bench = ["scripts/bench.py", "--device", device, "--patient", "--json", "{json}", "--most", "{most}"]
    engines = [
        Part(
            name=f"engines, {setting}",
            words=f"scripts/bench.py --device: engines, precisions, divisions and peers at the setting {setting}",
            command=[*bench, "--setting", setting, "--seconds", "0" if small else "2"],
            most=most,
            least=1 if small else 25,
        )
        for setting, most in ([("tiny", 150.0)] if small else [("paper", 110.0), ("cifar-fs", 60.0)])
    ]
    tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_device*.py"))]
    chosen = ["-k", "tf32_is_on or hardware_lacks"] if small else []
    runs = [_run_part(run) for run in whole_runs(device, scratch, data)]
    return [
        Part(
            name="tests",
            words="the tests that compare devices (tests/**/test_device*.py)",
            command=["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *chosen, *tests],
            most=75.0,
            least=1 if small else 20,
            found=lambda _, printed: {"last_line": (printed.strip().splitlines() or [""])[-1]},
            environment={"DPFEDMETA_DATA": ""},
        ),
        Part(
            name="rounds",
            words="whole rounds of dp-agr, order 1 and 2, and what 400,000 second-order clients take",
            command=["-m", "benchmarks.device_rounds", "--device", device, "--json", "{json}",
                     "--most", "{most}", "--seconds", "0" if small else "4"],
            most=180.0 if small else 100.0,
            least=1 if small else 20,
        ),
        engines[0],
        *runs,
        *engines[1:],
    ]  # fmt: skip


def _run_part(run: RunPart) -> Part:
    return Part(
        name=run.name,
        words=run.words,
        command=run.command,
        most=run.most,
        least=run.least,
        absent=run.absent,
        found=lambda path, printed: run.found(),
        environment=run.environment,
    )


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When all of it has to have ended."""

    seconds: float
    begun: float

    @property
    def left(self) -> float:
        """Seconds until then, without those for the end."""
        return self.seconds - (time.monotonic() - self.begun) - _AT_THE_END


def measure(
    chosen: Sequence[Part], out: Path, clock: Clock, say: Callable[[str], None], about: Mapping[str, Any]
) -> dict[str, Any]:
    """All parts in turn; the folder holds what there is after each."""
    done: list[dict[str, Any]] = []
    found: dict[str, Any] = {**about, "parts": done}
    for part in chosen:
        why = part.absent
        if why is None and clock.left < part.least:
            why = f"{max(clock.left, 0.0):.0f} s were left, and it takes {part.least:.0f} at least"
        if why is not None:
            say(f"{part.name}: skipped: {why}")
            done.append({"name": part.name, "ended": "skipped", "why": why, "seconds": 0.0, "found": None})
        else:
            say(f"{part.name}: at most {min(part.most, clock.left):.0f} s")
            done.append(_done(part, out, min(part.most, clock.left)))
            say(f"{part.name}: {done[-1]['ended']} after {done[-1]['seconds']:.0f} s")
        write(out / "gpu.json", found)
    try:
        save_gpu_plot(out / "gpu.png", found)
    except Exception as error:
        # The numbers are worth more than their picture.
        say(f"no picture: {type(error).__name__}: {error}")
    return found


def _done(part: Part, out: Path, most: float) -> dict[str, Any]:
    begun, path = time.monotonic(), Path(tempfile.mkdtemp(prefix="dpfedmeta-part-")) / "found.json"
    # A part that minds its time itself is left a little of it for its end.
    words = [word.format(most=max(most - 8.0, 0.6 * most), json=path) for word in part.command]
    environment = {**os.environ, **part.environment}
    with (out / "log.txt").open("a+", encoding="utf-8") as log:
        log.write(f"\n== {part.name}: {' '.join(words)}\n")
        log.flush()
        start = log.tell()
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        ended = _ended(process, most)
        log.seek(start)
        printed = log.read()
    try:
        found = part.found(path, printed)
    except Exception as error:
        found, ended = None, f"{ended}; what it left cannot be read: {type(error).__name__}: {error}"
    shutil.rmtree(path.parent, ignore_errors=True)
    return {"name": part.name, "ended": ended, "seconds": time.monotonic() - begun, "found": found}


def _ended(process: subprocess.Popen[bytes], most: float) -> str:
    """How a part ended; out of time it is asked to end by Ctrl-C, and ended after that."""
    try:
        code = process.wait(most)
        return "done" if code == 0 else f"failed with exit code {code}; see log.txt"
    except subprocess.TimeoutExpired:
        pass
    except BaseException:
        _stop(process)
        raise
    _stop(process)
    return "out of time"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def machine(device: str) -> dict[str, Any]:
    """What it was measured on, and with."""
    import numpy
    import torch

    from dpfedmeta.core.provenance import made_by

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "code": made_by(),
    }
    if device == "cuda":
        own = torch.cuda.get_device_properties(0)
        found |= {"gpu": own.name, "memory_mb": own.total_memory / 2**20, "capability": f"{own.major}.{own.minor}"}
    return found


def main() -> int:
    """Say what will be done, do it, and say where it is."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--minutes", type=float, default=9.0)
    made.add_argument("--carried", type=Path, default=ROOT / ".gpu")
    made.add_argument("--parts", nargs="+", default=[])
    options = made.parse_args()
    clock = Clock(seconds=60.0 * options.minutes, begun=time.monotonic())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "log.txt").write_text("", encoding="utf-8")

    def say(text: str) -> None:
        print(text, flush=True)
        with (options.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    with tempfile.TemporaryDirectory(prefix="dpfedmeta-gpu-") as scratch:
        data = joined_archives(options.carried, Path(scratch) / "data")
        known = parts(options.device, Path(scratch), data)
        chosen = [part for part in known if not options.parts or part.name.startswith(tuple(options.parts))]
        if not chosen:
            say(f"error: --parts {' '.join(options.parts)}: the parts are {'; '.join(part.name for part in known)}")
            return 2
        say(f"{len(chosen)} parts in at most {options.minutes:g} minutes; numbers, picture and log go to {options.out}")
        for part in chosen:
            say(f"  {part.name}: {part.words}" + (f" (not here: {part.absent})" if part.absent else ""))
        found = measure(chosen, options.out, clock, say, {"machine": machine(options.device)})
    failed = [part["name"] for part in found["parts"] if part["ended"].startswith("failed")]
    say(f"written: {options.out / 'gpu.json'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
