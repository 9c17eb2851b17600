"""Loops that numba compiles for the processor at hand."""

from collections.abc import Callable
from typing import Any

# Sums may be taken in any order, so that they use vector instructions; nan and infinities keep their meaning.
# What is kept on disk does not notice a change here: touch the kernels' files as well.
_FAST = {"reassoc", "contract", "nsz"}


class compiled:
    """A kernel that is compiled when it is first called, together with the others of its module.

    Until then nothing imports numba: most commands compute nothing. What was compiled is kept on disk, beside the
    source or in numba's own folder, where one of them can be written.
    """

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel

    def __call__(self, *arguments: Any) -> Any:
        """Put compiled kernels in the place of all of the module's, which may call each other, and call this one."""
        module = self.kernel.__globals__
        for name, value in list(module.items()):
            if isinstance(value, compiled):
                module[name] = _compile(value.kernel)
        return module[self.kernel.__name__](*arguments)


def _compile(kernel: Callable[..., Any]) -> Any:
    import numba

    try:
        return numba.njit(kernel, fastmath=_FAST, cache=True, nogil=True)
    except RuntimeError:  # nowhere to keep it
        return numba.njit(kernel, fastmath=_FAST, nogil=True)
