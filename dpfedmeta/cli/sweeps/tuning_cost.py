"""Joint privacy cost of all runs of a sweep, if its clients are real ones (docs/sweeps.md)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from dpfedmeta.accounting.events.events import Earlier, neighbours_of, surplus
from dpfedmeta.accounting.events.record_layer import holding
from dpfedmeta.accounting.ledger.ledger import check_rounds, phases_of, read, read_content
from dpfedmeta.accounting.observers.four_guarantees import client_public_epsilon
from dpfedmeta.accounting.observers.server_observer import records_of_several
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.relations.relations import RELATIONS, Relation
from dpfedmeta.accounting.release_costs import released
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli.sweeps.sweep_folder import MANIFEST, TRIALS, SweepFolder
from dpfedmeta.config.settings import clients_made_by
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import ANALYSIS, RunDirectory, config_of
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml


@dataclass(frozen=True, kw_only=True)
class TuningCost:
    """The guarantee of everything that a sweep released.

    Attributes:
        runs: How many runs were started.
        clients: N.
        adjacency: Of (client, public): what neighbours differ in.
        client_public: Composed epsilon of (client, public).
        client_delta: Its delta.
        single: The largest (client, public) epsilon of one of the runs.
        relation: Of a record: that of the runs, or zero-out where they differ in it.
        record_server: Composed epsilon of (record, server); None where no cap bounds the participations.
        relations: The same for every relation that holds in all runs.
        record_delta: Its delta.
        gone: How many of the runs are not in the folder, and are counted as another one of their settings.
    """

    runs: int
    clients: int
    adjacency: str
    client_public: float
    client_delta: float
    single: float
    relation: Relation
    record_server: float | None
    relations: Mapping[Relation, float | None]
    record_delta: float
    gone: int = 0


def tuning_cost(path: Path) -> TuningCost:
    """Compose all runs of a sweep's folder, also those that were set aside.

    Raises:
        InputError: No run was started, or a ledger is damaged.
        RefusedPlan: The runs are not such that their rounds may simply be put in a row.
    """
    adaptive = RunDirectory(path).read_json(MANIFEST).get("method") == "bayes"
    began = [run for run in SweepFolder(path).started() if run.ledger.exists()]
    analyses = [run for run in began if config_of(run.path).startswith(ANALYSIS)]
    runs = [run for run in began if run not in analyses]
    gone = _gone(path, runs)
    if analyses and not runs:
        raise InputError(
            f"{path}: no run of this sweep was started, but {len(analyses)} analyses were charged (clip.start): "
            f"dpfedmeta account --verify {quote(str(analyses[0].path))} says what one of them spent"
        )
    if not runs:
        raise InputError(f"{path}: no run of this sweep was started, so it has cost nothing")
    for run in began:
        _check_own_randomness(run)
    _check_same_clients(runs)
    plans = {run.path: _charged(run) for run in runs}
    counted = [*plans.values(), *(plans[like] for like in gone)]
    cost = compose(counted, adaptive=adaptive, besides=[_asked(run) for run in analyses])
    return replace(cost, gone=len(gone))


def compose(plans: Sequence[PrivacyPlan], *, adaptive: bool = False, besides: Sequence[Earlier] = ()) -> TuningCost:
    """The guarantee of several runs over the same clients.

    Args:
        plans: Of the runs.
        adaptive: Whether earlier results chose later runs.
        besides: Analyses that runs began with, whether a run came to count them or not.

    Guarantee:
        Every run draws its cohorts and its noise from a secret seed of its own, so with what earlier runs released
        held fixed each round is the sampled Gaussian of its plan, for any data: the composition of all rounds of all
        runs is that of one run with all their rounds in a row. What a run is (q, z, rounds) must be fixed in advance,
        so a search that looks at results may vary only what no guarantee depends on. Every run counts with all its
        planned rounds, whenever it was stopped: who stopped it may have looked.

    Raises:
        RefusedPlan: The runs differ in what a sum needs them to share.
    """
    first = plans[0]
    for name in ("clients", "sampler", "client_delta", "record_delta"):
        values = sorted({getattr(plan, name) for plan in plans})
        if len(values) > 1:
            raise RefusedPlan(f"the runs of this sweep differ in {name} ({values}): no joint guarantee can be computed")
    if adaptive and any(_form(plan) != _form(first) for plan in plans):
        raise RefusedPlan(
            "the runs of this bayes search differ in noise, cohort or rounds, chosen from earlier results: no joint "
            "guarantee is proven for that; sweep these settings with method: grid or random"
        )
    # What was spent before all of them counts once; what is there by itself as it was charged in the end.
    earlier = {other.run: other for plan in plans for other in plan.earlier} | {other.run: other for other in besides}
    before = [phase for other in earlier.values() for phase in other.phases]
    phases = [*before, *(phase for plan in plans for phase in released(plan.phases))]
    beta = surplus(phases)
    if beta >= first.client_delta:
        raise RefusedPlan(
            f"{len(plans)} runs: the probabilities of their rare events (unusual cohorts in shared mode) add up to "
            f"delta = {asked(first.client_delta)} or more, so there is no joint guarantee"
        )
    asked_for = {plan.relation for plan in plans}
    relation = first.relation if len(asked_for) == 1 else "zero-out"
    shared = [each for each in RELATIONS if all(each in holding(plan.record) for plan in plans)]
    of_records = {each: math.inf if besides else _of_records(plans, each) for each in shared}
    return TuningCost(
        runs=len(plans),
        clients=first.clients,
        adjacency=neighbours_of(phases),
        client_public=client_public_epsilon(phases, first.client_delta),
        client_delta=first.client_delta,
        single=max(
            client_public_epsilon((*plan.before, *plan.phases), plan.client_delta) for plan in dict.fromkeys(plans)
        ),
        relation=relation,
        record_server=of_records[relation],
        relations=of_records,
        record_delta=first.record_delta,
    )


def _of_records(plans: Sequence[PrivacyPlan], relation: Relation) -> float | None:
    return records_of_several([(plan.phases, replace(Terms.of(plan), relation=relation)) for plan in plans])


def cost_lines(cost: TuningCost) -> list[str]:
    """For people."""
    lines = [
        f"{cost.runs} runs over the same {cost.clients:,} clients, each counted with all its planned rounds:",
        f"  (client, public), {cost.adjacency}, delta = {asked(cost.client_delta)}: "
        f"epsilon = {rounded_up(cost.client_public)} for all together, at most {rounded_up(cost.single)} for one alone",
    ]
    if cost.record_server is None:
        lines.append("  (record, server): not added up, since population.max_participations is not set")
    else:
        lines.append(
            f"  (record, server), {cost.relation}, delta = {asked(cost.record_delta)}: "
            f"epsilon = {rounded_up(cost.record_server)}"
        )
        others = [f"{name} {rounded_up(each)}" for name, each in cost.relations.items() if name != cost.relation]
        lines += [f"    other relations: {', '.join(others)}"] if others else []
    if cost.gone:
        lines.append(f"  {cost.gone} of them left no folder here; they are counted as whole runs of their settings")
    return [*lines, "If you tuned on these clients, report these numbers, not those of the best run."]


def _gone(path: Path, runs: Sequence[RunDirectory]) -> list[Path]:
    """Return for each start that left no folder here, one that has the same settings.

    Raises:
        InputError: There is none, so nobody knows what it cost.
    """
    there: dict[str, list[Path]] = {}
    for run in runs:
        name = run.path.name if run.path.parent.name == "runs" else run.path.stem
        there.setdefault(name, []).append(run.path)
    starts = {name: noted.starts for name, noted in SweepFolder(path).noted().items()}
    if lost := sorted(name for name, count in starts.items() if count > 0 and name not in there):
        raise InputError(
            f"{path}: {len(lost)} runs that were started have no ledger here ({', '.join(lost[:3])}"
            f"{', ...' if len(lost) > 3 else ''}); what they spent counts too. Put their folders back into "
            f"{path / 'runs'}. Of a run that never began ({path / 'logs'} says why), take the line out of "
            f"{path / TRIALS}"
        )
    return [there[name][0] for name, count in starts.items() for _ in range(count - len(there.get(name, ())))]


def _form(plan: PrivacyPlan) -> tuple[PrivacyPlan, Sequence[object]]:
    """Return what two plans of a sweep must share: all but which folders of analyses they count."""
    return replace(plan, earlier=()), [other.phases for other in plan.earlier]


def _asked(run: RunDirectory) -> Earlier:
    """Return the charges of an analysis; those of its plan if it has charged nothing yet: it may still be."""
    content = read_content(run.ledger, torn=True)
    phases = phases_of(content.charges) if content.charges else content.plan.phases
    return Earlier(run=content.identity.run, head=content.heads[-1], phases=phases)


def _charged(run: RunDirectory) -> PrivacyPlan:
    """The plan of a run, whose ledger must hold rounds of that plan and no others."""
    plan, events = read(run.ledger)
    check_rounds(plan, events)
    if plan.ends:
        raise RefusedPlan(
            f"{run.ledger}: was extended from {plan.ends[0]} to {plan.rounds} rounds when its results could be seen: "
            "no joint guarantee is proven for that; sweep with all rounds (--server.rounds) from the start"
        )
    if (again := next((event for event in events if event.attempt), None)) is not None:
        raise RefusedPlan(
            f"{run.ledger}: round {again.round} was charged again after a crash, so the run cost more than its plan; "
            "add it up by hand, or leave the run out of the sweep's folder only if nobody saw its results"
        )
    return plan


def _check_own_randomness(run: RunDirectory) -> None:
    """Runs with a chosen noise seed may share their noise, and then their releases are not independent."""
    begun = _config(run)
    try:
        chosen = begun["analysis" if "analysis" in begun else "run"]["noise_seed"]
    except (LookupError, TypeError) as error:
        raise InputError(f"{run.ledger}, line 1: identity.config: does not say how the run was made") from error
    if chosen is not None:
        raise RefusedPlan(f"{run.path}: run.noise_seed = {chosen} is set, so it is a simulation without a guarantee")


def _check_same_clients(runs: Sequence[RunDirectory]) -> None:
    """Refuse runs over other clients: client k of one is nobody in particular to the others, so no sum is anybody's."""
    first: Mapping[str, str] | None = None
    for run in runs:
        begun = _config(run)
        clients = {"dataset": str(begun.get("dataset")), **clients_made_by(begun)}
        first = first or clients
        for name, value in clients.items():
            if value != first.get(name):
                raise RefusedPlan(
                    f"the runs of this sweep have other clients: {name} = {first.get(name)} in {runs[0].path}, {value} "
                    f"in {run.path}; no joint guarantee of a client can be computed. Sweep with one {name}"
                )


def _config(run: RunDirectory) -> Mapping[str, Any]:
    """Return the settings in a ledger's first line: as they were when the run began."""
    text = read_content(run.ledger, torn=True).identity.config.partition("\n---\n")[0]
    try:
        found = read_yaml(text)
    except YAML_ERRORS:
        found = None
    if not isinstance(found, Mapping):
        raise InputError(f"{run.ledger}, line 1: identity.config: does not say how the run was made")
    return found
