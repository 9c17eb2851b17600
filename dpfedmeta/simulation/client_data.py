"""Data of a client; data that do not have the form of the plan count as zero and stop no run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import is_finite
from dpfedmeta.core.plugins.own_function import spread_over
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.data.episodes.episode import Choice, Episode, is_sound
from dpfedmeta.data.episodes.gpu_sampling import drawn, drawn_there
from dpfedmeta.data.episodes.shape import EpisodeShape, RecordForm, WholeShape
from dpfedmeta.data.populations.population import Choosing, Population
from dpfedmeta.learning.meta.algorithm import Division
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES

Read = TypeVar("Read")


@dataclass(frozen=True, kw_only=True)
class DataForm:
    """Form of the data that a plan requires of every client; public constants.

    Attributes:
        image: Shape of a record: (channels, height, width), or (numbers,).
        ways: Labels are in range(ways).
        counts: (n_s, n_q) if they are public constants; None: any numbers above 0.
        queries: Whether a query set is required.
        divided: Way in which records are cut into smaller episodes, or None.
        vocabulary: Tokens are whole numbers below this; None if records are not tokens.
        targets: Kind of the labels.
        nulls: Whether some records may be null ones, which count as nothing while the others are used.
    """

    image: tuple[int, ...]
    ways: int
    counts: tuple[int, int] | None
    queries: bool
    divided: Division | None
    vocabulary: int | None = None
    targets: TargetKind = OWN_CLASSES
    nulls: bool = False

    def fits(self, episode: Episode) -> bool:
        """Return whether a client's data have this form; an empty or misshapen episode does not."""
        sound = is_sound(
            episode,
            self.image,
            self.ways,
            self.counts,
            queries=self.queries,
            vocabulary=self.vocabulary,
            sound_labels=self.targets.sound,
        )
        return sound and (self.divided is None or self.divided.fits(episode))

    def held(self, population: Population, client: int) -> Episode | None:
        """SECRET: the data of a client; None where they cannot be read, or do not have this form.

        Guarantee:
            Whatever a client of the population holds, the rounds go on: an exception would tell of its data.

        Raises:
            Exception: There is no such client, and the population says so in its own way.
        """

        def fitting(client: int) -> Episode | None:
            episode = population.episode(client)
            return episode if self.fits(episode) else None

        return _read(fitting, population, client)

    def held_on(self, population: Population, clients: Sequence[int], device: torch.device) -> list[Episode | None]:
        """SECRET: as `held`, of several clients, their records made on a device where it can make them.

        Guarantee:
            As of `held`.
        """
        # Not those that inherit from them, which may hold anything.
        if type(population) not in get_args(Choosing) or not drawn_there(population.pool, device):  # type: ignore[attr-defined]
            return [self.held(population, client) for client in clients]
        assert isinstance(population, Choosing)
        look: Callable[[int], Choice] = population.chosen
        chosen = [_read(look, population, client) for client in clients]
        made = drawn([each for each in chosen if each is not None], device)
        held = (None if each is None else next(made) for each in chosen)
        return [episode if episode is not None and self.fits(episode) else None for episode in held]

    def problem(self, population: Population, client: int) -> str | None:
        """SECRET: what is wrong with a client's data, in words; None: nothing that can be told from its form."""
        try:
            episode = population.episode(client)
            if not self.fits(episode):
                return self._misfit(episode)
            parts = (episode.support_images, episode.query_images)
            if self.nulls:
                some = any(bool(part.flatten(1).isfinite().all(1).any()) for part in parts)
                return None if some else "no rows that could be taken together"
            return None if all(is_finite({"": part}) for part in parts) else "images of NaN or infinity"
        except MemoryError:
            raise
        except InputError as error:
            return str(error).removeprefix(f"client {client}: ")
        except Exception as error:
            return f"data that cannot be read ({raised(error)})"

    def _misfit(self, episode: Episode) -> str:
        support, query = episode.support_images, episode.query_images
        forms = {" x ".join(map(str, part.shape[1:])) or "nothing" for part in (support, query) if len(part)}
        kinds = {str(part.dtype).removeprefix("torch.") for part in (support, query)}
        return (
            f"{' and '.join(sorted(kinds))} records of {' and '.join(sorted(forms)) or 'nothing'}, {len(support)} "
            f"support and {len(query)} query records of {len(torch.unique(episode.support_labels))} classes"
        )


def _read(look: Callable[[int], Read | None], population: Population, client: int) -> Read | None:
    """SECRET: what a look at a client finds; None where it fails, unless there is no such client."""
    try:
        return look(client)
    except MemoryError:
        raise
    except Exception:
        if not 0 <= client < population.clients:
            raise
        return None


def check_some_sound(population: Population, form: DataForm, shape: EpisodeShape | WholeShape) -> None:
    """Refuse a population of which nobody seems to hold data of the plan's form: it would train on noise alone.

    A population that says itself which records it holds (`image`) is compared before, without a look at any client.
    Here a few clients are looked at, spread over all. The refusal names nobody, and the data of one client decide over
    it only where all others that are looked at are unsound too; what is wrong is said only where it is the same in all
    of them, which makes it a property of the population.

    Args:
        population: All clients.
        form: What they must hold.
        shape: The same in the words of the settings.

    Raises:
        InputError: None of those looked at holds such data.
    """
    count = population.clients
    probed = spread_over(count)
    problems = {form.problem(population, client) for client in probed}
    if None in problems:
        return
    (same,) = problems if len(problems) == 1 else (None,)
    words = RecordForm(shape=form.image, vocabulary=form.vocabulary).words
    raise InputError(
        f"none of {len(probed)} clients, picked from all {count:,}, has the data that the plan expects: float32 "
        f"{words}, {shape.words}; "
        + (f"all of them hold {same}; " if same else "")
        + f"{type(population).__name__}.problems() tells the owner of the data what is wrong"
    )
