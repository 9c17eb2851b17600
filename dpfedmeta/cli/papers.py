"""Papers of a plan or a run: what registries, authorities and users of a model ask, filled in from plan and ledger."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from dpfedmeta.accounting.dp_events import events_for_others
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, ServerSees
from dpfedmeta.accounting.release_costs import rounds_seen
from dpfedmeta.accounting.right_guesses import protects
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli.arguments import DONE, print_json, print_line
from dpfedmeta.cli.run_statement import NOT_PROMISED, cell_lines, done_words, others_words, unit_words
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.core.files.new_folder import write_folder
from dpfedmeta.core.version import __version__
from dpfedmeta.data.episodes.shape import Clients
from dpfedmeta.data.task import Task, holds_rows
from dpfedmeta.planning.caveats import dishonest_words, simulation_words, who_the_clients_are

TO_FILL_IN = "TO FILL IN"
_DIGITS = 4
_FACT = re.compile(r"\{(\w+)\}")
# Who held the records of clients that were played by one machine is said with the cautions (who_the_clients_are).
_HELD: Mapping[Clients, str] = {
    "real": "Each client keeps its records, and sends one vector in a round that it is in.",
    "named": "The clients are those that the data name.",
    "simulated": "The clients are simulated.",
    "unknown": "Who the clients are stands in no ledger: whoever ran it says so.",
}

# What the server sees of a round, and which other clients are the public.
_SEEN: Mapping[ServerSees, tuple[str, str]] = {
    "messages": ("every message, and who sent it", ", other clients too"),
    "sum": ("only the sum of a round", " and was in no round; towards a round's clients the server's numbers hold"),
}


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account of a plan, or of a run whose ledger was verified: all that its papers state.

    Attributes:
        name: For people; no path.
        plan: The plan.
        cells: The cells to state: those of `phases`, or of a choice among runs.
        phases: What was charged; of a plan, or of a run that may go on and costs more then, what is planned.
        rounds: Rounds that were charged; None: it is a plan alone.
        head: Hash of the ledger's last line; None likewise.
        stage: How the run stands or ended.
        cautions: What is to be said above all.
        unverified: What no comparison with the ledger shows.
        product: What is released: a kind of the registry.
        clients: Who the clients are, by the settings.
        simulation: Whether somebody chose the noise seed.
        register: The one that it is counted in with other runs.
        chosen: Whether a private sweep chose the run: its cells count the choice, its phases do not.
    """

    name: str
    plan: PrivacyPlan
    cells: tuple[Guarantee, ...]
    phases: tuple[Phase, ...]
    rounds: int | None = None
    head: str | None = None
    stage: str = "planned"
    cautions: tuple[str, ...] = ()
    unverified: str = "not verified: no run was made of this plan"
    product: str = "Machine learning model"
    clients: Clients
    simulation: bool = False
    register: str | None = None
    chosen: bool = False


def account_of_plan(settings: Settings, plan: PrivacyPlan, notes: Sequence[str]) -> Account:
    """The account of a plan that no run was made of.

    Args:
        settings: What the plan was solved from.
        plan: The plan.
        notes: Its cautions.
    """
    simulation, clients = simulation_words(settings.run.noise_seed), clients_of(settings, task_of(settings)[0])
    said = (simulation, who_the_clients_are(settings.population.kind, clients), *notes)
    return Account(
        name=f"{settings.algo} on {Path(settings.dataset).stem}",
        plan=plan,
        cells=guarantees(plan),
        phases=plan.phases,
        cautions=tuple(filter(None, said)),
        register=settings.population.register,
        clients=clients,
        simulation=simulation is not None,
    )


def clients_of(settings: Settings, task: Task) -> Clients:
    """Return whose the clients of a plan are: of a federation, of somebody's own data that name them, or nobody's."""
    kind = settings.population.kind
    return "real" if kind == "real" else "named" if holds_rows(kind, task) else "simulated"


