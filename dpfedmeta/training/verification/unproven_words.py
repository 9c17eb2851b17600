"""Words in a run's files that no ledger proves: each has a form, and what fits none is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import PLAN, ROUNDS, SUMMARY
from dpfedmeta.training.state.private_timings import COARSE

_NAME = r"[\w .,+@/:-]{0,80}"  # of somebody, or of a machine
_NOT_OF_PRIVACY = r"(?!(?i:.*(epsilon|\beps\b|[εδ]|delta|promis|guarant|privat|privac|server)))"
_PROTOCOL = rf"{_NOT_OF_PRIVACY}single model[A-Za-z0-9 ,;:()-]{{0,300}}"  # no decimals, and no sign of equality
_KEY = r"(?!\w*(epsilon|delta|server|guarant|promis|privac|privat))[a-z0-9_]+"
_SCORE = rf"(accuracy|error)(_{_KEY})?"
_NO_WORDS = "(?!)"
# Entries that do not follow from the ledger, by the names of their keys with dots between; of a list all have one name.
FORMS: Mapping[str, Mapping[str, str]] = {
    SUMMARY: {
        r"status": "completed|budget|interrupted|diverged|running|stopped",
        r"rounds": _NO_WORDS,
        rf"{_SCORE}\.protocol": _PROTOCOL,
        rf"{_SCORE}(\.{_KEY})?": r"[a-z ]{1,40}",
        r"seconds|clients_per_second|peak_memory_mb": _NO_WORDS,
        r"times": re.escape(COARSE),
        r"records": r"[\w ]{1,40}",
        r"judged_on": rf"(\d+ of )?\d+ public (clients?|classes) in {_NAME}",
        r"versions(\.(dpfedmeta|python|torch|opacus|dp-accounting|numpy|scipy|numba))?": r"\d[\d.]*[\w.+]{0,20}",
        r"made_by\.commit": r"[0-9a-f]{7,40}( \+ changes)?",
        r"made_by\.source": r"[0-9a-f]{16}",
        r"made_by\.day": r"\d{4}-\d\d-\d\d",
        r"made_by\.(system|processor|cores)": rf"{_NOT_OF_PRIVACY}[\w .,+@/:()-]{{0,100}}",
        r"audited\.\w+": r".{0,300}",  # of audit.json, and as free
    },
    PLAN: {
        r"cost\.(seconds|clients_per_second)": _NO_WORDS,
        r"code\.[\w./-]{1,200}": r"[\w.+-]{1,80}",
        r"clip_policy": rf"[\w.<>-]+(: {_NOT_OF_PRIVACY}\w+\(.*\))?",
    },
    ROUNDS: {
        r"epsilons(\..+)?": "",
        r"clip_mode": r"[\w -]{1,40}",
        r"release": "aborted|[0-9a-f]{64}",
        r"round|aborted|clip|aggregate_norm|noise_norm_expected|signal_to_noise|longer_than_honest": _NO_WORDS,
        r"released_norm|seconds|clients_per_second|between_client_variance|update_scale|delta_at_limit": _NO_WORDS,
        rf"validation_{_SCORE}(\.{_KEY})?": r"[a-z ]{1,40}",
    },
}  # fmt: skip


def check_words(path: Path | str, name: str, content: Mapping[str, Any]) -> None:
    """Refuse an entry that no such file has, and words in the place of a name or a number.

    Args:
        path: For errors.
        name: Of the file: summary.json, plan.json or rounds.jsonl.
        content: What it states, or one of its lines.

    Raises:
        InputError: Names the entry and its value.
    """
    forms = [(re.compile(key), re.compile(value)) for key, value in FORMS[name].items()]
    for key, value in _leaves(content) if content else ():
        due = next((form for known, form in forms if known.fullmatch(key)), None)
        if due is None:
            raise InputError(f"{path}: {key}: states {value!r}, but no {name} has such an entry")
        if isinstance(value, str) and due.pattern and not due.fullmatch(value):
            raise InputError(f"{path}: {key}: states {value!r}, which is none of the words that a run writes there")


def check_written(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a JSON file that is not as a run writes it.

    Raises:
        InputError: It is written otherwise.
    """
    if path.read_bytes().decode() != json.dumps(content, indent=2) + "\n":
        raise InputError(
            f"{path}: is not written as a run writes it: spaces, lines or the form of a number were edited"
        )


def _leaves(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping) and content:
        for name, value in content.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, list) and content:
        for value in content:
            yield from _leaves(value, key)
    else:
        yield key, content
