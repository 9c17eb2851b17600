"""Destinations of released quantities: run directory, Weights & Biases, TensorBoard, the terminal."""
