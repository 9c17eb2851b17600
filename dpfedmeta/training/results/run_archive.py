"""A run in one file to publish: everything but what is secret, with the digest of each file."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import yaml

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.ledger.published import earlier_weights
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.core.files.comparison import complete, first_difference
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.new_folder import write_folder
from dpfedmeta.core.files.run_checks import check_has_ledger
from dpfedmeta.core.files.run_directory import (
    CONFIG,
    DIVERGED,
    EPISODES,
    EVALUATION,
    LEDGER,
    PLAN,
    REPORT,
    ROUNDS,
    SECRET_FOLDER,
    SELECTION,
    SUMMARY,
    WITH_RESULT,
    RunDirectory,
    shown_name,
)
from dpfedmeta.core.version import __version__
from dpfedmeta.training.results.evaluation_store import AUDIT, AUDIT_PLOT
from dpfedmeta.training.results.model_card import CARD, WEIGHTS, check_license, hub_weights, model_card

if TYPE_CHECKING:
    from dpfedmeta.training.verification.verify import VerifiedRun

MANIFEST = "MANIFEST.json"
# The earliest time that a zip file can say: a file's own follows how many clients took part.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
# What commands write into a run and anybody may have, by the names of folders and files. Trackers' own logs, which hold
# times and names of machines and users, and the mark of a scheduler are not here, and what else lies in the folder
# nobody has looked at.
_OF_A_STATE = (
    SUMMARY, EVALUATION, EPISODES, REPORT, "evaluations/*.json", "accuracy.png", "clip.png", "guarantees.png",
    "evaluation-comparison.png", "evaluation-steps.png", "evaluation-clients.png", AUDIT_PLOT,
)  # fmt: skip
WRITTEN = (
    *_OF_A_STATE, *(f"after-*-rounds/{name}" for name in (*_OF_A_STATE, "model.safetensors")),
    CONFIG, PLAN, LEDGER, ROUNDS, SELECTION, AUDIT,
    "checkpoint/initial.safetensors", "checkpoint/model.safetensors", "checkpoint/round-*.safetensors",
)  # fmt: skip
# What `account --verify` compares; with the manifest of an unpacked archive, and with a page.
_COMPARED = (
    CONFIG, PLAN, LEDGER, ROUNDS, SUMMARY, REPORT, SELECTION, MANIFEST, WEIGHTS, "checkpoint/*.safetensors",
)  # fmt: skip
_WITH_PAGE = ("accuracy.png", "clip.png", "guarantees.png", AUDIT_PLOT)
# What else commands write there, which nobody expects in an archive.
_KNOWN = (SECRET_FOLDER, "wandb", "tensorboard", "launch.json")
# How the names of files begin that are made of people's records (api.evaluate_people).
PEOPLE = "people-"
# A folder may have any other dot in its name.
_OTHERS = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".ZIP")
# Shorter contents occur by chance, a `{}` or a single number.
_TELLING = 16


@dataclass(frozen=True, kw_only=True)
class Archived:
    """An archive that was written.

    Attributes:
        path: The file.
        files: What is in it.
        left_out: Secret files that are not.
        unknown: Files that are not either, since no command wrote them; hidden ones and logs of trackers apart.
        places: Settings that say where something lay on this machine, each as "name = path".
        audit: The run, verified first.
    """

    path: Path
    files: tuple[str, ...]
    left_out: int
    unknown: tuple[str, ...]
    places: tuple[str, ...]
    audit: VerifiedRun


def archive(run: RunDirectory, path: Path, license_id: str | None = None) -> Archived:
    """Write an ended run as a zip file, or as a folder with a model card; the same run gives the same bytes.

    Args:
        run: The run.
        path: Of the zip file, or of the new folder.
        license_id: Of the weights, for the card of a folder.

    Guarantee:
        Only files are in it that a command writes into a run and that are in `WRITTEN`: nothing of a `secret/`, no
        `people-...`, no log of a tracker, no lock, no link, and nothing that somebody put there. No file's content is
        that of a secret file, none holds the noise seed, and no time of a file is told. What is left is post-processing
        of releases, settings, and accuracies on public classes.

    Raises:
        InputError: The run has not ended, another process writes it, a file holds what is secret, or contradicts the
            ledger; nothing was written.
    """
    check_archive_place(run.path, path)
    check_license(license_id, path)
    from dpfedmeta.training.verification.verify import audit  # brings PyTorch, and a wrong name needs none

    with only_writer(run.path):
        found = audit(run)
        status = run.read_json(SUMMARY).get("status") if (run.path / SUMMARY).exists() else None
        if status == DIVERGED:
            raise InputError(f"{run.path}: its training diverged, so there is no result to archive")
        if status not in WITH_RESULT:
            raise InputError(
                f"{run.path}: the run has not ended ({status or 'killed, or running'}), so there is no result to "
                f"archive; finish it first (--resume {quote(str(run.path))})"
            )
        contents = {name: (run.path / name).read_bytes() for name in public_files(run)}
        left_out = _check_nothing_secret(run, contents)
        if path.suffix != ".zip":
            contents |= _for_hub(run, found, license_id)
        contents[MANIFEST] = manifest(run, contents)
        if path.suffix == ".zip":
            _write(path, run.path.resolve().name, contents)
        else:
            write_folder(path, contents)
    unknown = tuple(_unknown(run))
    return Archived(
        path=path, files=tuple(contents), left_out=left_out, unknown=unknown, places=tuple(_places(run)), audit=found
    )


def _places(run: RunDirectory) -> Iterator[str]:
    """Absolute paths in the settings. The ledger's hashes hold them, so nothing could take them out."""
    settings: dict[str, Any] = yaml.safe_load(read_content(run.ledger).identity.config) or {}
    for name, value in flattened(settings):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and Path(text).is_absolute():
                yield f"{name} = {text}"


