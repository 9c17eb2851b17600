"""Privacy cost of rounds: the types that plan, ledger, accountant and report share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.noise_cost import GaussianNoise, JointNoise, Noise, restored, stated
from dpfedmeta.accounting.events.sampling import Neighbours, sampling_of

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.integer_sum import WholeSum


@dataclass(frozen=True, kw_only=True)
class Event:
    """Privacy cost of one round; public constants only.

    Attributes:
        sampler: Name of the sampler that draws the cohort.
        clients: N.
        cohort: L, the public denominator: the expected size (poisson) or the size (fixed).
        rate: q, probability that a client is in the cohort for an observer who knows its own part: L/N, and
            L/(N - c) under fixed-size sampling, where c colluding clients who were not drawn leave the places to the
            others; bL/N of a client whose group's turn it is (cyclic).
        noise: Noise of the release towards an observer who colludes with clients: z, or z_eff where clients add noise
            of their own. None without a client-level mechanism, or where it adds nothing.
        largest_cohort: M, the largest cohort (shared mode, check-ins, sums of whole numbers); None where nothing limits
            it.
        hostile: H, messages of a round whose own noise is not counted, since they may come without it; 0 where the
            server adds it all.
        surplus_probability: P(more than M clients are drawn, or more than H hostile ones) in one round; with a sum of
            whole numbers also P(too few are drawn, or one client decides whether the round is aborted).
        total_noise: z, or z_T where clients add noise of their own: all noise of the sum over its sensitivity, if every
            client adds its own. None without a client-level mechanism.
        assured_noise: The part of it that is left when H messages come without theirs.
        message_noise: Deviation of the noise that each client adds to its own message over C; 0 where the server adds
            it all.
        support_noise: z_s; None without noisy support steps.
        support_steps: K; None likewise.
        query_noise: z_q; None without a noisy query release.
        whole: The sum of whole numbers, where the server sees nothing but that; else None.
        sum_noise: Noise towards such a server and the clients that collude with it; None: another server, or no noise.
        slots: t, rounds of which each client drew one for itself (check-ins); None: the server draws cohorts.
    """

    sampler: str
    clients: int
    cohort: float
    rate: float
    noise: Noise | None
    largest_cohort: int | None = None
    hostile: int = 0
    surplus_probability: float = 0.0
    total_noise: float | None = None
    assured_noise: float | None = None
    message_noise: float = 0.0
    support_noise: float | None = None
    support_steps: int | None = None
    query_noise: float | None = None
    whole: WholeSum | None = None
    sum_noise: Noise | None = None
    slots: int | None = None

    @property
    def cost(self) -> str:
        """Name of the cost of a release that adds up such rounds: the sampler's own, or the noise's own."""
        own: str | None = sampling_of(self.sampler).cost or getattr(self.noise, "cost", None)
        if own is not None:
            return own
        if isinstance(self.noise, JointNoise):
            return "correlated"
        return "independent" if self.whole is None else "sum"

    @property
    def record_noises(self) -> tuple[GaussianNoise, ...]:
        """Noise of each release of one client about its own records, in order; empty without a record-level layer."""
        support = [] if self.support_noise is None else [self.support_noise] * (self.support_steps or 1)
        query = [] if self.query_noise is None else [self.query_noise]
        return tuple(GaussianNoise(multiplier=noise) for noise in (*support, *query))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for a ledger line; fields that belong to sums of whole numbers appear for such a sum only."""
        content = {**asdict(self), "noise": stated(self.noise)}
        del content["whole"], content["sum_noise"]
        if self.slots is None:
            del content["slots"]
        if self.whole is None:
            return content
        return {**content, "whole": self.whole.as_json(), "sum_noise": stated(self.sum_noise)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Event:
        """The inverse.

        Raises:
            InputError: A kind of noise that the accountant does not know.
            TypeError: A constant is missing, or is none of an event.
        """
        made = {**content, "noise": restored(content["noise"])}
        if "whole" in content:
            # Inside: what belongs to sums of whole numbers is loaded where there are such.
            from dpfedmeta.accounting.events.integer_sum import WholeSum

            made |= {"whole": WholeSum(**content["whole"]), "sum_noise": restored(content["sum_noise"])}
        return cls(**made)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rounds in a row that cost the same: what a plan is made of, and what a ledger adds up to.

    Attributes:
        event: What each of them costs.
        rounds: How many.
        copy: Which copy of a run made them: each counts participations for itself.
        again: Whether they are further attempts; said where rounds are accounted for all together.
    """

    event: Event
    rounds: int
    copy: int = 0
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The releases of another ledger about the same clients, made before a plan begins and counted in its promise.

    Attributes:
        run: Random name of what it is the ledger of.
        head: Hash of its last line when it was counted.
        phases: What its lines charge.
    """

    run: str
    head: str
    phases: tuple[Phase, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for the first line of a later ledger."""
        phases = [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in self.phases]
        return {"run": self.run, "head": self.head, "phases": phases}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Earlier:
        """The inverse.

        Raises:
            InputError: A kind of noise that the accountant does not know.
            LookupError: Something is missing.
            TypeError: A constant of an event is missing, or is none.
        """
        phases = [Phase(event=Event.from_json(each["event"]), rounds=each["rounds"]) for each in content["phases"]]
        return cls(run=content["run"], head=content["head"], phases=tuple(phases))


def first_rounds(phases: Sequence[Phase], rounds: int) -> tuple[Phase, ...]:
    """The first `rounds` of them, or all that there are."""
    kept, left = [], rounds
    for phase in phases:
        if left <= 0:
            break
        kept.append(replace(phase, rounds=min(phase.rounds, left)))
        left -= phase.rounds
    return tuple(kept)


def have_noise(phases: Sequence[Phase]) -> bool:
    """Return whether there are rounds and every one has noise."""
    return bool(phases) and all(phase.event.noise for phase in phases)


def have_whole_numbers(phases: Sequence[Phase]) -> bool:
    """Return whether any round is a sum of whole numbers, whose noise is discrete."""
    return any(phase.event.whole is not None for phase in phases)


def surplus(phases: Sequence[Phase]) -> float:
    """Beta: the probability that any round had more clients, or more hostile ones, than was counted with."""
    return sum(phase.rounds * phase.event.surplus_probability for phase in phases)


def neighbours_of(phases: Sequence[Phase]) -> Neighbours:
    """Neighbouring relation of these rounds: replace-one for all if any is stated under it, else add-remove.

    A cohort of fixed size shows that nobody was added, so there a client's data is replaced.
    """
    stated_under = {sampling_of(phase.event.sampler).neighbours for phase in phases}
    return "replace-one" if "replace-one" in stated_under else "add-remove"
