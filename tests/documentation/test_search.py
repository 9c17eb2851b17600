"""The site's search, on an index made up here; `make docs` asks the index of the built site."""

import importlib.util

import pytest
from pages import ROOT

pytest.importorskip("sphinx", reason="pip install '.[docs]'")

INDEX = {
    "docnames": ["kernel", "project/changelog", "reference/api", "guarantees", "policies"],
    "titles": ["The kernel", "Changelog", "The API", "Guarantees", "Policies"],
    "alltitles": {"The kernel": [[0, None]], "A loop of your own": [[0, "loop"]], "Loops mended": [[1, "loops"]]},
    "indexentries": {"sensitivity": [[2, "index-0", True], [1, "index-1", False]]},
    "objects": {"dpfedmeta.api": [[2, 0, 1, "", "plan"]]},
    "objnames": {"0": ["py", "function", "Python function"]},
    "terms": {"loop": [0, 1], "ledger": 1, "crash": [0, 1, 2], "plan": [1, 2], "proof": [0, 2, 3, 4]},
    "titleterms": {"loop": [0, 1], "kernel": 0, "proof": [0, 2, 4]},
}


@pytest.fixture(scope="module")
def search():
    spec = importlib.util.spec_from_file_location("check_search", ROOT / "docs/check_search.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("query", "pages"),
    [
        ("Loops mended", ["project/changelog", "project/changelog"]),  # the page, and its heading
        ("loop ledger", ["project/changelog"]),  # every word
        ("crashes", ["project/changelog", "reference/api", "kernel"]),  # by its stem; equal ones by title
        ("kern", ["kernel"]),  # part of a word
        ("sensitivity", ["reference/api"]),  # main entries of the index alone
        ("plan", ["reference/api", "project/changelog", "reference/api"]),  # a name of the reference first
        ("the of", []),
    ],
)
def test_pages_come_in_the_order_of_the_browser(search, query, pages):
    found = search.found(INDEX | {"terms": INDEX["terms"] | {"mend": 1}}, query, {})
    assert found == pages


def test_weights_of_pages_change_the_order(search):
    assert search.found(INDEX, "crash", {"kernel": 2, "project/changelog": -20}) == [
        "kernel", "reference/api", "project/changelog",
    ]  # fmt: skip


def test_pages_that_are_weighted_or_looked_for_are_there(search):
    named = {*search.weights(), *(page for pages in search.QUERIES.values() for page in pages)}
    assert {name for name in named if not (ROOT / f"docs/{name}.md").exists()} == set()
    assert len(search.QUERIES) >= 30


def test_a_query_that_does_not_find_its_page_is_said(search):
    lines = list(search.hidden(INDEX))
    assert "search for 'crash' shows kernel, reference/api, project/changelog, not failures" in lines
    assert "search for 'proof' shows kernel, policies, reference/api, not guarantees" in lines  # it comes fourth
    assert "search for 'torchrun' shows nothing, not cluster" in lines
