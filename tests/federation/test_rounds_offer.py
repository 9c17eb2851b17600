"""A signed offer of a loop's rounds that is malformed: one line, no folder, nothing charged and nothing sent."""

import json
import math
import warnings

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.hash_chain import read_chain
from dpfedmeta.core.files.run_directory import LOOP
from dpfedmeta.federation.client_rounds import _MARK
from dpfedmeta.federation.wire_format import MOST_BYTES
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity

MOST_NUMBERS = MOST_BYTES // 4

MODEL = {"a": np.zeros(3), "b": np.zeros((2, 2))}
GONE = object()
DEEP = "[" * 400 + "]" * 400
BAD = [
    GONE, None, True, -1, 0, 1.5, math.nan, math.inf, 10**400, 10**18, 1e300, 5e-324, "", "x", "\ud800", "9" * 5000, [],
    [[]], {}, {"x": {"y": [1]}}, json.loads(DEEP),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(what is signed, who signs)."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_STATE", str(folder / "state"))
        with dp.PrivateRounds(
            clients=40, cohort=40, rounds=2, promise=dp.Promise(epsilon=6.0, delta=1e-4), like=MODEL, sampler="fixed",
            clip=dp.clip.Constant(initial=2.0), run_dir=folder / "run",
        ) as private:  # fmt: skip
            offer, _ = dp.sign_rounds(private, record=dp.RecordRelease(records=4, clip=1.0, noise_multiplier=3.0))
            identity = Identity((private.run.secret / "identity.key").read_bytes())
    return json.loads(offer[SIGNATURE_BYTES:]), identity


@pytest.fixture
def answered(server, tmp_path, monkeypatch):
    """What comes of a text that the server signed: a refusal in one line, or an answer that is charged for."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    count = iter(range(100_000))

    def ask(text, epsilon=50.0):
        folder = tmp_path / str(next(count))
        signed = server[1].sign(_MARK + text) + text
        try:
            with warnings.catch_warnings(action="ignore"):  # a delta that is above 1/N
                mine = dp.ClientRounds(signed, folder, server=server[1].public, epsilon=epsilon)
        except dp.InputError as error:
            words = str(error)
            assert "\n" not in words
            assert len(words) <= 300
            assert not folder.exists()
            return None
        reply = dp.ClientRounds.update(mine.message(0, 2.0, [MODEL] * 4))
        assert all(np.isfinite(value).all() for value in reply.values())
        lines, _ = read_chain(folder / "ledger.jsonl", "ledger")
        stated = json.loads(text)
        assert [line["mu"]["zero-out"] for line in lines[1:]] == [1 / stated["record"]["noise_multiplier"]]
        assert {name: list(value.shape) for name, value in reply.items()} == stated["form"]
        return mine

    return ask


def paths(value, at=()):
    """The places in a text; of a list the first and the last."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for place in {0, len(value) - 1} if value else ():
            yield from paths(value[place], (*at, place))


def changed(content, at, value):
    copy = json.loads(json.dumps(content))
    *before, last = at
    place = copy
    for key in before:
        place = place[key]
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    return copy


def encoded(content):
    return json.dumps(content, sort_keys=True).encode()


def test_the_offer_itself_is_answered(server, answered):
    assert answered(encoded(server[0])) is not None


@pytest.mark.parametrize("key", ["run", "request", "form", "record", "planned", "privacy", "phases"])
def test_a_field_that_is_missing_or_another_is_refused_in_a_line_or_answered_as_it_is_charged(server, answered, key):
    refused = 0
    for at in paths({key: server[0][key]}):
        # Exact messages are another offer, for clients that trust the server.
        for value in BAD if at != ("record",) else [each for each in BAD if each is not None]:
            refused += answered(encoded(changed(server[0], at, value))) is None
    assert refused > 15


