"""Flower, as it has to be set before it is imported: it calls nobody, writes where we say, and stays quiet."""

import logging
import os
import tempfile
from pathlib import Path

from dpfedmeta.core.errors import InputError

TESTED = "1.42"
# The longest message either way, with what Flower puts around it: a model of 8 million double weights.
MOST_BYTES = 2**26
# Flower's own words around one object.
ROOM_BYTES = 2**12
# What we call our messages; Flower wants "train", "query" or "evaluate" before the dot.
KIND, RECORD, FIELD = "query.dpfedmeta", "dpfedmeta", "message"
# Header of a client whose heartbeats wait longer than Flower's own.
PATIENT = "dpfedmeta-patient"
# How the words begin in which a server refuses a request that is too old or too new.
CLOCK = "this machine's clock"


def prepare_flower(folder: Path | None = None) -> None:
    """Call before anything of `flwr` is imported.

    Args:
        folder: Where Flower may keep what it writes (FLWR_HOME); None: a folder of this process that nobody looks at.

    Raises:
        InputError: Flower is not installed, or not the one that this was tested with.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    if folder is None and "FLWR_HOME" not in os.environ:
        folder = Path(tempfile.gettempdir()) / f"dpfedmeta-flower-{os.getuid()}"
    if folder is not None:
        os.environ["FLWR_HOME"] = str(folder)
    check_flower()
    # What goes wrong is an exception or an absent answer; requests that fail are no news to an operator.
    for name in ("flwr", "uvicorn", "asyncio", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").addHandler(logging.NullHandler())
    logging.getLogger("uvicorn.error").propagate = False


def check_flower() -> None:
    """Check that the installed Flower is the version that this was tested with.

    Code that runs inside a process of Flower's own calls only this, in place of `prepare_flower`.

    Raises:
        InputError: Flower is not installed, or not the version that this was tested with.
    """
    try:
        from flwr.supercore.version import package_version
    except ImportError:
        raise InputError("Flower is not installed; type: pip install -c constraints.txt -e '.[federation]'") from None
    if not package_version.startswith(f"{TESTED}."):
        raise InputError(
            f"Flower {package_version} is installed, but dpfedmeta needs Flower {TESTED}; type: "
            f"pip install 'flwr=={TESTED}.*'"
        )
