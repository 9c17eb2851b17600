"""A method that nobody planned for, in a few lines: the sign of the meta-gradient. One file."""

from dataclasses import dataclass

from dpfedmeta.learning.algorithms.maml import Maml


@dataclass(frozen=True, kw_only=True)
class SignMaml(Maml):
    def gradient(self, context, episode):
        return {name: value.sign() for name, value in super().gradient(context, episode).items()}


class Uncounted:
    """Says everything but how many vectors its messages are the mean of."""

    plain_steps, sends, few_shot = True, "query", True

    def __init__(self, method):
        self._method = method

    @classmethod
    def planned(cls, settings, task):
        return cls(SignMaml.planned(settings, task))

    def __getattr__(self, name):
        if name == "parts":
            raise AttributeError(name)
        return getattr(self._method, name)


class Speechless:
    """Lacks nearly everything."""

    plain_steps, sends, few_shot = True, "query", True

    @classmethod
    def planned(cls, settings, task):
        return cls()
