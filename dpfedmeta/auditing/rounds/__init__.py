"""Verdicts on rounds that somebody else wrote."""
