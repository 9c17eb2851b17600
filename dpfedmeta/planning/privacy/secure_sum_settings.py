"""Sums that arrive with the noise of the clients (aggregation.mode): how they are planned, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.data.task import Task
from dpfedmeta.planning.client_spec import algorithm_of
from dpfedmeta.planning.clipping.policy_from_settings import bounds_clients
from dpfedmeta.planning.privacy.aggregation import aggregation_of, clients_make_the_noise
from dpfedmeta.planning.privacy.message_length import message_dimension

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds


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
    if settings.record.query_noise is not None and settings.record.release == "micro-episodes":
        raise RefusedPlan(
            f"record.query_noise = {settings.record.query_noise:g} with aggregation.mode = {settings.aggregation.mode}:"
            " there the sum has the noise, not the micro-episodes; give server.noise_multiplier or a target instead"
        )
    _check_answers(settings)
    if dimension is None:
        dimension = message_dimension(settings, task)
    made: SecureRounds = rounds(settings, dimension, algorithm_of(settings, task).parts)
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