def _for_hub(run: RunDirectory, found: VerifiedRun, license_id: str | None) -> dict[str, bytes]:
    """The model card, and the weights where the hub looks for them."""
    head = read_content(run.ledger).heads[-1]
    card = model_card(shown_name(run.path), run.read_json(SUMMARY), found, head, license_id)
    return {CARD: card, WEIGHTS: hub_weights(run.weights.read_bytes(), head)}


def public_files(run: RunDirectory) -> Iterator[str]:
    """Paths inside the run of what may leave it, in their order.

    Raises:
        InputError: One of them is a link, and what is behind it would be missing.
    """
    for path, inside in _files_of(run):
        # What is in a folder that is a link is not looked at, so its own name stands here.
        begins = any(name == inside or name.startswith(f"{inside}/") for name in WRITTEN)
        if path.is_symlink() and (begins or _is_written(inside)):
            raise InputError(
                f"{path}: is a link, and an archive holds none; put what it leads to in its place, or move it out"
            )
        if path.is_file() and _is_written(inside):
            yield inside


def _files_of(run: RunDirectory) -> Iterator[tuple[Path, str]]:
    return ((path, path.relative_to(run.path).as_posix()) for path in sorted(run.path.rglob("*")))


def _is_written(inside: str, names: Sequence[str] = WRITTEN) -> bool:
    parts = inside.split("/")
    return not any(part.startswith(".") for part in parts) and any(
        len(parts) == len(known) and all(map(fnmatchcase, parts, known))
        for known in (name.split("/") for name in names)
    )


def not_compared(run: RunDirectory) -> list[str]:
    """Files of a run that no comparison looks at, by their paths in it; secret and hidden ones apart."""
    earlier = (
        f"{folder.name}/{name}"
        for folder, named in earlier_weights(run, read_content(run.ledger, torn=True))
        for name in named
    )
    beside = _WITH_PAGE if (run.path / REPORT).is_file() else ()
    names = [*_COMPARED, *earlier, *beside, *([CARD] if _card_of(run) else [])]
    found = [inside for path, inside in _files_of(run) if path.is_file() and not _is_written(inside, names)]
    parts = [(inside, Path(inside).parts) for inside in found]
    return [inside for inside, each in parts if SECRET_FOLDER not in each and not any(p.startswith(".") for p in each)]


def _unknown(run: RunDirectory) -> Iterator[str]:
    """Files that stay because no command wrote them: their owner may have thought that they would go too."""
    for path, inside in _files_of(run):
        parts = Path(inside).parts
        ours = inside in (MANIFEST, CARD, WEIGHTS) or any(part.startswith(".") or part in _KNOWN for part in parts)
        if not (path.is_dir() or ours or _is_secret(Path(inside)) or _is_written(inside)):
            yield inside


def _is_secret(inside: Path) -> bool:
    return SECRET_FOLDER in inside.parts[:-1] or any(part.startswith(PEOPLE) for part in inside.parts)


def _check_nothing_secret(run: RunDirectory, contents: dict[str, bytes]) -> int:
    """Check that no content of the archive is a secret file under another name.

    Returns:
        The number of secret files, which are left out.
    """
    found = sorted({*run.path.rglob("*"), *run.secret.rglob("*")})  # secret/ may be a link to another disk
    secrets = [path for path in found if _is_secret(path.relative_to(run.path)) and path.is_file()]
    kept = {path: path.read_bytes() for path in secrets}
    by_digest = {_digest(content): path for path, content in kept.items() if len(content) >= _TELLING}
    seed = _seed(kept.get(run.secret / "noise_seed.json", b""))
    chosen = read_content(run.ledger).identity.config
    for name, content in contents.items():
        twin = by_digest.get(_digest(content))
        # A chosen seed is a setting, and the run says that it is a simulation.
        if twin is None and seed and seed.encode() in content and seed not in chosen:
            twin = run.secret / "noise_seed.json"
        if twin is not None:
            raise InputError(f"{run.path / name}: holds what is secret in {twin}; move it out of the run")
    return len(secrets)


