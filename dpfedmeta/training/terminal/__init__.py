"""Output of a run for people."""
