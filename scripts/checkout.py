"""What the scripts beside it share: each is a command of the package, called from a checkout."""

import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def command(name: str) -> None:
    """`dpfedmeta NAME ...`, with the words behind the script's name."""
    try:
        check_python()
        check_installed()
        from dpfedmeta.__main__ import main

        main([name, *sys.argv[1:]])
    except KeyboardInterrupt:
        # Before main can say it.
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


def check_python() -> None:
    """Leave where this Python is too old: no installation helps."""
    if sys.version_info < (3, 11):  # noqa: UP036
        found = "{} is {}.{}".format(sys.executable, *sys.version_info[:2])
        words = "dpfedmeta needs Python 3.11 or later"
        print(f"error: {words}, and {found}; docs/how-to/install.md says how to get it", file=sys.stderr)
        sys.exit(2)


def check_installed() -> None:
    """Leave, with what to type, where this Python has no dpfedmeta."""
    if find_spec("dpfedmeta") is None:
        pip = f"{sys.executable} -m pip install -c {ROOT / 'constraints.txt'} -e {ROOT}"
        sys.exit(f"error: dpfedmeta is not installed for this Python; type: {pip}")
