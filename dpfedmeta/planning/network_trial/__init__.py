"""Trials of a network on synthetic records before round 0."""
