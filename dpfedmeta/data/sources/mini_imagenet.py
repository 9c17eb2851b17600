"""Mini-ImageNet in the forms in which it goes round: lists with images in a folder or zip, and pickle caches."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding, read_text
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents, Split, check_classes
from dpfedmeta.data.storage.image_codecs import member_image, open_zip, resized
from dpfedmeta.data.storage.safe_pickle import forget_pages, load_pickle
from dpfedmeta.data.user_sources.image_folder import read_image

# The published lists name 600 images of each class; where not all of them are there, lists beside the images say which.
_FULL_LISTS = "ravi-larochelle"
_PICKLES: tuple[dict[Split, str], ...] = (
    {split: f"mini-imagenet-cache-{split}.pkl" for split in SPLITS},
    {
        "train": "mini-imagenet-cache-train.pkl",
        "val": "mini-imagenet-cache-validation.pkl",
        "test": "mini-imagenet-cache-test.pkl",
    },
    {
        "train": "miniImageNet_category_split_train_phase_train.pickle",
        "val": "miniImageNet_category_split_val.pickle",
        "test": "miniImageNet_category_split_test.pickle",
    },
)
_BLOCK = 100


@dataclass(frozen=True, kw_only=True)
class Form:
    """Which form lies in the folder.

    Attributes:
        kind: Lists and images, or pickle caches.
        folder: Where.
        files: Every file that the content depends on (the folder of images counts by its lists).
        images: images.zip, or the folder images/.
    """

    kind: Literal["lists", "pickles"]
    folder: Path
    files: tuple[Path, ...]
    images: Path | None = None


def find_form(folder: Path) -> Form:
    """Find the form in which mini-ImageNet is stored in a folder; lists with images come before pickle caches.

    Raises:
        InputError: Neither form is there; the message says which files to put where.
    """
    lists = tuple(
        path
        for name in (_FULL_LISTS, "")
        if all((folder / name / f"{split}.csv").is_file() for split in SPLITS)
        for path in (folder / name / f"{split}.csv" for split in SPLITS)
    )
    if lists and (folder / "images.zip").is_file():
        archive = folder / "images.zip"
        return Form(kind="lists", folder=folder, files=(archive, *lists), images=archive)
    if lists and (folder / "images").is_dir():
        return Form(kind="lists", folder=folder, files=lists, images=folder / "images")
    for names in _PICKLES:
        pickles = tuple(folder / names[split] for split in SPLITS)
        if all(path.is_file() for path in pickles):
            return Form(kind="pickles", folder=folder, files=pickles)
    caches = ", ".join(_PICKLES[0][split] for split in SPLITS)
    raise InputError(
        f"{folder}: mini-ImageNet not found, and its terms allow no download from here; put train.csv, val.csv and "
        f"test.csv with images.zip or images/ into it, or {caches} (--data-dir or DPFEDMETA_DATA names the folder "
        "above it)"
    )


def contents(form: Form, splits: Mapping[str, Split], size: int) -> Contents:
    """The classes with the images that are there.

    Args:
        form: What `find_form` found.
        splits: From WordNet number to split.
        size: Height and width to resize to.

    Raises:
        InputError: A list names images that are missing, a class stands in a wrong or in two splits, a file is damaged.
    """
    return _listed(form, splits, size) if form.kind == "lists" else _pickled(form, splits, size)


def _check(where: str, classes: tuple[ClassEntry, ...], splits: Mapping[str, Split]) -> None:
    check_classes(where, classes)
    for entry in classes:
        if splits.get(entry.name) != entry.split:
            expected = splits.get(entry.name, "none of its classes")
            raise InputError(
                f"{where}: class {entry.name} stands in the {entry.split} split, the task has it in {expected}"
            )
    absent = [name for name in splits if name not in {entry.name for entry in classes}]
    if absent:
        raise InputError(f"{where}: {len(absent)} of {len(splits)} classes are missing (first: {absent[0]})")


def _listed(form: Form, splits: Mapping[str, Split], size: int) -> Contents:
    assert form.images is not None
    there, read = _zip_images(form.images) if form.images.is_file() else _folder_images(form.images)
    where, rows = _complete_lists(form, there)
    # In the order of the lists: classes by their first image.
    classes: dict[tuple[str, Split], list[str]] = {}
    for split, entries in rows.items():
        for name, label in entries:
            classes.setdefault((label, split), []).append(name)
    found = tuple(ClassEntry(name=name, split=split, images=len(f)) for (name, split), f in classes.items())
    _check(str(where), found, splits)

    def decode() -> Iterator[ImageArray]:
        yield from read([there[name] for files in classes.values() for name in files], size)

    return Contents(classes=found, decode=decode)


_Rows = dict[Split, list[tuple[str, str]]]
_Reader = Callable[[Sequence[str], int], Iterator[ImageArray]]


def _complete_lists(form: Form, there: Mapping[str, str]) -> tuple[Path, _Rows]:
    """The published lists where all of their images are there, else the lists beside the images.

    Raises:
        InputError: The lists name images that are missing, or one image twice.
    """
    problem = ""
    for name in (_FULL_LISTS, ""):
        folder = form.folder / name
        if not all((folder / f"{split}.csv").is_file() for split in SPLITS):
            continue
        rows = {split: _read_list(folder / f"{split}.csv") for split in SPLITS}
        named = [image for entries in rows.values() for image, _ in entries]
        missing = [image for image in named if image not in there]
        if not missing:
            if len(set(named)) < len(named):
                raise InputError(f"{folder}: the lists name an image twice")
            return folder, rows
        problem = f"{folder}: the lists name {len(missing)} images that are not in {form.images} (first: {missing[0]})"
    raise InputError(problem)


def _read_list(path: Path) -> list[tuple[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(read_text(path)))
        if reader.fieldnames != ["filename", "label"]:
            raise InputError(f"{path}: the first line must be filename,label, found {reader.fieldnames}")
        return [(str(row["filename"]), str(row["label"])) for row in reader]
    except (OSError, WrongEncoding, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _zip_images(path: Path) -> tuple[dict[str, str], _Reader]:
    with open_zip(path) as archive:
        there = {PurePosixPath(member).name: member for member in archive.namelist() if not member.endswith("/")}

    def read(members: Sequence[str], size: int) -> Iterator[ImageArray]:
        with open_zip(path) as archive:
            for member in members:
                yield member_image(archive, path, member, 3, size)[None]

    return there, read


def _folder_images(path: Path) -> tuple[dict[str, str], _Reader]:
    there = {file.name: str(file) for file in path.rglob("*") if file.is_file()}

    def read(files: Sequence[str], size: int) -> Iterator[ImageArray]:
        for file in files:
            yield read_image(Path(file), 3, size)[None]

    return there, read


def _pickled(form: Form, splits: Mapping[str, Split], size: int) -> Contents:
    parts = {split: _read_pickle(path) for split, path in zip(SPLITS, form.files, strict=True)}
    found = tuple(
        ClassEntry(name=name, split=split, images=len(rows))
        for split, (_, classes) in parts.items()
        for name, rows in classes.items()
    )
    _check(str(form.folder), found, splits)

    def decode() -> Iterator[ImageArray]:
        for images, classes in parts.values():
            for rows in classes.values():
                for start in range(0, len(rows), _BLOCK):
                    yield resized(images[np.asarray(rows[start : start + _BLOCK])].transpose(0, 3, 1, 2), size)
                forget_pages(images)

    return Contents(classes=found, decode=decode)


def _read_pickle(path: Path) -> tuple[ImageArray, dict[str, list[int]]]:
    """Images [images, height, width, 3] and the rows of each class, from either kind of cache."""
    content = load_pickle(path, str(path))
    try:
        if "image_data" in content:
            images, classes = content["image_data"], content["class_dict"]
            rows = {str(name): [int(row) for row in members] for name, members in classes.items()}
        else:
            images, names = content["data"], {label: name for name, label in content["catname2label"].items()}
            rows = {str(name): [] for _, name in sorted(names.items())}
            for row, label in enumerate(content["labels"]):
                rows[str(names[label])].append(row)
        return _checked(images, rows), rows
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a mini-ImageNet cache ({error!r})") from error


def _checked(images: Any, rows: Mapping[str, Sequence[int]]) -> ImageArray:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError("images must be uint8 [images, height, width, 3]")
    numbers = [row for members in rows.values() for row in members]
    if len(set(numbers)) < len(numbers) or (numbers and not 0 <= min(numbers) <= max(numbers) < len(images)):
        raise ValueError("the classes name an image twice, or one that is not there")
    return images
