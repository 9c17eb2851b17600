"""Which modules of the user's own a run's rounds are computed by."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from dpfedmeta.config.settings import Settings
from dpfedmeta.data.task import Task

_NAMED = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")


def own_modules(settings: Settings, task: Task, *handed_over: object) -> list[str]:
    """Modules named as package.module:name, and those of objects that were handed over in Python.

    Every setting is looked at: a seam that comes later is not forgotten.

    Args:
        settings: Of the run.
        task: The task, whose file may name a reader of the data.
        handed_over: Objects, or None.
    """
    texts = [task.source.reader, *(value for _, value in texts_of(settings))]
    named = [match[1] for value in texts if (match := _NAMED.fullmatch(value))]
    objects = [module for each in handed_over if each is not None for module in _of_object(each)]
    return sorted({module for module in (*named, *objects) if module != "builtins"})


def texts_of(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """(Full name of the setting, text) of every text in settings, also in lists and mappings."""
    if isinstance(value, str):
        yield name, value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from texts_of(getattr(value, field.name), f"{name}.{field.name}" if name else field.name)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts_of(each, name)
    elif isinstance(value, Sequence):
        for each in value:
            yield from texts_of(each, name)


def _of_object(value: object) -> Iterator[str]:
    """Its class's module, those that it inherits from, and those of what it is made of."""
    parts = list(vars(value).values()) if hasattr(value, "__dict__") else []
    for each in (value, *parts):
        kind = each if isinstance(each, type) else type(each)
        yield from (base.__module__ for base in kind.__mro__)
        # A function stands in a module of its own.
        module = getattr(each, "__module__", None)
        if isinstance(module, str):
            yield module
