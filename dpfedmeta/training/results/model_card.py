"""Model card of an ended run: README.md with the metadata that Hugging Face's hub reads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from dpfedmeta.accounting.relations.legend import RELATION_COLUMNS, relation_rows
from dpfedmeta.accounting.relations.relations import NOT_COVERED
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import with_metadata
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.version import __version__
from dpfedmeta.training.results.evaluation_store import size_and_count

if TYPE_CHECKING:
    from dpfedmeta.training.verification.verify import VerifiedRun

CARD, WEIGHTS = "README.md", "model.safetensors"
_TAGS = ("differential-privacy", "federated-learning", "meta-learning")
# Names that the hub has for the images of a built-in data set.
_ON_HUB = {"mnist-shards": "ylecun/mnist", "cifar-fs": "uoft-cs/cifar100", "fc100": "uoft-cs/cifar100"}
# By the score of a summary: (task of the hub's index, its name, metric).
_SCORES = {
    "accuracy": ("few-shot-classification", "few-shot classification", "accuracy"),
    "error": ("few-shot-regression", "few-shot regression", "mae"),
}
_LICENSE = re.compile(r"[a-z][a-z0-9]*([.+-]+[a-z0-9]+|\+)*")


def check_license(license_id: str | None, path: PurePath) -> None:
    """Refuse a license that no card could hold.

    Raises:
        InputError: It is no identifier of the hub, or there is no card.
    """
    if license_id is None:
        return
    if path.suffix == ".zip":
        raise InputError(f"--license {license_id}: a zip file has no model card; give --out a folder")
    if not _LICENSE.fullmatch(license_id) or license_id == "other":
        raise InputError(
            f"--license {license_id}: expected an identifier of Hugging Face's list of licenses, such as apache-2.0, "
            "mit or cc-by-4.0; for one of your own leave it out, and add license_name and license_link to README.md"
        )


def hub_weights(content: bytes, head: str) -> bytes:
    """Return safetensors whose metadata say what wrote them and which ledger belongs to them."""
    return with_metadata(content, {"format": "pt", "ledger_head": head, "library": f"dpfedmeta {__version__}"})


def model_card(
    name: str, summary: dict[str, Any], found: VerifiedRun, head: str, license_id: str | None = None
) -> bytes:
    """Return the card: what the run was trained on, what is promised, how to adapt and how to check it.

    Args:
        name: Name of the run.
        summary: Its summary.json.
        found: The run, verified; of a run that a private sweep chose its cells are those of the choice.
        head: Hash of the ledger's last line.
        license_id: Of the weights, as the hub names it; None: the card states none.
    """
    metadata = yaml.safe_dump(_metadata(name, summary, license_id), sort_keys=False, allow_unicode=True)
    text = "\n".join(_lines(name, summary, found, head))
    return f"---\n{metadata}---\n\n{text}\n".encode()


def _metadata(name: str, summary: Mapping[str, Any], license_id: str | None) -> dict[str, Any]:
    shown = _dataset(summary)
    made: dict[str, Any] = {} if license_id is None else {"license": license_id}
    made |= {"library_name": "dpfedmeta", "tags": [*_TAGS, str(summary["algo"])]}
    on_hub = _ON_HUB.get(str(summary["dataset"]))  # not of a file that is called so
    if on_hub is not None:
        made["datasets"] = [on_hub]
    score = next((each for each in _SCORES if summary.get(each)), None)
    if score is None:
        return made
    task, task_name, metric = _SCORES[score]
    dataset = {"name": shown, "type": on_hub or _slug(shown), "split": "test"}
    result = {"type": metric, "value": summary[score]["mean"], "name": size_and_count(summary[score]) or metric}
    results = [{"task": {"type": task, "name": task_name}, "dataset": dataset, "metrics": [result]}]
    return {**made, "metrics": [metric], "model-index": [{"name": name, "results": results}]}


def _dataset(summary: Mapping[str, Any]) -> str:
    """A name; of a path its last part, since the others say where the run was trained."""
    return PurePath(str(summary["dataset"])).stem if "/" in str(summary["dataset"]) else str(summary["dataset"])


def _begins(words: str) -> str:
    """A sentence on the encoder or the initial weights, of whose path its last part."""
    does = "" if words.startswith("begins") else "learns on the features of "
    return f" It {does}{re.sub('the body of .*/', 'the body of ', words)}."


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "own-data"


def _lines(name: str, summary: dict[str, Any], found: VerifiedRun, head: str) -> Iterator[str]:
    plan, words = found.plan, summary["begins_with"]
    begins = "" if words is None else _begins(words)
    yield f"# {name}\n"
    yield (
        f"An initialisation that adapts to a new client in a few gradient steps, trained by {summary['algo']} on "
        f"{_dataset(summary)}: {counted_words(summary['rounds'], 'round')} over {plan.clients:,} clients, "
        f"{plan.cohort:g} of them in a round on average ({plan.sampler} sampling, {plan.noise} noise).{begins}\n"
    )
    yield "## What is promised\n"
    for caution in found.proven.cautions:
        yield f"**Attention:** {caution}.\n"
    yield "| whose data | towards | epsilon | delta | adjacency |\n|---|---|---|---|---|"
    for cell in found.guarantees:
        epsilon = rounded_up(cell.epsilon, 4) if math.isfinite(cell.epsilon) else "nothing is promised"
        yield f"| {cell.unit} | {cell.observer} | {epsilon} | {asked(cell.delta)} | {cell.adjacency} |"
    rows = relation_rows(found.guarantees)
    if rows:
        yield f"\n| {' | '.join(RELATION_COLUMNS)} |\n|---|---|---|"
        yield "\n".join(f"| {' | '.join(row)} |" for row in rows)
        yield f"\nOf these: {NOT_COVERED}."
    yield "\nOther runs over the same clients add to these numbers.\n\n## How to adapt it\n"
    if any(name.startswith("error") for name in summary):
        words = "adapts it to some records of each client in a table, and judges it on the client's others."
        yield f"`dpfedmeta evaluate FOLDER --on TABLE` {words}"
    else:
        yield "```python\nimport dpfedmeta as dp\n\nmodel = dp.load(FOLDER).adapt(records, labels)  # a few of your own"
        yield "print(model.predict(records))\n```"
    yield "\n## How to check it\n"
    yield f"`dpfedmeta account --verify FOLDER` (version {__version__}) computes the table again from `ledger.jsonl`,"
    yield f"whose last line has the hash `{head}`, and compares the weights with it.\n"
    yield f"N{found.unverified[1:]}."
