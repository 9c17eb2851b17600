"""All that a run is made of before its first file is written: data, plan, clients, workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.plugins.user_code import own_sources, unseen
from dpfedmeta.core.random.fresh_seeds import new_source, secret_of_run
from dpfedmeta.core.random.random_sources import SecretSource
from dpfedmeta.core.worker_pool import Workers, available_cores, open_workers
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.populations.population import Population
from dpfedmeta.data.populations.population_statement import (
    PopulationStatement,
    asked_statement,
    population_statement,
)
from dpfedmeta.data.repeated_images import check_parts_apart, copies_words
from dpfedmeta.data.task import OwnSource
from dpfedmeta.learning.evaluation import HeldOutEvaluation
from dpfedmeta.learning.evaluation.few_shot import Benchmark
from dpfedmeta.learning.models.layers.convolution import bfloat16_in_hardware
from dpfedmeta.planning.client_population import training_part
from dpfedmeta.planning.data_digests import NO_DIGEST, HeldData, check_data, held_data, trained_before
from dpfedmeta.planning.early_checks import room_of
from dpfedmeta.planning.network_trial.device_test import check_same_on
from dpfedmeta.planning.network_trial.pretraining_overlap import check_origins
from dpfedmeta.planning.network_trial.synthetic_clients import rehearsal_of
from dpfedmeta.planning.policy_from_settings import check_same_policy
from dpfedmeta.planning.run_plan import Plan, make_plan
from dpfedmeta.planning.user_modules import own_modules
from dpfedmeta.privacy.clip_policy import ClipPolicy
from dpfedmeta.simulation.backend import Backend
from dpfedmeta.simulation.client_data import check_some_sound
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import check_enough_work
from dpfedmeta.simulation.distributed.consistency_check import check_together
from dpfedmeta.training.build_data import client_side, held_out_evaluation, population, public_side
from dpfedmeta.training.results.facts import Described
from dpfedmeta.training.state.extend import extended_plan
from dpfedmeta.training.state.resume import identity_of
from dpfedmeta.training.tracking.plan_summary import Planned, planned_of


class ClientProvider(Protocol):
    """Clients that are not simulated here, but asked."""

    def population(self, plan: Plan) -> Population:
        """Return the clients, by number only: each client checks its own data against the plan."""
        ...

    def backend(self, made: RunContext, run: RunDirectory) -> Backend:
        """Return the backend that adds the clients' messages."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOptions:
    """Options of a run besides its settings.

    Attributes:
        data_folder: Folder of the images; None: DPFEDMETA_DATA.
        secure_rng: Draw noise and cohorts directly from the operating system.
        population: The caller's own clients (dpfedmeta.data.populations.from_pairs).
        clip_policy: The caller's own clip policy.
        resume: Run to continue.
        pictures: Draws the report's pictures of a finished run, for callers that show them elsewhere.
        page: Writes the final page of the run, while no other process may write the run.
        extend_to: New total number of rounds of a completed run.
        changed_code: Whether rounds of `resume` may be charged again because code of the user's own was changed.
        workers: Workers that exist already (ranks); None: worker processes, by run.workers.
        launch: Values by which a restart of this launch recognises its run, or None.
        candidate: Mark of the private sweep that the run is a candidate of (`chosen_run.mark_of`); empty: of none.
        elsewhere: Clients that are not simulated here, or None.
    """

    data_folder: Path | None = None
    secure_rng: bool = False
    population: Population | None = None
    clip_policy: ClipPolicy[Any] | None = None
    resume: RunDirectory | None = None
    pictures: Callable[[RunDirectory], Sequence[Path]] = lambda run: ()
    page: Callable[[RunDirectory], object] = lambda run: None
    extend_to: int | None = None
    changed_code: bool = False
    workers: Workers | None = None
    launch: Mapping[str, object] | None = None
    candidate: str = ""
    elsewhere: ClientProvider | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RunContext:
    """Parts of a run, prepared from the plan and the data.

    Attributes:
        plan: The plan.
        dataset: Data set of the plan.
        statement: Description of the clients.
        validation: Evaluation on public validation data.
        test: Evaluation on public test data.
        source: Secret randomness of the server.
        judged_on: Whose public records of one's own data judge the model; None: a benchmark's.
        held: SECRET: digests of the clients' data.
        repeatable: Whether a round can be repeated on the same data.
        own: Digests of the user's own code (own_sources).
        device: Device that computes clients.
        workers: Workers that compute.
        clients: Computation of every client.
        public: The same computation on clients made of public data; None: real clients compute.
    """

    plan: Plan
    dataset: Dataset
    statement: PopulationStatement
    validation: HeldOutEvaluation
    test: HeldOutEvaluation
    judged_on: str | None
    source: SecretSource
    held: HeldData
    repeatable: bool
    own: Mapping[str, str]
    device: torch.device
    workers: Workers
    clients: ClientRunner
    public: ClientRunner | None

    @property
    def described(self) -> Described:
        """The description of the data, for the files of the run."""
        return Described.of(self.statement, self.plan.settings, self.dataset.task)

    @property
    def other_runs(self) -> str | None:
        """Words on other runs of the folder over the same people, where these are promised something uncounted."""
        settings, of_people = self.plan.settings, self.held.own or isinstance(self.dataset.task.source, OwnSource)
        promised = of_people and (self.plan.private or settings.record.enabled)
        alone = promised and settings.population.register is None
        return trained_before(Path(settings.run.dir), self.held) if alone else None

    def planned(self, rate: float | None = None, run: str = "") -> Planned:
        """Return the plan's guarantees for display.

        Args:
            rate: Clients per second; with it also the expected minutes.
            run: Name of the run that goes on; empty: a new one.
        """
        planned, participations = planned_of(self.plan, self.dataset.task), self.plan.privacy.expected_participations
        clients = self.statement.text if self.repeatable else f"{self.statement.text}\n  {NO_DIGEST}"
        minutes = participations / rate / 60 if rate else None
        room = None
        if self.plan.settings.population.register is not None:
            made_by: dict[str, str] | None = {} if self.held.own else None
            room = room_of(self.plan.settings, self.plan.privacy, run=run, made_by=made_by)
        return replace(planned, clients=clients, room=room, minutes=minutes, clients_per_second=rate)