def papers_of(account: Account) -> dict[str, str]:
    """The papers by the names of their files.

    Guarantee:
        Every number is one of the account's cells, rounded up, with unit, observer, delta and adjacency beside it. The
        registry's own number is stated only where it protects people: clients with data of their own, a noise seed that
        nobody chose, and a bound towards everybody that means something.

    Raises:
        InputError: Nothing is promised in any cell.
    """
    if not any(math.isfinite(cell.epsilon) for cell in account.cells):
        raise InputError(f"--papers: {account.name} promises nothing in any cell, so there is nothing to state")
    template = yaml.safe_load((resources.files(__package__) / "papers.yaml").read_text(encoding="utf-8"))
    known = _facts(account)
    return {name: _text(_filled(each, known)) for name, each in template.items()}


def events_of(account: Account) -> str:
    """JSON of the rounds as an event that dp-accounting reads, with the epsilon that it computes from it.

    Guarantee:
        What dp-accounting computes from it bounds (client, public) of the account: see `events_for_others`.

    Raises:
        InputError: dp-accounting would give another number than what holds.
    """
    cell, event = account.cells[0], None
    if not account.chosen and math.isfinite(cell.epsilon):
        event = events_for_others((*account.plan.before, *account.phases), cell.delta)
    if event is None:
        why = "a choice among runs costs more than its rounds" if account.chosen else "it has no event of such rounds"
        raise InputError(f"--events: dp-accounting cannot account for {account.name}: {why}; leave --events out")
    of = {"unit": cell.unit, "observer": cell.observer, "adjacency": cell.adjacency}
    promised = {"epsilon": cell.epsilon, "delta": cell.delta}
    content = {"attention": account.cautions, "stage": account.stage, "of": of, "promised": promised, **event}
    return json.dumps(content, indent=1) + "\n"


def _filled(node: Any, known: Mapping[str, Any]) -> Any:
    """The template with its facts; a field that is one fact alone keeps the fact's type, and goes where it is None."""
    if isinstance(node, Mapping):
        made = {name: _filled(each, known) for name, each in node.items()}
        return {name: each for name, each in made.items() if each is not None}
    if isinstance(node, list):
        return [_filled(each, known) for each in node]
    if not isinstance(node, str):
        return node
    alone = _FACT.fullmatch(node)
    return known[alone[1]] if alone else node.format_map(known)


class _Lines(yaml.SafeDumper):
    """YAML in which a text of several lines is written as it reads."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Whole lines after a bar, any other text as ever."""
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Lines.add_representer(str, _Lines.represent_str)


def _text(content: Any) -> str:
    return yaml.dump(content, Dumper=_Lines, sort_keys=False, width=110)


def _facts(account: Account) -> dict[str, Any]:
    """Every fact by its name in the template."""
    plan, cells = account.plan, account.cells
    rounds = plan.rounds if account.rounds is None else account.rounds
    hashed = "" if account.head is None else f", whose last line has the hash {account.head}"
    sees, others = _SEEN[plan.server_sees]
    stated = _towards_all(cells) or cells[0]
    units = f"{plan.clients:,} clients" if stated.unit == "client" else f"the {plan.clients:,} clients' n records"
    failures = rounded_up(stated.delta * plan.clients, 2) if stated.unit == "client" else f"n x {asked(stated.delta)}"
    return _of_cells(account) | {
        "version": __version__,
        "name": account.name,
        "slug": re.sub(r"[^a-z0-9]+", "-", account.name.lower()).strip("-"),
        "product": account.product,
        "clients": f"{plan.clients:,}",
        "cautions": list(account.cautions),
        "attention": "".join(f"Attention: {each}. " for each in account.cautions),
        "status": "A plan: nothing was spent yet." if account.rounds is None else f"A run: {account.stage}.",
        "done": f"{'To be done' if account.rounds is None else 'Done'}: {done_words(plan, rounds)}.",
        "held": _HELD[account.clients],
        "head": account.head,
        "unverified": f"N{account.unverified[1:]}.",
        "check": f"`dpfedmeta account --verify RUN` computes all numbers again from the ledger{hashed}.",
        "mechanisms": f"Every contribution is bounded, then noise is added: {rounds_seen(account.phases)}. "
        f"dpfedmeta {__version__}; dp-accounting is asked for a second opinion. Nobody outside has reviewed "
        f"protocol and accountant. Of clients: {dishonest_words(plan)}.",
        "trust": f"The server follows the protocol and is curious; it sees {sees}.",
        "tuning": "Settings that were tried on these clients cost privacy, each try as much as a run.",
        "public": "validation and test data, and accuracies on them",
        "observers": f"Observers: the server, and the public: whoever sees what is released{others}.",
        "others": others_words(plan, account.register),
        "limits": f"{NOT_PROMISED} No guarantee covers a model that somebody adapted for themselves.",
        "deltas": f"Delta of {stated.name} is the probability of a failure for one {stated.unit}: over {units}, "
        f"{asked(stated.delta)} allows {failures} failures on average.",
    }


