import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.nn.functional import cross_entropy

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.core.params import difference, flatten, norm
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.algorithms.fedavg import FedAvg, LocalDpSgd
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.functional import apply
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.local_training import LocalSteps, local_update, private_local_update, records
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients, OpacusGradients, VmapGradients

SPEC = NetworkSpec(name="linear", channels=1, image_size=8, ways=3, width=4, norm="none")
NETWORK, WEIGHTS = build_network(SPEC), initial_weights(SPEC, 1)


def stream(key=0):
    return KeyedSource(7).generator(Purpose.LOCAL_BATCHES, 0, key)


def data_of(count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 8, 8, generator=generator)
    labels = torch.randint(3, (count,), generator=generator)
    half = count // 2
    return Episode(
        support_images=images[:half],
        support_labels=labels[:half],
        query_images=images[half:],
        query_labels=labels[half:],
    )


def private(noise=1.0, steps=3, batch=4, clip=0.1, lr=0.5, count=12):
    local = LocalSteps(steps=steps, batch=batch, lr=lr)
    return local, count, LocalDpSgd(clip=clip, noise=noise, accountant="pld")


def update_of(data, steps, key=0, engine=None):
    return private_local_update(NETWORK, WEIGHTS, {}, data, *steps, stream(key), engine or VmapGradients())  # type: ignore[call-arg]


class Quiet:
    """Coins and orders of a stream, and noise of zeros."""

    def __init__(self, key=0):
        self.stream = stream(key)

    def normal(self, size):
        return np.zeros(size)

    def binomial(self, trials, probability):
        return self.stream.binomial(trials, probability)

    def sample(self, population, size):
        return self.stream.sample(population, size)


def test_one_whole_step_is_the_gradient_times_the_rate():
    data = data_of()
    images, labels = records(data)
    leaves = {n: v.clone().requires_grad_() for n, v in WEIGHTS.items()}
    gradient = torch.autograd.grad(cross_entropy(apply(NETWORK, leaves, images, None), labels), list(leaves.values()))
    update = local_update(NETWORK, WEIGHTS, {}, data, LocalSteps(steps=1, batch=None, lr=0.3), stream())
    for got, wanted in zip(update.values(), gradient, strict=True):
        assert torch.allclose(got, 0.3 * wanted, atol=1e-6)


def test_mini_batches_agree_with_torch_sgd():
    data, steps = data_of(), LocalSteps(steps=7, batch=5, lr=0.2)
    images, labels = records(data)
    orders = stream()
    parameters = [torch.nn.Parameter(v.clone()) for v in WEIGHTS.values()]
    optimizer = torch.optim.SGD(parameters, lr=0.2)
    batches = [b for _ in range(3) for b in torch.from_numpy(orders.sample(12, 12)).split(5)]
    for rows in batches[:7]:
        optimizer.zero_grad()
        cross_entropy(
            apply(NETWORK, dict(zip(WEIGHTS, parameters, strict=True)), images[rows], None), labels[rows]
        ).backward()
        optimizer.step()
    update = local_update(NETWORK, WEIGHTS, {}, data, steps, stream())
    after = {n: p.detach() for n, p in zip(WEIGHTS, parameters, strict=True)}
    assert torch.allclose(flatten(update), flatten(difference(WEIGHTS, after)), atol=1e-6)


def test_other_streams_give_other_orders_and_the_same_stream_the_same():
    data, steps = data_of(), LocalSteps(steps=4, batch=3, lr=0.2)
    one, same, other = (local_update(NETWORK, WEIGHTS, {}, data, steps, stream(key)) for key in (0, 0, 1))
    assert torch.equal(flatten(one), flatten(same))
    assert not torch.equal(flatten(one), flatten(other))


