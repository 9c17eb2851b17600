"""Noise of a buffered linear Toeplitz matrix: nearly the best one, and it remembers a few vectors only."""

from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.matrix_mechanism import CorrelatedMechanism


class BufferedLinearToeplitz(CorrelatedMechanism):
    """x_t = Z_t - sum_i w_i S_i, then S_i <- theta_i S_i + x_t.

    McMahan, Xu, Zhang 2024 (https://arxiv.org/abs/2408.08868).

    Guarantee:
        As of `CorrelatedMechanism`.
    """

    @property
    def vectors(self) -> int:
        """Buffers."""
        return len(self.noise.numbers) // 2

    def correlated(self, fresh: FloatArray, vectors: FloatArray, round_: int) -> tuple[FloatArray, FloatArray]:
        """Advance the stream by one round, buffer by buffer, so that it is bit-identical on any number of threads."""
        decays, weights = self.noise.numbers[: self.vectors], self.noise.numbers[self.vectors :]
        own, following = fresh.copy(), vectors.copy()
        for weight, buffer in zip(weights, vectors, strict=True):
            own -= weight * buffer
        for decay, buffer in zip(decays, following, strict=True):
            buffer *= decay
            buffer += own
        return own, following


MEMBER = BufferedLinearToeplitz
