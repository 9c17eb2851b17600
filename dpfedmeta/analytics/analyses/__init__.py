"""One file for each analysis."""
