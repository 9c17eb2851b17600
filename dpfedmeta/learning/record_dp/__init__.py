"""Record-level differential privacy inside a client: per-example gradients, clipped and noised."""
