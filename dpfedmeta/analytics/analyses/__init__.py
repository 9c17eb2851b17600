"""Built-in analyses, one file for each."""
