"""Names that many clients hold and nobody listed beforehand: of classes, or any others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedmeta.accounting.events.failure_probability import RARE_SHARE, largest_cohort
from dpfedmeta.accounting.events.noise_cost import ThresholdedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Handing, PendingRelease, SumForm, Sums
from dpfedmeta.analytics.invertible_bloom_table import (
    CUT,
    SUM_BITS,
    DecodingFailed,
    Limbs,
    NameTable,
    encode,
    form_for,
    heaviest,
)
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray, Purpose, SecretGenerator
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.thresholded_counts import Threshold
from dpfedmeta.privacy.units import ClientUnit

if TYPE_CHECKING:
    from dpfedmeta.analytics.client_answers import Held
    from dpfedmeta.analytics.public_context import Ground

# Of delta: what names of one client may take, what a failure to decode may, what too large a cohort may.
_ALONE, _FAILED, _CROWDED = 0.8 * RARE_SHARE, 0.1 * RARE_SHARE, 0.1 * RARE_SHARE


@dataclass(frozen=True, kw_only=True)
class HeavyHitters:
    """Names that many clients hold, found without a list of candidates.

    Attributes:
        most_names: Names of one client that count: those of which it holds most.
        length: Bytes of a name; longer ones are cut, and end with a mark.

    Guarantee:
        What is released is what `Threshold` says; that it can be released at all fails with a probability that no data
        can raise, since the table holds as many names as a cohort can say. Towards the server nothing holds: it sees
        the exact sum of the tables, hence every name and how many clients hold it, though not who.
    """

    most_names: int = 1
    length: int = 24
    default_epsilon: ClassVar[float] = 1.0
    server_sees: ClassVar[str] = (
        "the exact sum of the clients' tables: every name, also those of one client, and how many hold it, but not who"
    )
    asks: ClassVar[str] = "names of its classes, those of which it holds most"
    by_names: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.most_names <= 100:
            raise InputError(f"--most-names {self.most_names}: from 1 to 100")
        if not 1 <= self.length <= 255:
            raise InputError(f"--length {self.length}: from 1 to 255 bytes")

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """Noise with a threshold; no noise in what the server sees."""
        missed = (_ALONE + _FAILED + _CROWDED) * plan.client_delta
        return replace(plan, server_sees="sum", missed=missed)

    def check(self, ground: Ground) -> None:
        """Any clients with names."""

    def form(self, plan: PrivacyPlan) -> SumForm:
        """Return the form of the sum: one table for each try.

        A failure to decode shows in the sum alone, so the next table is tried and no client is asked again.
        """
        tables = _Tables.of(self, plan)
        length = tables.limbs.count * tables.with_seed(b"").size
        return SumForm(bits=SUM_BITS, length=length, parts=tables.tries, most=tables.clients)

    def told(self, asking: PendingRelease, ground: Ground) -> bytes:
        """The seeds of the hash functions, one for each try."""
        tries = range(_Tables.of(self, asking.plan).tries)
        return b"".join(asking.source.generator(Purpose.NAME_HASHES, again).words(4).tobytes() for again in tries)

    def check_told(self, told: bytes, plan: PrivacyPlan, held: Held) -> None:
        """Check that clients are told a seed for each try."""
        tries = _Tables.of(self, plan).tries
        if len(told) != _SEED_BYTES * tries:
            raise InputError(f"{len(told):,} bytes, expected {tries} seeds of hash functions")

    def sent(self, handing: Handing, part: int) -> IntArray:
        """SECRET: a table of the client's names."""
        tables = _Tables.of(self, handing.plan)
        held = handing.held.names(handing.client)
        # Of a name whose first character is longer than the table keeps, nothing is left.
        names = heaviest({name: held[name] for name in held if any(encode(name, self.length))}, self.most_names)
        return tables.with_seed(_seed(handing.told, part)).of(names, tables.limbs)

    def longest(self, plan: PrivacyPlan) -> float:
        """Return how far one client moves the counts in L2: each of its names by 1."""
        return math.sqrt(self.most_names)

    def released(
        self, asking: PendingRelease, told: bytes, sums: Sums, noise: SecretGenerator
    ) -> Released[ClientUnit, dict[str, int]]:
        """Names and counts above the threshold.

        Raises:
            InputError: The sum cannot be taken apart.
        """
        # How often the server tried depends on the names: it is not among what is returned.
        counts = self._counts(_Tables.of(self, asking.plan), told, sums)
        return self._threshold(asking.plan).release(counts, noise)

    def result(self, plan: PrivacyPlan, released: Released[ClientUnit, dict[str, int]]) -> dict[str, Any]:
        """The names, most frequent first, beside public constants of the plan."""
        threshold = self._threshold(plan)
        return {
            "names": dict(sorted(released.value.items(), key=lambda item: (-item[1], item[0]))),
            "threshold": threshold.lowest,
            "deviation": threshold.deviation,
            "share_seen": threshold.lowest / plan.cohort,
            "tries_allowed": _Tables.of(self, plan).tries,
        }

    def _threshold(self, plan: PrivacyPlan) -> Threshold:
        noise = plan.at(0).noise
        assert isinstance(noise, ThresholdedNoise)
        return Threshold(noise=noise, names=self.most_names, alone=_ALONE * plan.client_delta)

    def _counts(self, tables: _Tables, told: bytes, sums: Sums) -> dict[str, int]:
        """SECRET: how many clients of the cohort hold each name."""
        for again in range(tables.tries):
            try:
                return tables.with_seed(_seed(told, again)).decode(tables.limbs.whole(sums.part(again)))
            except DecodingFailed:
                continue
        raise InputError(
            f"heavy-hitters: the sum of the clients' tables could not be decoded in {tables.tries} tries, which is "
            "very unlikely with honest clients: a client sent a wrong table, or messages were damaged; nothing is "
            "released. Ask again with another cohort (--cohort), or shorter names (--length)"
        )

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The names, most frequent first."""
        lines = [
            f"{len(found['names'])} names with {found['threshold']} clients or more, noise of deviation "
            f"{found['deviation']:.3g} included (a share of {found['share_seen']:.2%} of those asked)"
        ]
        lines += [f"  {count:8,}  {name}" for name, count in found["names"].items()]
        if any(name.endswith(CUT) for name in found["names"]):
            lines.append(
                f"  names that end with {CUT} were cut to {self.length} bytes: several may have become one (--length)"
            )
        if not found["names"]:
            lines.append("  none: ask more clients (--cohort), or allow more epsilon")
        return lines


_SEED_BYTES = 32


def _seed(told: bytes, again: int) -> bytes:
    return told[_SEED_BYTES * again : _SEED_BYTES * (again + 1)]


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """The form of the tables of a plan; public.

    Attributes:
        clients: As many fit. More are left out: that is as seldom as planned, or never.
        length: Bytes of a name.
        names: As many different ones fit.
        cells: Of each part of a table.
        tries: Tables, of which all fail as seldom as planned.
    """

    clients: int
    length: int
    names: int
    cells: int
    tries: int

    @staticmethod
    @lru_cache(maxsize=16)
    def of(analysis: HeavyHitters, plan: PrivacyPlan) -> _Tables:
        delta, most = plan.client_delta, int(plan.cohort)
        if not plan.sampling.fixed_size:
            most = min(largest_cohort(plan.clients, plan.cohort / plan.clients, _CROWDED * delta)[0], plan.clients)
        names = most * analysis.most_names
        cells, failure = form_for(names)
        tries = max(1, math.ceil(math.log(_FAILED * delta) / math.log(failure))) if failure else 1
        return _Tables(clients=most, length=analysis.length, names=names, cells=cells, tries=tries)

    @property
    def limbs(self) -> Limbs:
        return Limbs(most=self.names)

    def with_seed(self, seed: bytes) -> NameTable:
        return NameTable(names=self.names, length=self.length, cells=self.cells, seed=seed)


MEMBER = HeavyHitters
