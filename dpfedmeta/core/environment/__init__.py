"""The environment that a run's numbers depend on, and the code that made it."""
