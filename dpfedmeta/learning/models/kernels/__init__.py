"""Loops that numba compiles."""
