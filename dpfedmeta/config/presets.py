"""Presets, the short names of what people change in them, and which value gives way to which."""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from itertools import takewhile
from typing import Any

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.config.dotted_keys import Given, flattened
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import nearest, read_yaml

# A noise and a target of one cell displace each other; the stronger level wins.
_CELLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("privacy.client.epsilon", ("server.noise_multiplier",)),
    ("privacy.record.epsilon", ("record.support_noise", "record.query_noise")),
)


def algorithm_names() -> list[str]:
    """Names of the presets in configs/algo/."""
    folder = resources.files("dpfedmeta.configs") / "algo"
    return sorted(f.name[: -len(".yaml")] for f in folder.iterdir() if f.name.endswith(".yaml"))


# One for each kind of promise, in the order in which they are to be tried.
FIRST_ALGORITHMS = (
    *("maml", "dp-agr", "dp-agr-secure", "dp-agrlr", "dp-agrlr-micro", "dp-agrlr-secure"),
    *("moments-agr", "moments-agrlr", "moments-agrlr-secure", "moments-then-gradients"),
)


def summary_of(algo: str) -> str:
    """Return the first sentence of a preset's file, which says what it is."""
    lines = takewhile(lambda line: line.startswith("#"), _text(algo).splitlines())
    return re.split(r"(?<! al)\.(?:\s|$)", " ".join(line[1:].strip() for line in lines), maxsplit=1)[0] + "."


# Classes of a client at which presets were chosen.
_WAYS = 5


def remark_of(algo: str) -> str | None:
    """Return a note on a preset for its users; None: there is none, or no such preset."""
    return _content(algo).get("remark") if algo in algorithm_names() else None


def claimed_of(algo: str) -> dict[str, str] | None:
    """Return a preset's entries on the claim of its origin; None: no origin of it claims an epsilon."""
    claimed: dict[str, str] | None = _content(algo).get("claimed")
    return claimed


def preset_values(algo: str, dataset: str) -> dict[str, Given]:
    """Return the values of a preset by dotted names.

    Raises:
        InputError: There is none of this name.
    """
    if algo not in algorithm_names():
        known = ", ".join(algorithm_names())
        raise InputError(f"algo = {algo}: unknown{nearest(algo, algorithm_names())}; known are {known}")
    where, grow, values = f"configs/algo/{algo}.yaml", _growing(algo), _of_preset(algo, dataset)
    shrink = ("meta.lr", "evaluation.lr") if values.get("meta.adapt") == "head" else ()
    return {
        name: Given(value=value, level=1, where=where, grows=name in grow, shrinks=name in shrink and value is not None)
        for name, value in values.items()
    }


def _growing(algo: str) -> set[str]:
    """Settings that grow with the ways. A preset that states a value itself says so itself."""
    content = _content(algo)
    own, base = set(content.get("grow_with_ways", ())), content.get("extends")
    return own | (_growing(base) - dict(flattened(content)).keys() if base else set())


def _of_preset(algo: str, dataset: str) -> dict[str, Any]:
    """A preset may extend another one: what it says itself is stronger, for every data set."""
    content = _content(algo)
    for words in ("remark", "claimed", "grow_with_ways"):
        content.pop(words, None)
    base = content.pop("extends", None)
    of_dataset = content.pop("datasets", {}).get(dataset, {})
    inherited = _of_preset(base, dataset) if base else {}
    return {**inherited, **dict(flattened(content)), **dict(flattened(of_dataset))}


def _content(algo: str) -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(_text(algo))
    return content


def _text(algo: str) -> str:
    return (resources.files("dpfedmeta.configs") / "algo" / f"{algo}.yaml").read_text(encoding="utf-8")


def displaced(given: Mapping[str, Given]) -> dict[str, Given]:
    """Resolve a noise and a target that are given for one cell: keep the one given at the stronger level.

    Raises:
        InputError: Both are given at the same level.
    """
    kept = dict(given)
    for target, noises in _CELLS:
        stated = [n for n in noises if n in kept and kept[n].value is not None]
        if target not in kept or kept[target].value is None or not stated:
            continue
        level = max(kept[noise].level for noise in stated)
        if kept[target].level == level:
            raise InputError(
                f"{kept[target].where}: {target} and {stated[0]} are both given; the noise is either given "
                "or solved from a target: remove one of them"
            )
        for loser in [target] if kept[target].level < level else stated:
            kept[loser] = replace(kept[loser], value=None)
    _shorten_window(kept)
    _lengthen_steps(kept)
    epsilon, limit = (kept.get(f"privacy.client.{name}") for name in ("epsilon", "limit"))
    if epsilon and limit and None not in (epsilon.value, limit.value) and epsilon.level > limit.level:
        # A target is for all rounds; the limit came with the noise that it displaced.
        kept["privacy.client.limit"] = replace(limit, value=None)
    return kept


def _shorten_window(given: dict[str, Given]) -> None:
    """A run that is asked to be shorter than the preset's window gets a window that it fills.

    A window that is given with the rounds, or above them, stays, and is refused where it is too long.
    """
    rounds = given.get("server.rounds")
    window = given.get("clip.window", Given(value=ClipSettings().window, level=0, where="the settings"))
    if rounds is None or rounds.level <= max(window.level, 1):
        return
    # What is no number is refused in its turn.
    if type(rounds.value) is int and type(window.value) is int and 1 <= rounds.value < window.value:
        given["clip.window"] = replace(window, value=max(2, rounds.value))


def _lengthen_steps(given: dict[str, Given]) -> None:
    """A client of more classes gets a longer step: its loss is a mean over all of them, so each has a smaller part.

    Omniglot at 20 ways, `maml`, 4,800 clients: 94.5% of validation with the step of 5 ways times 4, 88.7% without.
    Numbers to predict are one output: a head gets a fifth of the step of 5 ways. Parkinson's, `maml`, after 200
    participations: validation error 0.63, and 19.1 with the whole step; the mean of a client's own targets has 1.78.
    """
    ways = given.get("task.ways")
    # What is no number is refused in its turn.
    if ways is None or type(ways.value) is not int or 1 < ways.value <= _WAYS:
        return
    for name, entry in given.items():
        if (entry.grows and ways.value > _WAYS) or (entry.shrinks and ways.value == 1):
            given[name] = replace(entry, value=entry.value * ways.value / _WAYS, grows=False, shrinks=False)
