"""Badge of an audit of somebody's rounds: what was found, in the words that it may be said in."""

from __future__ import annotations

import time
from pathlib import Path
from xml.sax.saxutils import escape

from dpfedmeta.auditing.audit_rounds import RoundsVerdict
from dpfedmeta.core.files.atomic_files import replace_file

_LETTER, _PADDING, _HEIGHT = 6.3, 8, 20
_GREY, _RED = "#4c566a", "#b3261e"


def badge_words(verdict: RoundsVerdict, day: str) -> str:
    """Return what a badge says: a bound and how it was found. Nothing found is no proof, so it never says private."""
    if verdict.refuted:
        return f"promise broken: epsilon >= {verdict.confirmed:.3g} at 99.9%, {verdict.runs} runs, {day}"
    return f"no violation found; lower bound {verdict.audited:.3g} at 95%, {verdict.runs} runs, {day}"


def draw_badge(path: Path, verdict: RoundsVerdict) -> None:
    """Write a badge as SVG."""
    promised = f"epsilon {verdict.promised.epsilon:g}, delta {verdict.promised.delta:g}"
    words = badge_words(verdict, time.strftime("%Y-%m-%d", time.gmtime()))
    left, right = (_LETTER * len(text) + 2 * _PADDING for text in (promised, words))
    colour, middle = (_RED if verdict.refuted else _GREY), 14
    label = escape(f"{promised}: {words}")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<rect width="{left:.0f}" height="{_HEIGHT}" fill="#2e3440"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="{_HEIGHT}" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{_PADDING}" y="{middle}">{escape(promised)}</text>'
        f'<text x="{left + _PADDING:.0f}" y="{middle}">{escape(words)}</text></g></svg>\n'
    )
    replace_file(path, svg.encode())
