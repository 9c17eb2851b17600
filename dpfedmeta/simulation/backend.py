"""Interface of aggregations: the sum of a cohort's messages, the server's view of it, and how to add one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from dpfedmeta.accounting.privacy_plan.privacy_plan import ServerSees

if TYPE_CHECKING:
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.params import Params
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.privacy.samplers import Cohort
    from dpfedmeta.privacy.units import Bounded, ClientUnit
    from dpfedmeta.simulation.client_runner import ClientRunner


class RoundAborted(Exception):
    """Nothing of the round is released; what it was charged with stays charged."""


class AttemptUsedUp(Exception):
    """This attempt at the round has no sum, for the reason in the text; a further one, which is charged, may have one.

    Attributes:
        otherwise: Ends the run where no budget is left for a further attempt, since the same one may have a sum later;
            None: it never has one.
    """

    def __init__(self, reason: str, otherwise: Exception | None = None) -> None:
        super().__init__(reason)
        self.otherwise = otherwise


class Backend(Protocol):
    """Sums over a cohort, wherever it runs."""

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[ClientUnit, Params]:
        """SECRET: the sum of the cohort's clipped messages.

        Args:
            model: The released initialisation: what is learned.
            bound: C, or C_q.
            cohort: Who answers.

        Guarantee:
            One client moves the value by at most its sensitivity.

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
            AttemptUsedUp: Only a further attempt, with messages of its own, can have a sum.
        """
        ...


class Aggregation(Protocol):
    """A member: what the server sees, for the accountant, and how it is set up.

    Its file imports PyTorch only where something is computed, since guarantees are asked for without it.
    """

    sees: ClassVar[ServerSees]

    @classmethod
    def made(cls, settings: Settings, clients: ClientRunner, workers: Workers) -> Backend:
        """For these clients.

        Args:
            settings: What the user gave; server.abort_on_failure: a round ends where an invited client failed.
            clients: What each of them runs.
            workers: Who runs them.
        """
        ...
