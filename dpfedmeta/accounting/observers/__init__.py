"""Guarantees towards each observer: the server and the public."""
