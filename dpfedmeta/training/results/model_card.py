"""Model card of an ended run: README.md with the metadata that Hugging Face's hub reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import yaml

from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.version import __version__
from dpfedmeta.training.results.evaluation_store import size_and_count

if TYPE_CHECKING:
    from dpfedmeta.training.verification.verify import VerifiedLedger

CARD, WEIGHTS = "README.md", "model.safetensors"
_TAGS = ("differential-privacy", "federated-learning", "meta-learning")


def model_card(name: str, summary: dict[str, Any], found: VerifiedLedger, head: str) -> bytes:
    """Return the card: what the run was trained on, what is promised, how to adapt and how to check it.

    Args:
        name: Name of the run.
        summary: Its summary.json.
        found: The run, verified; of a run that a private sweep chose its cells are those of the choice.
        head: Hash of the ledger's last line.
    """
    metadata = yaml.safe_dump(_metadata(name, summary), sort_keys=False, allow_unicode=True)
    text = "\n".join(_lines(name, summary, found, head))
    return f"---\n{metadata}---\n\n{text}\n".encode()


def _metadata(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"library_name": "dpfedmeta", "tags": [*_TAGS, str(summary["algo"])]}
    if accuracy := summary.get("accuracy"):
        dataset = {"name": str(summary["dataset"]), "type": str(summary["dataset"])}
        metric = {"name": size_and_count(accuracy), "type": "accuracy", "value": accuracy["mean"]}
        task = {"type": "few-shot-classification"}
        made["model-index"] = [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": [metric]}]}]
    return made


def _lines(name: str, summary: dict[str, Any], found: VerifiedLedger, head: str) -> Iterator[str]:
    plan = found.plan
    begins = f" It {summary['begins_with']}." if summary.get("begins_with") else ""
    yield f"# {name}\n"
    yield (
        f"An initialisation that adapts to a new client in a few gradient steps, trained by {summary['algo']} on "
        f"{summary['dataset']}: {summary['rounds']} rounds over {plan.clients:,} clients, {plan.cohort:g} of them in a "
        f"round on average ({plan.sampler} sampling, {plan.noise} noise).{begins}\n"
    )
    yield "## What is promised\n"
    for caution in filter(None, (found.simulation, found.chosen, found.word)):
        yield f"**Attention:** {caution}.\n"
    yield "| whose data | towards | epsilon | delta | adjacency |\n|---|---|---|---|---|"
    for cell in found.guarantees:
        epsilon = rounded_up(cell.epsilon, 4) if math.isfinite(cell.epsilon) else "nothing is promised"
        yield f"| {cell.unit} | {cell.observer} | {epsilon} | {asked(cell.delta)} | {cell.adjacency} |"
    yield "\nOther runs over the same clients add to these numbers.\n\n## How to adapt it\n"
    yield "```python\nimport dpfedmeta as dp\n\nmodel = dp.load(FOLDER).adapt(records, labels)  # a few of your own"
    yield "print(model.predict(records))\n```\n\n## How to check it\n"
    yield f"`dpfedmeta account --verify FOLDER` (version {__version__}) computes the table again from `ledger.jsonl`,"
    yield f"whose last line has the hash `{head}`."
