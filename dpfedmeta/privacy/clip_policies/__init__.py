"""Clip policies by the name of `clip.policy`, one file each.

A policy sees `Released` values and nothing else, so its bound is post-processing and enters no event.
"""

SUFFIX = "_policy"
