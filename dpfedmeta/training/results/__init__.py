"""Results of a run: rows, summary, evaluations, archive."""