def _towards_all(cells: Sequence[Guarantee]) -> Guarantee | None:
    """The cell that a registry states: of clients before records, where it protects them from everybody."""
    found = [each for each in cells if each.observer == "public" and protects(each.epsilon, each.delta)]
    return min(found, key=lambda each: each.unit, default=None)


def _between(cell: Guarantee) -> str:
    """Words for the difference of two neighbouring worlds, with the relation's name once."""
    words, name = unit_words(cell), f"({cell.adjacency})"
    return words if words.endswith(name) else f"{words} {name}"


def _of_cells(account: Account) -> dict[str, Any]:
    plan, cells = account.plan, account.cells
    first = _towards_all(cells)
    of_people = account.clients in ("real", "named") and not account.simulation
    number = _stated(first) if first is not None and of_people else None
    promises = "\n".join(cell_lines(cells, plan.server_sees))
    chosen = "No unit is protected towards the public."
    if first is not None:
        chosen = f"Stated for {first.name}: {_between(first)}."
    return {
        "cells": [_stated(cell) for cell in cells],
        "promises": promises,
        "stated": "\n".join([*(f"Attention: {each}." for each in account.cautions), promises]),
        "composition": "\n".join(f"- {cell.name}: {cell.binding.event}; {cell.binding.formula}." for cell in cells),
        "adjacencies": "; ".join(f"{cell.name}: {_between(cell)}" for cell in cells) + ".",
        "parameters": number and {"epsilon": number["epsilon"], "delta": number["delta"]},
        "variant": first and "Approximate DP",
        "unit": "none is protected towards the public" if first is None else f"one {first.unit}",
        "unit_details": f"{chosen} A client is all that one client holds; a record is one row or one image of it.",
    }


def _stated(cell: Guarantee) -> dict[str, Any]:
    """A cell as data: rounded up, null where nothing is promised."""
    promised = math.isfinite(cell.epsilon)
    return {
        "unit": cell.unit,
        "towards": cell.observer,
        "epsilon": float(rounded_up(cell.epsilon, _DIGITS)) if promised else None,
        "delta": float(asked(cell.delta)),
        "adjacency": cell.adjacency,
        "relations": {
            name: float(rounded_up(each, _DIGITS)) if math.isfinite(each) else None
            for name, each in cell.relations.items()
        },
    }


def write_all(console: Console, options: argparse.Namespace, of: Account) -> int:
    """Write the papers and the events that the options name, and say which files."""
    papers = {} if options.papers is None else papers_of(of)
    if options.papers is not None and (options.papers.exists() or not options.papers.parent.is_dir()):
        raise InputError(f"--papers {options.papers}: expected the name of a new folder, in a folder that exists")
    events = None if options.events is None else events_of(of)
    if papers:
        write_folder(options.papers, {name: text.encode() for name, text in papers.items()})
    if events is not None:
        replace_file(options.events, events.encode())
    made = [*(options.papers / name for name in papers), *([] if events is None else [options.events])]
    left = sum(text.count(TO_FILL_IN) for text in papers.values())
    if options.json:
        print_json({"written": [str(path) for path in made], "to_fill_in": left})
        return DONE
    for line in (*(f"Attention: {each}" for each in of.cautions), *map(str, made)):
        print_line(console, line)
    if left:
        console.print(f'"{TO_FILL_IN}" stands {left} times in them, where no ledger knows', highlight=False)
    if events is not None:
        read = json.loads(events)["read_by"]
        said = f"{read['accountant']} of dp-accounting reads epsilon {rounded_up(read['epsilon'])} from it"
        if read["arguments"]["neighboring_relation"] == "REPLACE_ONE":
            # Its accountant of losses takes no sampling without replacement.
            promised = rounded_up(of.cells[0].epsilon)
            said += f", for our {promised}: of cohorts of a fixed size it has RDP alone, which bounds more loosely"
        print_line(console, f"{options.events}: {said}")
    return DONE
