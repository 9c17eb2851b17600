"""What a federation of hospitals brings: trained together, each alone, all data in one place, and without noise.

    python examples/hospitals/compare.py --out hospitals            # everything
    python examples/hospitals/compare.py --out hospitals --only federation --rounds 50

Each line of the table is one training, whose command is printed first; what is there already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

PRESET = Path(str(files("dpfedmeta.configs").joinpath("federations/cross-silo.yaml")))
# 7,200 records a hospital: 12 of its classes with all 600 images, in 480 micro-episodes of 5 classes with 2 + 1 images.
HELD = ["--ways", "12", "--shots", "300", "--task.queries", "300", "--aggregation.bits", "20", "--meta.divisions", "3"]
HELD += ["--record.micro_ways", "5", "--record.micro_shots", "2", "--record.micro_queries", "1"]
# The network of all trainings and its public first weights, which procedural images taught. At --model.first_gain 1 ten
# rounds of the federation ended below where they began (validation classes).
NETWORK = ["--model.name", "conv3-blur", "--model.width", "16", "--model.downscale", "1"]
NETWORK += ["--model.initial", "textures", "--model.first_gain", "8"]
# As somebody would have it who adapts the result to five pictures of each of five things.
JUDGED = ["--evaluation.ways", "5", "--evaluation.shots", "5"]
# Without privacy: nothing of it leaves the hospital.
ALONE = ["--algo", "maml", "--ways", "5", "--shots", "5", "--task.queries", "5", "--meta.divisions", "5"]
ALONE += ["--cohort", "16", "--server.lr", "0.006", "--server.final_lr", "0.0002"]
# A tenth of what a record's 2.5 takes here.
NEXT_TO_NO_NOISE = ["--privacy.record.epsilon", "null", "--noise-multiplier", "0.0015"]
SPENT = "cpu_seconds.json"


@dataclass(frozen=True, kw_only=True)
class Training:
    """One line of the table.

    Attributes:
        name: Of the run.
        words: Of the command, after `dpfedmeta train`.
    """

    name: str
    words: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> None:
    """Write the folders where they are not there, train, show the table."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--out", type=Path, default=Path("hospitals"), help="folder for images and runs")
    made.add_argument("--dataset", default="cifar-fs", help="a benchmark of images (default: cifar-fs)")
    made.add_argument("--rounds", type=int, help="of the federation (default: the preset's)")
    made.add_argument("--alone-rounds", type=int, default=150, help="of each hospital alone, 16 episodes each (150)")
    made.add_argument("--together-rounds", type=int, default=750, help="of all data in one place (750)")
    made.add_argument("--only", nargs="+", metavar="NAME", help="trainings whose names begin so (default: all)")
    made.add_argument("more", nargs="*", help="further settings for all trainings, after --")
    options = made.parse_args(words)
    data = options.out / "data"
    if not data.exists():
        split = [sys.executable, str(Path(__file__).with_name("split.py")), "--dataset", options.dataset]
        subprocess.run([*split, "--out", str(data)], check=True)
    chosen = [each for each in trainings(data, options) if _is_wanted(each.name, options.only)]
    for each in chosen:
        _train(each, options.out / "runs", options.more)
    print(table(options.out / "runs", chosen))


def trainings(data: Path, options: argparse.Namespace) -> list[Training]:
    """Everything that is compared."""
    federation = ["--config", str(PRESET), "--clients", "5", "--cohort", "5", "--dataset", str(data / "hospitals.yaml")]
    federation += HELD + NETWORK + ([] if options.rounds is None else ["--rounds", str(options.rounds)])
    found = [
        Training(name="federation", words=(*federation, *JUDGED)),
        Training(name="federation-without-noise", words=(*federation, *NEXT_TO_NO_NOISE, *JUDGED)),
    ]
    for task in sorted(data.glob("alone-*.yaml")):
        own = ["--dataset", str(task), "--rounds", str(options.alone_rounds), *NETWORK]
        found.append(Training(name=task.stem, words=(*ALONE, *own)))
    one_place = ["--dataset", str(data / "together.yaml"), "--rounds", str(options.together_rounds), *NETWORK]
    return [*found, Training(name="together", words=(*ALONE, *one_place))]


def _is_wanted(name: str, only: Sequence[str] | None) -> bool:
    return only is None or any(name.startswith(beginning) for beginning in only)


def _train(training: Training, runs: Path, more: Sequence[str]) -> None:
    if (runs / training.name / SPENT).is_file():
        return
    words = ["train", *training.words, "--evaluation.every", "1000", "--run.workers", "1", *more]
    words += ["--run.dir", str(runs), "--run.name", training.name]
    print("dpfedmeta", shlex.join(words), flush=True)
    before = _children_seconds()
    subprocess.run([sys.executable, "-m", "dpfedmeta", *words], check=True)
    (runs / training.name / SPENT).write_text(json.dumps(_children_seconds() - before))


def _children_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def table(runs: Path, trainings: Sequence[Training]) -> str:
    """Accuracy on test classes, as Markdown."""
    rows = ["| training | test accuracy | before training | CPU minutes, evaluation included |", "|---|---|---|---|"]
    for each in trainings:
        summary = json.loads((runs / each.name / "summary.json").read_text())
        found, untrained = (_percent(summary[name]) for name in ("accuracy", "accuracy_untrained"))
        minutes = json.loads((runs / each.name / SPENT).read_text()) / 60
        rows.append(f"| {each.name} | {found} | {untrained} | {minutes:.1f} |")
    return "\n".join(rows)


def _percent(found: dict[str, float]) -> str:
    return f"{100 * found['mean']:.1f}% ± {100 * found['ci95']:.1f}"


if __name__ == "__main__":
    main()
