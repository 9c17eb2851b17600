"""federate plan: what so many sites with so many records can be promised, what noise that costs, and what to change."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.table import Table

from dpfedmeta.accounting.rounded import asked
from dpfedmeta.cli.arguments import DONE, parser, print_json, print_line
from dpfedmeta.cli.outputs import SITE_SETTINGS, check_output
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.pydantic_errors import counted_words

if TYPE_CHECKING:
    from dpfedmeta.federation.site_plan import Cell, Sites

# Of conv3-blur of width 16 with five classes, the network of configs/federations/cross-silo.yaml.
_WEIGHTS = 5904


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Say, without data and without a server, what sites that all take part in every round can be promised.",
        settings=False,
        program="dpfedmeta federate plan",
    )
    made.add_argument("--sites", type=int, required=True, metavar="N", help="number of sites, 2 or more")
    made.add_argument(
        "--records",
        required=True,
        metavar="A..B",
        help="records of a site, from the smallest to the largest; the smallest decides how many micro-episodes a site "
        "has. Classes "
        "count as equally large: where they are not, give the rarest class's records times the number of classes",
    )
    made.add_argument("--classes", type=int, metavar="K", help="number of classes (labels of --dataset, else 2)")
    made.add_argument(
        "--weights",
        type=int,
        metavar="D",
        help=f"numbers that are learned (those of --dataset's model, else {_WEIGHTS}: a small network for images). A "
        "linear model of F numbers and K classes has (F + 1) K",
    )
    made.add_argument("--rounds", type=int, default=20, metavar="T", help="training rounds (20)")
    made.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.5, 8.0], help="epsilons to look at (1 2.5 8)")
    made.add_argument("--delta", type=float, default=1e-5, help="delta of a record (1e-5)")
    made.add_argument("--dataset", type=Path, metavar="TASK", help="the server's task file: its labels and numbers")
    made.add_argument("--out", type=Path, metavar="YAML", help="write settings for --config; goes with --dataset")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, compute, tell; write the settings."""
    options = options_of().parse_args(words)
    least, most = _range(options.records)
    if options.out is not None and options.dataset is None:
        raise InputError("--out: settings name the server's task; give --dataset TASK too")
    check_output("--out", options.out, SITE_SETTINGS, words)
    if any(not epsilon > 0 for epsilon in options.epsilon):
        raise InputError("--epsilon: expected numbers above 0")
    images, classes, weights = _of_dataset(options)
    from dpfedmeta.federation.site_plan import CELLS, Sites, noise_length

    sites = Sites(
        sites=options.sites,
        least=least,
        classes=classes,
        weights=weights,
        rounds=options.rounds,
        record_delta=options.delta,
    )
    epsilons = sorted(set(options.epsilon))
    found: dict[Cell, dict[float, float | str]] = {}
    for cell in CELLS:
        for epsilon in epsilons:
            try:
                found.setdefault(cell, {})[epsilon] = noise_length(sites, cell, epsilon)
            except RefusedPlan as error:
                found.setdefault(cell, {})[epsilon] = str(error)
    chosen = _chosen(sites, found)
    if options.json:
        print_json(
            {
                "sites": asdict(sites) | {"most": most, "parts": sites.parts},
                "noise": {
                    cell: {asked(epsilon): value for epsilon, value in row.items()} for cell, row in found.items()
                },
                "chosen": {"cell": chosen[0], "epsilon": chosen[1], "noise": chosen[2]},
            }
        )
    else:
        # Trained so far: the small network on images, as below.
        _show(console, sites, most, found, chosen, measured=images and options.weights is None)
    if options.out is not None:
        _write(options, sites, chosen[1], images, console)
    return DONE


def _range(text: str) -> tuple[int, int]:
    matched = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", text)
    if matched is None or int(matched[2] or matched[1]) < int(matched[1]):
        raise InputError(
            f"--records {text}: expected A..B, the fewest and the most records of a site, such as 300..2000"
        )
    return int(matched[1]), int(matched[2] or matched[1])


def _of_dataset(options: argparse.Namespace) -> tuple[bool, int, int]:
    """(whether records are images, number of classes, number of weights)."""
    classes, weights = options.classes, options.weights
    if options.dataset is None:
        return True, 2 if classes is None else classes, _WEIGHTS if weights is None else weights
    from dpfedmeta.data.task_file import load_task

    task, _ = load_task(str(options.dataset))
    if task.kind != "classification":
        raise InputError(f"{options.dataset}: kind = {task.kind}; this planner knows classes alone")
    if classes is None:
        classes = len(task.labels) or 2
    images = task.form.kind == "images"
    if task.form.kind not in ("images", "vectors"):
        raise InputError(f"{options.dataset}: this planner knows images and tables alone, not {task.form.kind}")
    if weights is not None:
        return images, classes, weights
    from dpfedmeta.config.load import resolve_text
    from dpfedmeta.federation.site_plan import Sites, settings_of
    from dpfedmeta.planning.privacy.secure_sum_settings import message_dimension

    rough = Sites(sites=options.sites, least=2 * classes, classes=classes, weights=1)
    text = yaml.safe_dump(settings_of(rough, 1.0, str(options.dataset), images=images))
    return images, classes, message_dimension(resolve_text(text, "federate plan"), task)


