"""Folders of images: a folder per class, with splits as folders, by a list, or by a hash of the class's name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.core.pydantic_errors import listed
from dpfedmeta.data.episodes.class_pool import ImageArray
from dpfedmeta.data.names import check_spellings, splits_of
from dpfedmeta.data.parts import check_classes_are_no_parts, check_parts, part_of, wrapped
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents, Split, check_classes
from dpfedmeta.data.storage.image_codecs import HOW_TO_SCALE, REPAIR, UNREADABLE, PixelRange, UnknownRange, decode_image
from dpfedmeta.data.user_sources.image_files import SUFFIXES, folders_in, holds_images, image_files


def class_folders(path: Path) -> dict[Split | None, list[Path]]:
    """The class folders, by part if the folder has folders of train, val and test, else all under None; sorted by name.

    Raises:
        InputError: It cannot be listed, there is no class in it, or its folders look like parts that do not fit.
    """
    try:
        found = {
            split: [folder for inside in parts for folder in folders_in(inside) if image_files(folder)]
            for split, parts in part_folders(path).items()
        }
    except OSError as error:
        raise InputError(f"{path}: cannot be listed ({error.strerror})") from error
    if not any(found.values()):
        raise InputError(
            f"{path}: a folder without classes; expected {path.name}/CLASS/IMAGE or "
            f"{path.name}/train|val|test/CLASS/IMAGE with images ({' '.join(SUFFIXES)})"
        )
    named = (("class", folder.name, str(folder.relative_to(path))) for inside in found.values() for folder in inside)
    check_spellings(str(path), named)
    return found


def part_folders(path: Path) -> dict[Split | None, list[Path]]:
    """The folder of each part, in the order train, val, test; or the folder itself under None, if it is not divided.

    Raises:
        InputError: There is no such folder, or its folders look like parts and do not fit together.
        OSError: It cannot be listed.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    inside = folders_in(path)
    parts = {folder.name: part for folder in inside if (part := part_of(folder.name))}
    deep = {name: part for name, part in parts.items() if holds_images_below(path / name)}
    if not deep and set(parts.values()) != set(SPLITS):
        check_classes_are_no_parts(str(path), [each.name for each in inside if holds_images(each)])
        _check_depth(path, inside)
        return {None: [path]}
    if not deep:
        check_classes_are_no_parts(str(path), parts)
    # A part that is empty is told of where classes are counted.
    deep |= {name: part for name, part in parts.items() if part not in deep.values() and not holds_images(path / name)}
    others = [f.name for f in inside if f.name not in deep and (holds_images(f) or holds_images_below(f))]
    check_parts(str(path), deep, others)
    units = {name: [unit for unit in folders_in(path / name) if _holds_images(unit)] for name in deep}
    nested = [f"{name}/{unit.name}" for name, own in units.items() for unit in own if _is_part(unit)]
    if nested:
        raise InputError(f"{path}: parts in parts ({listed(nested)}); expected train|val|test once, at one depth")
    if all(len(own) == 1 and not holds_images(own[0]) for own in units.values()) and _one_name(units.values()):
        unit = next(iter(units.values()))[0].name
        raise InputError(f"{path}: every part holds one folder only, {unit}; move what is in it one folder up")
    return {part: [path / name for name, own in deep.items() if own == part] for part in SPLITS}


def _is_part(unit: Path) -> bool:
    return part_of(unit.name) is not None and holds_images_below(unit)


def _one_name(units: Iterable[Sequence[Path]]) -> bool:
    return len({own[0].name for own in units}) == 1


def _check_depth(path: Path, inside: Sequence[Path]) -> None:
    """Refuse a folder with nothing in it but the folder that was meant, which would be read as one client or nothing.

    Raises:
        InputError: Names the folder to give.
    """
    holding = [folder for folder in inside if _holds_images(folder)]
    if len(holding) == 1 and not holds_images(holding[0]):
        raise wrapped(path, holding[0])


