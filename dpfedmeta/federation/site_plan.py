"""Guarantees that so many sites with so many records can have, and how long a round's noise is then; needs no data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.events.record_layer import RecordLayer, default_relation
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.config.packaged_files import SETTINGS, read_named
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.privacy.masking_graph import withstood
from dpfedmeta.secure_aggregation.crypto.neighbour_graph import MOST_CLIENTS, counted
from dpfedmeta.secure_aggregation.round_parameters import agreed

Cell = Literal["record-sum", "record-messages", "client-sum", "client-public"]
CELLS: dict[Cell, str] = {
    "record-sum": "(record, server), secure sums",
    "record-messages": "(record, server), each site adds noise of its own",
    "client-sum": "(client, server), secure sums",
    "client-public": "(client, public), the server is trusted with messages",
}
# Lengths of a round's noise in the mean, in clip bounds, between which our benchmarks have measured nothing (MEASURED).
LEARNS, TEACHES_NOTHING = 0.3, 1.5
MEASURED = (
    (0.03, "5 silos of 7,200 images, a tenth of the noise of the next row: 54.7% before training, 57.1% after it"),
    (0.30, "5 silos of 7,200 images, zero-out 2.5 at the server, 20 rounds: 54.7% before training, 56.5% after it"),
    (1.54, "4 hospitals of 40 patients each, zero-out 1 at the server, 10 rounds: no better than untrained weights"),
)
"""(length of the noise, what was trained and measured): docs/federation.md and docs/people.md."""
_ADVERSARIAL = 0.05
_DROPOUTS = (0.2, 0.1, 0.0)
_BITS = 16
_NEXT_TO_NONE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Sites that all take part in every round.

    Attributes:
        sites: How many.
        least: Records of the smallest one, which decide over the number of micro-episodes.
        classes: Classes, of one size.
        weights: Numbers that are learned.
        rounds: T.
        client_delta: delta of a client's cells.
        record_delta: delta of a record's cells.
    """

    sites: int
    least: int
    classes: int
    weights: int
    rounds: int = 20
    client_delta: float = 1e-6
    record_delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--sites", self.sites, 2),
            ("--classes", self.classes, 2),
            ("--weights", self.weights, 1),
            ("--rounds", self.rounds, 1),
        ):
            if value < least:
                raise InputError(f"{name} {value}: expected {least} or more")
        if self.parts < 1:
            raise InputError(
                f"--records {self.least}: a site needs 2 records of each of {self.classes} classes, "
                f"{2 * self.classes} at least"
            )

    @property
    def parts(self) -> int:
        """Micro-episodes of a site: at the smallest one each gets two records of each class in the mean."""
        return self.least // (2 * self.classes)

    @property
    def colluding(self) -> int:
        """Sites whose noise is not counted: a twentieth of them, one at least."""
        return max(1, counted(_ADVERSARIAL, self.sites))


def tolerated(sites: int) -> float:
    """Share of the sites that may be missing in a round of secure sums, the largest for which there is a graph.

    Raises:
        RefusedPlan: There is none, so the server would have to see messages.
    """
    if sites > MOST_CLIENTS:
        raise RefusedPlan(f"secure sums of {sites:,} sites: at most {MOST_CLIENTS:,} clients have one sum")
    adversarial = withstood(_ADVERSARIAL, max(1, counted(_ADVERSARIAL, sites)), sites)
    for dropout in _DROPOUTS:
        try:
            agreed(clients=sites, dimension=1, bits=_BITS, adversarial=adversarial, dropout=dropout, malicious=True)
        except InputError:
            continue
        return dropout
    raise RefusedPlan(
        f"secure sums of {sites} sites: one of them may tell the server what it sent, and then the sum gives the other "
        "away; three sites are the fewest"
    )


def noise_length(sites: Sites, cell: Cell, epsilon: float) -> float:
    """Expected length of a round's noise, in clip bounds of what is protected, in the mean of all of them.

    Raises:
        RefusedPlan: The cell cannot have this epsilon.
    """
    plan = calibrate(_plan(sites, cell), _targets(cell, epsilon))
    noise = plan.at(0).total_noise
    assert noise is not None
    return noise * math.sqrt(sites.weights) / sites.sites


