"""Where published files lie."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_dir


def default_data_folder() -> Path:
    """DPFEDMETA_DATA, else the user's data folder."""
    named = os.environ.get("DPFEDMETA_DATA")
    return Path(named) if named else Path(user_data_dir("dpfedmeta"))
