"""DP-AGR (ACSAC 2022) in sixty lines, on the library's parts: draw, adapt, clip, add noise, step, move the bound.

`dpfedmeta train --algo dp-agr` does the same with a ledger, checkpoints, workers and a report. Left out here: what
keeps a run's promise after a crash, and the care of the window rule (this is the rule as published, `--clip.policy
window-literal`).
"""

from __future__ import annotations

import numpy as np

from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.params import Params, added, norm, scaled, zeros_like
from dpfedmeta.core.random.random_sources import OperatingSystemSource, Purpose
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.meta.meta_gradients import meta_gradient
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.privacy.clip_policies.window_literal_policy import WindowLiteral
from dpfedmeta.privacy.clipping import clip
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded, ClientUnit

CLIENTS, COHORT, STEP = 400_000, 40, 0.5
SHAPE = EpisodeShape(ways=5, shots=5, queries=5)


def main(rounds: int = 30, epsilon: float = 1.5, width: int = 16, episodes: int = 100) -> list[float]:
    """A minute of one core with 30 rounds; returns the bounds."""
    # The promise, before anything is drawn: the smallest noise that keeps (client, public) at epsilon.
    plan = PrivacyPlan(clients=CLIENTS, cohort=COHORT, rounds=rounds, noise_multiplier=0.0)
    plan = calibrate(plan, Targets(client_epsilon=epsilon))
    promise = guarantees(plan)[0]
    print(f"noise multiplier {plan.noise_multiplier:.4f} for {promise.name} = {rounded_up(promise.epsilon)}")
    z = plan.noise_multiplier
    assert z is not None  # a target was given
    mechanism = GaussianMechanism(total_multiplier=z, charged_multiplier=z, denominator=COHORT)
    policy = WindowLiteral(initial_bound=0.3, window=4, percentile=90, lowest=0.01, highest=3.0)

    spec = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=5, width=width, norm="batch", learn="body")
    network, weights = build_network(spec), initial_weights(spec, seed=0)
    head = {name: value for name, value in weights.items() if name.startswith("head.")}  # each client's own, from zero
    model = {name: value for name, value in weights.items() if name not in head}
    adaptation = Adaptation(adapt="head", steps=5, lr=2.0)
    dataset, secret = open_dataset("strokes"), OperatingSystemSource()

    def accuracy(weights: Params) -> float:
        right = []
        for number in range(episodes):  # test classes are public
            episode = draw_episode(dataset.test, np.random.default_rng(number), SHAPE)
            predicted = adapted_logits(network, weights, episode, adaptation).argmax(1)
            right.append(float((predicted == episode.query_labels).float().mean()))
        return float(np.mean(right))

    print(f"untrained: {accuracy(weights):.1%}")

    bounds, bound, state = [], policy.initial().bound, policy.initial()
    for round_ in range(rounds):
        # Every client flips its own coin; how many come up stays secret, and nothing below divides by it.
        coins = secret.generator(Purpose.COHORT, round_)
        cohort = coins.sample(CLIENTS, coins.binomial(CLIENTS, COHORT / CLIENTS))
        messages = []
        for client in cohort:
            episode = draw_episode(dataset.train, np.random.default_rng(int(client)), SHAPE)
            gradient = meta_gradient(network, model, head, episode, adaptation, order=1)
            messages.append(clip(gradient, bound))
        total: Bounded[ClientUnit, Params] = Bounded(value=added([zeros_like(model), *messages]), sensitivity=bound)
        # The one door from secret to public.
        released = mechanism.release(total, secret.generator(Purpose.SERVER_NOISE, round_))
        step = scaled(released.value, -STEP / bound)
        model = added([model, step])
        print(f"round {round_}: clipped at {bound:.3f}, released {norm(released.value):.3f}")
        bounds.append(bound)
        state, bound = policy.next_bound(state, released)
    print(f"trained: {accuracy({**model, **head}):.1%}")
    return bounds


if __name__ == "__main__":
    main()
