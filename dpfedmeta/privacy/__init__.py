"""Where a secret value gets a bound, and where it becomes a released one.

The border between secret and released values is in units.py and mechanisms.py.
"""
