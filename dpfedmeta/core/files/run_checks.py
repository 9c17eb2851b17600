"""Refusals of folders that are no directory of a run, or of a run of another kind."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import ANALYSIS, CONFIG, LEDGER, LOOP, PLAN, SECRET_FOLDER, config_of


def check_is_run(path: Path) -> None:
    """Refuse what is no run directory.

    Raises:
        InputError: It holds no config.yaml, or is the folder of an analysis.
    """
    check_no_analysis(path, config_of(path))
    if not (path / CONFIG).is_file():
        raise not_a_run(path, CONFIG)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a training run; a config.yaml alone may be the user's own."""
    return (folder / CONFIG).is_file() and (folder / LEDGER).is_file()


def check_outside_runs(name: str, path: Path) -> None:
    """Refuse to write what is secret into a run, which may be published; its secret/ is the place for it.

    Args:
        name: The option, as it is typed.
        path: The file or folder.

    Raises:
        InputError: It is inside a run, or would be.
    """
    place = path.resolve()
    for folder in (place, *place.parents):
        # That of a training, of the rounds of a loop, or of an analysis.
        if not (folder / LEDGER).is_file() or not any((folder / name).is_file() for name in (CONFIG, PLAN)):
            continue
        if place.relative_to(folder).parts[:1] == (SECRET_FOLDER,):
            return
        raise InputError(
            f"{name} {path}: is inside the run {folder}, which may be published (dpfedmeta archive); choose a "
            f"place outside it, or {folder / SECRET_FOLDER}"
            + (", and move there what it holds: a ledger goes along" if path.is_dir() else "")
        )


def not_a_run(path: Path, missing: str) -> InputError:
    """Return the error about a folder that is no run directory, with the runs that it holds."""
    held = sorted(str(each.parent) for each in path.glob(f"*/{CONFIG}"))
    return InputError(
        f"{path}: is this the directory of a run? it holds no {missing}"
        + (f", but {len(held)} run(s); name one of them: {held[0]}" if held else "")
    )


def check_no_analysis(path: Path, config: str) -> None:
    """Refuse the folder of an analysis, or of a caller's own loop, where that of a training run is wanted.

    Args:
        path: The folder, for the error.
        config: What its ledger's first line says that was asked for.

    Raises:
        InputError: It is one.
    """
    if config.startswith(LOOP):
        raise InputError(
            f"{path}: holds the rounds of a loop of your own (dpfedmeta.PrivateRounds) and no training run; dpfedmeta "
            f"account --verify {quote(str(path))} recomputes what they spent, and PrivateRounds goes on with them"
        )
    if config.startswith(ANALYSIS):
        raise InputError(
            f"{path}: is an analysis and no training run; its statement.txt says what it found, dpfedmeta account "
            f"--verify {path} recomputes it, and dpfedmeta analyse --resume goes on with one that was stopped"
        )


def check_has_ledger(path: Path) -> None:
    """Refuse a folder that no run has ever charged in.

    Raises:
        InputError: It holds no ledger.
    """
    if not (path / LEDGER).is_file():
        raise not_a_run(path, LEDGER)
