"""One whole run: open the data, plan, train, evaluate, summarise."""

from __future__ import annotations

import dataclasses
import secrets
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dpfedmeta.config import to_yaml
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.population import Population, PopulationStatement, population_statement
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError
from dpfedmeta.evaluation import Examination
from dpfedmeta.interrupts import deferred
from dpfedmeta.ledger.client_ledger import RecordBudget
from dpfedmeta.ledger.ledger import Budget, Identity, Ledger, read_content, spent
from dpfedmeta.memory import peak_memory_mb
from dpfedmeta.parameters import Params
from dpfedmeta.planning.cautions import cautions
from dpfedmeta.planning.held_data import NO_DIGEST, HeldData, check_data, held_data, keep_data
from dpfedmeta.planning.initial_weights import initial_words
from dpfedmeta.planning.origins import check_origins
from dpfedmeta.planning.plan import Plan, make_plan
from dpfedmeta.randomness import KeyedSource, OperatingSystemSource, SecretSource, draw_secret_seed
from dpfedmeta.run_directory import CONFIG, PLAN, SUMMARY, RunDirectory, create, write_text
from dpfedmeta.runs.environment import environment_of
from dpfedmeta.runs.lock import only_writer
from dpfedmeta.runs.resume import check_same_sums, keep_secret, registered, secret_of_run
from dpfedmeta.runs.summary import SIMULATION, Status, summary_of
from dpfedmeta.runs.times import coarse, hides_times, seconds_before
from dpfedmeta.settings import Settings
from dpfedmeta.simulation.client_data import check_some_sound
from dpfedmeta.simulation.processes import LocalBackend
from dpfedmeta.simulation.willingness import ClientLedgers
from dpfedmeta.tracking.terminal import Terminal, accuracy_table, guarantee_table, noise_lines
from dpfedmeta.tracking.trackers import JsonLines, LateWeightsAndBiases, TensorBoard, Tracker, WeightsAndBiases
from dpfedmeta.training.cost import clients_per_second, cost_of
from dpfedmeta.training.data import client_side, examination, population, public_side
from dpfedmeta.training.loop import Training, check_finite, complete
from dpfedmeta.workers import Workers, available_cores, open_workers


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What train.py takes besides the settings; in Python, also clients of one's own (dpfedmeta.data.adapters)."""

    data_folder: Path | None = None
    dry_run: bool = False
    calibration: float = 10.0
    spent: float = 0.0  # seconds before the call, for the forecast
    secure_rng: bool = False
    population: Population | None = None
    resume: RunDirectory | None = None


def run_training(settings: Settings, options: RunOptions, console: Console) -> tuple[RunDirectory | None, Status]:
    """Train as the settings say; nothing is written before the plan is accepted.

    Returns:
        The run directory (None after a dry run) and how the run ended.
    """
    started = time.perf_counter()
    if options.resume is not None:
        check_same_sums(options.resume)
    device = _device(settings)
    _use_precision(settings, device)
    dataset = open_dataset(settings.dataset, options.data_folder)
    plan = make_plan(settings, dataset.task)
    clients_of = population(plan, dataset, options.population)
    statement = population_statement(clients_of)
    validation, test = examination(plan, dataset, "val"), examination(plan, dataset, "test")
    with ExitStack() as stack:
        run = options.resume
        source = _secret_source(settings, options)
        held, repeatable = _checked_data(settings, dataset, options)
        count = _worker_count(settings, device, console)
        workers = stack.enter_context(open_workers(count))
        clients = client_side(plan, clients_of, source, device)
        check_some_sound(clients_of, clients.data_form, plan.shape)
        public = public_side(clients, plan, dataset)
        rate = 0.0 if options.dry_run else clients_per_second(public, workers, count, 0.0)
        _print_plan(plan, dataset, rate, settings, console, (statement.text, "" if repeatable else NO_DIGEST))
        if options.dry_run:
            before = options.spent + time.perf_counter() - started
            cost = cost_of(plan, public, (validation, test), workers, count, options.calibration, before)
            console.print(f"  {cost}", highlight=False, soft_wrap=True)
            return None, "completed"
        if run is None:
            task = dataset.task
            fill = partial(_first_files, plan=plan, task=task, rate=rate, source=source, held=held, statement=statement)
            run = create(Path(settings.run.dir), settings.run.name or _default_name(settings), fill)
            stack.enter_context(only_writer(run.path))
        lineage, missing = stack.enter_context(registered(run))
        if missing:
            warnings.warn(missing, stacklevel=2)
        training = Training(
            plan=plan,
            run=run,
            backend=LocalBackend(clients=clients, workers=workers, abort_on_failure=settings.server.abort_on_failure),
            workers=workers,
            validation=validation,
            source=source,
            trackers=_trackers(settings, run, console, plan),
            budget=Budget.of(plan.planned),
            client_ledgers=_client_ledgers(run, plan),
            public_clients=public if settings.track.public_clients else None,
            environment=environment_of(device, settings.run.chunk) if repeatable else None,
            lineage=lineage,
            say=lambda remark: console.print(remark, highlight=False, soft_wrap=True, markup=False),
        )
        summary, status = _trained(training, test, statement, count)
    _print_result(run, summary, plan, console, time.perf_counter() - started)
    return run, status


