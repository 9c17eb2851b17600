"""The pages of the documentation, and what in them can be checked or run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What pages write for a number of the reader's.
_STANDS_FOR = {"$p": "0.1", "dropout P": "dropout 0.1", "{0..20}": "20"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some lines of a page in one typeface.

    Attributes:
        line: Of the page, from 1.
        language: What stands behind the fence; None: indented.
        text: Without indentation.
        before: The last line before it that is not empty.
    """

    page: Path
    line: int
    language: str | None
    text: str
    before: str

    @property
    def where(self) -> str:
        """page:line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced and indented blocks, from top to bottom."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number, before = 0, ""
    while number < len(lines):
        line = lines[number]
        fence = re.match(r"```(\S*)", line)
        if fence:
            end = next(each for each in range(number + 1, len(lines)) if lines[each].startswith("```"))
            yield Block(
                page=page,
                line=number + 1,
                language=fence[1],
                text="\n".join(lines[number + 1 : end]),
                before=before,
            )
            number, before = end + 1, ""
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()) and not _in_list(before):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(each[4:] for each in lines[number:end]).rstrip()
            yield Block(page=page, line=number + 1, language=None, text=text, before=before)
            number = end
        else:
            before = line if line.strip() else before
            number += 1


def _in_list(before: str) -> bool:
    return bool(re.match(r"\s*([-*]|\d+\.)\s", before))


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, words behind it) of each line that calls one of ours; of alternatives the first, nothing optional."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.match(r"(?:\.venv/bin/)?(?:python )?(?:scripts/(\w+)\.py|dpfedmeta)(?: (.*))?$", _uncommented(line))
        if found is None:
            continue
        rest = re.sub(r"\[(?:--[^]]*|[^]]*\|[^]]*)\]", "", found[2] or "")
        rest = re.sub(r" \| \S+", "", rest)
        for shown, meant in _STANDS_FOR.items():
            rest = rest.replace(shown, meant)
        words = [re.split(r"\|(?=\w)", word)[0] for word in shlex.split(rest) if word not in ("...", "&")]
        command = found[1].replace("_", "-") if found[1] else words.pop(0)
        yield command, words


def _uncommented(line: str) -> str:
    return re.sub(r"(\s|^)#.*$", "", line).strip()


def anchors(page: Path) -> set[str]:
    """Names that a link to this page may end in: GitHub's names of headings, and HTML's."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language is not None:
            text = text.replace(block.text, "") if block.text else text
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found
