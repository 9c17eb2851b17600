"""Pictures of runs, evaluations, audits and comparisons."""
