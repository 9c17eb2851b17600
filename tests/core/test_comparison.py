"""What a file states is compared with what is due: nothing more, nothing less, nothing else, at any depth."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, json_of

DUE = {"a": 1.5, "b": {"c": [1, 2.0, {"d": None}], "e": "text"}, "f": [], "g": True, "formula": "2.345"}
OTHERS = {
    "a number": {**DUE, "a": 1.5001},
    "a number more": {**DUE, "z": 1},
    "nothing more": {**DUE, "z": 0.0},
    "a number less": {name: value for name, value in DUE.items() if name != "a"},
    "below": {**DUE, "b": {**DUE["b"], "e": "texts"}},
    "more below": {**DUE, "b": {**DUE["b"], "z": 1}},
    "in a list": {**DUE, "b": {**DUE["b"], "c": [1, 2.5, {"d": None}]}},
    "in a list below": {**DUE, "b": {**DUE["b"], "c": [1, 2.0, {"d": 0}]}},
    "more in a list below": {**DUE, "b": {**DUE["b"], "c": [1, 2.0, {"d": None, "z": 1}]}},
    "a list longer": {**DUE, "f": [1]},
    "a list shorter": {**DUE, "b": {**DUE["b"], "c": [1, 2.0]}},
    "a truth": {**DUE, "g": False},
    "a truth that is a number": {**DUE, "g": 0},
    "a list for a mapping": {**DUE, "b": []},
    "a mapping for a list": {**DUE, "f": {"a": 1}},
    "text for a number": {**DUE, "a": "1.5"},
    "no wording": {**DUE, "formula": None},
    "another wording": {**DUE, "formula": "2.3"},
    "a number for a wording": {**DUE, "formula": 2.345},
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_differs_is_found_and_named(what):
    for stated, due in ((OTHERS[what], DUE), (DUE, OTHERS[what])):
        with pytest.raises(InputError, match=r"^plan\.json: .*states .*but the ledger gives"):
            check(Path("plan.json"), "", stated, due)


def test_last_digits_of_numbers_may_differ_upwards_rather_than_downwards():
    check(Path("plan.json"), "", DUE, DUE)
    for factor, same in ((1 + 9e-7, True), (1 + 2e-6, False), (1 - 9e-10, True), (1 - 2e-9, False)):
        with nullcontext() if same else pytest.raises(InputError, match="a: states"):
            check(Path("plan.json"), "", {**DUE, "a": 1.5 * factor}, DUE)


def test_tuples_come_back_as_lists():
    assert json_of({"a": (1, 2.0, {"d": None})}) == {"a": [1, 2.0, {"d": None}]}
