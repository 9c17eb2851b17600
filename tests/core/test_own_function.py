"""The caller's own function: one that fails for everybody is refused before a charge, and edited code is named."""

import functools
import threading

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.plugins import own_function
from dpfedmeta.core.plugins.own_function import FUNCTIONS, code_digest, on_copies, spread_over

MODEL = {"w": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.float32)}
NOBODY = 400  # a client that does not exist


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def made(folder, **changes):
    given = {
        "clients": NOBODY, "cohort": 40, "rounds": 3, "like": MODEL, "noise": "toeplitz",
        "promise": dp.Promise(epsilon=6.0, delta=1e-4), "clip": dp.clip.Constant(initial=1.0),
    }  # fmt: skip
    return dp.PrivateRounds(**{**given, "run_dir": folder / "mine", **changes})


def update(model, client):
    """A function of the client's own data and of what was released."""
    return {name: np.full(value.shape, client / 400) - value for name, value in model.items()}


def charges(folder):
    return read_content(folder / "mine/ledger.jsonl").charges


def misspelt(model, client):
    return {name: modle[name] for name in model}  # type: ignore[name-defined]  # noqa: F821


def named(model, client):
    raise RuntimeError(f"the secret of {client}")


FAILING = {
    "a misspelt name": (misspelt, r"NameError: name 'modle' is not defined, at .*test_own_function\.py, line"),
    "words of each client": (named, "picked from all 400; it was not"),
    "no mapping": (lambda model, client: 3.0, "no mapping from names to arrays of real numbers"),
    "another form": (lambda model, client: {"w": np.ones(7)}, "an update of the form"),
    "not finite": (lambda model, client: {n: v + np.nan for n, v in model.items()}, "length is not finite"),
}


@pytest.mark.parametrize("which", FAILING)
def test_a_function_that_fails_for_everybody_is_refused_before_round_0_is_charged(tmp_path, which, capsys):
    function, words = FAILING[which]
    with made(tmp_path) as private:
        round_ = next(iter(private))
        with pytest.raises(dp.InputError, match=f"sends nothing for any of 8 clients.*{words}") as refused:
            round_.map(function, MODEL)
        assert "secret of" not in str(refused.value)
        assert not charges(tmp_path)
        # A repaired function goes on in the same round.
        round_.map(update, MODEL)
        round_.release()
    assert len(charges(tmp_path)) == 1
    assert capsys.readouterr() == ("", "")


def test_one_client_that_works_lets_the_run_begin(tmp_path):
    def works_for_one(model, client):
        return update(model, client) if client == 399 else misspelt(model, client)

    with made(tmp_path) as private:
        next(iter(private)).map(works_for_one, MODEL)
    assert len(charges(tmp_path)) == 1


def test_an_edited_function_is_tried_where_a_run_goes_on(tmp_path):
    with made(tmp_path) as private:
        round_ = next(iter(private))
        round_.map(update, MODEL)
        round_.release()
    for changed, words in ((False, "is not the one of its rounds so far"), (True, "modle")):
        with made(tmp_path, changed_code=changed) as private, pytest.raises(dp.InputError, match=words):
            next(iter(private.after(1))).map(misspelt, MODEL)
        assert len(charges(tmp_path)) == 1


def test_those_tried_are_spread_over_all():
    assert spread_over(400) == [0, 57, 114, 171, 228, 285, 342, 399]
    assert spread_over(3) == [0, 1, 2]
    assert spread_over(1) == [0]


@pytest.mark.parametrize("how", ["rehearse", "noise_seed"])
def test_errors_of_public_and_simulated_clients_are_raised(tmp_path, how):
    def fails_for_some(model, client):
        return misspelt(model, client) if client % 2 == 1 or client == NOBODY else update(model, client)

    given = {"noise_seed": 3} if how == "noise_seed" else {}
    rehearse = {"rehearse": NOBODY} if how == "rehearse" else {}
    with made(tmp_path, **given) as private:
        with pytest.raises(NameError, match="modle"):
            next(iter(private)).map(fails_for_some, MODEL, **rehearse)
        assert bool(charges(tmp_path)) == (how == "noise_seed")  # before the charge, or at a client of the cohort


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (lambda model, client: {name: np.zeros(value.shape) for name, value in model.items()}, "an update of zeros"),
        (lambda model, client: {name: torch.zeros(value.shape) for name, value in model.items()}, "of zeros"),
        (lambda model, client: {name: value * np.inf for name, value in update(model, 3).items()}, "not finite"),
        (lambda model, client: None, "no mapping"),
    ],
)
def test_a_rehearsed_client_that_sends_nothing_of_use_is_told(tmp_path, sent, words):
    with made(tmp_path) as private:
        with pytest.raises(dp.InputError, match=f"rehearse: .*{words}"):
            next(iter(private)).map(sent, MODEL, rehearse="made up")
        assert not charges(tmp_path)
        round_ = next(iter(private))
        round_.map(update, MODEL, rehearse=NOBODY)
        round_.release()


# What one client changes in place.


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))


class Estimator:
    """Trained in place, as scikit-learn's are."""

    def __init__(self):
        self.w = np.zeros(3)


HANDED = {
    "an object of one's own": Estimator,
    "a mapping of arrays": lambda: {"w": np.zeros(3)},
    "a mapping of tensors": lambda: {"w": torch.zeros(3)},
    "an array": lambda: np.zeros(3),
    "a tensor that learns": lambda: torch.zeros(3, requires_grad=True),
    "a list": lambda: [np.zeros(3)],
    "a network": Net,
}


