"""Models of single clients: adaptation, predictions, files."""