def _checked_data(settings: Settings, dataset: Dataset, options: RunOptions) -> tuple[HeldData, bool]:
    """(SECRET: what the clients hold, whether a round can be done again on the same data)."""
    held, run = held_data(dataset, options.population), options.resume
    if run is not None:
        return held, check_data(run, held, dataset.task.name)
    check_origins(settings, dataset, held, options.data_folder)
    return held, held.known


def _trained(
    training: Training, test: Examination, statement: PopulationStatement, count: int
) -> tuple[dict[str, Any], Status]:
    """Train with `count` workers, evaluate what came out, and write the summary; how the run ended."""
    run, plan = training.run, training.plan
    begun, before = time.perf_counter(), seconds_before(run)
    state, status = training()
    seconds = before + time.perf_counter() - begun
    check_finite(state)
    accuracies: dict[str, dict[str, object]] = {}
    try:
        if status != "interrupted":
            accuracies = final_accuracies(training.workers, plan, test, complete(plan, state))
    except KeyboardInterrupt:
        status = "interrupted"
    with deferred():
        memory = peak_memory_mb(training.workers, count)
        summary = summary_of(run, plan, state, status, (seconds, memory), accuracies)
        summary["population"] |= {"kind": statement.kind, "statement": dataclasses.asdict(statement)}
        run.write_json(SUMMARY, summary)
        for tracker in training.trackers:
            tracker.finish(summary)
    return summary, status


def final_accuracies(workers: Workers, plan: Plan, test: Examination, model: Params) -> dict[str, dict[str, object]]:
    """The trained model, before and after adaptation, beside the untrained one and the pixel baselines."""
    untrained = plan.algorithm.initial(plan.network, plan.settings.run.seed)
    episodes = plan.settings.evaluation.episodes
    accuracies = test.contest(workers, plan.network, model, untrained, plan.evaluation, episodes)
    values = {name: accuracy.as_json() for name, accuracy in accuracies.items()}
    values["accuracy"]["protocol"] = test.protocol
    return values


def _secret_source(settings: Settings, options: RunOptions) -> SecretSource:
    if options.resume is not None:
        return secret_of_run(options.resume)
    if options.secure_rng:
        if settings.run.noise_seed is not None:
            raise InputError("--secure-rng draws from the operating system, so run.noise_seed has no place; drop one")
        return OperatingSystemSource()
    seed = settings.run.noise_seed
    return KeyedSource(draw_secret_seed() if seed is None else seed)


def _device(settings: Settings) -> torch.device:
    available = torch.cuda.is_available()
    if settings.run.device == "cuda" and not available:
        raise InputError("run.device = cuda: PyTorch sees no CUDA device here; use --device cpu or auto")
    return torch.device("cuda" if available and settings.run.device != "cpu" else "cpu")


def _use_precision(settings: Settings, device: torch.device) -> None:
    """Set PyTorch's switch for TF32, which is on by default, to what run.precision says.

    Raises:
        InputError: The device does not have it; emulated, it would be slow and round in other places.
    """
    wanted, on_gpu = settings.run.precision, device.type == "cuda"
    if wanted == "tf32" and not (on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)):
        raise InputError(
            "run.precision = tf32: only NVIDIA GPUs since Ampere have it, and this run would not be on one"
        )
    if wanted == "bfloat16" and not on_gpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise InputError("run.precision = bfloat16: this processor does not have it (avx512_bf16 or amx_bf16)")
    torch.backends.cudnn.allow_tf32 = wanted == "tf32"


def _worker_count(settings: Settings, device: torch.device, console: Console) -> int:
    if device.type == "cuda":
        return 1
    cores = available_cores()
    wanted = settings.run.workers or cores
    if wanted > cores:
        # More would only take turns, each with its own memory; the results are the same.
        console.print(f"run.workers = {wanted}: this machine has {cores} cores, so {cores} workers", highlight=False)
    return min(wanted, cores)


