"""Noise of a banded Toeplitz matrix; it remembers the noise of as many rounds as there are bands below the diagonal."""

from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.matrix_mechanism import CorrelatedMechanism, with_latest, without_past


class Banded(CorrelatedMechanism):
    """c_k is 0 from the last band on: with no more bands than rounds between two participations, these do not add up.

    Choquette-Choo et al. 2023 (https://arxiv.org/abs/2306.08153); their amplification by sampling is not counted here.

    Guarantee:
        As of `CorrelatedMechanism`.
    """

    @property
    def vectors(self) -> int:
        """Bands below the diagonal."""
        return len(self.noise.numbers) - 1

    def correlated(self, fresh: FloatArray, vectors: FloatArray, round_: int) -> tuple[FloatArray, FloatArray]:
        """Forward substitution within the bands."""
        own = without_past(fresh, vectors, self.noise.numbers[1:], round_)
        return own, with_latest(vectors, own, round_)


MEMBER = Banded
