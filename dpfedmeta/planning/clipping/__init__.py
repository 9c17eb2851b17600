"""Clip policies from settings, and the checks that any policy has to pass."""
