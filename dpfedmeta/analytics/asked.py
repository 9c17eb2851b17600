"""The clients of an analysis in a simulation: what each of them computes from what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import torch

from dpfedmeta.analytics.request import Request
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.holdings import check_named, holdings
from dpfedmeta.data.population import Population
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.evaluation.baselines import Adapted, arrays_of
from dpfedmeta.models.frozen import mixes_queries
from dpfedmeta.models.registry import build_network
from dpfedmeta.models.ways import check_weights
from dpfedmeta.parameters import Params, norm
from dpfedmeta.planning.plan import Plan, make_plan
from dpfedmeta.randomness import KeyedSource
from dpfedmeta.run_directory import RunDirectory, load_weights
from dpfedmeta.settings import Settings
from dpfedmeta.simulation.client_data import DataForm
from dpfedmeta.simulation.client_side import ClientSide
from dpfedmeta.training import data as training_data


@dataclass(frozen=True, eq=False)
class Asked:
    """SECRET but for `digest`'s being asked for: the clients' side. Only what is used is opened.

    Attributes:
        request: What is asked.
        data_folder: Where data sets are; None: DPFEDMETA_DATA.
    """

    request: Request
    data_folder: Path | None = None

    @cached_property
    def digest(self) -> str:
        """SECRET: another one where the answers would be others: of the data, and of the model that is adapted."""
        parts = [self._lines_digest() if self.request.names else self._dataset.train.digest()]
        if self.request.run:
            parts.append(hashlib.sha256(RunDirectory(Path(self.request.run)).weights.read_bytes()).hexdigest())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: images of each class; nothing where the client's data cannot be read."""
        try:
            return holdings(self._population, client)
        except MemoryError:
            raise
        except Exception:
            return {}

    def names(self, client: int) -> Mapping[str, int]:
        """SECRET: the names that a client holds, and how often."""
        if self.request.names:
            return self._lines[client]
        return self.holdings(client)

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self._lines) if self.request.names else self._population.clients

    def check_names(self) -> None:
        """Refuse clients that keep no names."""
        if not self.request.names:
            check_named(self._population)

    def check_holdings(self) -> None:
        """Refuse a file of names, which has no images."""
        if self.request.names:
            raise InputError(f"--names: {self.request.kind} asks what clients hold; give --algo and --dataset")

    def check_messages(self) -> None:
        """Refuse algorithms whose messages are noisy before they are formed."""
        self.check_holdings()
        if self._side.algorithm.releases:
            raise RefusedPlan(
                f"{self.request.kind}: {self._settings.algo} computes no exact message whose norm could be counted: "
                "each record is clipped before; give --clip.initial"
            )

    def check_model(self) -> None:
        """Refuse weights that are not there or of another network."""
        _ = self._learner

    def message_norm(self, client: int) -> float | None:
        """SECRET: length of the message that a client would send in round 0, before clipping; None: it has none.

        Where a message is the sum of parts that are clipped one by one, the median of their lengths.
        """
        side = self._side
        (message,) = side.exact_messages(self._start, 0, [client])
        if message is None:
            return None
        if side.parts == 1:
            return norm(message)
        return median(norm({name: value[part] for name, value in message.items()}) for part in range(side.parts))

    def accuracies(self, client: int) -> tuple[float, float] | None:
        """SECRET: (before, after) adaptation to its own support images, on its own query images."""
        held = self._form.held(self._population, client)
        if held is None:
            return None
        before, after = self._learner.accuracies(held, transductive=self._transductive)
        return before, after

    @property
    def _settings(self) -> Settings:
        if self.request.settings is None:
            raise InputError("--algo and --dataset are needed: they say who the clients are and what they compute")
        return self.request.settings

    @cached_property
    def _dataset(self) -> Dataset:
        settings = self._settings
        return open_dataset(settings.dataset, self.data_folder, settings.task.ways)

    @cached_property
    def _plan(self) -> Plan:
        return make_plan(self._settings, self._dataset.task, earlier=())

    @cached_property
    def _population(self) -> Population:
        return training_data.population(self._plan, self._dataset)

    @cached_property
    def _side(self) -> ClientSide:
        # No message carries noise here, so its source is never asked.
        return training_data.client_side(self._plan, self._population, KeyedSource(0), torch.device("cpu"))

    @cached_property
    def _start(self) -> Params:
        weights = self._plan.algorithm.initial(self._plan.network, self._settings.run.seed)
        return self._plan.algorithm.learned(self._plan.network, weights)

    @cached_property
    def _form(self) -> DataForm:
        return self._side.data_form

    @cached_property
    def _learner(self) -> Adapted:
        plan, path = self._plan, RunDirectory(Path(self.request.run or "")).weights
        weights = load_weights(path)
        check_weights(plan.network, weights, str(path))
        steps = (0, plan.evaluation.steps)
        return Adapted(network=plan.network, weights=arrays_of(weights), adaptation=plan.evaluation, at=steps)

    @cached_property
    def _transductive(self) -> bool:
        return mixes_queries(build_network(self._plan.network))

    @cached_property
    def _lines(self) -> list[Mapping[str, int]]:
        return self.request.names_by_client()

    def _lines_digest(self) -> str:
        return hashlib.sha256(Path(self.request.names or "").read_bytes()).hexdigest()