@pytest.mark.parametrize("name", ["clients", "cohort", "rounds", "promises", "sampler", "noise", "separation"])
def test_a_request_that_is_malformed_is_refused_in_a_line(server, answered, name):
    asked = json.loads(server[0]["request"].removeprefix(LOOP))
    refused = 0
    for at in paths({name: asked[name]}):
        # Solving for 10^18 clients takes half a minute.
        for value in BAD if name != "clients" else [each for each in BAD if each != 10**18]:
            request = LOOP + json.dumps(changed(asked, at, value))
            refused += answered(encoded({**server[0], "request": request})) is None
    assert refused > 10


@pytest.mark.parametrize("text", [b"", b"\xff", b"{", b"[" * 10**5, b"null", b"[]", b'{"run": ' + b"9" * 9999 + b"}"])
def test_what_is_no_json_is_refused_in_a_line(answered, text):
    assert answered(text) is None


@pytest.mark.parametrize("key", ["more", "", "__class__"])
def test_what_this_client_does_not_know_is_refused(server, answered, key):
    assert answered(encoded({**server[0], key: 1})) is None
    assert answered(encoded({**server[0], "record": {**server[0]["record"], key: 1}})) is None


@pytest.mark.parametrize(
    ("form", "taken"),
    [
        ({"a.b": [2], "\u00e9": [1, 1, 1]}, True), ({"x" * 500: [1]}, True), ({"a": []}, True), ({"a": [0, 5]}, False),
        ({"": [1]}, False), (" ", False), ({"\n": [1]}, False), ({"\ud800": [1]}, False),
        ({"__metadata__": [1]}, False),
        ({"clip.attached": [1]}, False), ({"a": [2**28]}, False), ({"a": [2**20], "b": [2**40]}, False),
        # As many numbers as a message may have are made here.
        pytest.param({"a": [MOST_NUMBERS - 1], "b": [1]}, True, marks=pytest.mark.slow),
        ({"a": [MOST_NUMBERS - 1], "b": [2]}, False),
        ({"a": [1] * 70}, False), ({"a": [True]}, False), ({"a": [2.0]}, False), ({"a": [-1]}, False), ({}, False),
        ({"a": [-1], "b": [-1]}, False),
    ],
)  # fmt: skip
def test_a_form_is_taken_where_a_reply_can_have_it(server, answered, form, taken):
    assert (answered(encoded({**server[0], "form": form})) is not None) == taken


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"clip": 1e-30}, True), ({"clip": 1e30, "noise_multiplier": 1.0}, True), ({"clip": 1e29}, True),
        ({"clip": 1e31}, False), ({"clip": 1e-31}, False), ({"clip": 1e20, "noise_multiplier": 1e11}, False),
        ({"clip": True}, False), ({"noise_multiplier": True}, False), ({"records": 2**27}, True),
        ({"records": 2**27 + 1}, False), ({"records": 4.0}, False), ({"records": True}, False),
    ],
)  # fmt: skip
def test_a_record_release_is_taken_where_it_can_be_computed(server, answered, changes, taken):
    text = encoded({**server[0], "record": server[0]["record"] | changes})
    assert (answered(text, epsilon=5000.0) is not None) == taken


@pytest.mark.parametrize("run", [lambda name: name.upper(), lambda name: " " + name, lambda name: name[:-2]])
def test_a_run_has_one_name(server, answered, run):
    name = "ab" * 16
    assert answered(encoded({**server[0], "run": name})) is not None
    assert answered(encoded({**server[0], "run": run(name)})) is None


@pytest.mark.parametrize("bound", [1e31, 1e-31, 5e-324, 10**400, True, "2", None, [2.0], math.nan, -2.0])
def test_a_bound_that_nothing_can_be_computed_with_is_not_charged(server, answered, bound):
    mine = answered(encoded(server[0]))
    before = mine.spent
    with pytest.raises(dp.InputError, match="there is no such round in the offer"):
        mine.message(1, bound, [MODEL] * 4)
    assert mine.spent == before
    assert len(mine.message(1, np.float32(2.0), [MODEL] * 4)) > 0
