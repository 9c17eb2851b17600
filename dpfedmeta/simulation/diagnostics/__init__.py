"""Measurements for research on simulated clients. They read secret messages."""
