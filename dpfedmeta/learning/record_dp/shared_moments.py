"""Moments of records whose labels, or numbers to predict, mean the same for all clients; and the model that follows.

A message has the block `total` of `second_moments`, of records that are cut to a public length around a public centre.
For labels there is a second block, `classes`: for each label of the public list the sum of its z. A number to predict
stands in z itself. Every record adds its own terms, so clients may hold any number of them.
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
    most_noise,
    shortened,
    sound_rows,
    unpacked,
    weighed,
)
from dpfedmeta.learning.record_dp.second_moments import TOTAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

CLASSES = "moments.classes"
# Of the mean variance, added to that of each direction besides the noise.
_FLOOR = 0.1
# A class is taken to have at least this share of the records that it would have if all had equally many.
_LEAST_SHARE = 0.05
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class SharedMoments(BlockMoments):
    """Public constants of a message of moments with labels of one list, or with numbers to predict.

    Attributes:
        size: d, numbers of a record.
        constant: a, beside each record.
        radius: R, to which records are cut, as they are standardised.
        weight: v, the most that a record adds to the sum of its label; of a number to predict its weight in z.
        labels: Length of the public list; 0: numbers to predict.
        reach: Y, to which numbers to predict are cut, in scales of the task.
    """

    size: int
    constant: float
    radius: float
    weight: float
    labels: int
    reach: float

    @property
    def blocks(self) -> MomentBlocks:  # type: ignore[override]
        """Lengths of what one record adds to each block."""
        if not self.labels:
            return MomentBlocks(
                radius=math.hypot(1.0, self.weight) / self._length,
                target=MomentBlocks.of_number(self.weight / self._length),
            )
        return MomentBlocks(labels=self.weight, radius=1.0 / self._length)

    @property
    def _length(self) -> float:
        """Length of (x, a), and of a number to predict beside it, before it is brought to 1."""
        return math.hypot(1.0, self.constant, 0.0 if self.labels else self.weight)

    @property
    def parts(self) -> tuple[MomentBlock, ...]:  # type: ignore[override]
        """The blocks."""
        if not self.labels:
            return (MomentBlock(name=TOTAL, size=self.size + 2, weight=1.0),)
        z = self.size + 1
        return (
            MomentBlock(name=TOTAL, size=z, weight=1.0),
            MomentBlock(name=CLASSES, size=z, weight=self.weight, labels=self.labels),
        )

    def of_size(self, size: int) -> SharedMoments:
        """The same of records with so many numbers."""
        return replace(self, size=size)

    def rows(self, records: Tensor, targets: Tensor, *, single: bool = False) -> Rows:
        """SECRET: z of each record; the sums by label have the same vectors.

        Args:
            records: [n, d]. One that is not finite is null: it adds nothing.
            targets: [n], places in the public list; or numbers to predict, in scales from their centre.
            single: As of `SecondMoments.rows`.
        """
        import torch

        raw, sound = sound_rows(records, single=single)
        columns = [shortened(raw, self.radius), torch.full_like(raw[:, :1], self.constant * ROUNDING)]
        if not self.labels:
            numbers = targets.to(raw)[:, None].clamp(-self.reach, self.reach)
            columns.append(numbers * (self.weight * ROUNDING / self.reach))
        z = torch.cat(columns, 1) * sound / self._length
        if not self.labels:
            return [(z, None)]
        return [(z, None), (z, targets[:, None] == torch.arange(self.labels, device=targets.device))]

    def model(self, mean: Mapping[str, Tensor], deviation: float) -> SolvedModel:
        """The classifier, or the line, that follows from the sums; the noise is known, and decides over all of it.

        For labels linear discriminant analysis: S_w = S_t - sum over labels of pi m m'. The edge of the noise of S_w
        and a tenth of its mean variance are added to each variance. For numbers ridge regression with the same ridge.

        Everything is weighed against what public constants say: records and numbers have mean 0 and variance 1, classes
        are alike and equally many, and the line has no slope. Each by how much of it is more than noise
        (`moment_blocks.weighed`), and all together by how much of the number of records is, over which all else is.

        Args:
            mean: The mean over clients of their messages, released.
            deviation: Standard deviation of the noise of each number of it; a public number.

        Guarantee:
            Post-processing: a function of the release and of public constants.
        """
        import torch

        unit, length = self.blocks.unit, self._length
        # In units in which x is over R, as the sums have it, and the constant is 1.
        others = (
            [length / self.constant] if self.labels else [length / self.constant, length * self.reach / self.weight]
        )
        kept = torch.tensor([length] * self.size + others, dtype=torch.float64)
        total = unpacked(mean[TOTAL].double().cpu(), len(kept)) * unit * torch.outer(kept, kept)
        noise = deviation * unit * length
        if self.labels:
            sums = mean[CLASSES].double().cpu() * (unit / self.weight) * kept
            return self._classifier(total, sums, noise * length, noise / self.weight)
        return self._line(total, noise * length)

    def _classifier(self, total: Tensor, sums: Tensor, noise: float, of_sums: float) -> SolvedModel:
        import torch

        of_count, alike = of_sums / self.constant, torch.full((self.labels,), 1.0 / self.labels)
        count, shown = _shown(sums[:, -1].sum(), of_count * math.sqrt(self.labels))
        # Shares add up to 1, so one of their noises is known.
        shares, _ = weighed(sums[:, -1] / count, alike, (self.labels - 1) * (of_count / count) ** 2)
        shares = shares.clamp_min(_LEAST_SHARE / self.labels)
        shares = shares / shares.sum()
        means, of_means = sums[:, :-1] / (count * shares)[:, None], of_sums / (count * shares)
        within = total[:-1, :-1] / count - means.T @ (shares[:, None] * means)
        matrix, centre = self._whitening(within, noise / count, shown), shares @ means
        nothing, variances = torch.zeros(self.size), (self.size * of_means.square()).tolist()
        apart = [weighed(own, nothing, most)[0] for own, most in zip(means - centre, variances, strict=True)]
        rows = shown * torch.stack(apart) @ matrix
        centre, _ = weighed(centre, nothing, self.size * self.labels * (of_sums / count) ** 2)
        bias = (shown * shares + (1.0 - shown) * alike).log() - rows.square().sum(1) / 2.0
        return self._as_records(shown * centre, matrix, rows, bias)

    def _line(self, total: Tensor, noise: float) -> SolvedModel:
        import torch

        count, shown = _shown(total[-2, -2], noise / self.constant**2)
        centre, middle = total[:-2, -2] / count, total[-1:, -2] / count
        spread = total[:-2, :-2] / count - torch.outer(centre, centre)
        both = total[:-2, -1] / count - centre * middle
        matrix = self._whitening(spread, noise / count, shown)
        # Beside the diagonal each number is in two places.
        each, nothing = noise / (count * math.sqrt(2.0)), torch.zeros(self.size)
        of_number = each * self.reach / self.weight
        both, _ = weighed(both, nothing, self.size * of_number**2)
        centre, _ = weighed(centre, nothing, self.size * (each / self.constant) ** 2)
        middle, _ = weighed(middle, nothing[:1], (of_number / self.constant) ** 2)
        return self._as_records(shown * centre, matrix, shown * (matrix.T @ both)[None], shown * middle)

    def _whitening(self, variances: Tensor, noise: float, shown: float) -> Tensor:
        """S^-1/2 of a noisy matrix, so much of which is shown, with a ridge; else of variances of 1."""
        import torch

        found = shown * (variances + variances.T) / 2.0 + (1.0 - shown) / self.radius**2 * torch.eye(self.size)
        found, vectors = torch.linalg.eigh(found)
        found = found.clamp_min(0.0)
        ridge = shown * noise * math.sqrt(2.0 * self.size) + _FLOOR * float(found.mean()) + _TINY
        whitening: Tensor = vectors @ torch.diag((found + ridge).rsqrt()) @ vectors.T
        return whitening

    def _as_records(self, centre: Tensor, matrix: Tensor, rows: Tensor, bias: Tensor) -> SolvedModel:
        """The same in the records' own unit."""
        return SolvedModel(
            centre=(centre * self.radius).float(),
            matrix=(matrix / self.radius).float(),
            rows=rows.float(),
            bias=bias.float(),
        )


def _shown(found: Tensor, deviation: float) -> tuple[float, float]:
    """A share of records, above 0, and how much of all that is over it is shown; less than its noise says nothing."""
    _, shown = weighed(found, 0.0 * found, most_noise(deviation**2, 1))
    known = shown if found > 0.0 else 0.0
    return (float(found) if known else 1.0), known


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedModel:
    """Outputs ((x - c) M) W' + b: centre [d], matrix [d, d], rows [outputs, d], bias [outputs]."""

    centre: Any
    matrix: Any
    rows: Any
    bias: Any
