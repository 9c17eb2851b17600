"""Sweeps: the YAML of `wandb sweep`, run on this machine."""
