"""The command line: options, one file for each command, and sweeps."""
