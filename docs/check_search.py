"""Ask the built site's search for what readers look for, and refuse a site that hides the right page.

python docs/check_search.py docs/_build/html [QUERY ...]

The search is Sphinx's (searchtools.js in a browser) with the weights of search_scorer.js. `found` computes the same
order from the same index.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from sphinx.search.en import SearchEnglish

DOCS = Path(__file__).parent
FIRST = 3
# What readers type, and the pages that answer. One of them has to be among the first three.
QUERIES = {
    "hospital csv": ("start/engineer", "how-to/hospitals", "federation"),
    "hospital": ("start/engineer", "how-to/hospitals"),
    "own network": ("extending",),
    "own data": ("own-data",),
    "own training loop": ("kernel",),
    "epsilon meaning": ("explanation/four-cells", "tutorials/privacy", "start/privacy-officer"),
    "W&B sweep": ("sweeps",),
    "wandb": ("tracking", "sweeps"),
    "resume": ("how-to/train", "failures"),
    "crash": ("failures",),
    "install": ("how-to/install",),
    "GPU": ("performance",),
    "glossary": ("reference/glossary",),
    "support set": ("reference/glossary", "tutorials/meta-learning"),
    "clip bound": ("reference/glossary", "policies"),
    "noise multiplier": ("reference/glossary", "tutorials/privacy"),
    "adjacency": ("explanation/four-cells", "reference/glossary"),
    "secure aggregation": ("secure-aggregation",),
    "verify ledger": ("start/privacy-officer", "reference/files", "how-to/train"),
    "privacy officer": ("start/privacy-officer",),
    "what is not guaranteed": ("explanation/not-promised",),
    "proof": ("guarantees",),
    "Omniglot download": ("how-to/benchmarks",),
    "compare runs": ("how-to/train", "evaluation"),
    "upgrade": ("how-to/upgrade", "project/changelog"),
    "Opacus": ("explanation/other-libraries",),
    "Flower": ("federation", "kernel", "explanation/other-libraries"),
    "torchrun": ("cluster",),
    "Prometheus": ("how-to/operate",),
    "clip policy": ("policies", "extending"),
    "which algorithm": ("explanation/which-algorithm",),
    "audit canary": ("auditing",),
    "encoder": ("encoders",),
    "exit codes": ("reference/commands",),
    "DPFEDMETA_DATA": ("how-to/benchmarks", "reference/files"),
}
# As in searchtools.js.
_TITLE, _PART_OF_TITLE, _TERM, _PART_OF_TERM = 15, 7, 5, 2
_NAME, _PART_OF_NAME, _IMPORTANCE = 11, 6, (15, 5, -5)
Result: TypeAlias = tuple[int, str, str, int]  # file, title, anchor, score
_ENGLISH = SearchEnglish({})


def weights() -> dict[str, int]:
    """What search_scorer.js adds to the results of a page."""
    found = re.search(r"const weights = (\{.*?\});", (DOCS / "search_scorer.js").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def found(index: dict[str, Any], query: str, added: dict[str, int]) -> list[str]:
    """Pages in the order in which the search shows them, one for each line of the result."""
    lower = query.lower().strip()
    best: dict[tuple[str, str, str], int] = {}
    for file, title, anchor, score in (
        *_by_headings(index, lower),
        *_by_entries(index, lower),
        *_by_names(index, lower),
        *_by_words(index, lower),
    ):
        line = index["docnames"][file], title, anchor
        best[line] = max(best.get(line, -100), score + added.get(line[0], 0))
    return [page for page, _, _ in sorted(best, key=lambda line: (-best[line], line[1].lower()))]


def _by_headings(index: dict[str, Any], lower: str) -> Iterator[Result]:
    for title, places in index["alltitles"].items():
        if lower in title.lower().strip() and len(lower) >= len(title) / 2:
            for file, anchor in places:
                whole = index["titles"][file] == title
                shown = title if whole else f"{index['titles'][file]} > {title}"
                yield file, shown, anchor or "", int(_TITLE * len(lower) / len(title) + 0.5) + whole


def _by_entries(index: dict[str, Any], lower: str) -> Iterator[Result]:
    """Main entries of the index (site_pages.py makes no others)."""
    for entry, places in index["indexentries"].items():
        if lower in entry and len(lower) >= len(entry) / 2:
            for file, anchor, main in places:
                if main:
                    yield file, index["titles"][file], anchor, int(100 * len(lower) / len(entry) + 0.5)


def _by_names(index: dict[str, Any], lower: str) -> Iterator[Result]:
    """Classes and functions of the reference."""
    typed = set(_split(lower))
    for prefix, objects in index["objects"].items():
        for file, kind, importance, anchor, name in objects:
            full = f"{prefix}.{name}" if prefix else name
            last = full.lower().rpartition(".")[2]
            around = f"{prefix} {name} {index['objnames'][str(kind)][2]} {index['titles'][file]}".lower()
            for word in typed:
                if word in full.lower() and all(other in around for other in typed - {word}):
                    match = _NAME if word in (full.lower(), last) else _PART_OF_NAME if word in last else 0
                    yield file, full, anchor, match + _IMPORTANCE[importance]


def _by_words(index: dict[str, Any], lower: str) -> Iterator[Result]:
    """Pages that have every word."""
    typed = [each for each in _split(lower) if not each.isdigit() and each not in _ENGLISH.stopwords]
    words = dict.fromkeys(_ENGLISH.stem(each) for each in typed)
    scores: dict[int, dict[str, int]] = {}
    for word in words:
        for files, score in _matches(index, word):
            for file in [files] if isinstance(files, int) else files:
                scores.setdefault(file, {})[word] = score
    enough = {len(words), sum(len(word) > 2 for word in words)}
    yield from (
        (file, index["titles"][file], "", max(each.values())) for file, each in scores.items() if len(each) in enough
    )


def _split(text: str) -> list[str]:
    return [each for each in re.split(r"\W+", text) if each]


def _matches(index: dict[str, Any], word: str) -> Iterator[tuple[Any, int]]:
    """(files, score): where the word stands as it is, then where within others; a later one replaces an earlier one."""
    for name, score in (("terms", _TERM), ("titleterms", _TITLE)):
        if word in index[name]:
            yield index[name][word], score
    for name, score in (("terms", _PART_OF_TERM), ("titleterms", _PART_OF_TITLE)):
        if len(word) > 2 and word not in index[name]:
            yield from ((files, score) for term, files in index[name].items() if word in term)


def index_of(site: Path) -> dict[str, Any]:
    """The index that the search of a built site loads."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    return dict(json.loads(text.removeprefix("Search.setIndex(").removesuffix(")")))


def hidden(index: dict[str, Any]) -> Iterator[str]:
    """Queries that do not find their page, a line each."""
    for query, right in QUERIES.items():
        first = found(index, query, weights())[:FIRST]
        if not set(first) & set(right):
            yield f"search for {query!r} shows {', '.join(first) or 'nothing'}, not {' or '.join(right)}"


def main() -> int:
    """Print what is hidden, or what a query finds."""
    index = index_of(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        print("\n".join(found(index, " ".join(sys.argv[2:]), weights())))
        return 0
    lines = list(hidden(index))
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
