"""Evaluation on public data: personalised adaptation by few-shot episodes, or one classifier for all."""

from dpfedmeta.evaluation.accuracy import Accuracy, Examination
from dpfedmeta.evaluation.classification import Classification
from dpfedmeta.evaluation.few_shot import (
    PROTOCOL,
    Benchmark,
    adapted_accuracy,
    contest,
    pixel_neighbour_accuracy,
    pixel_prototype_accuracy,
)

__all__ = [
    "PROTOCOL",
    "Accuracy",
    "Benchmark",
    "Classification",
    "Examination",
    "adapted_accuracy",
    "contest",
    "pixel_neighbour_accuracy",
    "pixel_prototype_accuracy",
]
