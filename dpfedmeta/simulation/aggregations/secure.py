"""The server receives nothing but the sum, and the clients make its noise (Bonawitz et al. 2017; Bell et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import ServerSees
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.learning.record_dp.whole_moments import WholeMoments
    from dpfedmeta.simulation.backend import Backend
    from dpfedmeta.simulation.client_runner import ClientRunner
    from dpfedmeta.simulation.cohort_sums import Adder


class Secure:
    """Sums of whole numbers modulo 2^b."""

    sees: ClassVar[ServerSees] = "sum"

    @classmethod
    def rounds(cls, settings: Settings, dimension: int, parts: int, whole: WholeMoments | None = None) -> SecureRounds:
        """Return the constants of secure aggregation for the accountant.

        Args:
            settings: Settings of the user.
            dimension: Coordinates of a message.
            parts: Vectors that a message is the sum of.
            whole: Public constants of messages that are whole numbers to begin with; None: they are rounded.
        """
        from dpfedmeta.accounting.events.integer_sum import COUNT_BITS
        from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

        chosen, population = settings.aggregation, settings.population
        return SecureRounds(
            bits=chosen.bits if whole is None else COUNT_BITS.stop - 1,
            dimension=dimension,
            parts=parts if whole is None else whole.records,
            longest=None if whole is None else whole.longest,
            tallest=None if whole is None else whole.tallest,
            dropout=chosen.dropout,
            absent=population.dropout,
            adversarial=chosen.adversarial,
        )

    @classmethod
    def made(cls, settings: Settings, clients: ClientRunner, workers: Workers) -> Backend:
        """For these clients: the ideal result, or the real protocol, whose sums are the same."""
        from dpfedmeta.simulation.cohort_sums import SecureSums, added_up

        added: Adder = added_up
        if settings.aggregation.protocol:
            from dpfedmeta.core.worker_pool import available_cores
            from dpfedmeta.simulation.protocol_rounds import ProtocolRounds

            cores = available_cores()
            added = ProtocolRounds(
                adversarial=settings.aggregation.adversarial,
                colluding=settings.privacy.client.colluding,
                absent=settings.population.dropout,
                processes=min(settings.run.workers or cores, cores),
            )
        return SecureSums(
            clients=clients, workers=workers, added=added, abort_on_failure=settings.server.abort_on_failure
        )


MEMBER = Secure