@contextmanager
def prepared(settings: Settings, options: RunOptions, remark: Callable[[str], None]) -> Iterator[RunContext]:
    """Check everything, and start the workers; nothing is written.

    Args:
        settings: What the user gave.
        options: Besides.
        remark: Told what a person may want to know.

    Raises:
        InputError: The settings, the data or the machine do not fit; says which.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    if options.resume is not None:
        check_same_policy(options.resume, settings, options.clip_policy)
    device = _device(settings)
    use_precision(settings, device)
    # Opened first: they import beside the plan.
    with _workers(settings, options, device, remark) as workers:
        dataset, opened = _opened(settings, options)
        earlier = None if options.resume is None else read_content(options.resume.ledger, torn=True).plan.earlier
        plan = make_plan(settings, dataset.task, options.clip_policy, earlier)
        if device.type != "cpu":
            check_same_on(device, rehearsal_of(settings, plan.network, plan.algorithm, private=plan.private))
        plan = _extended(plan if options.elsewhere is None else plan.among_real_clients(), options)
        clients_of = _clients(plan, dataset, options)
        simulated = options.elsewhere is None
        statement = asked_statement(clients_of.clients)
        if simulated:
            published = dataset.task.published and options.population is None
            statement = population_statement(clients_of, settings.population.own_test, published=published)
        validation, test = held_out_evaluation(plan, dataset, "val"), held_out_evaluation(plan, dataset, "test")
        source = _secret_source(settings, options)
        held, repeatable = _checked_data(settings, dataset, options, clients_of)
        roots = own_modules(plan.settings, dataset.task, options.clip_policy, options.population, options.elsewhere)
        own = own_sources(roots)
        for words in (*([_unseen(own)] if unseen(own) else []), *copies_words(dataset, "val", "test")):
            remark(words)
        clients = client_side(plan, clients_of, source, device)
        if options.elsewhere is None:
            check_some_sound(clients_of, clients.data_form, plan.whole or plan.shape)
        if own and options.elsewhere is None and (plan.private or settings.record.enabled):
            clients.check_own_code()
        alike = check_together(workers, dataset, options.population, device, opened, roots)
        check_enough_work(workers, clients, plan.privacy.at(0).cohort)
        yield RunContext(
            plan=plan,
            dataset=dataset,
            statement=statement,
            validation=validation,
            test=test,
            judged_on=judged_on(dataset, test),
            source=source,
            held=held,
            repeatable=repeatable and alike,
            own=own,
            device=device,
            workers=workers,
            clients=clients,
            public=public_side(clients, plan, dataset) if simulated or settings.track.public_clients else None,
        )


def _opened(settings: Settings, options: RunOptions) -> tuple[Dataset, Callable[[], Dataset]]:
    """Open the data that train, looked at once, and return how a rank decodes the same files."""
    images = partial(open_dataset, settings.dataset, options.data_folder, settings.task.ways)
    opened = partial(images, encoding_of_run(settings))
    ready_made = options.population is not None or options.elsewhere is not None
    dataset = training_part(settings, opened(), ready_made=ready_made)
    if options.resume is None and options.elsewhere is None:
        # Features of the same image may differ in their last bits.
        check_parts_apart(dataset if dataset.task.encoding is None else images())
    return dataset, opened


def judged_on(dataset: Dataset, test: HeldOutEvaluation) -> str | None:
    """Say whose records judge the model in the end; they are public. None: those of a benchmark."""
    source, held = dataset.task.source, dataset.test
    if not isinstance(source, OwnSource):
        return None
    people, file = len({*held.clients}), Path(source.path).name
    able = test.able if people and isinstance(test, Benchmark) else people
    some = f"{able} of " if able < people else ""
    whose = f"{some}{people} public client{'' if people == 1 else 's'}" if people else f"{held.classes} public classes"
    return f"{whose} in {file}"


def _unseen(own: Mapping[str, str]) -> str:
    """Which code may be another one after a crash without anybody noticing."""
    return (
        f"{', '.join(unseen(own))}: changes of what this code runs cannot be detected, so a repeated round "
        "is a new release and charged again, and a checkpoint is written after every round"
    )


def _extended(plan: Plan, options: RunOptions) -> Plan:
    """Extend the plan by the rounds that the ledger records, and by those that `extend_to` adds."""
    if options.resume is None:
        return plan
    content = read_content(options.resume.ledger, torn=True)
    ends = (*content.plan.ends, content.plan.rounds)
    if options.extend_to is not None:
        longer = extended_plan(options.resume, plan.settings, content, options.extend_to)
        ends = (*longer.ends, longer.rounds)
    for rounds in ends[1:]:
        plan = plan.extended(rounds)
    return plan


def _clients(plan: Plan, dataset: Dataset, options: RunOptions) -> Population:
    if options.elsewhere is None:
        return population(plan, dataset, options.population)
    return options.elsewhere.population(plan)


def _checked_data(
    settings: Settings, dataset: Dataset, options: RunOptions, clients: Population
) -> tuple[HeldData, bool]:
    """(SECRET: what the clients hold, whether a round can be done again on the same data)."""
    own = options.population if options.elsewhere is None else clients
    held, run = held_data(dataset, own), options.resume
    if run is not None:
        return held, check_data(run, held, dataset.task.name)
    check_origins(settings, dataset, held, options.data_folder)
    return held, held.known


def _secret_source(settings: Settings, options: RunOptions) -> SecretSource:
    if options.resume is not None:
        secure = identity_of(options.resume).secure
        return secret_of_run(options.resume, settings.run.noise_seed, secure=secure)
    if options.secure_rng and settings.run.noise_seed is not None:
        raise InputError(
            "--secure-rng and run.noise_seed are both given, but the operating system's randomness has no seed; leave "
            "out one of them"
        )
    return new_source(settings.run.noise_seed, secure_rng=options.secure_rng)


def _device(settings: Settings) -> torch.device:
    available = torch.cuda.is_available()
    if settings.run.device == "cuda" and not available:
        raise InputError("run.device = cuda: PyTorch sees no CUDA device here; use cpu or auto")
    return torch.device("cuda" if available and settings.run.device != "cpu" else "cpu")


def use_precision(settings: Settings, device: torch.device) -> None:
    """Set PyTorch's switch for TF32, which is on by default, to what run.precision says.

    Raises:
        InputError: The device does not have it; emulated, it would be slow and round in other places.
    """
    wanted, on_gpu = settings.run.precision, device.type == "cuda"
    if wanted == "tf32" and not (on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)):
        raise InputError(
            "run.precision = tf32: needs an NVIDIA GPU (Ampere or later), and this run has none; leave it out"
        )
    if wanted == "bfloat16" and not on_gpu and not bfloat16_in_hardware():
        raise InputError("run.precision = bfloat16: this processor lacks avx512_bf16 and amx_bf16; leave it out")
    torch.backends.cudnn.allow_tf32 = wanted == "tf32"


@contextmanager
def _workers(
    settings: Settings, options: RunOptions, device: torch.device, remark: Callable[[str], None]
) -> Iterator[Workers]:
    """Those that are there already, or worker processes."""
    if options.workers is None:
        with open_workers(worker_count(settings, device, remark)) as workers:
            yield workers
        return
    if settings.run.workers is not None:
        raise InputError(
            f"run.workers = {settings.run.workers}: under torchrun its processes are the workers (--nproc-per-node); "
            "leave out run.workers, or start without torchrun"
        )
    remark(f"{options.workers.count} rank{'s'[: options.workers.count > 1]} of torchrun compute; rank 0 writes")
    yield options.workers


def worker_count(settings: Settings, device: torch.device, remark: Callable[[str], None]) -> int:
    """Worker processes: as the settings say, at most one for each core; a GPU takes one."""
    if device.type == "cuda":
        return 1
    cores = available_cores()
    wanted = settings.run.workers or cores
    if wanted > cores:
        # More would only take turns, each with its own memory; the results are the same.
        remark(f"run.workers = {wanted}: this machine has only {cores} cores, so {cores} workers are used")
    return min(wanted, cores)
