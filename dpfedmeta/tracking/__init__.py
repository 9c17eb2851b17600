"""Where released quantities go: run directory, Weights & Biases, TensorBoard, the terminal."""
