"""Public numbers that the rounds of a loop are asked for, and the plan that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Self

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.events.failure_probability import check_population
from dpfedmeta.accounting.events.guarantee import FourGuarantees, Guarantee, Observer, UnitName
from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, Correlation
from dpfedmeta.accounting.ledger.plan_json import constants
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import default_separation, with_fitted_numbers
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import DAMAGED_JSON, InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import LOOP

_INDEPENDENT = "independent"
# Beside delta, the probability that nobody is there to say what form an update has.
_RARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class PromisedCell:
    """A cell of the guarantees that has to hold when all rounds are done; exported as `dpfedmeta.Promise`.

    Attributes:
        unit: Whose data it is about: `client`, or `record`, which is a record of one client.
        observer: Who looks: `public`, everybody who sees the releases.
        epsilon: The most that may be spent.
        delta: Probability that the bound fails.

    Raises:
        InputError: A value is out of range.
        RefusedPlan: No noise of the server can keep it.
    """

    unit: UnitName = "client"
    observer: Observer = "public"
    epsilon: float
    delta: float

    def __new__(cls, *by_place: object, **_: object) -> Self:
        """Refuse numbers without names: which is epsilon must stand there."""
        if by_place:
            raise InputError(f"Promise: got {by_place[0]!r} without a name; as in Promise(epsilon=4.0, delta=1e-5)")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.unit not in ("client", "record"):
            raise InputError(f"Promise: unit = {self.unit!r}, expected 'client' or 'record'")
        if self.observer not in ("public", "server"):
            raise InputError(f"Promise: observer = {self.observer!r}, expected 'public'")
        for name, below in (("epsilon", math.inf), ("delta", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
                range_ = "a finite number above 0" if below == math.inf else "a number above 0 and below 1"
                raise InputError(f"Promise: {name} = {value!r}, expected {range_}")
        if self.observer == "server":
            raise RefusedPlan(
                f"Promise: ({self.unit}, server): the process that calls add() sees each update, also where your own "
                "secure aggregation hides them elsewhere; give observer='public', or let this package add up "
                "(dpfedmeta train --algo dp-agr-secure, or dpfedmeta federate server with it)"
            )


# A client of a federation has a promise of its own (federation.client.client_budget), so the class has another name.
Promise = PromisedCell


@dataclass(frozen=True, kw_only=True)
class RoundsRequest:
    """Public numbers of a loop's rounds; what they have to keep.

    Attributes:
        clients: N.
        cohort: L, in expectation; under check-ins the most that a round takes.
        rounds: T.
        promises: What has to hold.
        sampler: How cohorts are drawn.
        noise: Which noise.
        separation: Rounds that a client rests, for correlated noise; None: as many as the population allows.
        buffers: Vectors that correlated noise remembers; None: its own number.
        max_participations: R, or None.
        clip: The clip policy in words.
        simulation: Whether the noise seed was chosen.
    """

    clients: int
    cohort: float
    rounds: int
    promises: tuple[PromisedCell, ...]
    sampler: str = "poisson"
    noise: str = "independent"
    separation: int | None = None
    buffers: int | None = None
    max_participations: int | None = None
    clip: str = ""
    simulation: bool = False

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "separation", "buffers", "max_participations"):
            value, needed = getattr(self, name), name in ("clients", "rounds")
            if (needed or value is not None) and (type(value) is not int or value < 1):
                raise InputError(f"PrivateRounds: {name} = {value!r}, expected a whole number of at least 1")
        for name in ("sampler", "noise"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"PrivateRounds: {name} = {getattr(self, name)!r}, expected a name")
        if isinstance(self.cohort, bool) or not isinstance(self.cohort, int | float) or not 0 < self.cohort < math.inf:
            raise InputError(f"PrivateRounds: cohort = {self.cohort!r}, expected a number above 0")
        if not self.promises:
            raise InputError("PrivateRounds: promise: at least one dpfedmeta.Promise is needed")
        units = [each.unit for each in self.promises]
        if len(set(units)) < len(units):
            raise InputError(f"PrivateRounds: promise: one for each unit, got {', '.join(units)}")
        if self.noise != _INDEPENDENT and self.noise not in KINDS and ":" not in self.noise:
            raise InputError(
                f"PrivateRounds: noise = {self.noise!r}: unknown; known are {_INDEPENDENT}, {', '.join(KINDS)} "
                "(all are Gaussian)"
            )
        if ":" in self.noise:
            raise InputError(
                f"PrivateRounds: noise = {self.noise!r}: a mechanism of your own has a place in a training "
                "(server.noise); expected 'independent' or one of " + ", ".join(KINDS)
            )

    @property
    def planned(self) -> PrivacyPlan:
        """The plan with the least noise that keeps the promises.

        Raises:
            InputError: Numbers do not fit each other.
            RefusedPlan: A guarantee that is asked for would not hold.
        """
        return _solved(self)[0]

    @property
    def guarantees(self) -> FourGuarantees:
        """The four cells that the plan keeps."""
        return _solved(self)[1]

    def _solved(self) -> PrivacyPlan:
        clients_choose = self.sampler == "check-ins"
        check_population(self.clients, self.cohort, self._of("client").get("delta"))
        plan = PrivacyPlan(
            clients=self.clients,
            cohort=self.clients / self.rounds if clients_choose else float(self.cohort),
            rounds=self.rounds,
            noise_multiplier=0.0,
            sampler=self.sampler,
            max_participations=1 if clients_choose and self.max_participations is None else self.max_participations,
            noise=self.noise,
            correlation=self._correlation(),
            capacity=int(self.cohort) if clients_choose else None,
            **{f"{unit}_delta": self._of(unit)["delta"] for unit in ("client", "record") if self._of(unit)},
        )
        targets = Targets(
            client_epsilon=self._of("client").get("epsilon"),
            record_epsilon=self._of("record").get("epsilon"),
            record_observer="public",
        )
        return with_fitted_numbers(calibrate(plan, targets))

    def _of(self, unit: str) -> dict[str, Any]:
        return next((asdict(each) for each in self.promises if each.unit == unit), {})

    def _correlation(self) -> Correlation | None:
        if self.noise not in KINDS:
            for name in ("separation", "buffers"):
                if getattr(self, name) is not None:
                    kinds = ", ".join(KINDS)
                    raise InputError(
                        f"PrivateRounds: {name} is of use to correlated noise alone ({kinds}); leave it out"
                    )
            return None
        apart = self.separation
        if apart is None and self.sampler == "cyclic":
            raise InputError("PrivateRounds: sampler = 'cyclic': separation is missing: the number of groups")
        if apart is None:
            apart = default_separation(self.clients, self.cohort, self.rounds)
        return Correlation(separation=apart, buffers=self.buffers)

    def check_form_known(self) -> None:
        """Refuse to learn the form of an update from the first one where a first round may well be empty.

        Raises:
            InputError: It may.
        """
        delta = min(each.delta for each in self.promises)
        if self.sampler != "fixed" and math.exp(-self.planned.cohort) > _RARE * delta:
            raise InputError(
                f"PrivateRounds: like is missing: with {self.planned.cohort:g} clients expected in a round, one may be "
                "empty before the form of an update is known; give like=model, a mapping from names to arrays"
            )

    def as_text(self) -> str:
        """The text that the ledger's first line keeps; `from_text` reads it back."""
        return LOOP + json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str, where: str) -> RoundsRequest:
        """The inverse.

        Raises:
            InputError: It is no such text; `where` says whose it is.
        """
        try:
            content = json.loads(text.removeprefix(LOOP))
            promises = tuple(PromisedCell(**each) for each in content.pop("promises"))
            return cls(**content, promises=promises)
        except DAMAGED_JSON as error:
            raise InputError(f"{where}: is not what rounds were asked for ({' '.join(str(error).split())})") from error

    def difference(self, other: RoundsRequest) -> str:
        """Name the first number in which another request differs; empty: none."""
        return next((name for name in asdict(self) if getattr(self, name) != getattr(other, name)), "")


