"""Few-shot benchmarks as data: one YAML file each, with its class split beside it."""
