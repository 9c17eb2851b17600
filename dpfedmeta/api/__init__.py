"""Python interface, which the commands call too."""
