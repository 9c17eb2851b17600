"""Comparisons of several runs: seeds pooled, paired tests, LaTeX tables."""
