"""Measure the sentences of pages, and refuse pages with long ones.

python docs/check_prose.py            the pages that fail, with their sentences
python docs/check_prose.py --all      a line for each page: longest sentence, and the longest median of a paragraph
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
LONGEST = 38  # words of a sentence
MEDIAN = 25  # median words of the sentences of a paragraph
# Not rewritten yet. A page that fits has to leave the list.
LEFT: tuple[str, ...] = ()
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|cf|vs)\.(?=\s)")
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


def pages() -> list[Path]:
    """README and its neighbours, and every page of the site."""
    beside = (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
    return [*beside, *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]


def paragraphs(text: str) -> Iterator[str]:
    """Prose of a page as a reader sees it: no code, no table, no heading; a piece of code in a line is one word."""
    skipped = 0
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        skipped += (token.type in ("table_open", "heading_open")) - (token.type in ("table_close", "heading_close"))
        if token.type == "inline" and not skipped and before is not None and before.type == "paragraph_open":
            yield _seen(token.children or [])


def _seen(children: list[Token]) -> str:
    shown = {"code_inline": "code", "softbreak": " ", "hardbreak": " "}
    return "".join(shown.get(each.type, each.content if each.type == "text" else "") for each in children)


def sentences(paragraph: str) -> list[str]:
    """Its sentences; a colon or a semicolon ends none."""
    whole = _ABBREVIATIONS.sub(r"\1", paragraph)
    return [each for each in (part.strip() for part in _END.split(whole)) if _words(each)]


def _words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def measured(text: str) -> tuple[int, float]:
    """(words of the longest sentence, longest median of a paragraph)."""
    lengths = [[_words(each) for each in sentences(paragraph)] for paragraph in paragraphs(text)]
    lengths = [each for each in lengths if each]
    return max((max(each) for each in lengths), default=0), max(
        (statistics.median(each) for each in lengths), default=0
    )


def faults(text: str) -> Iterator[str]:
    """Sentences and paragraphs of a page that are too long, a line each."""
    for paragraph in paragraphs(text):
        found = sentences(paragraph)
        yield from (f"{_words(each)} words: {each}" for each in found if _words(each) > LONGEST)
        if found and statistics.median(map(_words, found)) > MEDIAN:
            yield f"a median of {statistics.median(map(_words, found)):g} words: {paragraph}"


def main() -> int:
    """Print what is too long."""
    wrong = 0
    for page in pages():
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
        if "--all" in sys.argv:
            longest, median = measured(text)
            print(f"{longest:4d} {median:5.1f} {len(list(faults(text))):4d}  {name}")
        elif name not in LEFT:
            for line in faults(text):
                wrong += 1
                print(f"error: {name}: {line}", file=sys.stderr)
        elif not list(faults(text)):
            wrong += 1
            print(f"error: {name} fits: take it from LEFT in docs/check_prose.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
