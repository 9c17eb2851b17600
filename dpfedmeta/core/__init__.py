"""Ground that every room stands on: files, random streams, errors, worker processes. No privacy logic."""
