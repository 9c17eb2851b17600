"""Files of settings that come with the package: by name, or by their path in a checkout, from any directory."""

from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dpfedmeta.core.files.read_files import read_text
from dpfedmeta.core.pydantic_errors import nearest

SETTINGS = ("federations", "benchmarks", "paper", "policies")
SWEEPS = ("sweeps",)
_ENDING = ".yaml"


def read_named(path: Path, folders: Sequence[str]) -> str:
    """The text of a file that was named, or where there is none, of one of the package.

    Args:
        path: A path; or cross-silo, federations/cross-silo, configs/federations/cross-silo.yaml.
        folders: Below configs/, in which the package's are looked for; those of the first go without it, too.

    Raises:
        OSError: There is no such file; says which there are.
        WrongEncoding: It is not UTF-8.
    """
    if path.exists():
        return read_text(path)
    wanted = path.as_posix().removeprefix("configs/").removesuffix(_ENDING)
    found = dict(_packaged(folders))
    if wanted not in found:
        shortest = sorted(name for name in found if name.partition("/")[0] != folders[0])
        remedy = nearest(wanted, found) or f"; with the package come {', '.join(shortest)}"
        raise FileNotFoundError(0, f"there is no such file{remedy}", str(path))
    return found[wanted].read_text(encoding="utf-8")


def _packaged(folders: Sequence[str]) -> Iterator[tuple[str, Traversable]]:
    """(cross-silo or paper/dp-agr, its file) of every one, also by its folder; a bare dp-agr would mean --algo."""
    for folder in folders:
        for file in (resources.files("dpfedmeta.configs") / folder).iterdir():
            name = file.name.removesuffix(_ENDING)
            if file.name.endswith(_ENDING) and folder == folders[0]:
                yield name, file
            if file.name.endswith(_ENDING):
                yield f"{folder}/{name}", file
