"""Limits of a plan's guarantees that the epsilons alone do not show, and what dishonest clients can move.

Printed wherever the guarantees are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.events.noise_cost import ThresholdedNoise
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.right_guesses import NO_PROTECTION, protects
from dpfedmeta.accounting.rounded import asked, rounded_down
from dpfedmeta.config.presets import remark_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.random import binomial
from dpfedmeta.data.episodes.shape import Clients
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.planning.client_spec import records_of_a_client
from dpfedmeta.planning.policy_from_settings import bounds_clients

SIMULATION = "simulation: no guarantee towards whoever knows the seed"
# With more clients than these the noise for whole clients may be worth having.
_SILOS = 50
# A last cohort below this share of the expected one is worth a word.
_SMALL_COHORT = 0.8


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """Facts about a task that cautions are made of besides the settings.

    Attributes:
        name: Of the task.
        kind: Of its records, in the plural.
        own: Whether they are the user's own, and no benchmark's.
        records: Records of a client, at most.
    """

    name: str
    kind: str
    own: bool
    records: int

    @classmethod
    def of(cls, settings: Settings, task: Task) -> TaskFacts:
        """The facts about the task of these settings."""
        records = records_of_a_client(settings, shared=bool(task.shared_classes))
        return cls(name=task.name, kind=task.form.kind, own=isinstance(task.source, OwnSource), records=records)


def simulation_words(noise_seed: int | None) -> str | None:
    """Warning that nothing is promised where the noise seed was chosen; None: it was drawn."""
    return None if noise_seed is None else SIMULATION


def who_the_clients_are(kind: str, clients: Clients) -> str | None:
    """Say of simulated clients that they are nobody, and of people's that one machine read all their records.

    Args:
        kind: population.kind.
        clients: Whose they are.
    """
    alone = "one machine held all records and played every client"
    if clients == "real":
        return None
    if clients == "simulated":
        return (
            f"the clients are simulated (population.kind = {kind}): {alone}, and each is made of records of the data "
            "set, so nothing is promised to the people in it"
        )
    read = "whoever ran it read them all, whatever is promised towards the server"
    return f"{alone} (population.kind = {kind}), so {read}"


def notes_of(settings: Settings, task: Task) -> tuple[str, ...]:
    """Return what is said beside the guarantees of a plan: its cautions, and the targets that hide nobody."""
    return (*cautions(settings, TaskFacts.of(settings, task)), *weak_targets(settings))


def cautions(settings: Settings, task: TaskFacts) -> tuple[str, ...]:
    """Return the cautions that apply to these settings, one sentence each."""
    return tuple(
        filter(
            None,
            (
                remark_of(settings.algo),
                _everybody(settings),
                _nobody(settings),
                _used_up(settings),
                _record_delta(settings, task),
                _public_classes(settings, task),
                word_of_authors(settings),
            ),
        )
    )


def word_of_authors(settings: Settings) -> str | None:
    """Which code of the user's own makes or bounds what is released, or draws who is in it; None: none of it.

    Releases state the noise that they carry, and that is compared with the ledger; whether the numbers are as stated no
    program can tell.
    """
    names = {
        "server.noise": settings.server.noise,
        "aggregation.mode": settings.aggregation.mode,
        "population.sampler": settings.population.sampler,
    }
    if settings.record.enabled:
        names |= {"record.release": settings.record.release, "meta.method": settings.meta.method}
    own = [f"{setting} = {name}" for setting, name in names.items() if ":" in name]
    if not own:
        return None
    return (
        f"{' and '.join(own)}: whether noise and cohorts are as stated, and cover what is released, depends on that "
        "code; its author vouches for it, dpfedmeta cannot prove it (dpfedmeta audit may show that it is wrong)"
    )


def _everybody(settings: Settings) -> str | None:
    """Between silos that all take part, nothing hides a whole one."""
    population = settings.population
    if not bounds_clients(settings) or population.cohort < population.clients or population.clients > _SILOS:
        return None
    promised = settings.privacy.client.epsilon is not None or settings.server.noise_multiplier is not None
    hidden = "noise that hides one client of so few leaves little to learn"
    unit = "the unit that is protected is the record" if settings.record.enabled else "no unit is protected well"
    end = f"{hidden}{'' if promised else f'; {unit}'}"
    return f"all {population.clients} clients take part in every round, so sampling adds no privacy: {end}"


def _nobody(settings: Settings) -> str | None:
    """Cohorts are numbers of clients, and a share in place of one gives rounds without anybody."""
    cohort, clients = settings.population.cohort, settings.population.clients
    if cohort >= 1:
        return None
    return (
        f"population.cohort = {cohort:g} is a number of clients, so {math.exp(-cohort):.0%} of the rounds have nobody; "
        f"for a share of {cohort:g} of the {clients:,} clients give --cohort {max(1, round(cohort * clients))}"
    )


def _used_up(settings: Settings) -> str | None:
    """Whoever came as often as allowed is not there any more where coins or lots decide who is invited."""
    population, rounds = settings.population, settings.server.rounds
    most = population.max_participations
    # Clients that rest between rounds are drawn so that cohorts keep their size, or refused; check-ins come once.
    if most is None or settings.server.noise in KINDS or not sampling_of(population.sampler).leaves_gaps:
        return None
    before, rate = rounds - 1, min(1.0, population.cohort / population.clients)
    there = float(binomial.cdf(min(most, rounds) - 1, before, rate))
    if there >= _SMALL_COHORT:
        return None
    return (
        f"each client takes part at most {'once' if most == 1 else f'{most} times'}, so cohorts become smaller: about "
        f"{there * population.cohort:.0f} of {population.cohort:g} clients are left in round {rounds}, with the same "
        "noise; plan fewer rounds, or more clients"
    )


def weak_targets(settings: Settings) -> Iterator[str]:
    """Say which targets hide nobody, though a plan meets them; for whoever plans, since it follows from the numbers."""
    for unit, target in (("client", settings.privacy.client), ("record", settings.privacy.record)):
        if target.epsilon is not None and target.delta < 1.0 and not protects(target.epsilon, target.delta):
            yield (
                f"privacy.{unit}.epsilon = {asked(target.epsilon)} at delta = {asked(target.delta)} protects nobody: "
                f"whose {unit} it was may be guessed right more than {100 * NO_PROTECTION:g}% of the time; give a "
                "smaller one"
            )


def _record_delta(settings: Settings, task: TaskFacts) -> str | None:
    """Delta is the probability that a guarantee fails, so with many units it should be far below one over them."""
    if not bounds_clients(settings) and not settings.record.enabled:
        return None
    delta, records = settings.privacy.record.delta, settings.population.clients * task.records
    if delta <= 1.0 / records:
        return None
    return (
        f"privacy.record.delta = {asked(delta)} is above 1/(number of records) = {1.0 / records:.2g}: such a guarantee "
        f"allows {max(1.0, delta * records):,.0f} of the {records:,} records to be exposed entirely; "
        f"to change it, give --privacy.record.delta {rounded_down(1.0 / records, 1)} or less"
    )


def _public_classes(settings: Settings, task: TaskFacts) -> str | None:
    """Caution that accuracies on validation and test classes are released without noise; None: does not apply."""
    if not (bounds_clients(settings) or settings.record.enabled) or not task.own:
        return None
    return (
        f"{task.name}: the {task.kind} of its validation and test classes, or clients where the data name them, "
        "are treated as public; accuracies on them are released without noise, and no guarantee covers them"
    )


def dishonest_words(plan: PrivacyPlan) -> str:
    """Say in one or two sentences how far a dishonest client moves a round. Privacy does not rest on it.

    Where the server sees messages it leaves out those that are longer than an honest one, so a clip bound bounds what
    anybody can do. Under sums nobody can look inside.
    """
    event = plan.at(0)
    if isinstance(event.noise, ThresholdedNoise):
        return (
            "a dishonest client moves each count by at most 1, whatever it sends, but it can make the whole analysis "
            "fail"
        )
    if plan.server_sees == "sum":
        return f"a dishonest client {_inside(event.whole)}; nobody can look into a sum{_told(event.whole)}"
    if plan.noise_multiplier is None:
        return "a dishonest client can move the sum of a round as far as it likes: messages are not clipped"
    own = _own_noise(plan)
    if own == 0:
        return (
            "a dishonest client moves the sum of a round by at most one clip bound, whatever it sends: the server sees "
            "every message and leaves out longer ones"
        )
    return (
        "a dishonest client moves the sum of a round by at most one clip bound plus the largest noise of an honest "
        f"message (in d coordinates {own:.3g} (sqrt(d) + 10) clip bounds): the server sees every message and leaves "
        "out longer ones"
    )


def reach(whole: WholeSum) -> float:
    """Bound the move of a sum modulo 2^b by one client, in units of the longest honest message.

    It hands over any number from 0 to 2^b - 1 in each of D coordinates, which is read as one from -2^(b-1) to
    2^(b-1) - 1: at most 2^(b-1) sqrt(D) steps of the grid, of which an honest message, before it is rounded, has M c at
    most.
    """
    return 2.0 ** (whole.bits - 1) * math.sqrt(whole.dimension) / (whole.parts * whole.units)


def _inside(whole: WholeSum | None) -> str:
    if whole is None:
        return "moves the sum of a round as far as it likes"
    unit = "times what an honest one adds at most" if whole.exact else "clip bounds"
    return (
        f"moves the sum of a round by up to {reach(whole):,.0f} {unit}, in any direction (any whole numbers modulo "
        f"2^{whole.bits} in {whole.dimension:,} coordinates)"
    )


def _told(whole: WholeSum | None) -> str:
    if whole is None or whole.exact:
        return ""
    return ", so after each round the release is compared with the longest that honest clients give"


def _own_noise(plan: PrivacyPlan) -> float:
    """Deviation of the noise that a message may carry, in clip bounds: then the server allows for its length."""
    event, record = plan.at(0), plan.record
    if event.message_noise:
        return event.message_noise
    if record is None or plan.noise_mode != "shared" or record.query_noise is None:
        return 0.0
    return record.query_noise / record.query_records
