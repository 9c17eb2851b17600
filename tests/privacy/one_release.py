"""One release of a Gaussian mechanism, from the streams of one seed."""

from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.units import Bounded

SOURCE = KeyedSource(7)


def stream(*key):
    return SOURCE.generator(Purpose.SERVER_NOISE, *key)


def gaussian(z=1.0, denominator=10.0):
    return GaussianMechanism(total_multiplier=z, charged_multiplier=z, denominator=denominator)


def release(value, bound, round_, z=0.1):
    return gaussian(z).release(Bounded(value={"w": value * 10.0}, sensitivity=bound), stream(round_))
