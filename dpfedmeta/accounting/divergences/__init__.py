"""Divergences and their composition: privacy loss distributions, Renyi divergences, Gaussian differential privacy."""
