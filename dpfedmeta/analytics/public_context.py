"""Public information about the clients of an analysis: the plan of the training that it serves, and its model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dpfedmeta.analytics.analysis_request import Request
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
from dpfedmeta.core.params import flatten
from dpfedmeta.data.task import Task
from dpfedmeta.learning.models.initial_weights import check_weights
from dpfedmeta.planning.run_plan import Plan, make_plan


@dataclass(frozen=True, eq=False)
class Ground:
    """PUBLIC: what an analysis is about. Only what is used is opened.

    Attributes:
        request: What is asked.
        data_folder: Where data sets are; None: DPFEDMETA_DATA.
    """

    request: Request
    data_folder: Path | None = None

    @property
    def settings(self) -> Settings:
        """Settings of the training: who the clients are and what they compute.

        Raises:
            InputError: The request has no settings, since a file of names says all.
        """
        if self.request.settings is None:
            raise InputError("--algo and --dataset are needed: they say who the clients are and what they compute")
        return self.request.settings

    @cached_property
    def task(self) -> Task:
        """The form of the records."""
        return task_of(self.settings, self.data_folder)[0]

    @cached_property
    def plan(self) -> Plan:
        """Plan of the training that the analysis serves."""
        return make_plan(self.settings, self.task, earlier=())

    def check_holdings(self) -> None:
        """Refuse a file of names, which has no images."""
        if self.request.names:
            raise InputError(f"--names: {self.request.kind} needs images; give --algo and --dataset instead")

    def check_messages(self) -> None:
        """Refuse algorithms whose messages are noisy before they are formed."""
        self.check_holdings()
        if self.plan.algorithm.releases:
            raise RefusedPlan(
                f"{self.request.kind}: {self.settings.algo} sends no exact message whose norm could be counted, "
                "since it clips each record first; give --clip.initial"
            )

    @cached_property
    def model(self) -> bytes:
        """The weights of the run whose model is adapted, float32, in the order of the network's own.

        Raises:
            InputError: They are not there, or of another network.
        """
        path = RunDirectory(Path(self.request.run or "")).weights
        weights = load_weights(path)
        check_weights(self.plan.network, weights, str(path))
        initial = self.plan.algorithm.initial(self.plan.network, self.settings.run.seed)
        flat = flatten({name: weights[name] for name in initial}).float()
        return np.asarray(flat.numpy()).astype("<f4", copy=False).tobytes()
