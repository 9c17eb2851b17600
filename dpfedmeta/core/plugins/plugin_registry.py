"""Registry of plugins: members of a seam, found by name as a file of its folder, or as a user's package.module:name.

A folder of members holds one file for each. A file names what it defines `MEMBER`; nothing else lists it. Where the
folder's `__init__` states `SUFFIX`, the files of members end with it (`privacy/clip_policies/window_policy.py` is the
clip policy `window`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any

from pydantic import AfterValidator, TypeAdapter, ValidationError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.plugin_names import module_of, names


def one_of(folder: str) -> AfterValidator:
    """For a setting whose values are the names of members, or package.module:name."""

    def check(name: str) -> str:
        if ":" not in name and name not in names(folder):
            raise ValueError(f"unknown{_nearest(name, names(folder))}; known are {', '.join(names(folder))}")
        return name

    return AfterValidator(check)


def one_of_each(folder: str) -> AfterValidator:
    """Validate a setting that is a list of names of members, or of package.module:name."""

    def check(given: tuple[str, ...]) -> tuple[str, ...]:
        for name in given:
            if ":" not in name and name not in names(folder):
                known = ", ".join(names(folder))
                raise ValueError(f"{name} is unknown{_nearest(name, names(folder))}; known are {known}")
        return given

    return AfterValidator(check)


def find(setting: str, name: str, folder: str) -> Any:
    """Return the member that a name stands for.

    Args:
        setting: Whose value the name is, for errors.
        name: A member's, or package.module:name.
        folder: The package of the built-in members.

    Raises:
        InputError: There is none, or its module cannot be imported.
    """
    if ":" in name:
        # Inside: most runs have no code of their own, and the kernel is small without it.
        from dpfedmeta.core.plugins.user_code import own_object

        return _overriding(setting, name, own_object(setting, name))
    if name not in names(folder):
        known = ", ".join(names(folder))
        raise InputError(
            f"{setting} = {name}: unknown{_nearest(name, names(folder))}; known are {known}, or "
            "package.module:name of your own"
        )
    return import_module(module_of(name, folder)).MEMBER


def _overriding(setting: str, name: str, member: Any) -> Any:
    """Return a class of the user's own, unless what it defines beside a built-in one overrides nothing of that."""
    kinds = member.__mro__ if isinstance(member, type) else ()
    ours = [kind for kind in kinds if kind.__module__.startswith("dpfedmeta.")]
    own = {part: None for kind in kinds if kind not in ours and kind.__module__ != "builtins" for part in vars(kind)}
    parts = [part for part in own if not part.startswith("_")]
    if ours and parts and not any(hasattr(kind, part) for kind in ours for part in parts):
        raise InputError(
            f"{setting} = {name}: its {parts[0]} overrides nothing of {ours[0].__name__}, so nothing would call it"
            f"{_nearest(parts[0], [part for part in dir(ours[0]) if not part.startswith('_')])}"
        )
    return member


def name_of(setting: str, member: object) -> str:
    """The name by which a run finds a member again that was handed over as an object: package.module:name.

    Raises:
        InputError: It cannot be found again, so nobody could resume or verify the run.
    """
    module, name = getattr(member, "__module__", ""), getattr(member, "__qualname__", "")
    if not isinstance(member, type) or module in ("", "__main__", "builtins") or "." in name or "<" in name:
        raise InputError(
            f"{setting} = {member!r}: pass a class from a module of its own (package.module:name), so "
            "that the run can be resumed and verified"
        )
    return f"{module}:{name}"


def own_settings(section: str, name: str, member: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member's own settings as its dataclass `Settings`: {"own": ...}; {} where it takes none.

    Args:
        section: Whose key `own` it is.
        name: The member's name, for errors.
        member: With a `Settings`, or without.
        given: What was given.

    Raises:
        InputError: A value that it does not take; names the key, the value and the nearest key.
    """
    form = getattr(member, "Settings", None)
    if form is None:
        if given:
            raise InputError(f"{section}.own.{next(iter(given))}: {name} takes no settings of its own; drop it")
        return {}
    known = [field.name for field in fields(form)]
    for key in given:
        if key not in known:
            raise InputError(f"{section}.own.{key}: {name} takes no such setting{_nearest(key, known)}")
    try:
        return {"own": TypeAdapter(form).validate_python(dict(given))}
    except ValidationError as error:
        from dpfedmeta.core.pydantic_errors import first_problem

        raise InputError(f"{section}.own.{first_problem(error, form)} ({name})") from error


def check_protocol(setting: str, name: str, member: object, *wanted: str) -> None:
    """Refuse a member that lacks parts of its protocol.

    Raises:
        InputError: Names the first part that is missing.
    """
    for part in wanted:
        if not hasattr(member, part):
            kind = member.__name__ if isinstance(member, type) else type(member).__name__
            raise InputError(f"{setting} = {name}: {kind} has no {part}; it needs {', '.join(wanted)}")


def planned(setting: str, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a member's `planned`, and say in one line what fails in it.

    Raises:
        InputError: It does not take what it is given, or fails.
    """
    taken = signature(function)
    try:
        taken.bind(*given, **named)
    except TypeError as error:
        besides = "".join(f" and {key}, its Settings" for key in named)
        raise InputError(
            f"{setting} = {name}: its {function.__name__}{taken} is given {len(given)} arguments{besides} ({error})"
        ) from error
    try:
        return function(*given, **named)
    except Exception as error:
        if ":" not in name or isinstance(error, InputError):
            raise
        from dpfedmeta.core.plugins.user_code import raised

        raise InputError(
            f"{setting} = {name}: its {function.__name__} failed ({raised(error)}); a field of its own needs a "
            "default, and takes a value from a class Settings (docs/extending.md)"
        ) from error


def _nearest(name: str, known: Sequence[str]) -> str:
    from dpfedmeta.core.pydantic_errors import nearest  # for errors alone

    return nearest(name, known)
