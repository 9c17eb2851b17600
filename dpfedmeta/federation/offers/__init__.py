"""Signed plans and analyses: the texts that a server signs and a client accepts."""
