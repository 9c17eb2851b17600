"""Sections of a report that show every kept evaluation of the run, and what audits found."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from dpfedmeta.accounting.rounded import rounded_down, rounded_up
from dpfedmeta.training.results.evaluation_store import EVALUATIONS, kept_evaluations, unfinished


def evaluations_shown(run: Path) -> dict[str, Any]:
    """The table of kept evaluations, a row for each, as JSON.

    Raises:
        InputError: A file is damaged; says which.
    """
    from dpfedmeta.training.terminal.evaluation_tables import CLASSIFIERS, ROWS  # brings PyTorch

    found = list(kept_evaluations(run))
    labels = dict(ROWS) | dict(CLASSIFIERS) if _classifies(found) else dict(ROWS)
    keys = [key for key in labels if any(key in content["results"][0] for content in found)]
    rows = [
        {
            "measured": _measured(content),
            "accuracies": [_shown(content["results"][0].get(key)) for key in keys],
            "protocol": content["protocol"],
        }
        for content in found
    ]
    return {"columns": [labels[key] for key in keys], "rows": rows}


def evaluations_section(shown: Mapping[str, Any]) -> Markup:
    """That table; empty where there is none."""
    return _rendered("evaluations.html.j2", **shown, folder=f"{EVALUATIONS}/")


def _classifies(found: list[dict[str, Any]]) -> bool:
    return any("ways" not in content["results"][0] for content in found)


def _measured(content: Mapping[str, Any]) -> str:
    """Describe what an evaluation measured, and of which state of the run."""
    from dpfedmeta.training.terminal.evaluation_tables import size

    (result,) = content["results"]
    words = [size(result)]
    if "ways" in result:
        seeds = ", ".join(str(seed) for seed in content["seeds"])
        words += [f"{result['queries']} queries per class", f"{result['accuracy']['steps']} steps"]
        words += [f"{result['accuracy']['episodes']:,} episodes, seed {seeds}"]
    words += [note for note in (unfinished(content), content["note"]) if note]
    return "; ".join(words)


def _shown(value: Mapping[str, Any] | None) -> str:
    from dpfedmeta.learning.evaluation.accuracy import Accuracy

    return "" if value is None else str(Accuracy.from_json(value))


def audits_section(content: Mapping[str, Any] | None, picture: str) -> Markup:
    """A table and a picture of what audits found; empty where the run was not audited."""
    return Markup() if content is None else _rendered("audited.html.j2", **content, picture=picture)


def _rendered(template: str, **values: Any) -> Markup:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(upper=rounded_up, lower=rounded_down)
    text = (resources.files("dpfedmeta.reporting.html") / template).read_text(encoding="utf-8")
    return Markup(environment.from_string(text).render(**values))
