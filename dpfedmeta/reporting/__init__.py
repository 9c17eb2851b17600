"""Reports in HTML and PNG, made from a run directory; they read released quantities only."""
