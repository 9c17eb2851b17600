"""Rounds that somebody wrote: one that keeps its promise, and mistakes."""

import numpy as np

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon

LIKE = {"w": np.zeros((2, 3)), "b": np.zeros(2)}
CLIENTS, ROUNDS, Z, DELTA = 10, 4, 6.0, 1e-5
# All clients are in each round, so four rounds are one Gaussian mechanism.
PROMISE = dp.Promise(epsilon=gaussian_epsilon(ROUNDS**0.5 / Z, DELTA), delta=DELTA)


def clipped(update, bound):
    norm = np.sqrt(sum(np.sum(value**2) for value in update.values()))
    return {name: value * min(1.0, bound / norm if norm else 1.0) for name, value in update.items()}


def total(updates):
    return {name: sum(update[name] for update in updates) for name in LIKE}


def noisy(sums, noise, generator, divisor=CLIENTS):
    return {name: (value + noise * generator.normal(size=value.shape)) / divisor for name, value in sums.items()}


def honest(state, updates, generator):
    return state, noisy(total([clipped(update, 1.0) for update in updates.values()]), Z, generator)


def average_clipped(state, updates, generator):
    """The average is clipped, and not each update."""
    mean = {name: value / CLIENTS for name, value in total(list(updates.values())).items()}
    return state, noisy(clipped(mean, 1.0), Z / CLIENTS, generator, 1.0)


def noise_by_count(state, updates, generator):
    """The noise is divided by how many clients there are once more."""
    return state, noisy(total([clipped(update, 1.0) for update in updates.values()]), Z / CLIENTS, generator)


def bound_from_norms(state, updates, generator):
    """The next bound is the largest norm before clipping; the noise keeps the old one."""
    bound = state or 1.0
    largest = max(np.sqrt(sum(np.sum(value**2) for value in update.values())) for update in updates.values())
    return largest, noisy(total([clipped(update, bound) for update in updates.values()]), Z, generator)


def one_seed(state, updates, generator):
    """The noise of the first round comes again in each."""
    noise = generator.integers(2**32) if state is None else state
    return noise, noisy(total([clipped(u, 1.0) for u in updates.values()]), Z, np.random.default_rng(noise))


def weighted_by_norm(state, updates, generator):
    """Clients weigh by what they say of themselves."""
    weights = {client: 1 + np.sqrt(sum(np.sum(v**2) for v in each.values())) for client, each in updates.items()}
    sums = [{n: weights[c] * v for n, v in clipped(each, 1.0).items()} for c, each in updates.items()]
    return state, noisy(total(sums), Z, generator)


def clipped_by_coordinate(state, updates, generator):
    """Each coordinate is clipped to the bound, and not the whole."""
    return state, noisy(
        total([{n: np.clip(v, -1, 1) for n, v in each.items()} for each in updates.values()]), Z, generator
    )


def noise_on_one_array(state, updates, generator):
    """The second array is forgotten."""
    sums = total([clipped(update, 1.0) for update in updates.values()])
    return state, {**noisy(sums, Z, generator), "b": sums["b"] / CLIENTS}


def one_number_of_noise(state, updates, generator):
    """All coordinates of an array have the same noise."""
    sums = total([clipped(update, 1.0) for update in updates.values()])
    return state, {name: (value + Z * generator.normal(size=())) / CLIENTS for name, value in sums.items()}


def raw_momentum(state, updates, generator):
    """The server's momentum is of sums before noise and before clipping."""
    raw = total(list(updates.values()))
    kept = {name: 0.9 * (state or raw)[name] + raw[name] for name in LIKE}
    sums = total([clipped(update, 1.0) for update in updates.values()])
    return kept, noisy({name: sums[name] + 0.1 * kept[name] for name in LIKE}, Z, generator)


def never_clipped(state, updates, generator):
    """max in place of min."""
    norms = [np.sqrt(sum(np.sum(v**2) for v in each.values())) for each in updates.values()]
    long = [
        {n: v * max(1.0, 1.0 / norm if norm else 1.0) for n, v in each.items()}
        for each, norm in zip(updates.values(), norms, strict=True)
    ]
    return state, noisy(total(long), Z, generator)


def fixed_seed(state, updates, generator):
    """The noise comes from a seed in the program."""
    state = state or np.random.default_rng(0)
    return state, noisy(total([clipped(update, 1.0) for update in updates.values()]), Z, state)


def quiet(state, updates, generator):
    return state, total(list(updates.values()))


def descends(state, updates, generator):
    """A model that moves against the mean, without noise."""
    return state, {name: -0.1 * value / CLIENTS for name, value in total(list(updates.values())).items()}


def counts(state, updates, generator):
    """How many clients there are, in each coordinate: signs in turns do not see it."""
    return state, {name: np.full(np.shape(value), float(len(updates))) for name, value in LIKE.items()}
