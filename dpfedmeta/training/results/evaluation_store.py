"""Measurements of a run on held-out data: a file for each, and the latest request in evaluation.json."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import EVALUATION, SUMMARY, WITH_RESULT, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.client_spec import evaluation_shape

if TYPE_CHECKING:
    from dpfedmeta.config.settings import Settings

EVALUATIONS = "evaluations"
# A name has to fit into 255 bytes, and into a line.
_LONG = 40
Content = Mapping[str, Any]
SIZES = ("ways", "shots", "queries")


def keep_evaluation(folder: Path, content: Content, beside: Sequence[Content] = ()) -> Path:
    """Write evaluation.json, and for each of its results evaluations/NAME.json: what was measured gives the name.

    The same thing measured again replaces itself alone; everything else stays.

    Args:
        folder: The run directory, or another folder; made if it is absent.
        content: Of evaluation.json: what holds for all, and `results`.
        beside: For each result, more keys of its own file.

    Returns:
        Path of evaluation.json.

    Raises:
        OSError: The folder cannot be written.
    """
    kept = RunDirectory(folder / EVALUATIONS)
    kept.path.mkdir(parents=True, exist_ok=True)
    more = beside or [{}] * len(content["results"])
    new = [{**one, **keys} for one, keys in zip(_single(content), more, strict=True)]
    for one in new:
        kept.write_json(f"{name_of_evaluation(one)}.json", one)
    RunDirectory(folder).write_json(EVALUATION, content)
    return folder / EVALUATION


def kept_evaluations(folder: Path) -> Iterator[dict[str, Any]]:
    """Everything that was measured, each with one result, in the order of their names.

    Numbers in names count as numbers: 5-way is before 20-way.

    Raises:
        InputError: A file is damaged; says which.
    """
    kept = RunDirectory(folder / EVALUATIONS)
    paths = sorted(kept.path.glob("[!.]*.json"), key=_place) if kept.path.is_dir() else []
    for path in paths:
        content = kept.read_json(path.name)
        try:
            for one in _single(content):
                name_of_evaluation(one)
                yield one
        except DAMAGED_JSON as error:
            raise InputError(f"{path}: is not an evaluation, or of another version ({error!r}); remove it") from error


def _place(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", path.stem)]


def _single(content: Content) -> list[dict[str, Any]]:
    """Split an evaluation into evaluations with one result each."""
    return [{**content, "results": [result]} for result in content["results"]]


def name_of_evaluation(content: Content) -> str:
    """Name an evaluation after what it measured, so that repeated measurements get the same name."""
    (result,) = content["results"]
    words = []
    if "ways" in result:
        words.append(f"{result['ways']}-way-{result['shots']}-shot")
        words.append(f"steps-{_runs_of(row['steps'] for row in result['by_steps'])}")
        seeds = content["seeds"]
        words.append(f"{result['accuracy']['episodes']}-episodes-seed{'s' * (len(seeds) > 1)}-{_runs_of(seeds)}")
    else:
        counted = "episodes" if "episodes" in result["accuracy"] else "images"
        words.append(f"{result['accuracy'][counted]}-{'whole-clients' if counted == 'episodes' else counted}")
        words += [f"seed-{_runs_of(content['seeds'])}"] if "seeds" in content else []
    words += ["transductive"] if "TRANSDUCTIVE" in content["protocol"] else []
    words += ["no-fine-tuning"] if "ways" in result and "accuracy_fine_tuned" not in result else []
    if unfinished(content):
        words.append(f"after-round-{content['rounds']}")
    return "-".join(words)


def unfinished(content: Content) -> str | None:
    """A label for weights that are not those of the run's end; None: they are, or nobody said."""
    status = content.get("status")
    if status in (None, *WITH_RESULT) or content["rounds"] >= content["planned_rounds"]:
        return None
    return f"{status.upper()} after {content['rounds']} of {counted_words(content['planned_rounds'], 'round')}"


