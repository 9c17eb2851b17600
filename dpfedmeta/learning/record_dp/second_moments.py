"""Second moments of a client's records, as vectors of bounded sensitivity, and the metric that follows from their sum.

A message has two blocks. `total` is the sum over records of z z' with z = (x, a) / sqrt(1 + a^2): x is the first
`directions` numbers of a record at length 1, and a is a public constant, so z has length 1 at most and the block holds
second moments, means and the number of records. `within` is the sum over pairs of records of one class of u u', where u
is their difference, cut. Both are over n, the public number of records, and in units of what one record costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.relations.relations import MomentBlocks
from dpfedmeta.learning.record_dp.moment_blocks import (
    ROUNDING,
    BlockMoments,
    MomentBlock,
    Rows,
    shortened,
    sound_rows,
    unpacked,
)
from dpfedmeta.learning.record_dp.moment_blocks import most_noise as _most
from dpfedmeta.learning.record_dp.moment_blocks import weighed as _weighed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dpfedmeta.core.params import Params

TOTAL, WITHIN = "moments.total", "moments.within"
# Of the mean variance within a class, added to that of each direction besides the noise.
_FLOOR = 0.03
# A direction counts by as much as its variance between classes is above this share of the noise's largest.
_EDGE = 0.5
# Of the share of records that is read from a release: with less there is noise alone.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class SecondMoments(BlockMoments):
    """Public constants of a message of moments.

    Attributes:
        directions: D, how many of the numbers of a record are used, the first ones.
        constant: a, beside each record of length 1 at most.
        pair_bound: c, length to which the difference of two records of a class is cut; 2 cuts none.
        pair_weight: beta, the most that a pair adds to its block, where a record adds 1 to the other one.
        radius: R, to which records are cut, and over which they are; None: each comes to length 1.
        least: Variance that classes are taken to have in each direction at least, where that within them is 1: few
            classes say nothing of most directions, in which new ones differ all the same.
    """

    directions: int
    constant: float
    pair_bound: float
    pair_weight: float
    radius: float | None = None
    least: float = 0.0

    @property
    def blocks(self) -> MomentBlocks:  # type: ignore[override]
        """Lengths of what one record adds to each block."""
        return MomentBlocks(pairs=self.pair_weight, radius=1.0 / math.sqrt(1.0 + self.constant**2))

    @property
    def parts(self) -> tuple[MomentBlock, ...]:  # type: ignore[override]
        """Both blocks."""
        return (
            MomentBlock(name=TOTAL, size=self.directions + 1, weight=1.0),
            MomentBlock(name=WITHIN, size=self.directions, weight=self.pair_weight, share=0.5),
        )

    def of_size(self, size: int) -> SecondMoments:
        """The same with so many directions."""
        return replace(self, directions=size)

    def message(self, *records: Tensor) -> Params:
        """SECRET: the moments of one client's records, over their number.

        Args:
            records: [ways, m, d], the records of each class; the first is paired with the second, and so on. One that
                is not finite is null: it adds nothing, nor does its pair. Several are added up.

        Returns:
            Both blocks, float64.

        Guarantee:
            Where a record becomes null in its place, the message moves by 1/n at most in L2, n = ways * m; in other
            relations as `MomentBlocks.moved` says. Over all records its length is 1 at most.
        """
        count = sum(math.prod(each.shape[:2]) for each in records)
        return self.summed(self.rows(*records), count)

    def rows(self, *records: Tensor, single: bool = False) -> Rows:
        """SECRET: z of each record [n, D + 1]; u of each pair over c [pairs, D]; of length 1 at most, null ones 0.

        Args:
            records: As of `message`.
            single: In float32, whose rounding lengthens them; else in float64.
        """
        import torch

        both = [self._vectors(each, single) for each in records]
        return [(torch.cat(own), None) for own in zip(*both, strict=True)]

    def _vectors(self, records: Tensor, single: bool) -> tuple[Tensor, Tensor]:
        import torch

        each, (raw, sound) = records.shape[1], sound_rows(records, single=single)
        unit = shortened(raw, self.radius)[..., : self.directions]
        constants = torch.full_like(unit[..., :1], self.constant * ROUNDING)
        z = torch.cat([unit, constants * sound], -1)
        z = z.flatten(0, 1).mul_(1.0 / math.sqrt(1.0 + self.constant**2))
        pairs = slice(0, each - each % 2, 2), slice(1, each, 2)
        both = sound[:, pairs[0]] & sound[:, pairs[1]]
        u = unit[:, pairs[0]] - unit[:, pairs[1]]
        lengths = torch.linalg.vector_norm(u, dim=-1, keepdim=True).clamp_min_(torch.finfo(u.dtype).tiny)
        shorter = (self.pair_bound * ROUNDING / lengths).clamp_max(1.0) / self.pair_bound
        return z, u.mul_(shorter.mul_(both)).flatten(0, 1)

    def metric(
        self, mean: Mapping[str, Tensor], deviation: float, size: int, width: int, each: int | None
    ) -> SolvedMetric:
        """The directions in which classes differ most, where the records of a class differ equally in all of them.

        Linear discriminant analysis as of Ioffe 2006 (https://doi.org/10.1007/11744085_41): S_w from `within`, S_b =
        S_t - m m' - S_w. The noise decides over the rest. Both are weighed against those of the encoder's own metric,
        by how much of them is more than noise. What it adds to S_w at most, the edge of its spectrum, is added to each
        variance. A direction counts by a Wiener factor, after half of the most that noise alone makes of S_b is taken
        off, by a drawing of the noise that is the same for everybody.

        Args:
            mean: The mean over clients of their messages, released.
            deviation: Standard deviation of the noise of each number of it; a public number.
            size: d, numbers of a record.
            width: Most directions.
            each: Records of a class of a client; None: any number, of which most are taken to be in pairs.

        Returns:
            Centre [d] and matrix [d, width]; further columns are 0. Where noise hides everything, the metric of the
            records themselves.

        Guarantee:
            Post-processing: a function of the release and of public constants.
        """
        import torch

        count, unit = self.directions, self.blocks.unit
        total = unpacked(mean[TOTAL].double().cpu(), count + 1) * (unit * (1.0 + self.constant**2))
        # A pair is of two records; with odd numbers of them some have none.
        left = 1.0 if each is None else each / (2.0 * (each // 2))
        pairs = unit * self.pair_bound**2 / self.pair_weight * left if self.pair_weight else 0.0
        of_share = deviation * unit * (1.0 + self.constant**-2)
        arrived, _ = _weighed(total[-1:, -1] / self.constant**2, torch.ones(1), _most(of_share**2, 1))
        share = max(float(arrived), _LEAST_SHARE)
        centre = total[:-1, -1] / (self.constant * share)
        within = unpacked(mean[WITHIN].double().cpu(), count) * (pairs / share)
        between = total[:-1, :-1] / share - torch.outer(centre, centre) - within
        of_total, of_within = (deviation * unit * scale / share for scale in (1.0 + self.constant**2, pairs / unit))
        # The encoder's own metric: all directions differ equally within classes, and its first ones between them.
        own = (torch.arange(count) < width).double()
        alike = torch.eye(count) * within.diagonal().mean().clamp_min(0.0)
        first = torch.diag(own) * (between.diagonal() @ own / own.sum()).clamp_min(0.0)
        # Noise of the squares of each: of a packed matrix, and of the mean times itself.
        numbers, of_centre = math.comb(count + 1, 2), (of_total / self.constant) ** 2 / 2.0
        of_square = of_centre * (2.0 * (count + 1) * float(centre.square().sum()) + 2.0 * numbers * of_centre)
        of_both = _most(of_total**2 + of_within**2, numbers) + _most(of_square / count, count)
        within, kept = _weighed(within, alike, _most(of_within**2, numbers))
        between, shown = _weighed(between, first, of_both)
        centre, _ = _weighed(centre, torch.zeros(count), _most(of_centre, count))
        public = torch.Generator().manual_seed(0)
        noise = shown * (_drawn(count, of_total, public) - _drawn(count, of_within, public))
        found = _discriminant(within, between, kept * of_within * math.sqrt(2.0 * count), noise, self.least)
        if found is None:
            alike, ones = torch.eye(size, width), torch.ones(width)
            return SolvedMetric(centre=torch.zeros(size), matrix=alike, whitening=alike, between=ones, shown=0.0)
        whitening, above = found
        matrices = whitening * (above / (above + 1.0)).sqrt(), whitening, above[None]
        placed = [torch.zeros(size, width, dtype=torch.float64) for _ in matrices]
        for place, own in zip(placed, matrices, strict=True):
            place[: len(own), : min(width, count)] = own[:, :width]
        centre = torch.cat([centre, torch.zeros(size - count)]).float()
        matrix, whitening, between = (place.float() for place in placed)
        return SolvedMetric(centre=centre, matrix=matrix, whitening=whitening, between=between[0], shown=shown)


def _discriminant(
    within: Tensor, between: Tensor, edge: float, noise: Tensor, least: float
) -> tuple[Tensor, Tensor] | None:
    """[D, D], directions that whiten the one and order the other, and variances of the latter; None: noise hides it."""
    import torch

    values, vectors = torch.linalg.eigh(within)
    ridge = edge + _FLOOR * float(values.clamp_min(0.0).mean()) + 1e-12
    white = vectors @ torch.diag((values.clamp_min(0.0) + ridge).rsqrt()) @ vectors.T
    variances, directions = (found.flip(-1) for found in torch.linalg.eigh(white @ between @ white))
    above = (variances - _EDGE * float(torch.linalg.eigvalsh(white @ noise @ white)[-1])).clamp_min(least)
    return (white @ directions, above) if bool(above.any()) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedMetric:
    """A centre [d], and a matrix [d, k] that maps what differs from it.

    Attributes:
        centre: See above.
        matrix: Directions with their weights.
        whitening: [d, k], the same, in each of which records of a class have variance 1.
        between: [k], variance between classes in each of these.
        shown: How much of it is of the release, from 0 (the encoder's own metric) to 1.
    """

    centre: Any
    matrix: Any
    whitening: Any
    between: Any
    shown: float = 1.0


def _drawn(size: int, deviation: float, generator: Any) -> Tensor:
    """Noise of a packed matrix, as the matrix that is read from it."""
    import torch

    count = size * (size + 1) // 2
    return unpacked(deviation * torch.randn(count, generator=generator, dtype=torch.float64), size)
