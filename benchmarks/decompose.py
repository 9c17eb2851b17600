"""Cost of each noise: how well a round's aggregate keeps its noise-free direction. For simulations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from dpfedmeta.cli.arguments import DONE, given_settings, parser
from dpfedmeta.cli.outputs import PICTURE, check_output
from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run

if TYPE_CHECKING:
    from benchmarks.noise_decomposition import Decomposition

SUMMARY = "what each noise costs the direction of a round's aggregate"

_FEWEST = 10


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser(
        "What each noise costs the direction of a round's aggregate; for simulations only.",
        settings=True,
        program="dpfedmeta decompose",
    )
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,C", help="a setting and its values; may be repeated"
    )
    made.add_argument("--sample", type=int, default=100, help="clients that are looked at (default: 100)")
    made.add_argument("--bound", type=float, help="clip bound (default: C_min, where all are clipped)")
    made.add_argument("--weights", type=Path, help="measure at the weights of this run, not at the initial ones")
    made.add_argument("--out", type=Path, help="write a picture to this PNG file")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, measure every variant, tell."""
    made = options_of()
    options, _ = made.parse_known_args(words)
    given = given_settings(made, words)
    check_output("--out", options.out, PICTURE, words)
    if options.bound is not None and options.bound <= 0:
        raise InputError(f"--bound {options.bound:g}: a clip bound is greater than 0")
    if options.sample < _FEWEST:
        raise InputError(f"--sample {options.sample}: at least {_FEWEST} clients are needed")
    from dpfedmeta.planning.early_checks import check_first
    from dpfedmeta.planning.policy_from_settings import bounds_clients

    if options.weights is not None:
        check_is_run(options.weights)
    for changes in ({}, *_variants(options.vary).values()):
        settings = resolve(options.algo, options.dataset, options.config, {**given, **changes})
        check_first(settings, options.data_dir)
        if not bounds_clients(settings):
            raise InputError(f"clip.policy = {settings.clip.policy}: nothing is clipped and no noise is added")
    found = {}
    for label, changes in {"as it is": {}, **_variants(options.vary)}.items():
        found[label] = _measured(options, {**given, **changes})
    console.print(_table(found))
    if options.out is not None:
        from benchmarks.decomposition_plot import decomposition_plot

        decomposition_plot(options.out, found)
        console.print(f"picture: {options.out}", highlight=False, soft_wrap=True)
    return DONE


def _variants(vary: list[str]) -> dict[str, dict[str, str]]:
    variants = {}
    for word in vary:
        key, equals, values = word.partition("=")
        if not equals or not values:
            raise InputError(f"--vary {word}: expected a setting and its values, such as meta.steps=1,2,5")
        for value in values.split(","):
            variants[f"{key} = {value}"] = {key: value}
    return variants


def _measured(options: argparse.Namespace, given: dict[str, str]) -> Decomposition:
    import torch

    from benchmarks.noise_decomposition import decompose
    from dpfedmeta.core.files.run_directory import RunDirectory, load_weights
    from dpfedmeta.core.random.random_sources import KeyedSource
    from dpfedmeta.data.dataset import open_dataset
    from dpfedmeta.learning.models.initial_weights import check_weights
    from dpfedmeta.planning.run_plan import make_plan
    from dpfedmeta.privacy.clip_policy import clip_limits
    from dpfedmeta.training.build_data import client_side, population

    settings = resolve(options.algo, options.dataset, options.config, given)
    dataset = open_dataset(settings.dataset, options.data_dir, settings.task.ways, encoding_of_run(settings))
    plan = make_plan(settings, dataset.task)
    side = client_side(plan, population(plan, dataset, None), KeyedSource(seed=settings.run.seed), torch.device("cpu"))
    weights = plan.algorithm.initial(plan.network, settings.run.seed)
    if options.weights is not None:
        path = RunDirectory(options.weights).weights
        weights = load_weights(path)
        check_weights(plan.network, weights, str(path))
    if options.sample > plan.privacy.clients:
        raise InputError(f"--sample {options.sample}: there are {plan.privacy.clients} clients (population.clients)")
    bound = clip_limits(settings.clip)[0] if options.bound is None else options.bound
    return decompose(plan, side, plan.algorithm.learned(plan.network, weights), bound, range(options.sample))


def _table(found: dict[str, Decomposition]) -> Table:
    table = Table(
        title="cosine of a round's aggregate with its direction without noise",
        title_justify="left",
        caption="rho: agreement of messages without noise. Cosines: with neither noise,\n"
        "with that of support steps, with that of messages and aggregate, with both.\n"
        "Not private: computed from secret messages, for simulated clients only.",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in ("variant", "d", "z_s", "z", "rho", "neither", "support", "query", "both"):
        table.add_column(column, justify="left" if column == "variant" else "right", no_wrap=True)
    for label, row in found.items():
        table.add_row(
            label,
            f"{row.parameters:,}",
            "-" if row.support_noise is None else f"{row.support_noise:.3g}",
            f"{row.query_noise:.3g}",
            *(f"{value:.3f}" for value in (row.agreement, row.without, row.support_only, row.query_only, row.both)),
        )
    return table