@pytest.mark.parametrize("engine", [VmapGradients(), OpacusGradients(), LayeredGradients()])
def test_without_noise_a_private_step_is_the_clipped_sum_of_its_mini_batch(engine):
    data, steps = data_of(), private(steps=1, batch=6, clip=0.05)
    images, labels = records(data)
    coins = stream()
    rows = coins.sample(12, coins.binomial(12, 0.5))
    total = torch.zeros(51)
    for row in rows:
        leaves = {n: v.clone().requires_grad_() for n, v in WEIGHTS.items()}
        loss = cross_entropy(apply(NETWORK, leaves, images[row : row + 1], None), labels[row : row + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
        total += gradient * min(1.0, 0.05 / float(gradient.norm()))
    released = private_local_update(NETWORK, WEIGHTS, {}, data, *steps, Quiet(), engine)  # type: ignore[call-arg]
    # The denominator is the public B, not the number of records that the coins chose.
    assert len(rows) != 6
    assert torch.allclose(flatten(released.value), 0.5 * total / 6, atol=1e-6)


@pytest.mark.parametrize("record", range(4))
def test_one_record_moves_a_step_by_no_more_than_its_clip(record):
    data, steps = data_of(count=8), private(steps=1, batch=8, clip=0.05, count=8)
    nulled = data_of(count=8)
    nulled.support_images[record] = math.nan  # its gradient counts as 0
    whole, without = (
        private_local_update(NETWORK, WEIGHTS, {}, d, *steps, Quiet(), VmapGradients())  # type: ignore[call-arg]
        for d in (data, nulled)  # type: ignore[call-arg]
    )
    moved = norm(difference(whole.value, without.value))
    assert 0 < moved <= 0.5 * 0.05 / 8 * (1 + 1e-5)


def test_an_empty_mini_batch_is_noise_alone():
    released = update_of(data_of(), private(steps=5, batch=1, lr=1.0, count=10**6, clip=1.0))
    flat = flatten(released.value)
    assert torch.isfinite(flat).all()
    assert float(flat.std()) == pytest.approx(math.sqrt(5), rel=0.25)


def test_the_noise_of_a_private_update_is_normal_and_as_wide_as_planned():
    steps = private(noise=2.0, steps=4, batch=3, clip=1e-3, lr=0.25)
    values = torch.cat([flatten(update_of(data_of(), steps, key).value) for key in range(60)]).numpy()
    deviation = 0.25 * math.sqrt(4) * 2.0 * 1e-3 / 3
    # The signal is at most lr K C n / B = 4e-3 of these units, spread over 51 coordinates.
    assert kstest(values / deviation, "norm").pvalue > 1e-3
    assert update_of(data_of(), steps).noise_deviation == pytest.approx(deviation)


def test_extreme_records_stay_finite():
    data = data_of()
    data.support_images[0] = 1e30
    data.query_images[1] = math.inf
    assert torch.isfinite(flatten(update_of(data, private()).value)).all()


@pytest.mark.parametrize(("batch", "rate"), [(None, 1.0), (12, 1.0), (6, 0.5), (3, 0.25), (1, 1 / 12)])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_step_counts_as_many_records_as_it_takes(batch, rate, accountant):
    """Without mini-batches all of them: no privacy comes of coins that do not fall."""
    method = FedAvg(
        adaptation=Adaptation(adapt="all", steps=7, lr=0.5), records=12, batch=batch,
        private=LocalDpSgd(clip=0.1, noise=1.5, accountant=accountant),
    )  # fmt: skip
    assert method.record_layer() == RecordLayer(
        support_noise=1.5, query_noise=None, support_steps=7, support_records=12, query_records=1, batch_rate=rate,
        accountant=accountant,
    )  # fmt: skip
    quieter = method.with_noise(method.record_layer()).quiet(support=False, noise=0.5)
    assert quieter.record_layer().support_noise == 0.5
    assert method.quiet(support=True, noise=0.5) == method


def test_steps_without_noise_promise_records_nothing():
    method = FedAvg(adaptation=Adaptation(adapt="all", steps=7, lr=0.5), records=12)
    assert method.record_layer() is None
    assert method.quiet(support=False, noise=0.5) == method


def test_coins_fall_independently_at_the_rate():
    counts = np.zeros((400, 12))

    class Recorder(VmapGradients):
        step = 0

        def __call__(self, module, params, fixed, varying, inputs, labels):
            counts[self.step, (inputs[:, 0, 0, 0]).round().long()] = 1
            return super().__call__(module, params, fixed, varying, inputs, labels)

    data = data_of()
    numbered = torch.arange(12.0)[:, None, None, None].expand(12, 1, 8, 8)
    data = Episode(
        support_images=numbered[:6].clone(),
        support_labels=data.support_labels,
        query_images=numbered[6:].clone(),
        query_labels=data.query_labels,
    )
    engine = Recorder()
    for engine.step in range(400):
        update_of(data, private(steps=1, batch=4), key=engine.step, engine=engine)
    rate = counts.mean(0)
    assert np.all(np.abs(rate - 1 / 3) < 4 * math.sqrt(2 / 9 / 400))
    assert counts.sum(1).var() == pytest.approx(12 * 2 / 9, rel=0.3)
    pairs = np.corrcoef(counts.T)[np.triu_indices(12, 1)]
    assert np.abs(pairs).max() < 0.25
