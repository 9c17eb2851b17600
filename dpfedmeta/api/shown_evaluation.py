"""Evaluations for people: printed as they are done."""

from __future__ import annotations

from rich.console import Console

from dpfedmeta.api.evaluate import comparison, evaluations
from dpfedmeta.api.evaluation_request import EvaluationRequest
from dpfedmeta.run_directory import EVALUATION
from dpfedmeta.tracking.evaluation_tables import evaluation_tables


def evaluate_runs(request: EvaluationRequest, console: Console) -> None:
    """Evaluate, and print tables and where the files are.

    Raises:
        InputError: As `evaluations` says.
    """
    found = []
    for evaluation in evaluations(request):
        found.append(evaluation)
        for printed in evaluation_tables(evaluation.name, evaluation.content):
            console.print(printed, highlight=False, soft_wrap=isinstance(printed, str))
        if evaluation.pictures:
            names = ", ".join(str(picture) for picture in evaluation.pictures)
            console.print(f"pictures: {names}", highlight=False, soft_wrap=True)
        console.print(f"numbers: {evaluation.path / EVALUATION}", highlight=False, soft_wrap=True)
    path = comparison(request, found)
    if path is not None:
        console.print(f"comparison: {path}", highlight=False, soft_wrap=True)
