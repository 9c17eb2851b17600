"""`make gpu`: all that is measured on a GPU, by one command; benchmarks/gpu.py says what.

This Python has PyTorch, and nothing is installed into it. What else is missing is taken from a folder of wheels (`make
gpu-wheels`), unpacked beside it for this command alone; without them the names are said. It needs nothing to start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What has to be importable, in the words of import.
NEEDED = (
    *("numpy", "scipy", "numba", "pydantic", "yaml", "PIL", "safetensors", "matplotlib", "jinja2", "rich", "requests"),
    *("platformdirs", "cryptography", "dp_accounting", "opacus", "pytest"),
)
# An editable installation's finder, for processes of this command: two packages lie beside the others.
FINDER = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path({root!r})


class Beside:
    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = {{"dpfedmeta": "dpfedmeta", "dpfedmeta.tasks": "tasks", "dpfedmeta.configs": "configs"}}.get(name)
        if folder is None:
            return None
        place = ROOT / folder
        return spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])


sys.meta_path.insert(0, Beside)
"""


def refuse(words: str) -> None:
    """One line, exit code 2."""
    print(f"error: {words}", file=sys.stderr)
    sys.exit(2)


def check_device(device: str) -> None:
    """Leave where there is no PyTorch, or no GPU that it sees."""
    if find_spec("torch") is None:
        refuse(f"{sys.executable} has no PyTorch; type: make gpu PYTHON=PYTHON_THAT_HAS_IT")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        refuse(f"PyTorch {torch.__version__} sees no CUDA device here; make gpu DEVICE=cpu runs the same at tiny sizes")


def unpacked(wheels: Path) -> Path:
    """A folder for PYTHONPATH, with what is missing and with this checkout's packages."""
    site = Path(tempfile.mkdtemp(prefix="dpfedmeta-gpu-"))
    (site / "sitecustomize.py").write_text(FINDER.format(root=str(ROOT)), encoding="utf-8")
    for archive in wheels.glob("learn2learn-*.tar.gz"):
        with tarfile.open(archive) as packed:
            own = [member for member in packed.getmembers() if member.name.split("/")[1:2] == ["learn2learn"]]
            packed.extractall(site / "sources", own, filter="data")
        (source,) = (site / "sources").iterdir()
        (source / "learn2learn").rename(site / "learn2learn")
    if find_spec("wandb") is None:
        # scripts/train.py asks for it. Nothing here logs to W&B, and its wheel is a third of a transfer.
        (site / "wandb.py").write_text('raise ImportError("make gpu logs nothing to W&B")\n', encoding="utf-8")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return site
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    quiet = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--disable-pip-version-check")
    if found:
        print(f"taken from {wheels}: {', '.join(missing)}", flush=True)
        install = [sys.executable, "-m", "pip", "install", "-q", *quiet, "--target", str(site), *found]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            refuse(f"pip cannot unpack {wheels}: {(done.stderr.strip().splitlines() or ['it does not say why'])[-1]}")
    sys.path.insert(0, str(site))
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        refuse(
            f"this Python lacks {', '.join(missing)}; fetch wheels where there is a network (make gpu-wheels) and put "
            f"them into {wheels}"
        )
    return site


def main() -> int:
    """Prepare, and hand over to benchmarks.gpu."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: the same at tiny sizes")
    made.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for JSON, PNG and log")
    made.add_argument("--carried", type=Path, default=ROOT / ".gpu", help="wheels/, and pieces of data archives")
    made.add_argument("--minutes", type=float, default=9.0, help="when all of it has ended (9)")
    made.add_argument("--parts", nargs="+", default=[], metavar="NAME", help="only the parts whose names begin so")
    options = made.parse_args()
    if not 0 < options.minutes <= 24 * 60:
        refuse(f"--minutes {options.minutes}: above 0, at most a day")
    check_device(options.device)
    site = unpacked(options.carried / "wheels")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    words = ["--device", options.device, "--out", str(options.out.resolve()), "--minutes", str(options.minutes)]
    carried = ["--carried", str(options.carried.resolve()), *(["--parts", *options.parts] if options.parts else [])]
    try:
        return subprocess.call([sys.executable, "-m", "benchmarks.gpu", *words, *carried], env=environment, cwd=ROOT)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
