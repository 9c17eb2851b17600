"""Sentences that stand beside guarantees in plan.json and summary.json, by the settings and the stated numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import ASKED, OWN
from dpfedmeta.data.episodes.whole_episode import too_few
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.learning.models.spec import beginning_words
from dpfedmeta.planning.caveats import cautions

_N = r"[\d,.]+(?:e[+-]?\d+)?"
_LEAST = "|".join(re.escape(words) for words in ("no two classes of two records", too_few(shared=True)))
_CHOSEN = f"(?:, chosen from {_N} by run.seed)?"
_DRAWN = "{clients} simulated clients hold {records} records made from {images} images; "
_ONE_OF_ITS = "counts as zero: a client is one of them, a record is one of its records"
# As dpfedmeta.data.populations.population writes them.
_ABOUT_CLIENTS = {
    "virtual": (
        f"{_DRAWN}an image recurs in {_N} clients on average, so a client is a simulated one, and a record is one slot "
        "of one client, not one image",
    ),
    "disjoint": (f"{_DRAWN}each image is in at most one client: a client is a simulated one, a record is an image",),
    "natural": (
        f"{_DRAWN}each image is in at most one client, the drawings of characters of one alphabet by the same drawers: "
        "a client is a simulated one, a record is an image",
        f"{{clients}} clients that the data name{_CHOSEN}; each holds {_N}(?: to {_N})? \\+ {_N} records "
        f"(?:with a number to predict|of {_N} classes of its own), and one that has fewer {_ONE_OF_ITS}",
        f"{{clients}} (?:clients that the data name|clients, {_N} drawers of an alphabet each){_CHOSEN}; each uses all "
        f"its records, {_N}% of a class as support, up to {_N} classes and {_N} records \\({_N} MB in memory\\), and "
        f"one that has (?:{_LEAST}) {_ONE_OF_ITS}",
    ),
    "shards": (
        "{clients} simulated clients hold two shards each of {images} sorted images; (?:each image is in at most one "
        f"client|an image is in {_N} clients on average, so a client is a simulated one)",
    ),
    OWN: ("{clients} clients of the caller's own; what a client and its records are, the caller says",),
    ASKED: (
        "{clients} clients that hold their data themselves and are asked by a server; a client is all that one of them "
        "holds, a record is one of its records",
    ),
}


def is_about_clients(stated: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the text about a population is the sentence about its kind, with the numbers beside it."""
    kind, numbers = stated["kind"], {name: stated[name] for name in ("clients", "records", "images")}
    written = {name: "" if number is None else f"{number:,}" for name, number in numbers.items()}
    of_settings = kind in (OWN, ASKED, settings.population.kind)
    # A sentence whose numbers are not stated matches nothing.
    forms = (re.sub(r"\{(clients|records|images)\}", lambda at: written[at[1]] or "(?!)", form)
             for form in _ABOUT_CLIENTS.get(kind, ()))  # fmt: skip
    text, kept = stated["text"], kept_back(settings.population.own_test)
    return of_settings and text.endswith(kept) and any(re.fullmatch(form, text.removesuffix(kept)) for form in forms)


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