def _client_ledgers(run: RunDirectory, plan: Plan) -> ClientLedgers | None:
    """As the settings say; each client holds the server to the promise made to its records."""
    layer = plan.privacy.record
    if layer is None or not plan.settings.record.client_ledgers:
        return None
    promised = next(cell for cell in plan.planned if (cell.unit, cell.observer) == ("record", "server"))
    budget = RecordBudget(epsilon=promised.epsilon, delta=promised.delta)
    return ClientLedgers(folder=run.secret / "clients", budget=budget, layer=layer)


def _trackers(settings: Settings, run: RunDirectory, console: Console, plan: Plan) -> tuple[Tracker, ...]:
    timed = not hides_times(plan)
    trackers: list[Tracker] = [JsonLines(run.path), Terminal(console, plan.privacy.rounds, timed=timed)]
    if settings.track.wandb != "off":
        tracker = WeightsAndBiases if timed else LateWeightsAndBiases
        trackers.append(tracker(run.path, settings.track.wandb, dataclasses.asdict(settings)))
    if settings.track.tensorboard:
        trackers.append(TensorBoard(run.path, timed=timed))
    return tuple(trackers)


def _default_name(settings: Settings) -> str:
    return f"{settings.algo}-{Path(settings.dataset).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _first_files(
    run: RunDirectory,
    plan: Plan,
    task: Task,
    rate: float,
    source: SecretSource,
    held: HeldData,
    statement: PopulationStatement,
) -> None:
    """What a run directory is born with: all that is needed to go on after a crash at any instant."""
    text = to_yaml(plan.settings)
    write_text(run.path / CONFIG, text)
    _write_plan(run, plan, task, rate, statement)
    keep_secret(run, source)
    keep_data(run, held)
    identity = Identity(run=secrets.token_hex(16), config=text, secure=not source.reproducible)
    Ledger(run.ledger, plan.privacy, identity)


def _write_plan(run: RunDirectory, plan: Plan, task: Task, rate: float, statement: PopulationStatement) -> None:
    content = {
        "planned": [guarantee.as_json() for guarantee in plan.planned],
        "begins_with": initial_words(plan.settings),
        "cautions": cautions(plan.settings, task),
        "privacy": dataclasses.asdict(plan.privacy),
        "population": dataclasses.asdict(statement),
        "phases": [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in plan.privacy.phases],
        "cost": {
            "clients_per_second": rate,
            "seconds": plan.privacy.expected_participations / rate,
        },
    }
    run.write_json(PLAN, content)


def _print_plan(
    plan: Plan, dataset: Dataset, rate: float, settings: Settings, console: Console, of_clients: tuple[str, str]
) -> None:
    console.print(f"[bold]{settings.algo}[/bold] on {dataset.task.name}", highlight=False, soft_wrap=True)
    for line in filter(None, (*noise_lines(plan.privacy), initial_words(settings), *of_clients)):
        console.print("  " + line, highlight=False, soft_wrap=True)
    clients = plan.privacy.expected_participations
    if rate:
        console.print(
            f"  about {clients / rate / 60:.1f} minutes of training at {rate:.0f} clients/s, "
            "then the evaluation on test classes",
            highlight=False,
            soft_wrap=True,
        )
    console.print(guarantee_table(plan.planned, "What is promised, before round 0"))
    for caution in cautions(settings, dataset.task):
        console.print(f"note: {caution}", style="yellow", highlight=False, soft_wrap=True)
    if settings.run.noise_seed is not None:
        console.print(SIMULATION, style="bold yellow")


def _print_result(run: RunDirectory, summary: dict[str, Any], plan: Plan, console: Console, seconds: float) -> None:
    if "accuracy" in summary and summary["accuracy"] is not None:
        console.print(accuracy_table(summary))
    ledger = read_content(run.ledger, torn=True)
    console.print(guarantee_table(spent(ledger.plan, ledger.charges), "What was spent, from the ledger"))
    minutes = f"at most {coarse(seconds) / 60:.2g}" if summary["times"] else f"{seconds / 60:.1f}"
    console.print(
        f"{summary['status']} after {minutes} minutes in all; everything is in {run.path}",
        highlight=False,
        soft_wrap=True,
    )
    if summary["status"] == "interrupted":
        console.print(f"go on with: python scripts/train.py --resume {run.path}", highlight=False, soft_wrap=True)
