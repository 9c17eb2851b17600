"""Sentences that stand beside guarantees in plan.json and summary.json, by the settings and the stated numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import ASKED, OWN
from dpfedmeta.data.populations.population_statement import says_what_it_states
from dpfedmeta.learning.models.spec import beginning_words
from dpfedmeta.planning.caveats import cautions


def is_about_clients(stated: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the text about a population is the sentence about its kind, with the numbers beside it."""
    of_settings = stated["kind"] in (OWN, ASKED, settings.population.kind)
    return of_settings and says_what_it_states(stated, settings.population.own_test)


def due_beginning(stated: object, settings: Settings) -> str | None:
    """Return the sentence about initial weights and an encoder; what only the encoder's package knows is as stated."""
    encoder = settings.model.encoder
    if encoder is None or not isinstance(stated, str):
        return beginning_words(settings.model.initial, None if encoder is None else f"encoder {encoder} ...")
    begins, ends = f"encoder {encoder} at ", str(beginning_words(settings.model.initial, ""))
    return stated if stated.startswith(begins) and stated.endswith(ends) else f"{begins}...{ends}"


def due_cautions(settings: Settings) -> list[str] | None:
    """Return the cautions that plan.json states; None: the task is not here."""
    try:
        return list(cautions(settings, task_of(settings)[0]))
    except InputError:
        return None
