"""Populations: which client holds which records."""
