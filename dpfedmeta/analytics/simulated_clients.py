"""The clients of an analysis: those of a simulation, and what others have to be instead."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from dpfedmeta.analytics.analysis import Analysis, Handing, PendingRelease, Sums
from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.analytics.client_answers import Held, HeldImages, HeldNames, check_named
from dpfedmeta.analytics.public_context import Ground
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.populations.population import Population
from dpfedmeta.planning.client_population import training_part
from dpfedmeta.planning.data_digests import held_data
from dpfedmeta.training import build_data as training_data


class Clients(Protocol):
    """Clients that an analysis asks."""

    @property
    def ground(self) -> Ground:
        """Public information about the clients: settings, training plan and model."""
        ...

    @property
    def digest(self) -> str:
        """SECRET: another one where the answers would be others."""
        ...

    def check(self, analysis: Analysis) -> None:
        """Refuse before the charge what they could not answer; nobody's data decide over it.

        Raises:
            InputError: They are not those that were asked for, or something is missing.
            RefusedPlan: Clients of this kind have no such answer.
        """
        ...

    def ready(self) -> None:
        """Wait until they can be asked; before the charge.

        Raises:
            InputError: They do not come.
        """
        ...

    def sums(self, analysis: Analysis, asking: PendingRelease, told: bytes, run: RunDirectory) -> Sums:
        """SECRET: ask the cohort, and add up; it is charged already.

        Args:
            analysis: What is asked.
            asking: Who is asked.
            told: What they are told.
            run: Where the analysis is kept.

        Raises:
            InputError: Too few answered; the same call may be made again.
        """
        ...


@dataclass(frozen=True, eq=False)
class SimulatedClients:
    """The clients of a simulation (a `Clients`). Only what is used is opened.

    Attributes:
        request: What is asked.
        data_folder: Where data sets are; None: DPFEDMETA_DATA.
    """

    request: Request
    data_folder: Path | None = None

    @cached_property
    def ground(self) -> Ground:
        """Public information about the clients: settings, training plan and model."""
        return Ground(self.request, self.data_folder)

    @cached_property
    def digest(self) -> str:
        """SECRET: of the data, and of the model that is adapted."""
        parts = [self._lines_digest() if self.request.names else held_data(self._dataset, None).sha256]
        if self.request.run:
            parts.append(hashlib.sha256(RunDirectory(Path(self.request.run)).weights.read_bytes()).hexdigest())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def check(self, analysis: Analysis) -> None:
        """Refuse, before the charge, an analysis that the clients could not answer (see `Clients`)."""
        if self.clients != self.request.clients:
            raise InputError(f"{self.request.clients:,} clients were asked for, but the data have {self.clients:,}")
        analysis.check(self.ground)
        if analysis.by_names and not self.request.names:
            check_named(self._population)

    def ready(self) -> None:
        """They always are."""

    def sums(self, analysis: Analysis, asking: PendingRelease, told: bytes, run: RunDirectory) -> Sums:
        """SECRET: the ideal result of secure aggregation."""
        return IdealSums(analysis=analysis, asking=asking, told=told, held=self.held)

    @cached_property
    def held(self) -> Held:
        """SECRET: what they hold."""
        if self.request.names:
            return HeldNames(lines=self._lines)
        return HeldImages(plan=self.ground.plan, population=self._population)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._lines) if self.request.names else self._population.clients

    @cached_property
    def _dataset(self) -> Dataset:
        settings = self.ground.settings
        found = open_dataset(settings.dataset, self.data_folder, settings.task.ways, encoding_of_run(settings))
        return training_part(settings, found)

    @cached_property
    def _population(self) -> Population:
        return training_data.population(self.ground.plan, self._dataset)

    @cached_property
    def _lines(self) -> list[Mapping[str, int]]:
        return self.request.names_by_client()

    def _lines_digest(self) -> str:
        return hashlib.sha256(Path(self.request.names or "").read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class IdealSums:
    """SECRET: the sum of what the cohort's clients hand over (a `Sums`); a part is computed when it is looked at.

    Attributes:
        analysis: What each of them computes.
        asking: Who is asked, and the noise of all of them.
        told: What they are told.
        held: What they hold.
    """

    analysis: Analysis
    asking: PendingRelease
    told: bytes
    held: Held

    @property
    def entered(self) -> int:
        """All of the cohort, as far as the sum is made for them."""
        return len(self._clients)

    def part(self, index: int) -> IntArray:
        """Return one part of the sum modulo 2^bits, [length]."""
        form = self.analysis.form(self.asking.plan)
        total = np.zeros(form.length, dtype=np.int64)
        for client in self._clients.tolist():
            handing = Handing(
                plan=self.asking.plan,
                told=self.told,
                held=self.held,
                client=client,
                invited=self.asking.cohort.asked,
                source=self.asking.source,
            )
            total += self.analysis.sent(handing, index)
            total &= (1 << form.bits) - 1
        return total

    @property
    def _clients(self) -> IntArray:
        return self.asking.cohort.clients[: self.analysis.form(self.asking.plan).most]
