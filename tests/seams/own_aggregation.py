"""An aggregation that nobody planned for: two servers add up half of the clients each. One file."""

from dataclasses import dataclass, replace
from typing import Any

from dpfedmeta.privacy.units import Bounded


@dataclass(frozen=True, kw_only=True)
class TwoHalves:
    backend: Any

    def cohort_sum(self, model, bound, cohort):
        half = len(cohort.clients) // 2
        parts = [
            self.backend.cohort_sum(model, bound, replace(cohort, clients=ids))
            for ids in (cohort.clients[:half], cohort.clients[half:])
        ]
        value = {name: parts[0].value[name] + parts[1].value[name] for name in parts[0].value}
        variance = sum(part.noise_variance for part in parts)
        return Bounded(value=value, sensitivity=parts[0].sensitivity, noise_variance=variance)


class Halves:
    sees = "sum"

    @classmethod
    def made(cls, settings, clients, workers):
        from dpfedmeta.simulation.aggregations.messages import Messages

        return TwoHalves(backend=Messages.made(settings, clients, workers))


class Blind:
    sees = "nothing"

    @classmethod
    def made(cls, settings, clients, workers):
        raise AssertionError
