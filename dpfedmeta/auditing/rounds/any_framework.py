"""Rounds that work on numpy arrays, torch tensors or JAX arrays, called as rounds of numpy arrays."""

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class _Framework:
    """Arrays and random numbers of a library.

    Attributes:
        array: A numpy array as one of its own.
        source: Its source of random numbers, from a seed.
    """

    array: Callable[[npt.NDArray[Any], Any], Any]
    source: Callable[[int], Any]


def as_numpy_rounds(function: Callable[..., Any], like: Mapping[str, Any]) -> Callable[..., Any]:
    """Return rounds of numpy arrays that call `function` with arrays of the kind that `like` holds.

    A function on torch tensors gets a `torch.Generator` in place of numpy's, one on JAX arrays a key of `jax.random`
    that is new in each round.
    """
    framework = _framework(next(iter(like.values()), None))
    if framework is None:
        return function

    def rounds(state: Any, updates: Mapping[int, Mapping[str, Any]], generator: np.random.Generator) -> Any:
        own = {
            client: {name: framework.array(value, like[name]) for name, value in update.items()}
            for client, update in updates.items()
        }
        state, released = function(state, own, framework.source(int(generator.integers(2**63))))
        if not isinstance(released, Mapping):
            return state, released
        return state, {name: _as_numpy(value) for name, value in released.items()}

    return rounds


def shape_of(value: Any) -> tuple[int, ...]:
    """Shape of an array of any library."""
    return tuple(np.shape(_as_numpy(value)))


def _as_numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if _library(value) == "torch" else value


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _framework(value: Any) -> _Framework | None:
    match _library(value):
        case "torch":
            import torch

            return _Framework(
                array=lambda found, like: torch.as_tensor(found).to(like.dtype),
                source=lambda seed: torch.Generator().manual_seed(seed),
            )
        case "jax" | "jaxlib":
            jax: Any = importlib.import_module("jax")
            return _Framework(
                array=lambda found, like: jax.numpy.asarray(found, dtype=like.dtype),
                source=lambda seed: jax.random.key(seed % 2**32),
            )
    return None


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed the sources that a whole process shares (random, numpy.random, torch), and put them back."""
    torch: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    # Theirs may draw from numpy's old source.
    before = random.getstate(), np.random.get_state(), torch.get_state() if torch else None  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        if torch:
            torch.manual_seed(seed)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if torch:
            torch.set_state(before[2])
