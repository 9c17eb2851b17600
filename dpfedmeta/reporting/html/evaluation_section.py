"""Sections of a report that show every kept evaluation of the run, and what audits found."""

import base64
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from dpfedmeta.accounting.rounded import rounded_down, rounded_up
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.reporting.plots.evaluation_plots import audit_plot
from dpfedmeta.training.results.evaluation_store import (
    AUDIT_PLOT,
    EVALUATIONS,
    kept_audit,
    kept_evaluations,
    unfinished,
)
from dpfedmeta.training.terminal.evaluation_tables import CLASSIFIERS, ROWS, size


def evaluations_section(run: Path) -> Markup:
    """A table with a row for each evaluation; empty where there is none.

    Raises:
        InputError: A file is damaged; says which.
    """
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
    text = (resources.files("dpfedmeta.reporting.html") / "evaluations.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    columns = [labels[key] for key in keys]
    return Markup(environment.from_string(text).render(evaluations=rows, columns=columns, folder=f"{EVALUATIONS}/"))


def _classifies(found: list[dict[str, Any]]) -> bool:
    return any("ways" not in content["results"][0] for content in found)


def _measured(content: Mapping[str, Any]) -> str:
    """Describe what an evaluation measured, and of which state of the run."""
    (result,) = content["results"]
    words = [size(result)]
    if "ways" in result:
        seeds = ", ".join(str(seed) for seed in content["seeds"])
        words += [f"{result['queries']} queries per class", f"{result['accuracy']['steps']} steps"]
        words += [f"{result['accuracy']['episodes']:,} episodes, seed {seeds}"]
    words += [note for note in (unfinished(content), content["note"]) if note]
    return "; ".join(words)


def _shown(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else str(Accuracy.from_json(value))


def audits_section(run: Path) -> Markup:
    """A table and a picture; empty where the run was not audited.

    Raises:
        InputError: audit.json is damaged.
    """
    content = kept_audit(run)
    if content is None:
        return Markup("")
    audit_plot(run / AUDIT_PLOT, content["cells"])
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(upper=rounded_up, lower=rounded_down)
    picture = "data:image/png;base64," + base64.b64encode((run / AUDIT_PLOT).read_bytes()).decode()
    text = (resources.files("dpfedmeta.reporting.html") / "audited.html.j2").read_text(encoding="utf-8")
    return Markup(environment.from_string(text).render(cells=content["cells"], size=content["size"], picture=picture))
