"""What a client holds, or nothing: data that do not have the form of the plan count as zero and stop no run."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedmeta.data.episode import Episode, is_sound
from dpfedmeta.data.population import Population
from dpfedmeta.data.shape import EpisodeShape, RecordForm
from dpfedmeta.errors import InputError
from dpfedmeta.meta.algorithm import Division

# Clients that are looked at before round 0.
_PROBED = 8


@dataclass(frozen=True, kw_only=True)
class DataForm:
    """What a plan counts with in every client; public constants.

    Attributes:
        image: Channels, height and width, or how many numbers.
        ways: Labels are in range(ways).
        counts: (n_s, n_q) where they are public constants; None: any number above 0.
        queries: Whether there must be a query set.
        divided: How records are cut into smaller episodes, or None.
        vocabulary: Tokens are whole numbers below it; None: records are no tokens.
    """

    image: tuple[int, ...]
    ways: int
    counts: tuple[int, int] | None
    queries: bool
    divided: Division | None
    vocabulary: int | None = None

    def fits(self, episode: Episode) -> bool:
        """Whether a client's data have this form; an empty or misshapen episode has not."""
        sound = is_sound(episode, self.image, self.ways, self.counts, queries=self.queries, vocabulary=self.vocabulary)
        return sound and (self.divided is None or self.divided.fits(episode))

    def held(self, population: Population, client: int) -> Episode | None:
        """SECRET: the data of a client; None where they cannot be read, or do not have this form.

        Guarantee:
            Whatever a client of the population holds, the rounds go on: an exception would tell of its data.

        Raises:
            Exception: There is no such client, and the population says so in its own way.
        """
        try:
            episode = population.episode(client)
            return episode if self.fits(episode) else None
        except MemoryError:
            raise
        except Exception:
            if not 0 <= client < population.clients:
                raise
            return None


def check_some_sound(population: Population, form: DataForm, shape: EpisodeShape) -> None:
    """Refuse a population of which nobody seems to hold data of the plan's form: it would train on noise alone.

    A few clients are looked at, spread over all. The refusal names nobody, and the data of one client decide over it
    only where all others that are looked at are unsound too.

    Args:
        population: All clients.
        form: What they must hold.
        shape: The same in the words of the settings.

    Raises:
        InputError: None of those looked at holds such data.
    """
    count = population.clients
    most = min(_PROBED, count)
    probed = [number * (count - 1) // max(most - 1, 1) for number in range(most)]
    if any(form.held(population, client) is not None for client in probed):
        return
    words = RecordForm(shape=form.image, vocabulary=form.vocabulary).words
    raise InputError(
        f"none of {most} clients, spread over all {count:,}, can be read as the plan expects: float32 {words}, "
        f"{shape.ways} ways, {shape.shots} shots, {shape.queries} queries; "
        "SequencePopulation.problems() tells the owner of the data what is wrong"
    )
