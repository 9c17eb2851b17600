"""A run directory over its life: begun, journalled, reopened, gone on with, summed up, verified."""
