"""Clipping of many rows at once: records of a client, or messages on a GPU. Needs PyTorch."""
