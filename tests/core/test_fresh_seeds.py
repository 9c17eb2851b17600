"""Noise that follows from fresh bytes, from the question and from the exact message: nothing restored repeats it."""

import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.analytics.secure_counts import CountGrid
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import (
    FRESH_GENERATOR,
    FreshSource,
    attempt_bytes,
    draw_fresh,
    keep_secret,
    name_of,
    new_source,
    secret_of_run,
)
from dpfedmeta.core.random.keyed_streams import MessageGenerator, for_message
from dpfedmeta.core.random.random_sources import (
    CLIENT_PURPOSES,
    GENERATOR,
    NOISE_PURPOSES,
    SEEDS,
    KeyedSource,
    OperatingSystemSource,
    Purpose,
    seeds_stay,
)
from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.thresholded_counts import Threshold
from dpfedmeta.privacy.units import Bounded, message_of

FRESH = attempt_bytes("00" * 16, "asked")
PINNED = (-0.26889984097489644, 0.10812086338877167, 2.437833789063632, -0.3682990162191703)
PINNED_COHORT = [34808, 39409, 2783, 12259]


def drawn(seed=9, again=(), fresh=FRESH, purpose=Purpose.QUERY_NOISE, round_=3, client=17, message=(b"one",), call=0):
    """Noise by all that it depends on."""
    generator = FreshSource(seed).again(again, fresh).generator(purpose, round_, client)
    for _ in range(call):
        for_message(generator, lambda: message)
    return tuple(for_message(generator, lambda: message).normal(4))


