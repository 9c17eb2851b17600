"""Sweeps: the YAML of `wandb sweep`, run on this machine."""

from dpfedmeta.sweeps.definition import Sweep, read_sweep
from dpfedmeta.sweeps.runner import SweepOptions, run_sweep

__all__ = ["Sweep", "SweepOptions", "read_sweep", "run_sweep"]