def _chosen(sites: Sites, found: dict[Cell, dict[float, float | str]]) -> tuple[Cell, float, float]:
    """(cell, epsilon, length): the smallest epsilon of a record known to teach, else that of the shortest noise."""
    from dpfedmeta.federation.site_plan import LEARNS

    cell: Cell = "record-sum" if sites.sites > 2 else "record-messages"
    lengths = {epsilon: value for epsilon, value in found[cell].items() if isinstance(value, float)}
    if not lengths:
        raise RefusedPlan(str(next(iter(found[cell].values()))))
    taught = [epsilon for epsilon, length in lengths.items() if length <= LEARNS]
    epsilon = min(taught) if taught else min(lengths, key=lengths.__getitem__)
    return cell, epsilon, lengths[epsilon]


def _word(value: float | str, *, measured: bool) -> str:
    from dpfedmeta.federation.site_plan import LEARNS, TEACHES_NOTHING

    if isinstance(value, str):
        return "refused"
    short, long = ("learns", "nothing") if measured else ("short", "long")
    said = short if value <= LEARNS else long if value >= TEACHES_NOTHING else "perhaps"
    return f"{value:.3g} {said}"


def _show(
    console: Console,
    sites: Sites,
    most: int,
    found: dict[Cell, dict[float, float | str]],
    chosen: tuple[Cell, float, float],
    *,
    measured: bool,
) -> None:
    from dpfedmeta.federation.site_plan import CELLS, LEARNS, MEASURED, TEACHES_NOTHING, remedies, tolerated

    def say(line: str) -> None:
        print_line(console, line)

    half = sites.parts
    say(
        f"{sites.sites} sites of {sites.least:,} to {most:,} records in {sites.classes} classes, "
        f"{sites.weights:,} weights, {counted_words(sites.rounds, 'round')} in which all take part"
    )
    say(
        f"each takes part with all its records, in {half} micro-episodes by a hash of each record; at the smallest "
        "site one gets 2 records of each class in the mean"
    )
    table = Table(
        title="Length of a round's noise in the mean of all, in clip bounds", title_justify="left", show_lines=False
    )
    table.add_column("who is protected, from whom")
    for epsilon in next(iter(found.values())):
        table.add_column(f"epsilon {asked(epsilon)}", justify="right")
    for cell, row in found.items():
        table.add_row(CELLS[cell], *(_word(value, measured=measured) for value in row.values()))
    console.print(table)
    what = (
        f"learns: up to {LEARNS:g}, where training has taught something; nothing: from {TEACHES_NOTHING:g}, where it "
        "has taught nothing; perhaps: not measured"
        if measured
        else f"short: up to {LEARNS:g}, at which images taught our small network something; long: from "
        f"{TEACHES_NOTHING:g}, at which a table taught nothing. For such a model and such data nothing was measured: "
        "simulate it on public people first"
    )
    say(f"{what}. Noise for (record, server) also covers (record, public), at no more")
    for reason in dict.fromkeys(value for row in found.values() for value in row.values() if isinstance(value, str)):
        say(f"refused: {reason}")
    if sites.sites > 2:
        missing = int(tolerated(sites.sites) * sites.sites + 1e-9)
        say(
            f"secure sums: {missing or 'no'} site{'' if missing == 1 else 's'} may be missing in a round, and "
            f"{sites.colluding} may tell the server what it sent"
        )
    say("measured (docs/federation.md, docs/people.md):")
    for length, words in MEASURED:
        say(f"  {length:.2f}: {words}")
    cell, epsilon, length = chosen
    say(f"chosen: {CELLS[cell]}, epsilon {asked(epsilon)}; noise {length:.3g}")
    changes = remedies(sites, length)
    if changes:
        say(f"for noise of {LEARNS:g} at this epsilon, one of these (in proportion; each command says it exactly):")
        for change in changes:
            say(f"  {change.changed}:  {_command(change.sites, epsilon)}")


def _command(sites: Sites, epsilon: float) -> str:
    words = ["dpfedmeta", "federate", "plan", "--sites", sites.sites, "--records", sites.least]
    words += [
        "--classes",
        sites.classes,
        "--weights",
        sites.weights,
        "--rounds",
        sites.rounds,
        "--epsilon",
        asked(epsilon),
    ]
    return shlex.join(str(word) for word in words)


def _write(options: argparse.Namespace, sites: Sites, epsilon: float, images: bool, console: Console) -> None:
    from dpfedmeta.config.dataset_names import task_of
    from dpfedmeta.config.load import resolve_text
    from dpfedmeta.core.files.atomic_files import replace_file
    from dpfedmeta.federation.offers.offered_settings import check_taken
    from dpfedmeta.federation.offers.work_limits import check_work
    from dpfedmeta.federation.site_plan import settings_of

    content = SITE_SETTINGS.mark.decode() + yaml.safe_dump(
        settings_of(sites, epsilon, str(options.dataset), images=images), sort_keys=False
    )
    settings = resolve_text(content, str(options.out))
    check_taken(settings)
    check_work(settings, task_of(settings)[0])
    replace_file(options.out, content.encode())
    if not options.json:
        server = shlex.join(["dpfedmeta", "federate", "server", "--keys", "operator", "--roster", "roster.txt"])
        print_line(console, f"{options.out}: settings for {server} --config {options.out}")
