"""Readers of data, one file for each source."""
