"""First-order MAML (Finn et al. 2017, section 5.2; Nichol et al. 2018, https://arxiv.org/abs/1803.02999)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Order, first_order_only

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task


class FirstOrderMaml(Maml):
    """MAML that takes the derivative of theta_K by theta_0 for 1."""

    default_order: ClassVar[Order] = 1

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: The settings ask for second order.
        """
        first_order_only(settings)
        return super().planned(settings, task)


MEMBER = FirstOrderMaml
