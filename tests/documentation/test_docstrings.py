"""First lines of docstrings say what a thing is and for what."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dpfedmeta"
RIDDLE = re.compile(
    r"^(what|who|whose|whom|where|how|whether|from|as|with|of|one|that|everybody|nobody)\b", re.IGNORECASE
)
# The share of first lines that may begin with such a word.
MOST = 0.03


def riddles(sources):
    """(Docstrings in all, those whose first line begins with a word that leaves open what is meant)."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        ast.get_docstring(node) for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)
    ]
    written = [text for text in texts if text]
    return len(written), [text.splitlines()[0] for text in written if RIDDLE.match(text)]


def test_first_lines_are_no_riddles():
    count, found = riddles(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert count > 1000
    assert len(found) <= MOST * count, found


def test_a_riddle_is_found():
    assert riddles(['"""What is asked for."""', '"""Open a plan."""\n\n\ndef f():\n    """Whose it is."""']) == (
        3,
        ["What is asked for.", "Whose it is."],
    )
