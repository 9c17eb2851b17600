"""What an analysis is: public constants, what a client answers, and what is read from the released sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.randomness import SecretSource

if TYPE_CHECKING:
    from dpfedmeta.analytics.asked import Asked

FOLDER = "dpfedmeta.analytics.analyses"


@dataclass(frozen=True, kw_only=True, eq=False)
class Asking:
    """SECRET: one release in the making.

    Attributes:
        plan: What it is charged as.
        cohort: Who is asked.
        source: The secret randomness of the server and, in a simulation, of the clients.
        clients: What they hold.
    """

    plan: PrivacyPlan
    cohort: Cohort
    source: SecretSource
    clients: Asked


class Analysis(Protocol):
    """A member of analyses/: a frozen dataclass of its own public options.

    What one client answers is a pure function of what it holds, to a vector of whole numbers, so that it can be asked
    for over a wire as well.
    """

    default_epsilon: ClassVar[float]
    server_sees: ClassVar[str]
    """In words, what the server sees that the public does not."""

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan of its release, from one that says who is asked, how often, and at which delta."""
        ...

    def check(self, clients: Asked) -> None:
        """Refuse before the charge what no client could answer; the data of none decide over it.

        Raises:
            InputError: Something is missing.
            RefusedPlan: Clients of this kind have no such answer.
        """
        ...

    def released(self, asking: Asking) -> dict[str, Any]:
        """Ask the cohort, release through a mechanism, and read the result: JSON values, all of them public.

        Guarantee:
            Nothing in it depends on the clients but through the release that the plan charges.
        """
        ...

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The result for people, a line each."""
        ...
