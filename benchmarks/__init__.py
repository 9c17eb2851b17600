"""How long things take, here and in other libraries: scripts/bench.py. Not part of the package."""
