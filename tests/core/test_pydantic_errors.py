"""What is wrong with a value, in words: each kind of problem, and each way to write a number that may be meant."""

import datetime
from dataclasses import dataclass
from typing import Literal

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dpfedmeta.core.pydantic_errors import (
    MOST_LISTED,
    as_number,
    closest,
    first_problem,
    listed,
    nearest,
    read_yaml,
    reasons,
    shown,
)


@pytest.mark.parametrize(
    ("given", "share", "whole"),
    [
        ("3/2", "1.5", None),
        ("6/4", "1.5", None),
        ("6/04", "1.5", None),
        ("1/3", "0.333333", None),
        ("1/0", None, None),
        ("150%", "1.5", None),
        ("5%", "0.05", None),
        ("100%", "1", None),
        ("400k", "400000", "400000"),
        ("1.5k", "1500", "1500"),
        ("1.5K ", "1500", "1500"),
        ("2m", "2000000", "2000000"),
        ("0.0001k", "0.1", None),
        ("1,5", "1.5", None),
        ("-1,5", "-1.5", None),
        ("1,500", "1500 or 1.5", "1500"),
        ("400,000", "400000 or 400", "400000"),
        ("+400,000", "400000 or 400", "400000"),
        ("1,500,000", "1500000", "1500000"),
        ("1,50,000", None, None),
        ("12,5k", "12500", "12500"),
        ("1.5", None, None),
        ("150", None, None),
        ("k", None, None),
        ("%", None, None),
        ("abc", None, None),
        ("", None, None),
        (1.5, None, None),
    ],
)
def test_a_number_that_may_be_meant_is_written_out(given, share, whole):
    """`share`: where any number fits; `whole`: where none but whole ones do, and no share of them is known."""
    for expected, of_whole in ((share, False), (whole, True)):
        assert as_number(given, whole=of_whole) == (f"; write {expected}" if expected else ""), (given, of_whole)


@pytest.mark.parametrize("count", [0, 1, MOST_LISTED - 1, MOST_LISTED, MOST_LISTED + 1, MOST_LISTED + 7])
def test_a_list_names_the_first_and_counts_the_others(count):
    entries = [f"e{number}" for number in range(count)]
    told = listed(entries).split("; ")
    assert told[:MOST_LISTED] == (entries[:MOST_LISTED] or [""])
    assert told[MOST_LISTED:] == ([f"and {count - MOST_LISTED} more"] if count > MOST_LISTED else [])


def test_a_name_is_compared_in_any_case_and_whatever_joins_its_words():
    known = ["dp-agr", "dp_const", "Window", "fomaml"]
    assert closest("DP_AGR", known) == "dp-agr"
    assert closest("dp-const", known) == "dp_const"
    assert closest("windw", known) == "Window"
    assert closest("foml", ["maml", "fomaml"]) == "fomaml"
    assert closest("xyz", known) is closest("x", []) is None
    assert nearest("windw", known) == "; did you mean Window?"
    assert nearest("xyz", known) == ""


