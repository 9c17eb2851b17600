"""Every sentence that a run may state of its clients is recognised, and none with another word or number."""

import re

import pytest

from dpfedmeta.data.populations import population_statement as statements
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.data.populations.population_statement import says_what_it_states

BESIDE = {"clients": 1200, "records": 24_000, "images": 345}
NUMBERS = ("7", "12,345", "0.0012", "1.2e-05", "33.3333", "1e+03")
KINDS = ["virtual", "disjoint", "natural", "shards", "own", "asked"]
FORMS = [(kind, form) for kind in KINDS for form in statements._forms(kind)]


def filled(form, number="7", **beside):
    shown = {name: f"{value:,}" for name, value in (BESIDE | beside).items()}
    return re.sub(r"\{(\w+)\}", lambda found: shown.get(found[1], number), form)


def test_every_kind_has_its_sentences_and_every_choice_is_made():
    assert sorted(KINDS) == sorted(statements._SENTENCES)
    # Two choices of three words of clients with data of their own, and of three of whole ones.
    assert [len([*statements._forms(kind)]) for kind in KINDS] == [1, 1, 17, 2, 1, 1]
    assert not [form for _, form in FORMS if re.search("[A-Z]{2,}}", form)]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("own_test", [0.0, 0.25])
def test_every_sentence_is_recognised_with_whatever_numbers(number, own_test):
    for kind, form in FORMS:
        text = filled(form, number) + kept_back(own_test)
        assert says_what_it_states({"kind": kind, "text": text, **BESIDE}, own_test), text


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_no_other_word_number_kind_or_end_is(kind, form):
    text = filled(form)
    said = {"kind": kind, "text": text, **BESIDE}
    for other in (f"{text}; nothing can be learned", text[:-1], f"about {text}", text.replace("client", "patient")):
        assert not says_what_it_states(said | {"text": other}, 0.0)
    for name in BESIDE:
        for value in (7, None):
            due = f"{{{name}}}" not in form
            assert says_what_it_states(said | {name: value}, 0.0) is due
    assert not says_what_it_states(said, 0.25)
    assert not says_what_it_states(said | {"text": text + kept_back(0.25)}, 0.0)
    for another in {*KINDS, "real"} - {kind}:
        assert not says_what_it_states(said | {"kind": another}, 0.0)
