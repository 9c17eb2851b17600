"""Commands, one file each: `dpfedmeta train` is the `main` of train_command.py, and `SUMMARY` is its line in --help.

What a command computes with is imported where it is used: --help and bad input shall not wait for PyTorch.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from dpfedmeta.cli.checkout import checkout_module
from dpfedmeta.core.plugins.plugin_names import module_of, names

SUFFIX = "_command"
# Commands that only a checkout has, and their modules.
OF_A_CHECKOUT = {"decompose": "benchmarks.decompose"}


def command_names() -> list[str]:
    """Names of all commands, as they are typed. Imports none of them."""
    return names(__name__)


def command_module(name: str) -> ModuleType:
    """Module of a command: `main(words, console)`, `SUMMARY`, and `on_workers` where ranks can share its work."""
    if name in OF_A_CHECKOUT:
        return checkout_module(OF_A_CHECKOUT[name], f"dpfedmeta {name}")
    return import_module(module_of(name, __name__))


def command_summary(name: str) -> str:
    """Line of a command in the overview, read from its source: imports would take seconds for all of them."""
    spec = find_spec(module_of(name, __name__))
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUMMARY":
            return str(ast.literal_eval(node.value))
    raise AttributeError(f"{spec.name} states no SUMMARY")
