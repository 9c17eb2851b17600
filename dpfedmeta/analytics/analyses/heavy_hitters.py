"""Names that many clients hold and nobody listed beforehand: of classes, or any others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.noise import ThresholdedNoise
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.accounting.rare_events import RARE_SHARE, largest_cohort
from dpfedmeta.analytics.analysis import Asking
from dpfedmeta.analytics.name_tables import PRIME, DecodingFailed, NameTable, form_for, heaviest
from dpfedmeta.errors import InputError
from dpfedmeta.privacy.thresholds import Threshold
from dpfedmeta.randomness import Purpose

if TYPE_CHECKING:
    from dpfedmeta.analytics.asked import Asked

# Of delta: what names of one client may take, what a failure to decode may, what too large a cohort may.
_ALONE, _FAILED, _CROWDED = 0.8 * RARE_SHARE, 0.1 * RARE_SHARE, 0.1 * RARE_SHARE


@dataclass(frozen=True, kw_only=True)
class HeavyHitters:
    """What a client says of its names.

    Attributes:
        most_names: Names of one client that count: those of which it holds most.
        length: Bytes of a name; longer ones are cut.

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

    def __post_init__(self) -> None:
        if not 1 <= self.most_names <= 100:
            raise InputError(f"--most-names {self.most_names}: from 1 to 100")
        if not 1 <= self.length <= 255:
            raise InputError(f"--length {self.length}: from 1 to 255 bytes")

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """Noise with a threshold; no noise in what the server sees."""
        missed = (_ALONE + _FAILED + _CROWDED) * plan.client_delta
        return replace(plan, server_sees="sum", missed=missed)

    def check(self, clients: Asked) -> None:
        """Whether the clients have names."""
        clients.check_names()

    def released(self, asking: Asking) -> dict[str, Any]:
        """Names and counts above the threshold.

        Raises:
            InputError: The sum cannot be taken apart.
        """
        plan, source = asking.plan, asking.source
        noise = plan.at(0).noise
        assert isinstance(noise, ThresholdedNoise)
        threshold = Threshold(noise=noise, names=self.most_names, alone=_ALONE * plan.client_delta)
        tries, counts = self._counts(asking)
        found = threshold.release(counts, source.generator(Purpose.SERVER_NOISE, 0)).value
        # How often the server tried depends on the names: it is not among what is returned.
        return {
            "names": dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))),
            "threshold": threshold.lowest,
            "deviation": threshold.deviation,
            "share_seen": threshold.lowest / plan.cohort,
            "tries_allowed": tries,
        }

    def _counts(self, asking: Asking) -> tuple[int, dict[str, int]]:
        """SECRET but for the first: (tries that are allowed, clients of the cohort that hold each name)."""
        population, delta = asking.plan.clients, asking.plan.client_delta
        most = min(largest_cohort(population, asking.plan.cohort / population, _CROWDED * delta)[0], population)
        names = most * self.most_names
        cells, failure = form_for(names)
        tries = max(1, math.ceil(math.log(_FAILED * delta) / math.log(failure))) if failure else 1
        source, held = asking.source, asking.clients.names
        # More clients than the table is made for are left out: that is as seldom as planned.
        clients = asking.cohort.clients[:most].tolist()
        said = [heaviest(held(client), self.most_names) for client in clients]
        for again in range(tries):
            seed = source.generator(Purpose.NAME_HASHES, again).words(4).tobytes()
            table = NameTable(names=names, length=self.length, cells=cells, seed=seed)
            total = np.zeros(table.size, dtype=np.int64)
            for of_client in said:
                total += table.of(of_client)  # 2^32 of them fit
            try:
                return tries, table.decode(total % PRIME)
            except DecodingFailed:
                continue
        raise InputError(
            f"heavy-hitters: the sum of the clients' tables could not be taken apart in {tries} tries, which honest "
            "clients cause hardly ever: a client sent another table, or messages were damaged; nothing is released. "
            "Ask again with another cohort (--cohort), or shorter names (--length)"
        )

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The names, most frequent first."""
        lines = [
            f"{len(found['names'])} names with {found['threshold']} clients or more, noise of deviation "
            f"{found['deviation']:.3g} included (a share of {found['share_seen']:.2%} of those asked)"
        ]
        lines += [f"  {count:8,}  {name}" for name, count in found["names"].items()]
        if not found["names"]:
            lines.append("  none: ask more clients (--cohort), or allow more epsilon")
        return lines


MEMBER = HeavyHitters