@lru_cache(maxsize=16)
def _solved(request: RoundsRequest) -> tuple[PrivacyPlan, FourGuarantees]:
    """Seconds of work, for which a loop that is started again asks again."""
    plan = request._solved()
    return plan, FourGuarantees(guarantees(plan))


def plan_content(plan: PrivacyPlan, cells: Sequence[Guarantee] | None = None) -> dict[str, Any]:
    """Return what plan.json states of a plan; `cells` are its guarantees, where they are known."""
    return {
        "planned": [cell.as_json() for cell in (guarantees(plan) if cells is None else cells)],
        "privacy": constants(plan),
        "phases": [{"rounds": phase.rounds, "event": phase.event.as_json()} for phase in plan.phases],
    }


def plan_of_rounds(request: RoundsRequest) -> dict[str, Any]:
    """Return the content of plan.json beside the rounds of a loop."""
    asked = {**asdict(request), "promises": [asdict(each) for each in request.promises]}
    return {"loop": asked, **plan_content(request.planned, request.guarantees)}


def promises_of(given: PromisedCell | Iterable[PromisedCell]) -> tuple[PromisedCell, ...]:
    """Return a promise, or several, as a tuple.

    Raises:
        InputError: Something else was given.
    """
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    for each in found:
        if not isinstance(each, PromisedCell):
            raise InputError(f"PrivateRounds: promise: expected dpfedmeta.Promise(...), got {each!r}")
    return tuple(replace(each, epsilon=float(each.epsilon), delta=float(each.delta)) for each in found)
