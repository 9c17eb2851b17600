"""Names of a seam's members: files of a package, by the names that settings and commands use. Needs no library."""

from importlib import import_module
from pkgutil import iter_modules


def names(folder: str) -> list[str]:
    """Names of the members in a package, in alphabetical order. Imports none of them."""
    package = import_module(folder)
    files, suffix = (module.name for module in iter_modules(package.__path__)), _suffix(folder)
    return sorted(file.removesuffix(suffix).replace("_", "-") for file in files if file.endswith(suffix))


def module_of(name: str, folder: str) -> str:
    """Full name of a member's module."""
    return f"{folder}.{name.replace('-', '_')}{_suffix(folder)}"


def _suffix(folder: str) -> str:
    suffix: str = getattr(import_module(folder), "SUFFIX", "")
    return suffix
