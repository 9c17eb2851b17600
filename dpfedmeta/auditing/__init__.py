"""Attacks on the program as it runs: lower bounds on epsilon that hold the printed one to account."""
