"""The section of a report that shows what audits found of the program with the run's settings."""

from __future__ import annotations

import base64
from importlib import resources
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from dpfedmeta.reporting.plots.audit_plot import audit_plot
from dpfedmeta.training.results.evaluation_store import AUDIT_PLOT, kept_audit
from dpfedmeta.training.terminal.tables import number


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
    environment.filters["epsilon"] = number
    picture = "data:image/png;base64," + base64.b64encode((run / AUDIT_PLOT).read_bytes()).decode()
    text = (resources.files("dpfedmeta.reporting.html") / "audited.html.j2").read_text(encoding="utf-8")
    return Markup(environment.from_string(text).render(cells=content["cells"], size=content["size"], picture=picture))
