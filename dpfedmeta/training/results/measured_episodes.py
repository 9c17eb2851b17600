"""The episodes that an accuracy was measured on, beside it in summary.json, and the labels made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpfedmeta.planning.client_spec import evaluation_shape

if TYPE_CHECKING:
    from dpfedmeta.config.settings import Settings

SIZES = ("ways", "shots", "queries")


def measured_on(settings: Settings, steps: int) -> dict[str, int]:
    """Classes, support and query images per class of a test episode, and gradient steps of its adaptation."""
    shape = evaluation_shape(settings)
    return {**{name: getattr(shape, name) for name in SIZES}, "steps": steps}


def with_sizes(summary: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """summary.json with the sizes of its test episodes; those of earlier versions follow from the settings."""
    accuracy = summary.get("accuracy")
    if not accuracy or "episodes" not in accuracy or "ways" in accuracy:
        return dict(summary)
    steps = settings.evaluation.steps or settings.meta.steps
    return {**summary, "accuracy": {**measured_on(settings, steps), **accuracy}}


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
