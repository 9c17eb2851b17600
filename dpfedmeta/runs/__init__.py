"""A run directory over its life: written, gone on with, verified."""
