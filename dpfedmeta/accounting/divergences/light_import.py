"""Import of a library without large modules that it imports itself and seldom uses."""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


class UsedLater(ModuleType):
    """A stand-in for a module, or (`module:name`) for something in it; the module is imported on first use."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # while the library is imported, it only takes names
            if name.startswith("__"):
                raise AttributeError(name)
            return UsedLater(f"{self.__name__}:{name}")
        module, _, inside = self.__name__.partition(":")
        found = import_module(module)
        return getattr(getattr(found, inside) if inside else found, name)


def import_lightly(library: str, *, without: Sequence[str]) -> None:
    """Import a library; what it takes from some modules is imported when it uses it. Others import them as ever."""
    made = {name: UsedLater(name) for name in without if name not in sys.modules}
    sys.modules.update(made)
    try:
        import_module(library)
    finally:
        for name in made:
            del sys.modules[name]
