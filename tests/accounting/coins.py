"""A noise of the tests' own: a public coin decides how loud this round's Gaussian noise is."""

from dataclasses import dataclass

from dpfedmeta.accounting.divergences.gdp import gaussian_delta
from dpfedmeta.accounting.events.noise_cost import TAIL


@dataclass(frozen=True, kw_only=True)
class Coin:
    """Deviation `quiet` or `loud` over the sensitivity, each with probability one half; everybody sees which."""

    quiet: float
    loud: float

    def profile(self, epsilons, distance):
        """Seen with the coin, a release diverges by the mean of the two divergences."""
        return (gaussian_delta(epsilons, distance / self.quiet) + gaussian_delta(epsilons, distance / self.loud)) / 2

    def largest_loss(self, distance):
        return TAIL * self.mu(distance) + self.mu(distance) ** 2 / 2

    def mu(self, distance):
        return distance / self.quiet

    def replaced(self, rate, grid):
        return None

    def dp_event(self, distance):
        return None

    @property
    def words(self):
        return f"Gaussian noise of z = {self.quiet:g} or {self.loud:g} by a public coin"


class Tossed:
    """What `server.noise` would name: noise that is as loud as asked for, or twice as loud."""

    @staticmethod
    def noise(multiplier):
        return Coin(quiet=multiplier, loud=2 * multiplier)
