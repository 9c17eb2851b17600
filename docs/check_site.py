"""Follow every link and anchor of a built site, and refuse what it would load from elsewhere.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself, so that a page would not be whole without a network.
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}


class Page(HTMLParser):
    """What a page names and what it points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        held = {name: value or "" for name, value in attrs}
        self.names.update(held[name] for name in ("id", "name") if name in held)
        if tag == "a" and "href" in held:
            self.links.append(held["href"])
        elif tag in _LOADS and _LOADS[tag] in held:
            self.loads.append(held[_LOADS[tag]])


def problems(site: Path) -> Iterator[str]:
    """What is wrong, a line each."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no pages"
    for path, page in pages.items():
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{path.name}: loads {target}"
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                yield f"{path.name}: {target}: there is no such file"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].names:
                yield f"{path.name}: {target}: there is no such anchor"
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            yield f"{style.name}: loads from elsewhere"


def main() -> int:
    """Print what is wrong."""
    found = list(problems(Path(sys.argv[1])))
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