def holds_images_below(folder: Path) -> bool:
    """Return whether a subfolder holds images, at one of the supported depths."""
    return any(_holds_images(inner) for inner in folders_in(folder))


def _holds_images(folder: Path) -> bool:
    return holds_images(folder, depth=3)


def listed_key(path: Path, files: Sequence[Path]) -> list[object]:
    """(path, SHA-256) of every image: what a decoded folder is known by.

    Sizes and times would be known sooner, but whoever replaces an image may keep both, and then it would go on being
    trained on: an image whose owner withdrew consent. Reading 10,000 small files takes about as long as asking for
    their times.
    """
    return [str(path.resolve()), *((str(file.relative_to(path)), content_digest(file)) for file in files)]


def content_digest(file: Path) -> str:
    """SHA-256 of a file of the user's own.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return digest_of(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error


def contents(
    path: Path,
    splits: Mapping[str, Split],
    size: int,
    channels: int,
    ways: int | None = None,
    pixel_range: PixelRange | None = None,
) -> Contents:
    """The classes of a folder.

    Args:
        path: The folder.
        splits: From class to split, where a list says so; else empty.
        size: Height and width to resize to.
        channels: 1 or 3.
        ways: How many classes each part needs, where names decide; None: however many they give.
        pixel_range: As in `decode_image`.

    Raises:
        InputError: No classes, a listed class that is not there, or overlapping splits.
    """
    found = class_folders(path)
    folders = [(folder, split) for split, inside in found.items() for folder in inside]
    if splits:
        folders = _listed(path, [folder for folder, _ in folders], splits)
    by_name = splits_of((folder.name for folder, _ in folders), ways or 0)
    chosen = [(folder, split or by_name[folder.name], image_files(folder)) for folder, split in folders]
    classes = tuple(ClassEntry(name=folder.name, split=split, images=len(files)) for folder, split, files in chosen)
    check_classes(str(path), classes)

    def decode() -> Iterator[ImageArray]:
        yield from decoded_all(
            str(path), [file for _, _, files in chosen for file in files], channels, size, pixel_range
        )

    return Contents(classes=classes, decode=decode)


def decoded_all(
    where: str, files: Sequence[Path], channels: int, size: int | None, pixel_range: PixelRange | None = None
) -> Iterator[ImageArray]:
    """Images one by one, uint8 [1, channels, height, width]; those that do not decode are told of together at the end.

    Raises:
        InputError: Some do not decode; names them.
    """
    problems: list[str] = []
    for file in files:
        try:
            yield read_image(file, channels, size, pixel_range)[None]
        except InputError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        remedies = [text for text in (HOW_TO_SCALE, REPAIR) if any(problem.endswith(text) for problem in problems)]
        short = [problem.removesuffix(f"; {HOW_TO_SCALE}").removesuffix(f"; {REPAIR}") for problem in problems]
        told = "; ".join([listed(short), *remedies])
        raise InputError(f"{where}: {len(problems)} of {len(files)} images do not decode: {told}")


def read_image(file: Path, channels: int, size: int | None, pixel_range: PixelRange | None = None) -> ImageArray:
    """Read one image file as uint8 [channels, height, width].

    Raises:
        InputError: The file does not decode; the message names it.
    """
    try:
        return decode_image(file.read_bytes(), channels, size, pixel_range)
    except UnknownRange as error:
        raise InputError(f"{file}: {error}; {HOW_TO_SCALE}") from error
    except UNREADABLE as error:
        raise InputError(f"{file}: does not decode ({error}); {REPAIR}") from error


def _listed(path: Path, folders: list[Path], splits: Mapping[str, Split]) -> list[tuple[Path, Split | None]]:
    by_name = {folder.name: folder for folder in folders}
    absent = [name for name in splits if name not in by_name]
    if absent:
        raise InputError(f"{path}: {len(absent)} of the listed classes have no folder with images (first: {absent[0]})")
    return [(by_name[name], split) for name, split in splits.items()]
