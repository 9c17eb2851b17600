"""Code of the user's own: found by package.module:name, and what it raises in one line."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.pydantic_errors import nearest

# What a run directory holds, whoever made it: code beside it is not looked for.
_OF_A_RUN = "ledger.jsonl"


def own_object(setting: str, name: str) -> Any:
    """Return the object that package.module:name names; the module is installed, or lies in the current directory.

    The current directory comes last, so that no file in it hides a module of somebody else's. It stays where Python
    looks for modules, since worker processes look where this process does.

    Args:
        setting: Whose value the name is, for errors.
        name: package.module:name.

    Raises:
        InputError: There is no such module or name, or importing it fails; says in which line of the user's own.
    """
    module, _, attribute = name.partition(":")
    here = looked_for_here()
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name and f"{module}.".startswith(f"{error.name}.")):
            raise InputError(f"{setting} = {name}: cannot be imported ({raised(error)})") from error
        raise _absent(setting, name, error.name, here) from error
    except (ImportError, ValueError, TypeError) as error:  # the last two: no name of a module
        raise InputError(f"{setting} = {name}: cannot be imported ({raised(error)})") from error
    except (Exception, SystemExit) as error:  # whatever the user's own module raises
        raise InputError(f"{setting} = {name}: importing {module} failed ({raised(error)}); mend it") from error
    if not attribute or not hasattr(found, attribute):
        near = nearest(attribute, [known for known in vars(found) if not known.startswith("_")])
        raise InputError(f"{setting} = {name}: {_described(found)} has no {attribute}{near}")
    return getattr(found, attribute)


def check_there(setting: str, name: str) -> None:
    """Refuse a name of which not even the outermost package is there; none of it is run.

    Args:
        setting: Whose value the name is, for errors.
        name: package.module:name.

    Raises:
        InputError: There is no such package.
    """
    outermost = name.partition(":")[0].partition(".")[0]
    here = looked_for_here()
    if outermost and outermost not in sys.modules and find_spec(outermost) is None:
        raise _absent(setting, name, outermost, here)


def _absent(setting: str, name: str, module: str, here: str) -> InputError:
    return InputError(
        f"{setting} = {name}: cannot be imported: there is no module {module} in {here}, and none is "
        "installed; call the command from the directory that holds it, or put that directory on PYTHONPATH"
    )


def raised(error: BaseException) -> str:
    """Describe in one line what the user's own code raised, and in which line of it."""
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, SyntaxError):  # says itself where
        return what
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{what}, at {own[-1].filename}, line {own[-1].lineno}" if own else what


def looked_for_here() -> str:
    """The current directory in words; from now on it is the last place where modules are looked for."""
    try:
        here = Path.cwd()
    except OSError:
        return "the current directory, which is gone"
    if (here / _OF_A_RUN).exists():
        return f"{here} (a run directory, in which no code is looked for)"
    if str(here) not in sys.path:
        sys.path.append(str(here))
    invalidate_caches()  # a file may be newer than what Python remembers of its folder
    return f"{here} (the current directory)"


def _is_own(filename: str) -> bool:
    """Return whether a line of code belongs to neither Python, nor PyTorch, nor this package."""
    path, paths = Path(filename), sysconfig.get_paths()
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    others = [Path(__file__).parents[2], *([Path(torch).parent] if torch else [])]
    if filename.startswith("<") or any(path.is_relative_to(other) for other in others):
        return False
    installed = any(path.is_relative_to(paths[name]) for name in ("purelib", "platlib"))
    return installed or not path.is_relative_to(paths["stdlib"])


def _described(module: ModuleType) -> str:
    """Name and file: another module of that name may have been meant."""
    file = getattr(module, "__file__", None)
    return f"{module.__name__} ({file})" if file else module.__name__
