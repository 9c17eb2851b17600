"""Attacks on a plan's releases, one file for each observer or mechanism."""
