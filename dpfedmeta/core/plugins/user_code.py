"""Code of the user's own: found by package.module:name, and what it raises in one line."""

import ast
import hashlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedmeta.core.errors import InputError, OwnCodeFailed
from dpfedmeta.core.pydantic_errors import nearest

# What a run directory holds, whoever made it: code beside it is not looked for.
_OF_A_RUN = "ledger.jsonl"
# What the digest of a module begins with of which nobody can say what it runs.
UNSEEN = "unseen"
_LOADERS = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES))
# Calls that run code which no import statement names.
_HIDDEN = frozenset(
    {"__import__", "exec", "eval", "compile", "import_module", "exec_module", "run_path", "run_module", "reload"}
)


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
    _check_is_name(setting, name)
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
        raise InputError(f"{setting} = {name}: importing {module} failed ({raised(error)}); fix the module") from error
    if not hasattr(found, attribute):
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
    _check_is_name(setting, name)
    outermost = name.partition(":")[0].partition(".")[0]
    here = looked_for_here()
    if outermost and outermost not in sys.modules and find_spec(outermost) is None:
        raise _absent(setting, name, outermost, here)


def _check_is_name(setting: str, name: str) -> None:
    """Refuse a path in place of a module's name, and a module without a name in it."""
    module, _, attribute = name.partition(":")
    if "/" in module or "\\" in module or module.startswith(".") or module.endswith(".py"):
        plain = module.replace("\\", "/").removesuffix(".py").strip("./").replace("/", ".")
        hint = f"; did you mean {plain}:{attribute or 'NAME'}?" if plain else ""
        raise InputError(f"{setting} = {name}: is a path, where package.module:name is expected{hint}")
    if not attribute:
        raise InputError(f"{setting} = {name}: names nothing in the module; give {module}:NAME")


def _absent(setting: str, name: str, module: str, here: str) -> InputError:
    return InputError(
        f"{setting} = {name}: cannot be imported: there is no module {module} in {here}, and none is "
        "installed; call the command from the directory that holds it, or put that directory on PYTHONPATH"
    )


def raised(error: BaseException) -> str:
    """Describe in one line what the user's own code raised, and in which line of it."""
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    # A SyntaxError says itself where.
    return what if isinstance(error, SyntaxError) else what + (_own_line(error) or "")


def _own_line(error: BaseException) -> str | None:
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f", at {own[-1].filename}, line {own[-1].lineno}" if own else None


def is_own(error: Exception) -> bool:
    """Return whether code of the user's own had a part in an exception."""
    return isinstance(error, OwnCodeFailed) or (not isinstance(error, MemoryError) and _own_line(error) is not None)


@contextmanager
def own_failures(while_: str, *, private: bool) -> Iterator[None]:
    """Say in one line what code of the user's own raises, without its words where these may tell of a client's data.

    Raises:
        OwnCodeFailed: With the kind of the exception, the file and the line.
    """
    try:
        yield
    except Exception as error:
        line = _own_line(error)
        if line is None or isinstance(error, InputError | OwnCodeFailed):
            raise
        what = (
            f"{type(error).__name__} (its words may tell of the data of a client){line}" if private else raised(error)
        )
        raise OwnCodeFailed(f"code of your own failed {while_}: {what}") from (None if private else error)


def looked_for_here() -> str:
    """The current directory in words; from now on it is the last place where modules are looked for."""
    try:
        here = Path.cwd()
    except OSError:
        return "the current directory, which no longer exists"
    if (here / _OF_A_RUN).exists():
        return f"{here} (a run directory, which is not searched for code)"
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


def own_sources(roots: Iterable[str]) -> Mapping[str, str]:
    """By module: a digest of its file, or the version of an installed package; `unseen` where that does not say it all.

    Args:
        roots: Modules whose code is the user's own, installed or not.

    Guarantee:
        What import statements name, anywhere in these modules and in what they import, is in the result, but Python's
        own library and this package (provenance.source_digest). Modules that import or run what is written
        nowhere (exec, import_module, ...), or that have no file, are `unseen`. What code reads besides is not seen:
        files, environment variables, the clock.
    """
    roots = sorted({name for name in roots if not _is_known(_outermost(name))})
    packages = {_outermost(name) for name in roots}
    found: dict[str, str] = {}
    left = list(roots)
    while left:
        name = left.pop()
        if name in found or _is_known(_outermost(name)):
            continue
        path, known = _file_of(name)
        if not known:
            # One that is not there is an attribute, or an import that is allowed to fail.
            if name in roots:
                found[name] = UNSEEN
            continue
        if path is not None and _is_installed(path) and _outermost(name) not in packages:
            found[_outermost(name)] = _version_of(_outermost(name))
            continue
        left += _parents(name)
        if path is not None:
            found[name], imported = _read(name, path)
            left += imported
    return dict(sorted(found.items()))


def unseen(sources: Mapping[str, str]) -> list[str]:
    """Modules of which nobody can say what they run."""
    return [name for name, digest in sources.items() if digest.startswith(UNSEEN)]


def own_words(roots: Iterable[str]) -> str:
    """For a comparison between machines: each module with the beginning of its digest; modules may lie here."""
    looked_for_here()
    return ", ".join(f"{name} {digest[:24]}" for name, digest in own_sources(roots).items()) or "none"


def _is_known(package: str) -> bool:
    """Return whether a package's code is identified elsewhere: by this package's digest, or by Python's version."""
    return package == "dpfedmeta" or (package in sys.stdlib_module_names and package != "__main__")


def _outermost(name: str) -> str:
    return name.partition(".")[0]


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _file_of(name: str) -> tuple[Path | None, bool]:
    """(Its file; None: a folder of modules, whether there is such a module); none of it is run."""
    if name == "__main__":
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        return (Path(file), True) if file else (None, False)
    spec = _spec_of(name)
    if spec is None:
        return None, False
    if spec.origin in (None, "namespace"):
        return None, True
    path = Path(str(spec.origin))
    return (path, True) if path.is_file() else (None, False)


def _spec_of(name: str) -> ModuleSpec | None:
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent = name.rpartition(".")[0]
    try:
        if not parent:
            return find_spec(name)
        above = _spec_of(parent)
        inside = None if above is None else above.submodule_search_locations
        # The path of a folder without a file of its own asks for its parent, which need not be imported.
        folders = [] if inside is None else list(getattr(inside, "_path", inside))
    except (ImportError, ValueError, AttributeError, KeyError):
        return None
    specs = (FileFinder(str(folder), *_LOADERS).find_spec(name) for folder in folders)
    return next((spec for spec in specs if spec is not None), None)


def _is_installed(path: Path) -> bool:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    folders |= {folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")}
    return any(path.is_relative_to(folder) for folder in folders)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"


def _read(name: str, path: Path) -> tuple[str, list[str]]:
    """(Digest, what it imports)."""
    try:
        content = path.read_bytes()
    except OSError:
        return UNSEEN, []
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix != ".py":
        return digest, []
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return f"{UNSEEN} {digest}", []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    hidden = any(map(_is_hidden, ast.walk(tree)))
    return (f"{UNSEEN} {digest}" if hidden else digest), list(_imported(tree, package))


def _is_hidden(node: ast.AST) -> bool:
    """Return whether a call may run code that no import names. Networks have an eval() of another kind."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in _HIDDEN
    return isinstance(node.func, ast.Attribute) and node.func.attr in _HIDDEN - {"exec", "eval", "compile"}


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Every name that may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
