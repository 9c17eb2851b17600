"""Time that a run still takes, validations and the final evaluation included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfedmeta.training.tracking.plan_summary import Planned


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Estimate of the time that a run still takes, from what is known of its speed.

    Attributes:
        rounds: T.
        every: A validation follows each so many rounds, and the last one.
        final_validations: How many validations the final evaluation takes as long as, about.
        done: Rounds that are done.
        speed: Clients per second, if known.
        round_seconds: Of a round without its validation; None: not known.
        timed: Rounds of which `round_seconds` is the mean; 0: it was measured on public data.
        validation_seconds: Of the last validation; None: there was none yet.

    Guarantee:
        Times of rounds come from rows, which have none in a private run: there the speed is what was measured on public
        data before round 0, and nothing here follows the sizes of cohorts. Evaluations run on public data.
    """

    rounds: int
    every: int
    final_validations: float
    done: int = 0
    speed: float | None = None
    round_seconds: float | None = None
    timed: int = 0
    validation_seconds: float | None = None

    @classmethod
    def of(cls, planned: Planned) -> Pace:
        """Before the first round."""
        measured = planned.minutes is not None and planned.rounds > 0
        return cls(
            rounds=planned.rounds,
            every=planned.settings.evaluation.every,
            final_validations=planned.final_validations,
            speed=planned.clients_per_second,
            round_seconds=60 * (planned.minutes or 0.0) / planned.rounds if measured else None,
        )

    def after_round(self, row: Mapping[str, Any]) -> Pace:
        """Once a round is done; of its row, the times that it tells."""
        done, seconds = row["round"] + 1, row.get("seconds")
        if seconds is None:
            return replace(self, done=done)
        before = self.timed * (self.round_seconds or 0.0)
        mean = (before + seconds) / (self.timed + 1)
        speed = row.get("clients_per_second", self.speed)
        return replace(self, done=done, speed=speed, round_seconds=mean, timed=self.timed + 1)

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the final evaluation; None: not known. Without evaluations while none was measured."""
        if self.round_seconds is None:
            return None
        left = self.rounds - self.done
        # The last round is validated even where that is not its turn.
        validations = -(-self.rounds // self.every) - self.done // self.every
        evaluations = (validations if left else 0) + self.final_validations
        return left * self.round_seconds + evaluations * (self.validation_seconds or 0.0)

    @property
    def words(self) -> str:
        """The time left and the speed, for people."""
        if self.seconds_left is None:
            return ""
        least = "over " if self.validation_seconds is None else ""
        speed = f"  {'' if self.timed else 'about '}{self.speed:.0f} clients/s" if self.speed else ""
        return f"{least}{clock(self.seconds_left)} left{speed}"


def clock(seconds: float) -> str:
    """Two units are enough."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