def _plan(sites: Sites, cell: Cell) -> PrivacyPlan:
    summed, records = cell.endswith("-sum"), cell.startswith("record-")
    layer = RecordLayer(
        support_noise=None,
        query_noise=None if summed else 1.0,
        support_steps=1,
        support_records=1,
        query_records=sites.parts,
        parts="micro-episodes",
        of_sum=summed,
        rows=True,
    )
    secure = SecureRounds(
        bits=_BITS,
        dimension=sites.weights,
        parts=sites.parts if records else 1,
        dropout=tolerated(sites.sites) if summed else 0.0,
        adversarial=_ADVERSARIAL,
        malicious=True,
    )
    return PrivacyPlan(
        clients=sites.sites,
        cohort=sites.sites,
        rounds=sites.rounds,
        noise_multiplier=0.0,
        sampler="fixed",
        server_sees="sum" if summed else "messages",
        colluding=sites.colluding,
        secure=secure if summed else None,
        record=layer if records else None,
        client_delta=sites.client_delta,
        record_delta=sites.record_delta,
        relation=default_relation(layer) if records else "zero-out",
    )


def _targets(cell: Cell, epsilon: float) -> Targets:
    if cell.startswith("record-"):
        return Targets(client_epsilon=None, record_epsilon=epsilon, record_observer="server")
    observer: Literal["server", "public"] = "server" if cell == "client-sum" else "public"
    return Targets(client_epsilon=epsilon, client_observer=observer, record_epsilon=None, record_observer="server")


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change after which a round's noise is as long as where training has taught something.

    Attributes:
        changed: In words.
        sites: What to plan then.
    """

    changed: str
    sites: Sites


def remedies(sites: Sites, length: float) -> list[Remedy]:
    """List changes each of which alone makes noise of this length as short as LEARNS; noise is known to scale so."""
    if length <= LEARNS:
        return []
    factor = length / LEARNS
    # Of micro-episodes none is begun: records behind the last whole one shorten no noise.
    more, records = math.ceil(sites.sites * factor), 2 * sites.classes * math.ceil(sites.parts * factor)
    found = [
        Remedy(changed=f"{more} sites", sites=replace(sites, sites=more)),
        Remedy(changed=f"{records:,} records at the smallest site", sites=replace(sites, least=records)),
    ]
    weights, rounds = math.floor(sites.weights / factor**2), math.floor(sites.rounds / factor**2)
    # No model has fewer than a number and a constant for each class.
    if weights >= 2 * sites.classes:
        found.append(Remedy(changed=f"a model of {weights:,} weights", sites=replace(sites, weights=weights)))
    if rounds >= 1:
        found.append(Remedy(changed=counted_words(rounds, "round"), sites=replace(sites, rounds=rounds)))
    return found


def settings_of(sites: Sites, epsilon: float, dataset: str, *, images: bool) -> dict[str, Any]:
    """Settings of a federation of these sites that promises (record, server), for a file of --config.

    Under secure sums; of two sites each adds noise of its own.
    """
    chosen: dict[str, Any] = yaml.safe_load(read_named(Path("cross-silo"), SETTINGS))
    secure = sites.sites > 2
    chosen["algo"] = "dp-agrlr-secure" if secure else "dp-agrlr-micro"
    chosen["dataset"] = dataset
    half = sites.parts
    given: dict[str, dict[str, Any]] = {
        "population": {"clients": sites.sites, "cohort": sites.sites, "kind": "real"},
        "task": {"ways": sites.classes, "shots": half, "queries": half},
        "server": {"rounds": sites.rounds},
    }
    if not images:
        # As examples/people trains four hospitals.
        given["meta"] = {"method": "maml", "order": 2, "adapt": "all", "learn": "all", "steps": 5, "lr": 0.1}
        given["model"] = {"name": "linear", "norm": "none", "features": "raw", "width": None}
        given["server"] |= {"optimizer": "adam", "beta1": 0.9, "lr": 0.1, "final_lr": 0.03}
        given["evaluation"] = {"queries": 5}
    for section, values in given.items():
        chosen[section] = chosen.get(section, {}) | values
    chosen["model"] = {key: value for key, value in chosen["model"].items() if value is not None}
    chosen["privacy"] = {
        "client": {"epsilon": None, "delta": sites.client_delta, "colluding": sites.colluding},
        "record": {"epsilon": epsilon, "delta": sites.record_delta},
    }
    if secure:
        chosen["aggregation"] = {"dropout": tolerated(sites.sites), "adversarial": _ADVERSARIAL, "bits": _BITS}
    else:
        del chosen["aggregation"]
        # The sites' own noise is what protects; a noise of the server has to be named all the same.
        chosen["server"]["noise_multiplier"] = _NEXT_TO_NONE
        chosen["privacy"]["client"]["hostile"] = 0.0
    return chosen
