"""From a run directory to HTML and PNG; reads released quantities only."""

from dpfedmeta.report.page import write_report

__all__ = ["write_report"]