def arrays_in(value):
    if isinstance(value, dict):
        return list(value.values())
    return [value.w] if isinstance(value, Net | Estimator) else value if isinstance(value, list) else [value]


@pytest.mark.parametrize("which", HANDED)
def test_what_a_client_changes_in_place_no_other_one_sees(which):
    handed, seen = HANDED[which](), []

    def changes(value, client):
        (array,) = arrays_in(value)
        with torch.no_grad():
            seen.append(float(array.sum()))
            array += 1.0
        assert type(value) is type(handed)
        assert getattr(array, "requires_grad", False) == getattr(arrays_in(handed)[0], "requires_grad", False)

    call = on_copies(changes, (handed,))
    for client in range(3):
        call(client)
    assert seen == [0.0, 0.0, 0.0]


def test_what_cannot_be_copied_is_refused_before_anybody_is_asked():
    with pytest.raises(dp.InputError, match="is given a lock, which cannot be copied"):
        on_copies(lambda lock, client: client, (threading.Lock(),))


# Rounds that come from disk.


def edited(model, client):
    return {name: -2.0 * value for name, value in update(model, client).items()}


def whole(folder, function, capsys, **changes):
    with made(folder, **changes) as private:
        releases = []
        for round_ in private:
            round_.map(function, MODEL) if function else round_.cohort
            releases.append(round_.release()["w"])
            round_.release()
    return releases, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (update, "rounds 0 to 2 come from disk, and nobody is asked. The function given to map is the one that they"),
        (edited, "rounds 0 to 2 come from disk, and nobody is asked. The function given to map is NOT the one that"),
        (None, "rounds 0 to 2 come from disk, and nobody is asked."),
    ],
)
def test_one_line_says_that_rounds_come_from_disk_and_whether_the_code_is_theirs(tmp_path, again, words, capsys):
    first, said = whole(tmp_path, update, capsys)
    assert said == []
    second, said = whole(tmp_path, again, capsys)
    assert np.array_equal(first, second)
    assert len(said) == 1
    assert words in said[0]
    assert said[0].isascii()


def test_a_single_stored_round_and_a_function_of_before_the_notes(tmp_path, capsys):
    with made(tmp_path) as private:
        round_ = next(iter(private))
        round_.map(update, MODEL)
        round_.release()
    (tmp_path / "mine/secret" / FUNCTIONS).unlink()
    _, said = whole(tmp_path, edited, capsys)
    assert said == [f"PrivateRounds: {tmp_path / 'mine'}: round 0 comes from disk, and nobody is asked."]
    # From round 1 on the rounds are those of the edited function, and round 0 is nobody's.
    _, said = whole(tmp_path, edited, capsys)
    assert "function" not in said[0]


def test_a_damaged_note_is_one_line(tmp_path):
    with made(tmp_path) as private:
        next(iter(private)).map(update, MODEL)
    (tmp_path / "mine/secret" / FUNCTIONS).write_text("{}\n")
    with pytest.raises(dp.InputError, match=r"functions\.jsonl: damaged"):
        made(tmp_path)


# What an edit is.

RATE = 0.5


def helped(client):
    return RATE * aid(client)


def aid(client):
    return client + 1


class Caller:
    def __call__(self, client):
        return self.inner(client)

    def inner(self, client):
        return client


def test_an_edit_anywhere_in_the_callers_own_code_is_another_digest(monkeypatch):
    before = code_digest(helped)
    assert code_digest(helped) == before
    monkeypatch.setitem(globals(), "RATE", 0.25)
    assert code_digest(helped) != before
    monkeypatch.undo()
    assert code_digest(helped) == before
    monkeypatch.setitem(globals(), "aid", edited)
    assert code_digest(helped) != before
    monkeypatch.undo()

    def closing(value):
        return lambda client: client * value

    assert code_digest(closing(1)) == code_digest(closing(1)) != code_digest(closing(2))
    assert code_digest(functools.partial(helped, 1)) != code_digest(functools.partial(helped, 2))
    caller = code_digest(Caller())
    assert code_digest(Caller()) == code_digest(Caller()) == caller
    assert code_digest(Caller().inner) != caller
    monkeypatch.setattr(Caller, "inner", lambda self, client: client + 1)
    assert code_digest(Caller()) != caller


def test_arrays_and_models_that_a_function_closes_over_are_no_code():
    def closing(value):
        return lambda client: client * value

    assert code_digest(closing(np.zeros(3))) == code_digest(closing(np.ones(3)))
    assert code_digest(closing(Net())) == code_digest(closing(Net()))


def test_one_place_says_how_many_are_tried():
    assert own_function.FEWEST_TRIED == 8


@pytest.mark.parametrize("step", [0.5, 0.1])
def test_a_stored_round_that_was_computed_at_another_model_says_so(tmp_path, capsys, step):
    """Restarted with another step size: the first model is the same, all later ones are others."""

    def looped(folder, lr, stop):
        model = {"w": np.zeros(3)}
        with made(folder, like=model) as private:
            for round_ in private:
                round_.map(lambda model, client: {"w": np.full(3, client / 400) - model["w"]}, model)
                model = {"w": model["w"] + lr * round_.release()["w"]}
                if round_.number == stop:
                    return

    looped(tmp_path, 0.5, 1)
    assert capsys.readouterr().err == ""
    looped(tmp_path, step, 1)
    said = capsys.readouterr().err
    assert ("differs from the one that round 1 was computed at" in said) == (step != 0.5)
    assert "round 0 was computed at" not in said
