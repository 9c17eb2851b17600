"""Functions that a member of one's own overrides: each is what every engine computes, or the run is refused in a line.

A method computes a meta-gradient in two forms, of one client (`gradient`) and of several at once (`gradients`), and
engines call either. Whoever overrides one of them means both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import InputError, OwnCodeFailed

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.learning.meta.algorithm import ClientContext

_ONE, _SEVERAL = "gradient", "gradients"
# What a client sends is computed by these.
COMPUTES = (_ONE, _SEVERAL, "messages")
_PACKAGE = "dpfedmeta."


def pair_up(kind: type) -> None:
    """Make of the form of a meta-gradient that a class overrides the other one too, where it overrides only one."""
    for name in (_ONE, _SEVERAL):
        if name in vars(kind) and not kind.__module__.startswith(_PACKAGE):
            setattr(kind, name, _answering(f"{kind.__module__}:{kind.__name__}.{name}", vars(kind)[name]))
    depths = {name: _depth(kind, name) for name in (_ONE, _SEVERAL)}
    if depths[_ONE] < depths[_SEVERAL]:
        setattr(kind, _SEVERAL, _several_of(vars(kind.__mro__[depths[_ONE]])[_ONE]))
    elif depths[_SEVERAL] < depths[_ONE]:
        setattr(kind, _ONE, _one_of(vars(kind.__mro__[depths[_SEVERAL]])[_SEVERAL]))


def _answering(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """The same, whose silent ends are failures with its name: they may be one client's, and count as such."""

    @wraps(own)
    def answering(*given: Any, **named: Any) -> Any:
        try:
            found = own(*given, **named)
        except SystemExit as error:
            raise OwnCodeFailed(f"{name} called sys.exit") from error
        if found is None:
            raise OwnCodeFailed(f"{name} returned None, expected a mapping of names to tensors")
        return found

    return answering


def _depth(kind: type, name: str) -> int:
    return next(place for place, base in enumerate(kind.__mro__) if name in vars(base))


def _several_of(one: Callable[[Any, ClientContext, Episode], Params]) -> Callable[..., Params]:
    def gradients(self: Any, context: ClientContext, episodes: Episode) -> Params:
        """SECRET: the meta-gradients of E episodes of one form, each tensor [E, *shape], one after the other."""
        import torch

        found = [one(self, context, each) for each in _each(episodes.to(context.device))]
        return {name: torch.stack([own[name] for own in found]) for name in found[0]}

    return gradients


def _one_of(several: Callable[[Any, ClientContext, Episode], Params]) -> Callable[..., Params]:
    def gradient(self: Any, context: ClientContext, episode: Episode) -> Params:
        """SECRET: one client's meta-gradient."""
        from dpfedmeta.learning.meta.meta_gradients import batched

        return {name: value[0] for name, value in several(self, context, batched([episode])).items()}

    return gradient


def _each(episodes: Episode) -> Iterator[Episode]:
    from dpfedmeta.data.episodes.episode import Episode

    for place in range(len(episodes.support_labels)):
        yield Episode(
            support_images=episodes.support_images[place],
            support_labels=episodes.support_labels[place],
            query_images=episodes.query_images[place],
            query_labels=episodes.query_labels[place],
        )


def own_parts(member: object, names: tuple[str, ...] = COMPUTES) -> list[str]:
    """Those of the functions of a member that are not this package's."""
    return [name for name in names if hasattr(member, name) and not _of_package(getattr(member, name))]


def _of_package(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).startswith(_PACKAGE)


def own_words(name: str, method: object) -> list[str]:
    """Say which functions of a method of the user's own compute messages; [] where it is built in."""
    if ":" not in name:
        return []
    base = next((kind.__name__ for kind in type(method).__mro__ if kind.__module__.startswith(_PACKAGE)), None)
    over, computes = f" (over {base})" if base else "", own_parts(method)
    never = "; evaluation, adapt and personal models take the steps of its rule, and never run that" if computes else ""
    rule = type(getattr(getattr(method, "adaptation", None), "rule", None)).__module__
    own = " and ".join([*computes, *([] if rule.startswith((_PACKAGE, "builtins")) else ["inner rule"])])
    return [f"method {name}{over}: {own or 'no function'} of its own computes messages{never}"]


def check_called(name: str, method: Any) -> None:
    """Refuse a method with a meta-gradient of its own that its messages are not made of.

    Raises:
        InputError: Names the function, and what to override.
    """
    if "messages" in own_parts(method):
        # They call what they like.
        return
    sender = method.messages.__self__
    maker = next(base for base in type(sender).__mro__ if "messages" in vars(base))
    for part in own_parts(method, (_ONE, _SEVERAL)):
        if getattr(method, part).__self__ is not sender or not hasattr(maker, part):
            raise InputError(
                f"meta.method = {name}: its {part} is never called: messages come from {maker.__name__}, which knows "
                "nothing of it; override messages, or inherit from Maml"
            )
