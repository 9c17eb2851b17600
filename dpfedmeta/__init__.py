"""Federated meta-learning with layered differential privacy."""

__version__ = "0.1.0"
