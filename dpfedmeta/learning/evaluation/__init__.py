"""Evaluation on public data: personalised adaptation by few-shot episodes, or one classifier for all."""

from dpfedmeta.learning.evaluation.accuracy import Accuracy, HeldOutEvaluation
from dpfedmeta.learning.evaluation.few_shot import (
    PROTOCOL,
    TRANSDUCTIVE_PROTOCOL,
    Benchmark,
    FineTuning,
    adapted_accuracy,
    choose_fine_tuning,
    outcomes,
    pixel_neighbour_accuracy,
    pixel_prototype_accuracy,
)
from dpfedmeta.learning.evaluation.held_out_clients import SharedClassifier
from dpfedmeta.learning.evaluation.personalisation import EvaluationQuestion, Findings, distribution, investigate

__all__ = [
    "PROTOCOL",
    "TRANSDUCTIVE_PROTOCOL",
    "Accuracy",
    "Benchmark",
    "EvaluationQuestion",
    "Findings",
    "FineTuning",
    "HeldOutEvaluation",
    "SharedClassifier",
    "adapted_accuracy",
    "choose_fine_tuning",
    "distribution",
    "investigate",
    "outcomes",
    "pixel_neighbour_accuracy",
    "pixel_prototype_accuracy",
]
