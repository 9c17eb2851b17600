"""Imports of the server that worker processes are forked from; it ends between two of them if its parent has gone."""

import gc
import importlib
import os

# The largest first.
WORKERS_NEED = ("numpy", "torch", "dpfedmeta.simulation.client_runner")

_parent = os.getppid()
for _name in WORKERS_NEED:
    if os.getppid() != _parent:
        raise SystemExit
    importlib.import_module(_name)
# Garbage collection would write to every object, and each worker then holds a copy of its own.
gc.collect()
gc.freeze()
