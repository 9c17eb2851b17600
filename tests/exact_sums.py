"""The exact sums that one participation releases about records, and how far another data set moves them."""

from dataclasses import replace

import numpy as np
import torch

from dpfedmeta.core.params import flatten
from dpfedmeta.learning.record_dp import local_training, micro_episode_gradients, moment_messages, noisy_steps
from dpfedmeta.privacy.units import Bounded

BOUND = 0.02


class NoNoise:
    reproducible = needs_fresh = False

    def generator(self, *key):
        return self

    def again(self, *attempt):
        return self

    def of_clients(self, *clients):
        return self

    def normal(self, size):
        return np.zeros(size)

    def binomial(self, count, rate):
        return count

    def sample(self, count, size):
        return np.arange(size)


def exact_sums(side, model, client, monkeypatch):
    """{role: exact sums of a participation over their clip bound}, the same released values before each."""
    side, found = replace(side, source=NoNoise()), {}
    if side.algorithm.parts > 1:
        (parts,) = side.bounded_parts(model, BOUND, 0, [client])
        return {"sum": [np.sum(parts, axis=0) / BOUND]}

    def recorded(gradients, bound):
        from dpfedmeta.privacy.per_example.clip_rows import clipped_record_sum

        made = clipped_record_sum(gradients, bound)
        found.setdefault(_role(len(next(iter(gradients.values()))), side.algorithm), []).append(
            flatten(made.value).double().numpy() / bound
        )
        # What is released is the same, whatever the records are, and no head is left at zero by it.
        same = {name: torch.linspace(-1.0, 1.0, value.numel()).view_as(value) for name, value in made.value.items()}
        return Bounded(value=same, sensitivity=bound)

    def recorded_moments(exact, count, bound, noise, generator):
        # In units of what a record costs that counts as nothing; no message is so long that it is cut here.
        found["sum"] = [count * flatten(exact).double().numpy()]
        assert np.linalg.norm(found["sum"]) < count
        return released(exact, count, bound, noise, generator)

    released = moment_messages.noisy_moments
    with monkeypatch.context() as recording:
        recording.setattr(moment_messages, "noisy_moments", recorded_moments)
        for module in (micro_episode_gradients, noisy_steps, local_training):
            recording.setattr(module, "clipped_record_sum", recorded)
        next(iter(side.sent(model, BOUND, 0, [client])))
    return found


def _role(records, algorithm):
    layer = algorithm.record_layer()
    if layer.support_noise is not None and layer.query_noise is not None:
        return "support" if records == layer.support_records else "query"
    return "sum"


def moved(before, after):
    """{role: largest distance of its sums}."""
    return {
        role: max(float(np.linalg.norm(one - other)) for one, other in zip(sums, after[role], strict=True))
        for role, sums in before.items()
    }
