"""Mechanisms by the name of `server.noise`, one file each."""
