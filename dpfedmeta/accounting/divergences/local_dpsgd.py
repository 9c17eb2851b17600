"""Steps of a client's own, on mini-batches that it draws for itself: what they cost one of its records."""

from __future__ import annotations

from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Event, Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import AccountantName


def poisson_steps_epsilon(rate: float, noise: float, steps: int, delta: float, accountant: AccountantName) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps, by the accountant that is asked for.

    Guarantee:
        An upper bound under removing, adding or zeroing out one record, whichever accountant: pld is tight, prv
        (Gopi, Lee, Wutschitz 2021, https://arxiv.org/abs/2106.02848) states its own error and the upper end is taken,
        rdp is loose.
    """
    if accountant == "prv":
        # Opacus takes a second to import, and few need it.
        from opacus.accountants import PRVAccountant

        prv = PRVAccountant()
        prv.history = [(noise, rate, steps)]
        return float(prv.get_epsilon(delta))
    step = _steps(rate, noise, steps)
    return rdp_epsilon([step], delta) if accountant == "rdp" else sampled_epsilon([step], "add-remove", delta)


def replaced_steps_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps where one record is replaced by any other one, by PLD."""
    return sampled_epsilon([_steps(rate, noise, steps)], "replace-one", delta)


def _steps(rate: float, noise: float, steps: int) -> Phase:
    own = Event(sampler="poisson", clients=1, cohort=rate, rate=rate, noise=GaussianNoise(multiplier=noise))
    return Phase(event=own, rounds=steps)
