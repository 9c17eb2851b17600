"""Secure aggregation by its real protocol, round by round of a simulation: keys, shares, masks, and clients who vanish.

The sum is that of simulation.cohort_sums.added_up, bit for bit: masks cancel, and who is missing is missing in both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.params import Arrays
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, OperatingSystemSource, Purpose, SecretSource
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.planning.privacy.masking_graph import withstood
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.round_parameters import agreed
from dpfedmeta.secure_aggregation.simulated_round import run_round
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import SumTask, rounded_messages

# Who falls silent in one of the first three is missing in the sum; in one of the last two, the sum has its vector.
MISSING_FROM, LATE_FROM = (
    (ProtocolPhase.KEYS, ProtocolPhase.SHARES, ProtocolPhase.MASKED),
    (ProtocolPhase.CONSENT, ProtocolPhase.REVEAL),
)
# So few clients are faster in this process than others are started.
_FEW = 100
# A protocol that has unmasked nothing is run again with fresh keys on the same vectors. Each attempt fails with
# probability 2^-20 at most where no more fall silent than is tolerated.
_ATTEMPTS = 5
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class ProtocolRounds:
    """Adds up by the protocol of `dpfedmeta.secure_aggregation`, against a server that follows it and looks.

    Attributes:
        adversarial: Share of a cohort that may tell the server all they know.
        colluding: So many of them at least, however small the cohort.
        absent: Share of invited clients that do not answer; a third of it falls silent in each later phase too, as far
            as all of them together are no more than is tolerated.
        processes: For clients of the protocol.

    Guarantee:
        None of its own: the server sees no more than the sum, who took part and who fell silent, which is what the
        accountant counts with. Keys and masks are the operating system's randomness, never run.noise_seed's.
    """

    adversarial: float
    colluding: int
    absent: float
    processes: int

    def __call__(
        self, clients: ClientRunner, workers: Workers, tasks: Sequence[SumTask], cohort: Cohort
    ) -> tuple[IntArray, int]:
        """SECRET: (sum modulo 2^b of the survivors' vectors, how many these are); fewer than V: nothing, and 0.

        Raises:
            RuntimeError: So many fell silent that every attempt failed; nothing is released.
        """
        whole = clients.whole
        assert whole is not None
        vectors = [vector for chunk in (workers.map(sent_chunk, tasks) if tasks else ()) for vector in chunk]
        invited, survivors = cohort.asked, len(vectors)
        if survivors < whole.fewest(invited):
            # The server sees it by the list of survivors, and no honest client helps to unmask.
            return np.zeros(whole.dimension, dtype=np.int64), 0
        nothing = np.zeros(whole.dimension, dtype=np.uint32)
        seats = vectors + [nothing] * (invited - survivors)
        agreement = agreed(
            clients=invited,
            dimension=whole.dimension,
            bits=whole.bits,
            adversarial=withstood(self.adversarial, self.colluding, invited),
            dropout=whole.dropout,
            malicious=False,
            fewest=whole.fewest(invited),
        )
        # No part of any result, so a round that is done again meets others.
        coins = OperatingSystemSource().generator(Purpose.SILENCE, cohort.round)
        late = max(math.floor(whole.dropout * invited + 1e-9) - (invited - survivors), 0)
        for attempt in range(_ATTEMPTS):
            silent = self._silent(coins.normal(2 * invited), survivors, late)
            try:
                found = run_round(
                    seats,
                    agreement=agreement,
                    silent=silent,
                    round_=cohort.round,
                    attempt=attempt,
                    processes=1 if invited < _FEW else self.processes,
                )
            except Aborted:
                continue
            return found.sum.total.astype(np.int64), survivors
        raise RuntimeError(
            f"round {cohort.round}: the protocol of secure aggregation failed {_ATTEMPTS} times because shares were "
            "missing; nothing is released, and the round stays charged; go on with --resume"
        )

    def _silent(self, coins: FloatArray, survivors: int, most: int) -> dict[int, ProtocolPhase]:
        """Draw the phases from which clients drop out: all without a vector, and at most `most` of the others."""
        from scipy.special import ndtr  # a second to import, and only this needs it

        first, second = ndtr(coins).reshape(2, -1)
        missing = {
            seat: MISSING_FROM[int(len(MISSING_FROM) * first[seat])] for seat in range(survivors, first.shape[0])
        }
        share = len(LATE_FROM) / len(MISSING_FROM) * self.absent
        late = [seat for seat in range(survivors) if second[seat] < share]
        return missing | {seat: LATE_FROM[int(len(LATE_FROM) * first[seat])] for seat in late[:most]}


def sent_chunk(
    clients: ClientRunner,
    model: Arrays,
    bound_and_share: tuple[float, float],
    round_: int,
    chunk: list[int],
    source: SecretSource,
) -> list[Words]:
    """SECRET: what these clients hand to the protocol, modulo 2^b."""
    assert clients.whole is not None
    most = (1 << clients.whole.bits) - 1
    sent = rounded_messages(clients, model, bound_and_share, round_, chunk, source)
    return [(message & most).astype(np.uint32) for message in sent]