def _seed(content: bytes) -> str | None:
    try:
        return str(json.loads(content)["seed"])
    except DAMAGED_JSON:
        return None


def manifest(run: RunDirectory, contents: dict[str, bytes]) -> bytes:
    """Return the archive's table of contents, with SHA-256 as `sha256sum` gives it."""
    content = {
        "dpfedmeta": __version__,
        "run": shown_name(run.path),
        "ledger_head": read_content(run.ledger).heads[-1],
        "sha256": {name: _digest(content) for name, content in contents.items()},
        "without": "secret/ (noise seed, participants, digests of data), files that no command wrote, logs, times",
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def check_manifest(run: RunDirectory) -> list[str]:
    """Check that an unpacked archive is as it was packed; a directory without a manifest passes without a remark.

    What was made since (a report, an evaluation) is not in the manifest and is passed over.

    Raises:
        InputError: A file is missing, or is another one.
    """
    top = run.path / WEIGHTS
    with complete(top):
        if top.is_file() and hub_weights(top.read_bytes(), "") != hub_weights(run.weights.read_bytes(), ""):
            raise InputError(f"{top}: has other weights than {run.weights}; unpack the archive again")
    if not (run.path / MANIFEST).exists():
        return []
    stated = run.read_json(MANIFEST).get("sha256")
    if not isinstance(stated, dict):
        raise InputError(f"{run.path / MANIFEST}: damaged: it lists no digests; unpack the archive again")
    for name, digest in stated.items():
        path = run.path / name
        if not path.is_file():
            raise InputError(f"{path}: is in {MANIFEST} but not here; unpack the archive again")
        if _digest(path.read_bytes()) != digest:
            raise InputError(f"{path}: differs from the archived file (SHA-256); unpack the archive again")
    words = f"{MANIFEST}: {len(stated)} files are as they were archived"
    without = "; without secret/ participants and noise cannot be checked, and the run cannot be resumed"
    return [words + ("" if run.secret.is_dir() else without)]


def check_card(run: RunDirectory, found: VerifiedRun) -> list[str]:
    """README.md of an unpacked archive is, byte for byte, the card that its ledger and its scores give.

    Raises:
        InputError: It is another one; names the first line that differs.
    """
    path, text = run.path / CARD, _card_of(run)
    if not text:
        return []
    with complete(path):
        try:
            license_id = yaml.safe_load(text.split("---\n")[1]).get("license")
        except yaml.YAMLError as error:
            raise InputError(f"its first lines are no YAML ({' '.join(str(error).split())})") from error
        check_license(license_id, path)
        # Of an archive that lost its table of contents the card says the name.
        named = (run.path / MANIFEST).exists()
        name = shown_name(Path(run.read_json(MANIFEST)["run"] if named else text.partition("\n# ")[2].split("\n")[0]))
        head = read_content(run.ledger).heads[-1]
        due = model_card(name, run.read_json(SUMMARY), found, head, license_id).decode()
    if text != due:
        raise first_difference(path, text, due, "dpfedmeta archive RUN --out DIR")
    return [f"{CARD} agrees byte for byte with the ledger, and with the scores in {SUMMARY}"]


def _card_of(run: RunDirectory) -> str:
    """README.md, if it is a card or lies in an archive: any other may be the user's own; else empty."""
    path = run.path / CARD
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    return text if "\nlibrary_name: dpfedmeta\n" in text or (run.path / MANIFEST).exists() else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, folder: str, contents: dict[str, bytes]) -> None:
    """Whole or not at all."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(f"{folder}/{name}", _NO_TIME)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            file.writestr(entry, content)
    replace_file(path, made.getvalue())


def check_archive_place(run: Path, path: Path) -> None:
    """Refuse to write an archive of what is no run, or to a place where it cannot be.

    Raises:
        InputError: Says which.
    """
    check_has_ledger(run)
    if path.suffix in _OTHERS or not path.parent.is_dir():
        raise InputError(f"--out {path}: expected a .zip file, or a new folder, in a folder that exists")
    if path.exists():
        raise InputError(f"--out {path}: exists already; choose another name")
    if path.resolve().is_relative_to(run.resolve()):
        raise InputError(f"--out {path}: is inside the run directory; choose a place outside it")
