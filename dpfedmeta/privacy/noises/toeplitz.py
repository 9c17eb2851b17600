"""Noise of the best Toeplitz matrix for prefix sums; it remembers the noise of every round."""

from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.matrix_mechanism import CorrelatedMechanism, with_latest, without_past


class Toeplitz(CorrelatedMechanism):
    """The least largest error of prefix sums, for one participation.

    Fichtenberger, Henzinger, Upadhyay 2023 (https://arxiv.org/abs/2202.11205).

    Guarantee:
        As of `CorrelatedMechanism`.
    """

    @property
    def vectors(self) -> int:
        """The noise of every round but the last."""
        return self.noise.rounds - 1

    def correlated(self, fresh: FloatArray, vectors: FloatArray, round_: int) -> tuple[FloatArray, FloatArray]:
        """Forward substitution."""
        own = without_past(fresh, vectors, self.coefficients[1:].tolist(), round_)
        return own, with_latest(vectors, own, round_)


MEMBER = Toeplitz
