"""Rounds of a run: charged, asked, released and resumed, whoever computes the updates."""
