"""Checks of the files that an option names for a picture or a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dpfedmeta.core.errors import InputError

PAGE_ENDINGS, PICTURE_ENDINGS = (".html",), (".png",)


def check_output(name: str, path: Path | None, endings: Sequence[str]) -> None:
    """Refuse a file that could not be written, or whose ending does not fit what is written.

    Args:
        name: The option, as it is typed.
        path: What it names; None: nothing is written.
        endings: Of what can be written, each with its dot.

    Raises:
        InputError: Says which endings there are, or what is wrong with the folder.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise InputError(f"{name} {path}: expected the name of a file that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise InputError(f"{name} {path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{name} {path}: there is no folder {path.parent}; make it, or name a file in another one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{name} {path}: no permission to write; name another file")
