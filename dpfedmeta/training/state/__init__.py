"""State of a run on disk: journal, checkpoint, lock, resume."""
