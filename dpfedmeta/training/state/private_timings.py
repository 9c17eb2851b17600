"""Wall-clock times: they follow how many clients took part, which nobody may know of a sampled cohort."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import DAMAGED_JSON
from dpfedmeta.core.files.atomic_files import SECRET, cut_torn_line
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.planning.run_plan import Plan

COARSE = "coarse: exact ones follow the cohorts' sizes"
_SECONDS = "seconds.jsonl"


def hides_times(plan: Plan) -> bool:
    """Return whether a run hides exact times: it has a guarantee, and its noise seed was not chosen (no simulation).

    Guarantee:
        Where this holds, rows and trackers get no time at all, and what is told at the end is `coarse`. That bounds
        nothing: a total that lies next to a step still tells a little.
    """
    return hides_times_of(plan.settings, plan.privacy)


def hides_times_of(settings: Settings, privacy: PrivacyPlan) -> bool:
    """The same of the parts of a plan that decide it."""
    promises = privacy.noise_multiplier is not None or privacy.record is not None
    return promises and settings.run.noise_seed is None


def coarse(value: float) -> float:
    """The next of ..., 1, 2, 5, 10, 20, 50, ... that is not below a positive number; 0 is 0."""
    if not value:
        return 0.0
    power = math.floor(math.log10(value))
    return next(step for step in (float(f"{digit}e{power}") for digit in (1, 2, 5, 10)) if value <= step)


def at_most(seconds: float) -> str:
    """The coarse time for people, rounded up to what is said: 5 s, 2 min, 2 h 47 min."""
    found = coarse(seconds)
    if found < 60:
        return f"at most {max(1, math.ceil(found))} s"
    minutes = math.ceil(found / 60)
    return f"at most {minutes} min" if minutes < 100 else f"at most {minutes // 60} h {minutes % 60:02d} min"


def keep_seconds(run: RunDirectory, round_: int, seconds: float) -> None:
    """SECRET: what one round took, for the total of a run that is resumed."""
    append_lines(run.secret / _SECONDS, [{"round": round_, "seconds": seconds}], SECRET)


def seconds_before(run: RunDirectory) -> float:
    """Return the seconds that a run's rounds took so far; a lost line is missing in the total, and nowhere else."""
    path = run.secret / _SECONDS
    total = sum(float(row.get("seconds") or 0.0) for row in run.rounds())
    if not path.exists():
        return total
    cut_torn_line(path)
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            total += float(json.loads(line)["seconds"])
        except DAMAGED_JSON:
            continue
    return total