# For each thing that noise depends on, values that differ in nothing else.
COMPONENTS: dict[str, list[dict[str, Any]]] = {
    "seed": [{"seed": seed} for seed in (0, 1, 9, 2**64, 2**127)],
    "attempt": [{"again": again} for again in ((), (1,), (0, 0), (1, 0), (0, 1), (7, 3, 17))],
    "fresh bytes and question": [
        {"fresh": attempt_bytes(fresh, asked)}
        for fresh, asked in itertools.product(("00" * 16, "00" * 15 + "01", "80" + "00" * 15), ("", "asked", "other"))
    ],
    "purpose": [{"purpose": purpose} for purpose in NOISE_PURPOSES],
    "round": [{"round_": number} for number in (0, 1, 3, 2**31)],
    "client": [{"client": number} for number in (0, 1, 17, 2**40)],
    # Cut in another place it is another message.
    "message": [{"message": message} for message in ((), (b"",), (b"", b""), (b"one",), (b"on", b"e"), (b"One",))],
    "call": [{"call": number} for number in range(5)],
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_whatever_noise_depends_on_gives_another_one(component):
    cases = COMPONENTS[component]
    assert len({drawn(**case) for case in cases}) == len(cases)
    assert [drawn(**case) for case in cases] == [drawn(**case) for case in cases]


def test_no_two_of_all_of_them_together_share_noise():
    cases = [case for kind in COMPONENTS.values() for case in kind]
    usual = drawn()
    others = [drawn(**case) for case in cases]
    # One case of each kind is the usual one, or none.
    assert len(set(others)) >= len(others) - len(COMPONENTS) + 1
    assert others.count(usual) <= len(COMPONENTS)


def test_noise_is_standard_normal_and_independent_over_messages():
    generator = FreshSource(5).again((), FRESH).generator(Purpose.SERVER_NOISE, 0)
    same = [FreshSource(5).again((), FRESH).generator(Purpose.SERVER_NOISE, 0) for _ in range(40)]
    by_call = [for_message(generator, lambda: (b"zero",)).normal(2000) for _ in range(40)]
    by_message = [for_message(own, lambda n=n: (bytes([n]),)).normal(2000) for n, own in enumerate(same)]
    for rows in (np.stack(by_call), np.stack(by_message)):
        assert stats.kstest(rows.ravel(), "norm").pvalue > 1e-6
        products = rows @ rows.T / np.sqrt(rows.shape[1])
        assert np.abs(products[np.triu_indices(len(rows), 1)]).max() < 6


def test_noise_without_a_message_is_an_error():
    for purpose in NOISE_PURPOSES:
        generator = FreshSource(1).again((), FRESH).generator(purpose, 0, 0)
        with pytest.raises(RuntimeError, match="noise is drawn for an exact message"):
            generator.normal(3)
        with pytest.raises(RuntimeError, match="noise is drawn for an exact message"):
            generator.discrete_normal(2.0, 3)


@pytest.mark.parametrize("purpose", [*Purpose])
def test_coins_and_choices_need_none(purpose):
    """Cohorts, mini-batches, rounding: they are drawn before there is a message."""
    one, two = (FreshSource(1).again((), FRESH).generator(purpose, 0, 4) for _ in range(2))
    assert one.words(3).tolist() == two.words(3).tolist()
    assert one.sample(50, 4).tolist() == two.sample(50, 4).tolist()
    assert one.binomial(100, 0.3) == two.binomial(100, 0.3)
    other = FreshSource(1).again((), attempt_bytes("11" * 16, "asked")).generator(purpose, 0, 4)
    assert other.words(3).tolist() != FreshSource(1).again((), FRESH).generator(purpose, 0, 4).words(3).tolist()


def test_nothing_is_drawn_without_fresh_bytes():
    with pytest.raises(LookupError, match="without fresh bytes"):
        FreshSource(1).again((), b"")
    with pytest.raises(LookupError, match="without fresh bytes"):
        FreshSource(1).again((), attempt_bytes("", "asked"))
    for purpose in (Purpose.COHORT, Purpose.SERVER_NOISE):
        with pytest.raises(LookupError, match="for one attempt"):
            FreshSource(1).generator(purpose, 0).words(1)
    with pytest.raises(LookupError, match="for one attempt"):
        FreshSource(1).of_clients(0, [1])


def test_another_machine_draws_what_this_one_would():
    source = FreshSource(77).again((2, 5), FRESH)
    keys = pickle.loads(pickle.dumps(source.of_clients(4, [3, 8])))
    for purpose, client in itertools.product(CLIENT_PURPOSES, (3, 8)):
        own, there = (for_message(each.generator(purpose, 4, client), lambda: (b"message",)) for each in (source, keys))
        assert own.words(2).tolist() == there.words(2).tolist()
    with pytest.raises(RuntimeError, match="exact message"):
        keys.generator(Purpose.MESSAGE_NOISE, 4, 3).normal(1)
    with pytest.raises(LookupError):
        keys.generator(Purpose.SERVER_NOISE, 4, 3)


def test_the_key_does_not_leave_where_seeds_have_to_stay():
    source = FreshSource(2**127 + 5).again((), FRESH)
    assert pickle.loads(pickle.dumps(source)) == source
    with seeds_stay(), pytest.raises(RuntimeError, match="about to be sent to another machine"):
        pickle.dumps(source)


def test_the_way_from_a_key_to_numbers_is_the_one_that_its_name_stands_for():
    """Runs that are resumed rely on it: whoever changes one of these numbers has to change the name as well."""
    assert FRESH_GENERATOR == "chacha20-blake2b-ziggurat-by-message-1"
    assert drawn() == PINNED
    source = FreshSource(0x0123456789ABCDEF_FEDCBA9876543210).again((2, 1), attempt_bytes("ab" * 16, "question"))
    assert source.generator(Purpose.COHORT, 5).sample(400_000, 4).tolist() == PINNED_COHORT


def test_only_a_chosen_seed_is_one_whose_noise_does_not_look_at_the_message():
    assert new_source(5) == KeyedSource(5)
    assert name_of(new_source(5)) == GENERATOR
    assert name_of(new_source(None)) == FRESH_GENERATOR
    assert new_source(None) != new_source(None)
    assert new_source(None, secure_rng=True) == OperatingSystemSource()
    assert [source.needs_fresh for source in (new_source(5), new_source(None), OperatingSystemSource())] == [
        False, True, False,
    ]  # fmt: skip
    assert len({draw_fresh() for _ in range(100)}) == 100
    for source in (KeyedSource(5), OperatingSystemSource()):
        generator = source.generator(Purpose.SERVER_NOISE, 0)
        assert for_message(generator, lambda: pytest.fail("nobody asks for it")) is generator


def bounded(values=(1.0, 2.0), **given):
    return Bounded(value={"w": torch.tensor(values, dtype=torch.float64)}, **{"sensitivity": 0.5, **given})


OTHER = {
    "one bit": bounded((1.0, np.nextafter(2.0, 3.0))),
    "form": Bounded(value={"w": torch.tensor([[1.0, 2.0]], dtype=torch.float64)}, sensitivity=0.5),
    "name": Bounded(value={"v": torch.tensor([1.0, 2.0], dtype=torch.float64)}, sensitivity=0.5),
    "bound": bounded(sensitivity=0.25),
    "noise that it carries": bounded(noise_variance=0.1),
    "negative zero": bounded((-0.0, 2.0)),
    "zero": bounded((0.0, 2.0)),
}


def test_whatever_differs_in_a_release_gets_another_noise():
    """Also zeros under two bounds: their noises in proportion would say that both messages are zero."""
    mechanism = GaussianMechanism(total_multiplier=2.0, charged_multiplier=2.0, denominator=4.0)

    def noise(query, mechanism=mechanism):
        generator = FreshSource(3).again((), FRESH).generator(Purpose.SERVER_NOISE, 0)
        released = mechanism.release(query, generator)
        (value,), (before,) = released.value.values(), query.value.values()
        deviation = np.sqrt((mechanism.total_multiplier * query.sensitivity) ** 2 - query.noise_variance)
        return tuple(np.round((value.double() * mechanism.denominator - before).flatten().numpy() / deviation, 4))

    assert noise(bounded()) == noise(bounded())
    found = [noise(query) for query in (bounded(), *OTHER.values())]
    for changed in ({"total_multiplier": 3.0}, {"denominator": 5.0}):
        other = {"total_multiplier": 2.0, "charged_multiplier": 2.0, "denominator": 4.0, **changed}
        found.append(noise(bounded(), GaussianMechanism(**other)))
    assert len(set(found)) == len(found)
    assert len({tuple(message_of(query)) for query in (bounded(), *OTHER.values())}) == 1 + len(OTHER)


def whole_numbers(deviation=40.0, units=8.0, denominator=4.0):
    sizes = {"least": 5, "most": 5, "dropout": 0.0, "unsure": 1}
    whole = WholeSum(bits=16, dimension=3, parts=1, units=units, deviation=deviation, exact=True, **sizes)
    return WholeNumberMechanism(whole=whole, noise=GaussianNoise(multiplier=1.0), denominator=denominator)


def gaussian(**changes):
    return GaussianMechanism(**{"total_multiplier": 2.0, "charged_multiplier": 2.0, "denominator": 4.0, **changes})


# (The mechanism, what scales its noise or is divided by, a sum that it takes.)
SCALED: dict[str, tuple[Any, list[dict[str, float]], Any]] = {
    "gaussian": (gaussian, [{"total_multiplier": 3.0}, {"denominator": 5.0}], lambda mechanism: bounded()),
    "whole numbers": (
        whole_numbers,
        [{"deviation": 80.0}, {"denominator": 5.0}, {"units": 16.0}],
        lambda mechanism: Bounded(
            value={"counts": torch.ones(3, dtype=torch.float64)},
            sensitivity=mechanism.whole.of_a_client,
            grid=CountGrid(bits=16, steps=8),
        ),
    ),
}


@pytest.mark.parametrize("kind", SCALED)
def test_a_mechanism_tells_its_noise_everything_that_scales_it(kind, monkeypatch):
    """One sum under two amounts of noise: in proportion the noises would give it away."""
    make, changes, sum_of = SCALED[kind]
    told, drawn_for = [], MessageGenerator.for_message

    def noted(self, message):
        told.append(tuple(message))
        return drawn_for(self, told[-1])

    monkeypatch.setattr(MessageGenerator, "for_message", noted)
    for changed in ({}, {}, *changes):
        mechanism = make(**changed)
        mechanism.release(sum_of(mechanism), FreshSource(3).again((), FRESH).generator(Purpose.SERVER_NOISE, 0))
    assert told[0] == told[1]
    assert len(set(told)) == 1 + len(changes)


def test_counts_of_other_names_have_other_noise():
    threshold = Threshold(noise=ThresholdedNoise(multiplier=100.0, missed=0.5), names=1, alone=0.4)

    def noise(**counts):
        generator = FreshSource(3).again((), FRESH).generator(Purpose.SERVER_NOISE, 0)
        released = threshold.release(counts, generator).value
        return tuple(released[name] - count for name, count in counts.items())

    found = [noise(a=10**6 + n, b=10**6, d=10**6) for n in range(9)] + [noise(a=10**6, b=10**6, c=10**6)]
    assert noise(a=10**6, b=10**6, d=10**6) == found[0]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("source", [KeyedSource(9), FreshSource(9).again((), FRESH)], ids=["chosen", "drawn"])
@pytest.mark.parametrize(
    ("purpose", "key"),
    [
        (Purpose.QUERY_NOISE, (4, 17)),
        (Purpose.QUERY_NOISE, (3, 5)),
        (Purpose.SERVER_NOISE, (3, 17)),
        (Purpose.COHORT, (3, 17)),
    ],
    ids=["another round", "another client", "the server's noise", "the cohort"],
)
def test_keys_of_another_machine_are_of_its_clients_in_one_round(source, purpose, key):
    """Asked for anything else it has none, rather than another stream's."""
    keys = source.of_clients(3, [17, 18])
    assert keys.generator(Purpose.QUERY_NOISE, 3, 17) is not None
    with pytest.raises(LookupError):
        keys.generator(purpose, *key).words(1)


@pytest.mark.parametrize("chosen", [None, 5])
def test_a_kept_key_is_taken_as_it_was_or_refused(tmp_path, chosen):
    run = RunDirectory(tmp_path)
    run.secret.mkdir()
    path = run.secret / "noise_seed.json"
    for source in (KeyedSource(SEEDS - 1), FreshSource(0)):
        keep_secret(run, source)
        if chosen is None or isinstance(source, KeyedSource):
            back = secret_of_run(run, chosen, secure=False)
            assert isinstance(back, KeyedSource | FreshSource)
            assert (back.seed, type(back)) == (source.seed, FreshSource if chosen is None else KeyedSource)
        else:
            with pytest.raises(InputError, match="generator"):
                secret_of_run(run, chosen, secure=False)
    whole = {"seed": 7, "generator": GENERATOR}
    for content, words in (
        *(({**whole, "seed": seed}, "noise seed") for seed in (-1, SEEDS, 7.0, True, "7", None)),
        *(({**whole, "generator": other}, "generator") for other in ("philox", None, 3)),
        ({"seed": 7}, "generator"),
        ({"generator": GENERATOR}, "lost or damaged"),
        ([7], "lost or damaged"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=words):
            secret_of_run(run, chosen, secure=False)
    path.unlink()
    with pytest.raises(InputError, match="lost or damaged"):
        secret_of_run(run, chosen, secure=False)
    assert isinstance(secret_of_run(run, chosen, secure=True), OperatingSystemSource)
