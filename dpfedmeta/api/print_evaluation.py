"""Evaluations for people: printed as they are done, and written after that."""

import errno
import os

from rich.console import Console

from dpfedmeta.api.evaluate import Evaluation, NotKept, comparison, evaluations, kept
from dpfedmeta.api.evaluation_request import EvaluationRequest
from dpfedmeta.core.files.run_directory import EVALUATION
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.reporting.compare.paired_runs import episodes_of, pairs
from dpfedmeta.training.results.evaluation_store import EVALUATIONS
from dpfedmeta.training.terminal.evaluation_tables import evaluation_tables
from dpfedmeta.training.terminal.progress_bar import share_bar


def evaluate_runs(request: EvaluationRequest, console: Console, workers: Workers | None = None) -> None:
    """Evaluate; print tables first, then write, and say where the files are.

    Raises:
        InputError: As `evaluations` says.
    """
    for run in request.runs if request.folder is None else ():
        if run.is_dir() and not os.access(run, os.W_OK):
            _say(console, f"{run}: cannot be written, so what follows is only printed; --out DIR keeps it")
    found = []
    with share_bar(console) as watch:
        for evaluation in evaluations(request, watch, workers):
            found.append(evaluation)
            for printed in evaluation_tables(evaluation.name, evaluation.content):
                console.print(printed, highlight=False, soft_wrap=isinstance(printed, str))
            _keep(evaluation, console)
    for pair in pairs({each.name: episodes_of(each.content) for each in found}):
        _say(console, str(pair))
    try:
        path = comparison(request, found)
    except OSError as error:
        _say(console, f"{error.filename}: cannot be written ({error.strerror}); --out DIR names another folder")
        return
    if path is not None:
        _say(console, f"comparison: {path}")


def _keep(evaluation: Evaluation, console: Console) -> None:
    """Write the evaluation's files; where the folder is read-only, say so and go on.

    What was printed is then not lost: a run may be somebody else's, or on a read-only disk.
    """
    try:
        evaluation = kept(evaluation)
    except NotKept as error:
        if not _is_read_only(error):
            raise RuntimeError(str(error)) from error
        _say(console, str(error))
        return
    if evaluation.pictures:
        _say(console, f"pictures: {', '.join(str(picture) for picture in evaluation.pictures)}")
    _say(console, f"numbers: {evaluation.folder / EVALUATION}, and kept in {evaluation.folder / EVALUATIONS}")


def _is_read_only(error: NotKept) -> bool:
    """Somebody's choice, and no fault such as a full disk."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
