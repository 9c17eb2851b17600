"""The clients' own ledgers in a simulation, where this machine holds everybody's disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.accounting.ledger.participation_ledger import SpacedLedger
from dpfedmeta.accounting.participation_cost import Participation
from dpfedmeta.privacy.samplers import Cohort


class Willing(Protocol):
    """Clients that may decline."""

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that do not, each of which wrote it down before it answers."""
        ...


def _those(folder: Path, cohort: Cohort, accepts: Callable[[Path, Cohort], bool]) -> Cohort:
    folder.mkdir(mode=0o700, exist_ok=True)
    stay = [client for client in cohort.clients.tolist() if accepts(folder / f"{client}.jsonl", cohort)]
    return replace(cohort, clients=np.asarray(stay, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class SpacedClients:
    """Ledgers of the rounds that clients joined: a file for each client that was ever drawn.

    Attributes:
        folder: Folder of the ledgers; as secret as the list of participants.
        spacing: Limit on participations that every client enforces.
    """

    folder: Path
    spacing: Spacing

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that are not asked too soon, or too often.

        Guarantee:
            Whether a client declines depends on its own participations alone.
        """
        return _those(self.folder, cohort, self._accepts)

    def _accepts(self, path: Path, cohort: Cohort) -> bool:
        ledger = SpacedLedger(path, self.spacing)
        if ledger.holds(cohort.round, cohort.again):
            return True
        if not ledger.accepts(cohort.round):
            return False
        ledger.join(cohort.round, cohort.again)
        return True


@dataclass(frozen=True, kw_only=True)
class ClientLedgers:
    """Ledgers of privacy spent by clients: a file for each client that was ever drawn.

    Attributes:
        folder: Folder of the ledgers; as secret as the list of participants.
        budget: Budget towards the server that every client allows each of its records.
        each: Privacy loss of a record in one participation.
    """

    folder: Path
    budget: RecordBudget
    each: Participation

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that do not decline, each charged on its own disk before it answers.

        Guarantee:
            Whether a client declines depends on its own participations alone, never on data, so under Poisson sampling
            it acts like a participation cap. Fixed-size sampling with client ledgers is refused.
        """
        return _those(self.folder, cohort, self._accepts)

    def _accepts(self, path: Path, cohort: Cohort) -> bool:
        ledger = ClientLedger(path, self.budget)
        if ledger.holds(cohort.round, cohort.again):
            return True
        if not ledger.accepts(self.each):
            return False
        ledger.charge(cohort.round, self.each, cohort.again)
        return True
