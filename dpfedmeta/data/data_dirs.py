"""Folder of the published data files on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_dir

from dpfedmeta.core.errors import InputError


def default_data_folder() -> Path:
    """DPFEDMETA_DATA, else the user's data folder."""
    named = os.environ.get("DPFEDMETA_DATA")
    return Path(named) if named else Path(user_data_dir("dpfedmeta"))


def check_data_folder(named: Path | None) -> None:
    """Refuse a folder that was named and is not there: a download would make it at a mistyped place.

    Raises:
        InputError: There is no such folder.
    """
    if named is not None and not named.is_dir():
        raise InputError(
            f"--data-dir {named}: there is no such folder; make it first, or name the folder that holds the archives"
        )