def test_a_value_is_shown_and_never_at_length():
    assert shown("a") == "'a'"
    assert shown("x" * 198) == repr("x" * 198)
    assert shown("x" * 199) == repr("x" * 199)[:200] + "..."
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert shown(nested) == "an unprintable list"
    assert shown(10**5000) == "an unprintable int"


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A section."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    depth: int
    name: str = "a"
    mode: Literal["cuda", "cpu"] = "cpu"


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Settings with a section."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    width: int
    lr: float = 0.1
    cohort: int = 5
    places: int | tuple[Inner, ...] = 0
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"widht": 3, "width": 1}, "widht: unknown key; did you mean width?"),
        ({"width": 1, "inner": {"depht": 3, "depth": 1}}, "inner.depht: unknown key; did you mean depth?"),
        ({}, "width: missing"),
        ({"width": 1, "inner": {}}, "inner.depth: missing"),
        ({"width": "3/2"}, "width: expected a whole number, got '3/2'"),
        ({"width": "1,500"}, "width: expected a whole number, got '1,500'; write 1500"),
        ({"width": 1.5}, "width: expected a whole number, got 1.5"),
        ({"width": 1, "lr": "3/2"}, "lr: expected a number, got '3/2'; write 1.5"),
        ({"width": 1, "lr": "5%"}, "lr: expected a number, got '5%'; write 0.05"),
        ({"width": 1, "cohort": "5%"}, "cohort: expected a whole number, got '5%'; write how many clients, no share of "
         "them"),
        ({"width": 1, "inner": {"depth": 2, "name": 5}}, "inner.name: expected text, got 5; write it in quotes"),
        ({"width": 1, "inner": {"depth": 2, "mode": "gpu"}}, "; did you mean cuda?"),
        ({"width": 1, "inner": {"depth": 2, "mode": "cdua"}}, "; did you mean cuda?"),
        ({"width": 1, "inner": 3}, "inner: expected names and values (`name: value`), got 3"),
        (7, "the whole: expected names and values (`name: value`), got 7"),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_problem_is_told_by_its_place_its_value_and_what_is_near(given, words):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Outer).validate_python(given)
    for place in ("", "section."):
        told = first_problem(caught.value, Outer, place)
        if words.startswith(";"):
            assert told.endswith(words)
            assert told.startswith(f"{place}inner.mode: ")
        else:
            assert told == (f"section{words[9:]}" if place and given == 7 else place + words)
    assert first_problem(caught.value, Outer, "the.name").startswith("the.name: ")


def test_of_alternatives_the_one_that_was_followed_furthest_is_told():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Outer).validate_python({"width": 1, "places": [{"depth": 1}, {"depth": 2, "name": 7}]})
    assert first_problem(caught.value, Outer).endswith(".name: expected text, got 7; write it in quotes")
    # Of two keys the first one, however deep the other's problem lies.
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Outer).validate_python({"width": "x", "inner": {"depth": "y"}})
    assert first_problem(caught.value, Outer).startswith("width: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "a occurs twice, in lines 1 and 3; keep one"),
        ("s:\n  a: 1\n  b: 2\n  a: 3\n", "a occurs twice, in lines 2 and 4; keep one"),
        ("a: 1:30", "1:30: YAML reads this as 90; write a plain number, or text in quotes"),
        ("a: 010", "010: YAML reads this as 8; write a plain number"),
        ("a: -010", "YAML reads this as -8"),
        ("a: 1:30.5", "1:30.5: YAML reads this as 90.5"),
    ],
)
def test_what_yaml_would_read_otherwise_is_refused(text, words):
    with pytest.raises(yaml.YAMLError, match=words):
        read_yaml(text)


def test_what_yaml_reads_as_it_looks_is_read_and_is_the_callers_own():
    text = "a: [1, 10, 0, -3, 0x1F]\nb: {c: 1.5, d: 0.5, e: 1_000}\nf: '010'\ng: 2026-01-02\n"
    found = read_yaml(text)
    assert found == {
        "a": [1, 10, 0, -3, 31], "b": {"c": 1.5, "d": 0.5, "e": 1000}, "f": "010", "g": datetime.date(2026, 1, 2),
    }  # fmt: skip
    found["a"].append(9)
    found["b"]["c"] = 7
    assert read_yaml(text)["a"] == [1, 10, 0, -3, 31]
    assert read_yaml(text)["b"]["c"] == 1.5
    # The same key in another section, and what is merged in, stand once each.
    assert read_yaml("x: &x {a: 1}\ny: {a: 2}\nz: {<<: *x, a: 3}\n") == {"x": {"a": 1}, "y": {"a": 2}, "z": {"a": 3}}


def test_reasons_of_many_rows_are_ten_a_count_and_each_remedy_once():
    """A row may have several reasons; the log of a client had one line of tens of thousands of characters."""
    why = [
        f"line {n}, column ca: '?' is no number; line {n}, column slope: '?' is no number; say so" for n in range(199)
    ]
    found = reasons([*why, "line 7, column x: too large; divide it"])
    assert found.endswith("; and 190 more; say so; divide it")
    assert found.count("line ") == MOST_LISTED
    many = reasons([f"line {n}: odd; {n} is a remedy" for n in range(199)])
    assert many.count("remedy") == MOST_LISTED
