"""Published settings: the epsilon that they claim and the ones that hold, one correction a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import asked


@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """Published (epsilon, delta) of one cell."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    cell: str
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class PublishedSetting:
    """Published setting, as a file of configs/paper/ holds it.

    Attributes:
        title: Title of the setting.
        kind: Whether its accountant counts clients (DP-AGR) or records (DP-AGRLR).
        clients: N, tasks of one pass.
        cohort: L, its lot.
        noise_multiplier: z of the outer step.
        order: `fixed`: the tasks are read in order, each once in a pass.
        claimed: The claim.
        bound_from: The data that its clip bound is computed from.
        support_noise: z_s of an inner step.
        support_steps: K.
        support_records: n_s.
        query_records: n_q.
        second_order: Whether the meta-gradient differentiates through the inner steps.
        told_records: Number of records that its accountant was told.
        told_support_steps: Number of inner steps of a client that its accountant was told.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    title: str
    kind: Literal["clients", "records"]
    clients: int
    cohort: int
    noise_multiplier: float
    order: Literal["fixed"]
    claimed: PaperClaim
    bound_from: str = "a constant"
    support_noise: float = 1.0
    support_steps: int = 1
    support_records: int = 1
    query_records: int = 1
    second_order: bool = False
    told_records: int = 1
    told_support_steps: int = 1


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """Line of a comparison: the accounting, its epsilon, and why it differs from the line before."""

    counted: str
    epsilon: float
    reason: str


def published_settings() -> list[PublishedSetting]:
    """All files of configs/paper/."""
    folder = resources.files("dpfedmeta.configs") / "paper"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    form: TypeAdapter[PublishedSetting] = TypeAdapter(PublishedSetting)
    return [form.validate_python(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files]


def compare(published: PublishedSetting) -> tuple[ComparisonRow, ...]:
    """Compare the claim of a published setting with what holds, one correction a line."""
    claim = published.claimed
    said = ComparisonRow(counted="claimed", epsilon=claim.epsilon, reason=f"{claim.cell}, delta = {asked(claim.delta)}")
    return (said, *(_clients(published) if published.kind == "clients" else _records(published)))


def _clients(published: PublishedSetting) -> Iterator[ComparisonRow]:
    delta, noise = published.claimed.delta, published.noise_multiplier

    def rounds_of(count: int) -> tuple[Phase, ...]:
        return _poisson(published.cohort / published.clients, noise, count)

    rounds = _most(
        lambda t: rdp_epsilon(rounds_of(t), delta) <= published.claimed.epsilon, published.clients // published.cohort
    )
    yield ComparisonRow(
        counted=f"RDP, Poisson sampling, q = {published.cohort / published.clients:.4g}, {rounds} rounds",
        epsilon=rdp_epsilon(rounds_of(rounds), delta),
        reason="its own accounting; as many rounds of one pass as stay within the claim",
    )
    yield ComparisonRow(
        counted="PLD of the same",
        epsilon=sampled_epsilon(rounds_of(rounds), "add-remove", delta),
        reason="composition: RDP is loose; with real Poisson sampling this much would hold",
    )
    yield ComparisonRow(
        counted="no sampling, one participation",
        epsilon=gaussian_epsilon(1.0 / noise, delta),
        reason="sampling: the clients are read in a fixed order, each in one known round, so nothing is amplified",
    )
    yield ComparisonRow(
        counted=f"clip bound from {published.bound_from}",
        epsilon=math.inf,
        reason="the bound is a percentile of the clients' own norms and leaves no mechanism, so no cell holds",
    )


def _records(published: PublishedSetting) -> Iterator[ComparisonRow]:
    delta, told = published.claimed.delta, published.told_records
    inner, outer = published.support_records / told, published.query_records * published.cohort / told

    def steps_of(count: int, support_steps: int) -> tuple[Phase, ...]:
        return (
            *_poisson(inner, published.support_noise, count * published.cohort * support_steps),
            *_poisson(outer, published.noise_multiplier, count),
        )

    told_steps, limit = published.told_support_steps, 2 * published.clients // published.cohort
    rounds = _most(lambda t: rdp_epsilon(steps_of(t, told_steps), delta) <= published.claimed.epsilon, limit)
    yield ComparisonRow(
        counted=f"RDP, {told:,} records, {told_steps} inner step for a client, {rounds} rounds",
        epsilon=rdp_epsilon(steps_of(rounds, told_steps), delta),
        reason="its own accounting; as many rounds as stay within the claim",
    )
    yield ComparisonRow(
        counted="PLD of the same",
        epsilon=sampled_epsilon(steps_of(rounds, told_steps), "add-remove", delta),
        reason="composition: RDP is loose",
    )
    yield ComparisonRow(
        counted=f"all {published.support_steps} inner steps",
        epsilon=sampled_epsilon(steps_of(rounds, published.support_steps), "add-remove", delta),
        reason="inner steps: each of them reads every support record",
    )
    passes = math.ceil(rounds * published.cohort / published.clients)
    mu = max(math.sqrt(published.support_steps) / published.support_noise, 1.0 / published.noise_multiplier)
    yield ComparisonRow(
        counted=f"no sampling, {passes} participation" + ("s" if passes > 1 else ""),
        epsilon=gaussian_epsilon(math.sqrt(passes) * mu, delta),
        reason="sampling and population: steps inside a client are not sampled anew from all records, and the server "
        f"knows who takes part: sqrt({passes} x {published.support_steps})/z_s-GDP",
    )
    if published.second_order:
        yield ComparisonRow(
            counted="second order, batch normalisation",
            epsilon=math.inf,
            reason="the meta-gradient reads the support records again through Hessian terms and batch statistics "
            "that no noise covers; use first order and group normalisation",
        )


def _poisson(rate: float, noise: float, rounds: int) -> tuple[Phase, ...]:
    clients = 1_000_000
    return PrivacyPlan(clients=clients, cohort=rate * clients, rounds=rounds, noise_multiplier=noise).phases


def _most(holds: Callable[[int], bool], limit: int) -> int:
    """Largest count up to `limit` for which a falling condition holds; at least 1."""
    low, high = 1, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def as_json(published: PublishedSetting, lines: tuple[ComparisonRow, ...]) -> dict[str, Any]:
    """Return a comparison as JSON for --json; an infinite epsilon is null."""
    return {
        "title": published.title,
        "cell": published.claimed.cell,
        "delta": published.claimed.delta,
        "lines": [
            {
                "counted": line.counted,
                "epsilon": line.epsilon if math.isfinite(line.epsilon) else None,
                "reason": line.reason,
            }
            for line in lines
        ],
    }
