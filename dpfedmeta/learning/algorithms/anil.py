"""ANIL (Raghu, Raghu, Bengio, Vinyals 2020, https://arxiv.org/abs/1909.09157): MAML whose head alone adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adapts

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


class Anil(Maml):
    """MAML with an inner loop on the head."""

    default_adapt: ClassVar[Adapts] = "head"

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: The settings adapt more than the head.
        """
        if settings.meta.adapt == "all":
            raise InputError("meta.adapt = all: ANIL adapts only the head; use --meta.method maml")
        return super().planned(settings, task)


MEMBER = Anil
