"""A new folder of files, written whole or not at all."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dpfedmeta.core.files.atomic_files import PUBLIC, SECRET, replace_file, sync_folder


def write_folder(path: Path, contents: Mapping[str, bytes], mode: int = PUBLIC) -> None:
    """Write a new folder, whole or not at all; a secret one is its user's alone.

    Args:
        path: Its name, which nothing has yet.
        contents: Files by their paths in it.
        mode: Of each file.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    if staged.exists():  # of a killed process with this number: in a container each start has the same
        shutil.rmtree(staged)
    try:
        staged.mkdir(mode=0o700 if mode == SECRET else 0o777)
        for name, content in contents.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(staged / name, content, mode)
        staged.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
