"""The longest release that honest clients give, and the planned deviation of its noise.

A longer one shows that somebody sends more than its clip bound. Needs no PyTorch, and no data: what it is compared
with was released already, so the comparison costs no privacy.
"""

import math
from functools import lru_cache

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise

# How likely one round of honest clients is taken for a dishonest one.
CHANCE = 1e-9
# Messages are compared with their bound in float32, and may be so much longer.
_ROUNDED = 1e-4


def longest_release(
    *, longest_sum: float, deviation: float, dimension: int, chance: float, depends_on_noise: bool = False
) -> float:
    """A length that a release of honest clients exceeds with a probability of at most `chance`.

    Args:
        longest_sum: S: largest length of the sum of honest messages without noise, in the units of the release.
        deviation: sigma: of all noise of the release, per coordinate; e^(t <u, noise>) has a mean of at most
            e^(sigma^2 t^2 / 2) for every u of length 1.
        dimension: d.
        chance: p.
        depends_on_noise: Whether the sum may depend on the noise of its own release, as it does where noise is
            correlated from round to round: then clients have seen a part of it.

    Guarantee:
        With x = ln(1/p), the length is at most

            sqrt(S^2 + sigma^2 d + 2 sigma sqrt((sigma^2 d + 2 S^2) x) + 2 sigma^2 x)

        with probability 1 - p where the noise is independent of the sum s, |s| <= S. Proof: let sigma = 1,
        0 <= l < 1/2 and v = s + noise. With g standard normal in R^d, E e^(l |v|^2) = E_g e^(sqrt(2 l) <g, v>); the
        mean over the noise, given g, is at most e^(sqrt(2 l) <g, s> + l |g|^2), and that over g is the value for normal
        noise, (1 - 2 l)^(-d/2) e^(l |s|^2 / (1 - 2 l)), which grows with |s|. From -ln(1 - u) - u <= u^2 / (2 - 2 u),

            ln E e^(l (|v|^2 - d - S^2)) <= l^2 (d + 2 S^2) / (1 - 2 l),

        so by Chernoff's bound (Birge 2001, lemma 8.1) P(|v|^2 >= d + S^2 + 2 sqrt((d + 2 S^2) x) + 2 x) <= e^-x.
        Normal noise and discrete normal noise (Canonne, Kamath, Steinke 2020: its parameter is such a sigma^2), sums of
        independent ones, rotations and the dropping of coordinates keep what is asked of the noise.

        Otherwise S + sigma (sqrt(d) + sqrt(2 x)): the triangle inequality, and the same with S = 0.
    """
    x, noise = math.log(1.0 / chance), deviation * math.sqrt(dimension)
    if depends_on_noise:
        return longest_sum + noise + deviation * math.sqrt(2.0 * x)
    spread = 2.0 * deviation * math.sqrt((noise**2 + 2.0 * longest_sum**2) * x)
    return math.sqrt(longest_sum**2 + noise**2 + spread + 2.0 * deviation**2 * x)


@lru_cache(maxsize=64)
def most_messages(event: Event, chance: float) -> int:
    """A number that the messages of a round exceed with a probability of at most `chance`.

    Clients join independently of each other in all samplers but `fixed`: with probability L/N in a round that is drawn
    by coins, also where those who rest are not drawn (then the coins of those who are free are as many times likelier,
    participation_pattern); q in the group whose turn it is; 1/t where each drew one of t rounds. Who is left out or
    falls silent makes it smaller.
    """
    return sampling_of(event.sampler).most_messages(event, chance)


def honest_norm(
    event: Event, *, moved: float, deviation: float, dimension: int, own_noise: bool, chance: float = CHANCE
) -> float | None:
    """A length that a round's release exceeds with a probability of at most `chance` if all clients are honest.

    Args:
        event: What the round costs.
        moved: How far one client moves the sum, before messages are rounded: its clip bound, and what is attached.
        deviation: Of all noise of the release, per coordinate.
        dimension: Numbers of the release.
        own_noise: Whether the noise is made by code of the user's own, so that nobody knows how rounds depend on each
            other.
        chance: Of a false alarm.

    Returns:
        None where nothing bounds a message, or the noise is of a kind whose tails are not known here.

    Guarantee:
        Half of `chance` goes to the number of messages (`most_messages`), half to the noise (`longest_release`). Each
        message is `moved` long at most, `moved` times the growth by rounding where messages are whole numbers; reading
        a sum modulo 2^b brings no coordinate further from 0. The sum is divided by the public cohort L.
    """
    if not math.isfinite(moved) or not isinstance(event.noise, GaussianNoise | CorrelatedNoise):
        return None
    growth = event.whole.growth if event.whole is not None else 1.0
    longest = most_messages(event, chance / 2) * moved * growth / event.cohort
    dependent = own_noise or isinstance(event.noise, CorrelatedNoise)
    found = longest_release(
        longest_sum=longest, deviation=deviation, dimension=dimension, chance=chance / 2, depends_on_noise=dependent
    )
    return found * (1.0 + _ROUNDED)


def planned_deviation(event: Event, round_: int) -> float | None:
    """Deviation per coordinate of all noise of a round's sum, over the bound that clips a message.

    0 where the round has no noise; None where its kind of noise fixes none beforehand.
    """
    noise = event.noise
    if noise is None:
        return 0.0
    if isinstance(noise, CorrelatedNoise):
        return noise.multiplier * _deviations(noise)[round_]
    if not noise.steady or event.total_noise is None:
        return None
    # Rounding lengthens a message, and the noise follows.
    return event.total_noise * (event.whole.growth if event.whole is not None else 1.0)


@lru_cache(maxsize=8)
def _deviations(noise: CorrelatedNoise) -> tuple[float, ...]:
    return tuple(noise_deviations(noise.coefficients(noise.rounds)).tolist())
