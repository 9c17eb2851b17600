"""First lines of docstrings say what a thing is and for what."""

import ast
import re

from tests.parsed import modules, nodes_of

RIDDLE = re.compile(
    r"^(what|who|whose|whom|where|how|whether|from|as|with|of|one|that|everybody|nobody)\b", re.IGNORECASE
)
# The share of first lines that may begin with such a word.
MOST = 0.03


def riddles(nodes):
    """(Docstrings in all, those whose first line begins with a word that leaves open what is meant)."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, kinds)]
    written = [text.strip() for text in texts if text and text.strip()]
    return len(written), [text.splitlines()[0] for text in written if RIDDLE.match(text)]


def test_first_lines_are_no_riddles():
    count, found = riddles(node for path in modules() for node in nodes_of(path))
    assert count > 1000
    assert len(found) <= MOST * count, found


def test_a_riddle_is_found():
    sources = '"""What is asked for."""', '"""Open a plan."""\n\n\ndef f():\n    """Whose it is."""'
    assert riddles(node for text in sources for node in ast.walk(ast.parse(text))) == (
        3,
        ["What is asked for.", "Whose it is."],
    )
