"""Which files of its folder a client takes part with. Needs no PyTorch: a wrong folder is refused at once."""

from __future__ import annotations

from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.user_sources.image_files import check_all_read, check_none_deeper, image_files
from dpfedmeta.data.user_sources.image_folder import class_folders


def chosen_files(folder: Path) -> list[tuple[Path, list[Path]]]:
    """The class folders that a client takes part with, and their images; none is read.

    Raises:
        InputError: No such folder, or none with images.
    """
    if folder.is_dir():
        check_all_read(folder)
    found = class_folders(folder)
    chosen = [(inside, image_files(inside)) for inside in found.get("train", found.get(None, []))]
    if not chosen:
        raise InputError(f"{folder}: has no class folder with images in its train part")
    check_none_deeper(folder, [file for _, own in chosen for file in own])
    return chosen
