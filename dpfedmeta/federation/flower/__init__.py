"""Flower's SuperLink and clients as the wire of a federation."""
