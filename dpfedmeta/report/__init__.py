"""From a run directory to HTML and PNG; reads released quantities only."""
