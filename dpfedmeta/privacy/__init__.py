"""Privacy layer: clipping bounds a secret value, and a mechanism turns it into a released one.

The border between secret and released values is in units.py and mechanisms.py.
"""
