"""Training: turns a plan into a run."""
