"""Code of benchmarks/: a checkout has it, the installed package does not."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from dpfedmeta.core.errors import InputError

_ROOT = Path(__file__).parents[2]


def checkout_module(name: str, typed: str) -> ModuleType:
    """Import a module of benchmarks/.

    Args:
        name: Its full name.
        typed: What the user typed for it, for errors.

    Raises:
        InputError: This package is no checkout; says where the code is.
    """
    if not (_ROOT / f"{name.replace('.', '/')}.py").is_file():
        raise InputError(
            f"{typed}: is part of the repository and not of the installed package; get the repository, install it "
            f"with pip install -c constraints.txt -e ., and type the same there"
        )
    if str(_ROOT) not in sys.path[:1]:
        # First: other packages of this name may be installed.
        sys.path.insert(0, str(_ROOT))
    return import_module(name)
