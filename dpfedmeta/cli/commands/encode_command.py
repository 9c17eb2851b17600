"""Compute the features of a data set by a public encoder, once, for later runs."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, parser, print_json, print_line, settings_from
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError

SUMMARY = "compute the features of a public encoder, once"

_TAKEN = ("model.encoder", "model.encoder_weights", "model.encoder_size", "model.encoder_overlap", "task.ways")


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Compute the features of all images of a data set by a public encoder, and keep them for later runs. Training "
        "does it by itself at its first start. The encoder is that of --model.encoder (lite0), "
        "--model.encoder_weights and --model.encoder_size, as in training.",
        settings=False,
        program="dpfedmeta encode",
    )
    made.add_argument("task", help="a built-in task, a task file, or a folder of images")
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, encode, tell."""
    options, rest = options_of().parse_known_args(words)
    given = {"model.encoder": "lite0", **settings_from(rest)}
    odd = [name for name in given if name not in _TAKEN]
    if odd:
        raise InputError(f"--{odd[0]}: encode takes {', '.join('--' + name for name in _TAKEN)} only")
    settings = resolve("maml", options.task, None, given)
    from dpfedmeta.config.dataset_names import encoding_of_run
    from dpfedmeta.data.dataset import open_dataset

    encoding = encoding_of_run(settings)
    if encoding is None:
        raise InputError("--model.encoder null: nothing to encode with; name an encoder")
    begun = time.monotonic()
    dataset = open_dataset(settings.dataset, options.data_dir, settings.task.ways, encoding)
    seconds = time.monotonic() - begun
    pools = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    images = {name: pool.size for name, pool in pools.items()}
    if options.json:
        content = {"encoder": encoding.name, "digest": encoding.digest, "file": str(dataset.train.path)}
        print_json({**content, "features": encoding.card.features, "images": images, "seconds": seconds})
        return DONE
    counted = ", ".join(f"{count:,} in {name}" for name, count in images.items())
    for line in (
        f"{dataset.task.name}: {encoding.facts(dataset.task.name).words}",
        f"  {encoding.card.features} features of each image ({counted}), digest {encoding.digest[:16]}",
        f"  {seconds:.0f} s; kept in {dataset.train.path}",
    ):
        print_line(console, line)
    return DONE