def _runs_of(numbers: Iterator[int] | Sequence[int]) -> str:
    """0, 1, 2, 3, 7 as 0-to-3-7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = "-".join(str(first) if first == last else f"{first}-to-{last}" for first, last in runs)
    if len(words) <= _LONG:
        return words
    return f"{runs[0][0]}-to-{runs[-1][1]}-{hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:8]}"


AUDIT, AUDIT_PLOT = "audit.json", "audit.png"
_NEEDED = ("unit", "observer", "promised", "audited", "confidence", "audit", "method", "runs", "canaries")


def keep_audit(run: RunDirectory, content: Mapping[str, Any]) -> None:
    """Write audit.json, and what it found into summary.json where the run has ended."""
    run.write_json(AUDIT, content)
    if (run.path / SUMMARY).exists():
        run.write_json(SUMMARY, {**run.read_json(SUMMARY), "audited": content["cells"]})


def audited_cells(folder: Path) -> dict[str, Any]:
    """Return the entry that a kept audit adds to a new summary.json: {} where there is none.

    A damaged one does not stand in the way of a summary: the report, which reads it next, says what is wrong with it.
    """
    try:
        content = kept_audit(folder)
    except InputError:
        return {}
    return {} if content is None else {"audited": content["cells"]}


def kept_audit(folder: Path) -> Mapping[str, Any] | None:
    """Read the findings of a run's audit; None: the run was not audited.

    Raises:
        InputError: The file is damaged.
    """
    if not (folder / AUDIT).exists():
        return None
    content = RunDirectory(folder).read_json(AUDIT)
    cells = content.get("cells")
    whole = isinstance(cells, list) and all(isinstance(c, dict) and {*_NEEDED} <= {*c} for c in cells)
    if not whole or not isinstance(content.get("size"), str):
        raise InputError(f"{folder / AUDIT}: is not an audit, or of another version; audit the run again, or remove it")
    return content  # type: ignore[no-any-return]


def measured_on(settings: Settings, steps: int) -> dict[str, int]:
    """Classes, support and query images per class of a test episode, and gradient steps of its adaptation."""
    shape = evaluation_shape(settings)
    return {**{name: getattr(shape, name) for name in SIZES}, "steps": steps}


def size(measured: Mapping[str, Any]) -> str:
    """The shape of episodes in words, of an accuracy of summary.json or a result of evaluation.json."""
    return f"{measured['ways']}-way {measured['shots']}-shot" if "ways" in measured else ""


def size_and_count(accuracy: Mapping[str, Any]) -> str:
    """All numbers of the protocol: of an accuracy of summary.json that was measured on episodes; else empty."""
    if "ways" not in accuracy:
        return ""
    return (
        f"{size(accuracy)}, {accuracy['queries']} queries per class, {accuracy['steps']} adaptation steps, "
        f"{accuracy['episodes']:,} episodes"
    )


# Rows of numbers to predict.
ERRORS = (
    ("error", "this run, adapted"),
    ("error_before_adaptation", "this run, before adaptation"),
    ("error_untrained", "untrained weights, same adaptation"),
    ("error_own_mean", "mean of a client's own targets"),
)
OWN_MAJORITY = "majority of a client's own records"
# Rows of classes.
ACCURACY_ROWS = (
    ("accuracy", "this run, adapted"),
    ("accuracy_before_adaptation", "this run, before adaptation"),
    ("accuracy_untrained", "untrained weights, same adaptation"),
    ("accuracy_pixel_prototype", "nearest class prototype in pixels"),
    ("accuracy_pixel_neighbour", "nearest neighbour in pixels"),
    ("accuracy_own_majority", OWN_MAJORITY),
)


def shown_rows(rows: Sequence[tuple[str, str]], of: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows that were measured. Where nothing adapts by itself (prototypes), before is after, and stands there once.

    Args:
        rows: Key and label of each; the first is after adaptation.
        of: Content of summary.json, or one result of evaluation.json.
    """
    (first, _), *_ = rows
    values = {key: tuple(of[key][part] for part in ("mean", "ci95")) for key, _ in rows if of.get(key)}
    if values.get(before := f"{first}_before_adaptation") == values.get(first):
        values.pop(before, None)
    return [(key, label) for key, label in rows if key in values]


# Of features of a public encoder: its adapter is the identity before training.
_WITH_ENCODER = {
    "accuracy_untrained": "public encoder, no client",
    "accuracy_untrained_prototype": "Euclidean prototype, public encoder",
    "accuracy_pixel_prototype": "Euclidean prototype, raw features",
    "accuracy_pixel_neighbour": "nearest neighbour, raw features",
}


# Tables hold no pixels.
_OF_NUMBERS = {
    "accuracy_pixel_prototype": "nearest class mean of the records",
    "accuracy_pixel_neighbour": "nearest neighbour among the records",
}


def row_label(key: str, label: str, of: Mapping[str, Any]) -> str:
    """Name a row of accuracies.

    Args:
        key: What was measured.
        label: Its name where clients learn from the records themselves.
        of: Content of evaluation.json or summary.json, which states the encoder, if there was one, and the kind of
            records, if they are no images.
    """
    if not of.get("encoder") and of.get("records", "images") != "images":
        return _OF_NUMBERS.get(key, label)
    return _WITH_ENCODER.get(key, label) if of.get("encoder") else label
