"""Errors that are written for the person who has to act on them."""


class InputError(Exception):
    """Something the user gave cannot be used; the message says what, where, and what to do.

    The commands print it as one line and end with exit code 2.
    """


class RefusedPlan(InputError):
    """A plan asks for a privacy guarantee that would not hold, so it is not run."""
