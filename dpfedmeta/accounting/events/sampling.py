"""Sampling of a round's clients, as the plan and the accountant see it: a sampler is one file, found by its name.

The files are those of `dpfedmeta.privacy.samplers`, or somebody's own as package.module:name. Nothing else compares a
sampler's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from dpfedmeta.accounting.events.failure_probability import largest_cohort, most_hostile
from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_registry import check_protocol, find

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpfedmeta.accounting.events.events import Event
    from dpfedmeta.accounting.events.noise_cost import Noise
    from dpfedmeta.accounting.events.participation_pattern import Spacing
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.config.settings import Settings

Neighbours = Literal["add-remove", "replace-one"]
"""What two populations differ in: a client more, or a client's data."""
_SETTING, _FOLDER = "population.sampler", "dpfedmeta.privacy.samplers"


class Sampling:
    """Base of the samplers. What a guarantee rests on has no default: a sampler states its neighbours and its event.

    Attributes:
        neighbours: Neighbouring relation that its guarantees are stated under.
        fixed_size: Whether every cohort is a uniform subset of exactly L clients, so that its size tells nothing.
        independent: Whether clients join a round independently of each other, with probability L/N or less; or, in
            turns, those of the group whose turn it is.
        keeps_apart: Whether its clients keep the separation that correlated noise counts with.
        leaves_gaps: Whether a client that may join no more rounds leaves its place in later cohorts empty.
        cost: Name of the cost of a release that adds up its rounds (accounting.release_costs), or package.module:name;
            None: that of their noise.
        audited: Settings of a small audit that differ from those of other samplers.
    """

    neighbours: ClassVar[Neighbours]
    fixed_size: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    keeps_apart: ClassVar[bool] = False
    leaves_gaps: ClassVar[bool] = False
    cost: ClassVar[str | None] = None
    audited: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def one_round(cls, rate: float, noise: Noise, neighbours: Neighbours, grid: float) -> PrivacyLossDistribution:
        """Loss distribution of one round, rounded up to a grid.

        Raises:
            RefusedPlan: The rounds are accounted for in another way.
            ValueError: They have no meaning under these neighbours.
        """
        raise RefusedPlan(f"{cls.__name__} states no loss of one round, so nothing adds it up with others")

    @classmethod
    def dp_event(cls, event: Event) -> DpEvent | None:
        """The same for other accountants: their event of one round; None: they know none."""
        return None

    @classmethod
    def rate_of(cls, plan: PrivacyPlan, cohort: float) -> float:
        """Probability that a client is in a cohort, for an observer who knows of the colluding ones where they are."""
        return min(1.0, cohort / plan.clients)

    @classmethod
    def largest_of(cls, plan: PrivacyPlan, cohort: float) -> tuple[int, float]:
        """(M, P(more)): surplus clients are dropped, so the noise of messages has a known largest sum."""
        if cls.fixed_size:
            return int(cohort), 0.0
        if not cls.independent:
            raise RefusedPlan(f"population.sampler = {plan.sampler}: nothing is known of how large a cohort may become")
        return largest_cohort(plan.clients, cohort / plan.clients, plan.allowed)

    @classmethod
    def hostile_of(cls, plan: PrivacyPlan, cohort: float) -> tuple[int, float]:
        """(H, P(more than H hostile clients are in a cohort))."""
        # Rounded up: in floats 0.29 of 100 clients are a little less than 29.
        held = math.ceil(plan.hostile * plan.clients)
        if held and not (cls.fixed_size or cls.independent):
            raise RefusedPlan(f"population.sampler = {plan.sampler}: nothing is known of hostile clients in a cohort")
        return most_hostile(plan.clients, held, cohort, plan.allowed, fixed=cls.fixed_size)

    @classmethod
    def most_messages(cls, event: Event, chance: float) -> int:
        """A number that the messages of a round exceed with a probability of at most `chance`."""
        if cls.fixed_size:
            return int(event.cohort)
        found = members = cls.members(event)
        if cls.independent:
            found = min(largest_cohort(members, min(1.0, event.cohort / members), chance)[0] - 1, members)
        return found if event.largest_cohort is None else min(found, event.largest_cohort)

    @classmethod
    def members(cls, event: Event) -> int:
        """Clients that may be in one round."""
        return event.clients

    @classmethod
    def slots_of(cls, plan: PrivacyPlan) -> int | None:
        """Rounds of which each client draws one for itself; None: the server draws cohorts."""
        return None

    @classmethod
    def in_turn(cls, client: int, round_: int, spacing: Spacing) -> bool:
        """Return whether this client may be in this round, where clients take turns."""
        return True

    @classmethod
    def check(cls, plan: PrivacyPlan) -> None:
        """Refuse constants of a plan for which no guarantee is known.

        Raises:
            RefusedPlan: Says which, and what is wanted.
        """
        check("capacity", plan.capacity, plan.capacity is None, "null: only the check-ins sampler has one")

    @classmethod
    def check_separation(cls, plan: PrivacyPlan, spacing: Spacing) -> None:
        """Refuse a separation that the population cannot keep.

        Raises:
            RefusedPlan: Fewer clients than a cohort are free in some round.
        """

    @classmethod
    def check_new_run(cls, *, cohort: float, separation: int | None, rounds: int) -> None:
        """Refuse what no run should begin with; one that began so under an earlier version is read, and goes on.

        Raises:
            RefusedPlan: Says what, and what to give.
        """

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Refuse settings that do not go with this sampler, before anything is computed.

        Raises:
            InputError: A value does not fit another one.
            RefusedPlan: No guarantee is known.
        """

    @classmethod
    def check_solved(cls, solve: str) -> None:
        """Refuse to solve for what a target does not bound.

        Raises:
            InputError: Says what can be solved for.
        """

    @classmethod
    def planned(cls, settings: Settings) -> Mapping[str, Any]:
        """The constants of a plan that follow from settings: its cohort, cap and capacity."""
        return {
            "cohort": settings.population.cohort,
            "max_participations": settings.population.max_participations,
        }

    @classmethod
    def drawn_words(cls, event: Event) -> str:
        """Description of who is in a round, behind a bound."""
        return f"each client with q = {event.rate:.4g}"

    @classmethod
    def cohort_words(cls, plan: PrivacyPlan) -> str:
        """Description of a cohort, in the plan and the report."""
        return f"expected cohort {plan.cohort:g} ({plan.sampler}, q = {plan.at(0).rate:.3g})"


@lru_cache(maxsize=64)
def sampling_of(name: str) -> type[Sampling]:
    """The sampler of this name: a file of `privacy/samplers`, or package.module:name.

    Raises:
        InputError: There is none, or it does not state what its guarantee rests on.
    """
    member = find(_SETTING, name, _FOLDER)
    check_protocol(_SETTING, name, member, "of", "draw")
    if not (isinstance(member, type) and issubclass(member, Sampling)):
        raise InputError(f"{_SETTING} = {name}: is no Sampler; derive it from dpfedmeta.privacy.samplers.Sampler")
    if getattr(member, "neighbours", None) not in get_args(Neighbours):
        raise InputError(f"{_SETTING} = {name}: neighbours: expected one of {', '.join(get_args(Neighbours))}")
    return member
