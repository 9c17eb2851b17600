"""Digests of what clients hold: each difference by itself, and what is known where a digest is missing."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.planning.data_digests import HeldData, changed_since, check_data, keep_data, kept_data, trained_before
from dpfedmeta.training.setup import RunContext

MADE = HeldData(sha256="a" * 64, own=False, clients=None, decoded="b" * 64, source="omniglot")
OWN = replace(MADE, own=True, clients="c" * 64)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    return RunDirectory(tmp_path)


@pytest.mark.parametrize("held", [MADE, OWN, replace(OWN, clients=None), replace(MADE, decoded=None, source=None)])
def test_every_digest_comes_back(run, held):
    keep_data(run, held)
    assert kept_data(run) == held
    assert (run.secret / "data.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("kept", "held", "known"),
    [
        (MADE, MADE, True),
        (OWN, OWN, True),
        (replace(OWN, clients=None), OWN, False),
        (OWN, replace(OWN, clients=None), False),
        (replace(OWN, clients=None), replace(OWN, clients=None), False),
        # What is asked of the images alone: where they lie, and how they were decoded, are other questions.
        (MADE, replace(MADE, decoded="d" * 64, source="elsewhere"), True),
    ],
)
def test_it_is_known_that_data_are_the_same_where_both_have_a_digest(run, kept, held, known):
    keep_data(run, kept)
    assert check_data(run, held, "omniglot") is known


@pytest.mark.parametrize(
    ("kept", "held", "words"),
    [
        (MADE, replace(MADE, sha256="e" * 64), "the training images of omniglot are not those"),
        (OWN, replace(OWN, sha256="e" * 64), "the training images of omniglot are not those"),
        (replace(OWN, clients=None), replace(OWN, sha256="e" * 64), "the training images of omniglot are not those"),
        (OWN, replace(OWN, clients="e" * 64), "the clients handed over hold other data"),
        (OWN, MADE, "it began with clients of your own, and none were handed over"),
        (MADE, OWN, "its clients were made of omniglot as its settings say"),
    ],
)
def test_whatever_differs_is_refused_by_its_own_name(run, kept, held, words):
    keep_data(run, kept)
    with pytest.raises(InputError, match=words):
        check_data(run, held, "omniglot")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}', '{"sha256": "a"}', None])
def test_a_damaged_file_is_named(run, text):
    if text is not None:
        (run.secret / "data.json").write_text(text)
    with pytest.raises(InputError, match=r"data\.json: lost or damaged|plan\.json"):
        kept_data(run)


@pytest.mark.parametrize(
    ("kept", "now", "said"),
    [("b", "b", False), ("b", "d", True), ("lost", "d", False)],
)
def test_an_evaluation_on_other_images_says_so(run, kept, now, said):
    if kept != "lost":
        keep_data(run, replace(MADE, decoded=kept))
    pool = SimpleNamespace(decoded_digest=lambda: now)
    words = changed_since(run, SimpleNamespace(train=pool, task=SimpleNamespace(name="omniglot")))
    assert bool(words) == said
    assert not said or words.startswith("THE IMAGES OF omniglot HAVE CHANGED")


def test_no_field_is_left_out_here():
    assert [field.name for field in fields(HeldData)] == ["sha256", "own", "clients", "decoded", "source"]


def runs_in(folder, **held):
    """Runs that hold these data; a run without its secrets holds None."""
    for name, data in held.items():
        (folder / name).mkdir()
        (folder / name / "ledger.jsonl").touch()
        if data is not None:
            (folder / name / "secret").mkdir()
            keep_data(RunDirectory(folder / name), data)


def test_runs_over_the_same_people_are_named(tmp_path):
    unknown, others = replace(OWN, clients=None), replace(MADE, decoded="e" * 64)
    runs_in(tmp_path, a=MADE, b=OWN, c=others, d=unknown, e=None, f=replace(OWN, decoded="f" * 64))
    found = {name: trained_before(tmp_path, held) for name, held in (("made", MADE), ("own", OWN), ("none", unknown))}
    assert found["none"] is None
    assert found["made"].startswith(f"1 run in {tmp_path} (a) trained on the same people")
    assert found["own"].startswith(f"2 runs in {tmp_path} (b, f) trained on the same people")
    assert trained_before(tmp_path / "nothing", MADE) is None


@pytest.mark.parametrize(
    ("register", "own", "private", "record", "said"),
    [(None, True, True, False, True), (None, True, False, True, True), ("r", True, True, True, False),
     (None, False, True, True, False), (None, True, False, False, False)],
)  # fmt: skip
def test_who_counts_alone_is_told_of_other_runs(tmp_path, register, own, private, record, said):
    held = replace(OWN, own=own)
    runs_in(tmp_path, a=held)
    settings = SimpleNamespace(
        population=SimpleNamespace(register=register),
        record=SimpleNamespace(enabled=record),
        run=SimpleNamespace(dir=str(tmp_path)),
    )
    made: Any = SimpleNamespace(
        plan=SimpleNamespace(settings=settings, private=private),
        held=held,
        dataset=SimpleNamespace(task=SimpleNamespace(source=None)),
    )
    read: Any = vars(RunContext)["other_runs"]
    assert (read.fget(made) is not None) is said
