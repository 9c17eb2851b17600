"""Errors that are written for the person who has to act on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InputError(Exception):
    """Something the user gave cannot be used; the message says what, where, and what to do.

    The commands print it as one line and end with exit code 2. A name that it repeats may hold line breaks.
    """

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class RefusedPlan(InputError):
    """A plan asks for a privacy guarantee that would not hold, so it is not run."""


class OwnCodeFailed(RuntimeError):
    """Code of the user's own raised where clients or the server computed with it."""


@contextmanager
def going_on_with(command: Callable[[], str]) -> Iterator[None]:
    """Let an interruption, or a disk that fails, carry the command that goes on from there."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        error.add_note(f"go on with: {command()}")
        raise


# What reading a damaged JSON document raises, and taking values out of it.
DAMAGED_JSON = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

TOWARDS_MESSAGES = (
    "(client, server): the server sees each client's message, so no target can be set for this cell; use "
    "--aggregation secure, or --privacy.client.observer public"
)
"""Why a client's target towards a server of messages is refused, before the accountant and in it."""
