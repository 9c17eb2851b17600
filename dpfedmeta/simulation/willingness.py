"""The clients' own record-level ledgers in a simulation, where this machine holds everybody's disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpfedmeta.accounting.record_layer import RecordLayer
from dpfedmeta.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.privacy.samplers import Cohort


@dataclass(frozen=True, kw_only=True)
class ClientLedgers:
    """One ledger for each client that was ever drawn.

    Attributes:
        folder: Where they are kept; as secret as the list of participants.
        budget: What every client lets one of its records spend towards the server.
        layer: What a participation does to a record.
    """

    folder: Path
    budget: RecordBudget
    layer: RecordLayer

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that do not decline, each charged on its own disk before it answers.

        Guarantee:
            Whether a client declines depends on its own participations alone, never on data, so under Poisson sampling
            it acts like a participation cap. Fixed-size sampling with client ledgers is refused.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        stay = [client for client in cohort.clients.tolist() if self._accepts(client, cohort)]
        return replace(cohort, clients=np.asarray(stay, dtype=np.int64))

    def _accepts(self, client: int, cohort: Cohort) -> bool:
        ledger = ClientLedger(self.folder / f"{client}.jsonl", self.budget)
        if ledger.holds(cohort.round, cohort.again):
            return True
        if not ledger.accepts(self.layer):
            return False
        ledger.charge(cohort.round, self.layer, cohort.again)
        return True
