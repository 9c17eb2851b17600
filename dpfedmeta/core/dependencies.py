"""Check for missing dependencies, with the command that installs them; imports only the standard library."""

import sys
from importlib.util import find_spec
from pathlib import Path

# A module of each package in setup.cfg's install_requires.
_NEEDED = (
    "torch", "opacus", "dp_accounting", "wandb", "numpy", "scipy", "pydantic", "yaml", "PIL", "safetensors",
    "matplotlib", "jinja2", "markupsafe", "rich", "requests", "platformdirs", "numba", "cryptography", "cloudpickle",
)  # fmt: skip
# Of models that are a matrix a command needs neither; of others it checks again.
_SPARED = {"predict": ("torch", "opacus")}


def missing() -> list[str]:
    """Return the modules that dpfedmeta imports and this Python lacks."""
    return [name for name in _NEEDED if find_spec(name) is None]


def remedy() -> str:
    """Return the install command: in a checkout with its constraints, and with a note on leaving CUDA out."""
    root, python = Path(__file__).parents[2], sys.executable
    if not (root / "constraints.txt").exists():
        return f"type: {python} -m pip install dpfedmeta"
    pip = f"{python} -m pip install -c {root / 'constraints.txt'} -e {root}"
    return f"type: {pip} (or make demo in {root}; on Linux with TORCH=cpu, which keeps CUDA out)"


def check_dependencies(command: str = "") -> None:
    """Leave in one line where something is missing that a command always needs: a checkout that was never installed."""
    lacking = [name for name in missing() if name not in _SPARED.get(command, ())]
    if lacking:
        what = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        print(f"error: dpfedmeta is not installed for this Python: it lacks {what}; {remedy()}", file=sys.stderr)
        sys.exit(2)
