"""Sums that arrive with the noise of the clients (aggregation.mode): plan, message length, colluding clients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.data.task import Task
from dpfedmeta.learning.meta.algorithm import ClientAlgorithm, message_form
from dpfedmeta.learning.meta.overridden import own_parts
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import stand_ins
from dpfedmeta.planning.client_spec import algorithm_of, message_clip_ratio, network_spec
from dpfedmeta.planning.policy_from_settings import bounds_clients, clip_policy
from dpfedmeta.planning.privacy.aggregation import aggregation_of, clients_make_the_noise
from dpfedmeta.privacy.clip_policy import moved_by_a_client

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
    from dpfedmeta.core.params import Params

# With next to no noise no policy refuses what it attaches, whose size depends on no noise.
_NEARLY_NONE = 1e-3


def secure_rounds(settings: Settings, task: Task, dimension: int | None = None) -> SecureRounds | None:
    """Derive the secure sums of a plan from settings; None where messages are not added up so.

    Args:
        settings: What the user gave.
        task: The benchmark.
        dimension: Numbers of a message; None: as the network has them, which takes PyTorch.

    Raises:
        RefusedPlan: There is nothing that bounds a message.
    """
    if not clients_make_the_noise(settings):
        if settings.aggregation.protocol:
            raise RefusedPlan(
                f"aggregation.protocol with aggregation.mode = {settings.aggregation.mode}: the protocol is only "
                "for secure aggregation; add --aggregation secure"
            )
        return None
    rounds = aggregation_of(settings).rounds
    if not bounds_clients(settings):
        raise RefusedPlan(
            f"aggregation.mode = {settings.aggregation.mode}: {settings.algo} clips nothing, but messages must be "
            "bounded to be added up as whole numbers modulo 2^bits; choose --clip.policy constant or window, or "
            "--aggregation messages"
        )
    algorithm = algorithm_of(settings, task)
    layer = algorithm.record_layer() if settings.record.enabled else None
    if settings.record.query_noise is not None and layer is not None and layer.of_sum:
        raise RefusedPlan(
            f"record.query_noise = {settings.record.query_noise:g} with aggregation.mode = {settings.aggregation.mode}:"
            f" there the sum has the noise, not the {layer.parts}; give server.noise_multiplier or a target instead"
        )
    _check_answers(settings)
    whole = getattr(algorithm, "whole", None)
    if dimension is None:
        dimension = message_dimension(settings, task)
    made: SecureRounds = rounds(settings, dimension, algorithm.parts, *([] if whole is None else [whole]))
    return made


def _check_answers(settings: Settings) -> None:
    """Check that an abort tells nothing of the cohort, unless cohorts are fixed, where it cannot.

    The probability of an abort is known only where clients drop out independently, all with the same probability.

    Raises:
        RefusedPlan: Cohorts are not fixed, and something else decides which clients answer.
    """
    population, server = settings.population, settings.server
    if sampling_of(population.sampler).fixed_size:
        return
    if population.dropout and population.availability != "independent":
        why = f"population.availability = {population.availability}"
    elif server.timeout is not None:
        why = f"server.timeout = {server.timeout:g}"
    elif settings.record.client_ledgers:
        why = "record.client_ledgers"
    else:
        return
    raise RefusedPlan(
        f"aggregation.mode = {settings.aggregation.mode} with {why}: too few clients may answer to make the noise, "
        "and an aborted round reveals something about its cohort; use --population.sampler fixed, or leave it out"
    )


def may_be_picked(plan: PrivacyPlan, invited: int) -> int:
    """Return how many clients of a cohort may collude if the server picks the cohort among all clients."""
    from dpfedmeta.secure_aggregation.crypto.neighbour_graph import counted

    assert plan.secure is not None
    adversarial = plan.secure.adversarial or 0.0
    return min(invited - 1, counted(adversarial, plan.clients))


def check_company(plan: PrivacyPlan, company: str) -> None:
    """Check that the plan counts as many colluding clients as a server of real clients can put into a cohort.

    Args:
        plan: Of real clients, whom the server knows by name.
        company: `picked`: the server may choose the clients of a cohort; `drawn`: it is trusted to draw cohorts as it
            says.

    Guarantee:
        (record or client, server): the noise of a cohort counts without `privacy.client.colluding` clients, and masks
        withstand so many. Where a server picks its cohorts that is all who may collude among all clients, or all but
        one of a cohort.

    Raises:
        RefusedPlan: The plan counts fewer.
    """
    secure, whole = plan.secure, plan.at(0).whole
    if secure is None or whole is None or company == "drawn":
        return
    picked = may_be_picked(plan, whole.most)
    if plan.colluding < picked:
        raise RefusedPlan(
            f"privacy.client.colluding = {plan.colluding}: a server that chooses {whole.most} of {plan.clients:,} "
            f"clients can place {picked} colluding ones in the cohort of any client (aggregation.adversarial = "
            f"{secure.adversarial:g} of all); give --privacy.client.colluding {picked}, or a lower "
            "aggregation.adversarial, or --aggregation.company drawn if clients trust the server to draw cohorts as "
            "it says"
        )


def message_dimension(settings: Settings, task: Task) -> int:
    """Learned weights of the network, or aggregation.dimension, and what the clip policy attaches."""
    learned = settings.aggregation.dimension
    if learned is None:
        whole = getattr(algorithm_of(settings, task), "whole", None)
        learned = learned_dimension(settings, task) if whole is None else int(whole.dimension)
    attachment = clip_policy(settings, _plain(settings)).attachment
    return learned + (attachment.size if attachment else 0)


def learned_dimension(settings: Settings, task: Task) -> int:
    """Number of learned weights of the network, or of the numbers that a client sends in their place."""
    algorithm, network = algorithm_of(settings, task), network_spec(settings, task)
    # Values of either kind have names and axes, which is what decides.
    weights: Any = countable_weights(algorithm, network, settings.run.seed)
    sent = message_form(algorithm, algorithm.learned(network, weights))
    return sum(math.prod(value.shape) for value in sent.values())


def countable_weights(algorithm: ClientAlgorithm, network: NetworkSpec, seed: int) -> Params | dict[str, FloatArray]:
    """All weights before round 0; of built-in networks and methods zeros of their shapes, which need no PyTorch."""
    method = getattr(algorithm, "method", algorithm)
    shapes = getattr(method, "shapes", None)
    # Whoever makes weights of one's own need not say their shapes; those that another class says may be others.
    if ":" in network.name or shapes is None or own_parts(method, ("initial", "shapes")):
        return algorithm.initial(network, seed)
    return stand_ins(shapes(network))


def noise_of_unit_bound(settings: Settings, task: Task, privacy: PrivacyPlan) -> float:
    """Expected norm of the noise of an aggregate, without what is attached, at a clip bound of 1.

    In units of what planned_deviation says, and before the public denominator divides: sqrt(d) times how far one client
    moves a sum.
    """
    ratio = message_clip_ratio(settings, algorithm_of(settings, task), privacy.noise_mode)
    moved = moved_by_a_client(1.0, clip_policy(settings, privacy).attachment, ratio)
    return moved * math.sqrt(learned_dimension(settings, task))


def _plain(settings: Settings) -> PrivacyPlan:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

    population = settings.population
    return PrivacyPlan(
        clients=population.clients,
        cohort=population.cohort,
        rounds=settings.server.rounds,
        noise_multiplier=_NEARLY_NONE,
        sampler=population.sampler,
    )
