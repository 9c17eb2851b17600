"""Rounds that clients choose for themselves (population.sampler = check-ins): what is refused, and why."""

from __future__ import annotations

from dpfedmeta.accounting.events.failure_probability import least_capacity
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan


def clients_choose(settings: Settings) -> bool:
    """Return whether every client picks its own round, one in the whole run (sampler check-ins)."""
    return settings.population.sampler == "check-ins"


def expected_cohort(settings: Settings) -> float:
    """L; where each client comes once, N/T."""
    population = settings.population
    return population.clients / settings.server.rounds if clients_choose(settings) else population.cohort


def check_check_ins(settings: Settings) -> None:
    """Each client comes once, in a slot that it drew: what goes beyond that has no proof.

    Raises:
        InputError: More rounds than clients, or a round that takes too few.
        RefusedPlan: A setting for which no bound is proved.
    """
    population, server = settings.population, settings.server
    if server.rounds > population.clients:
        raise InputError(
            f"server.rounds = {server.rounds}: there are {population.clients} clients (population.clients), each comes "
            "in one round, and most rounds would be empty; lower the rounds"
        )
    for name, refused, why in _refusals(settings):
        if refused:
            raise RefusedPlan(f"population.sampler = check-ins with {name}: {why}")
    _check_capacity(settings)


def _refusals(settings: Settings) -> list[tuple[str, bool, str]]:
    population, server = settings.population, settings.server
    cap, limit, hostile = population.max_participations, settings.privacy.client.limit, settings.privacy.client.hostile
    return [
        (
            f"population.max_participations = {cap}",
            cap not in (None, 1),
            "each client comes once, in the slot that it drew, and nothing is proved of more; leave it out, or use "
            "--population.sampler poisson",
        ),
        (
            "privacy.spent_before",
            bool(settings.privacy.spent_before),
            "what it costs together with other releases is not computed here; use --population.sampler poisson",
        ),
        ("server.schedule", bool(server.schedule), "clients draw among equal rounds; leave it out"),
        (
            f"server.noise = {server.noise}",
            server.noise != "independent",
            "what hides in which round a client came is proved of independent Gaussian noise alone; use "
            "--server.noise independent",
        ),
        (
            f"aggregation.mode = {settings.aggregation.mode}",
            settings.aggregation.mode != "messages",
            "how many come is left to chance, and clients that make the noise need a cohort of known size; use "
            "--aggregation messages, or --population.sampler fixed",
        ),
        (
            "server.noise_site = clients",
            server.noise_site == "clients",
            "nobody knows how many come to share the noise; use --server.noise_site server",
        ),
        (
            f"privacy.client.hostile = {hostile:g}",
            bool(hostile),
            "hostile clients choose their round as well, and may all come in the same one; use "
            "--population.sampler poisson",
        ),
        (
            f"privacy.client.limit = {limit}",
            limit is not None,
            "how likely a slot is depends on how many there are, so they are not found on the way; give "
            "privacy.client.epsilon (--epsilon), which solves the noise for all rounds",
        ),
    ]


def _check_capacity(settings: Settings) -> None:
    population, rounds = settings.population, settings.server.rounds
    if not float(population.cohort).is_integer():
        raise InputError(
            f"population.cohort = {population.cohort:g}: is the most that a round takes under population.sampler = "
            "check-ins; give a whole number"
        )
    delta = min(settings.privacy.client.delta, settings.privacy.record.delta)
    least = least_capacity(population.clients, rounds, delta)
    if population.cohort < least:
        raise RefusedPlan(
            f"population.cohort = {population.cohort:g}: {population.clients / rounds:.4g} clients come in each of "
            f"{rounds} rounds, and one that takes fewer than {least} is full too often for delta = {delta:g}: who is "
            f"turned away would tell of the others; give {least} or more"
        )


def check_solvable(settings: Settings, solve: str) -> None:
    """Check that only the noise is solved for where clients choose their round (sampler check-ins).

    Raises:
        InputError: Rounds or a cohort are asked for.
    """
    if clients_choose(settings) and solve in ("rounds", "cohort"):
        raise InputError(
            f"--solve {solve} with population.sampler = check-ins: N/T clients come in each of T rounds, and more "
            "rounds cost less, so a target ends neither; use --solve noise, and --advise for a table"
        )
