"""A personal model as files that other programs read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, parser, print_line
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.new_folder import write_folder
from dpfedmeta.core.files.run_checks import check_outside_runs

SUMMARY = "a personal model as safetensors and JSON, and as ONNX, for other programs"


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Write a client's own model for programs without dpfedmeta: model.safetensors holds the weights, model.json "
        "the names of columns, constants, labels and what stands for missing values. --onnx adds model.onnx, which "
        "takes records as they stand in a table (float64), or images as bytes, and was run beside the model.",
        settings=False,
        program="dpfedmeta export",
    )
    made.add_argument("model", type=Path, help="file of PersonalModel.save, such as HOME/personal.safetensors")
    made.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="new folder, for this user alone")
    made.add_argument("--onnx", action="store_true", help="a graph besides (the extra onnx)")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, read, write all files or none."""
    options = options_of().parse_args(words)
    check_outside_runs("--out", options.out)
    if options.out.exists():
        raise InputError(f"--out {options.out}: is there already; name a new folder")
    if not options.model.exists():
        raise InputError(f"{options.model}: not there")
    from dpfedmeta.training.personal.export_model import exported
    from dpfedmeta.training.personal.personal_model import load_personal

    files = exported(load_personal(options.model), onnx=options.onnx)
    try:
        write_folder(options.out, files, SECRET)
    except OSError as error:
        raise InputError(f"--out {options.out}: cannot be written ({error.strerror})") from error
    print_line(console, f"{options.out}: {', '.join(files)}; as private as the model itself")
    return DONE
