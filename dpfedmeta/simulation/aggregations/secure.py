"""The server receives nothing but the sum, and the clients make its noise (Bonawitz et al. 2017; Bell et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dpfedmeta.accounting.plan import ServerSees
    from dpfedmeta.accounting.secure_rounds import SecureRounds
    from dpfedmeta.settings import Settings
    from dpfedmeta.simulation.aggregation import Backend
    from dpfedmeta.simulation.client_side import ClientSide
    from dpfedmeta.workers import Workers


class Secure:
    """Sums of whole numbers modulo 2^b."""

    sees: ClassVar[ServerSees] = "sum"

    @classmethod
    def rounds(cls, settings: Settings, dimension: int, parts: int) -> SecureRounds:
        """What the accountant has to know.

        Args:
            settings: What the user gave.
            dimension: Coordinates of a message.
            parts: Vectors that a message is the sum of.
        """
        from dpfedmeta.accounting.secure_rounds import SecureRounds

        chosen, population = settings.aggregation, settings.population
        return SecureRounds(
            bits=chosen.bits,
            dimension=dimension,
            parts=parts,
            dropout=chosen.dropout,
            absent=population.dropout,
        )

    @classmethod
    def made(cls, clients: ClientSide, workers: Workers, *, abort_on_failure: bool) -> Backend:
        """For these clients."""
        from dpfedmeta.simulation.secure_sums import SecureSums

        return SecureSums(clients=clients, workers=workers, abort_on_failure=abort_on_failure)


MEMBER = Secure
