"""Files that are written whole or not at all, and the names of a run directory."""
