"""Parts of the loop by themselves: who is told what of a round, and in which course a round stands."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta import Callback
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory, save_weights
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.learning.server_step import initial_state
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.availability import Availability
from dpfedmeta.simulation.backend import AttemptUsedUp, RoundAborted
from dpfedmeta.training import loop
from dpfedmeta.training.loop import Training, averages, optimizer
from dpfedmeta.training.results.round_rows import delta_at_limit

GIVEN = {
    "model.width": "2", "server.rounds": "4", "server.average": "0.5", "population.clients": "600",
    "population.cohort": "24", "server.noise_multiplier": "2", "privacy.client.epsilon": "null",
    "population.max_participations": "null", "clip.policy": "constant",
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tiny_strokes):
    return make_plan(resolve("dp-agr", "strokes", None, GIVEN), tiny_strokes.task)


def test_a_round_steps_and_averages_in_the_course_that_it_was_due_in(plan):
    """An extension changes nothing of the rounds before it: their releases are known."""
    longer = plan.extended(10).extended(12)
    assert [optimizer(longer, round_).rounds for round_ in (0, 3, 4, 9, 10, 11)] == [4, 4, 10, 10, 12, 12]
    assert [optimizer(longer, round_) for round_ in range(4)] == [optimizer(plan, round_) for round_ in range(4)]
    assert [averages(longer, round_) for round_ in range(4)] == [False, False, True, True]
    assert [averages(longer, round_) for round_ in range(4, 12)] == [False] + [True] * 7


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_delta_at_the_limit_is_of_all_that_counts_for_the_limit(rounds):
    """Also of what other ledgers charge the same clients with."""
    own = PrivacyPlan(clients=2000, cohort=100, rounds=6, noise_multiplier=2.0)
    before, charged = replace(own, rounds=rounds).phases if rounds else (), own.first(3)
    settings = SimpleNamespace(privacy=SimpleNamespace(client=SimpleNamespace(limit=0.3)))
    training = SimpleNamespace(
        plan=SimpleNamespace(settings=settings, privacy=SimpleNamespace(before=before)), public_clients=None,
        validation=SimpleNamespace(score_name="accuracy"), _validated=lambda state: {},
    )  # fmt: skip
    found = Training._measured(training, None, charged)["delta_at_limit"]
    assert found == pytest.approx(delta_at_limit(replace(own, rounds=3 + rounds).phases, 0.3))


class Listens(Callback):
    def __init__(self):
        self.heard = []

    def on_remark(self, text):
        self.heard.append(text)


@pytest.mark.parametrize("declining", [0, 2])
@pytest.mark.parametrize("absent", [0, 3])
def test_those_who_answer_are_counted_among_all_who_were_invited(monkeypatch, declining, absent):
    """Noise and denominators are those of the invited, whoever is silent or declines."""
    drawn = Cohort(round=4, clients=np.arange(10, 20))
    there = SimpleNamespace(answering=lambda invited, source: replace(invited, clients=invited.clients[absent:]))
    monkeypatch.setattr(Availability, "of", lambda settings: there)
    willing = SimpleNamespace(willing=lambda cohort: replace(cohort, clients=cohort.clients[declining:]))
    training = SimpleNamespace(
        source=SimpleNamespace(again=lambda *_: None), plan=SimpleNamespace(settings=None),
        client_ledgers=willing if declining else None,
    )  # fmt: skip
    found = Training._answering(training, drawn)
    assert (found.round, found.invited) == (4, 10)
    assert found.clients.tolist() == [*range(10 + absent + declining, 20)]


@pytest.mark.parametrize(
    ("rounds", "share", "due"),
    [(4, 0.5, [2, 3]), (5, 0.5, [3, 4]), (8, 0.25, [6, 7]), (3, 1.0, [0, 1, 2]), (4, 0.0, [])],
)
def test_the_last_share_of_rounds_enters_the_average(rounds, share, due):
    settings = SimpleNamespace(server=SimpleNamespace(average=share))
    plan = SimpleNamespace(settings=settings, privacy=SimpleNamespace(in_force=lambda round_: rounds))
    assert [round_ for round_ in range(rounds) if averages(plan, round_)] == due


@pytest.mark.parametrize("left_out", [0, 3])
def test_how_many_messages_were_left_out_is_for_the_server_alone(left_out):
    """It is a function of secret messages: no callback hears of it."""
    told, noted, cohort = Listens(), [], Cohort(round=2, clients=np.arange(5))
    secret, released = SimpleNamespace(left_out=left_out), object()
    source = SimpleNamespace(again=lambda *_: SimpleNamespace(generator=lambda *_: None))
    mechanism = SimpleNamespace(release=lambda *_: (released, {}))
    door = SimpleNamespace(release=lambda _, releasing, **given: releasing(None))
    settings = SimpleNamespace(server=SimpleNamespace(abort_on_failure=False))
    training = SimpleNamespace(
        plan=SimpleNamespace(settings=settings, mechanism=mechanism, message_bound=lambda bound: bound),
        backend=SimpleNamespace(cohort_sum=lambda *_: secret), source=source, callbacks=(told,),
        _answering=lambda drawn: drawn, _note_left_out=lambda *given: noted.append(given),
    )  # fmt: skip
    state = SimpleNamespace(round=2, model={}, bound=1.0)
    assert Training._released(training, state, {}, replace(cohort, invited=5), door) == (released, {})
    assert noted == ([(2, 3)] if left_out else [])
    assert told.heard == []


def test_the_states_of_the_noise_go_after_the_checkpoints_that_need_them(tmp_path, monkeypatch):
    """Whatever write fails, each checkpoint that is there has its state."""
    run = RunDirectory(tmp_path)
    run.secret.mkdir()
    (tmp_path / "checkpoint").mkdir()
    kept = SimpleNamespace(settings=SimpleNamespace(run=SimpleNamespace(keep_checkpoints=2)))
    training = SimpleNamespace(run=run, plan=kept)
    monkeypatch.setattr(loop, "complete", lambda plan, state: state.model)
    state = initial_state({"w": torch.zeros(2)}, Constant(initial_bound=1.0))

    def saved(round_):
        journal = SimpleNamespace(ledger=SimpleNamespace(lines=round_ + 1, head=str(round_) * 64))
        remembered = {"vectors": np.full((1, 2), float(round_)), "round": np.full(1, round_)}
        Training._save(training, replace(state, round=round_), remembered, journal)

    def rounds(folder):
        return sorted({int(path.name[6:12]) for path in folder.glob("round-*")})

    saved(1)
    saved(2)
    assert rounds(run.secret / "noise") == rounds(tmp_path / "checkpoint") == [1, 2]
    with monkeypatch.context() as patched:
        patched.setattr(loop, "save_checkpoint", lambda *given: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            saved(3)
    assert rounds(tmp_path / "checkpoint") == [1, 2]
    assert rounds(run.secret / "noise") == [1, 2, 3]
    saved(3)
    assert rounds(run.secret / "noise") == rounds(tmp_path / "checkpoint") == [2, 3]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("willing", [None, 3])
def test_whoever_falls_silent_or_declines_was_asked_all_the_same(dropout, willing):
    """Shares of the noise are of all who were asked: nobody knows by then who will answer."""
    drawn = Cohort(round=2, clients=np.arange(20))
    ledgers = SimpleNamespace(willing=lambda cohort: replace(cohort, clients=cohort.clients[:willing]))
    settings = SimpleNamespace(
        population=SimpleNamespace(dropout=dropout, availability="independent", latency_spread=0.0),
        server=SimpleNamespace(timeout=None),
    )
    training = SimpleNamespace(
        plan=SimpleNamespace(settings=settings), source=KeyedSource(3), client_ledgers=ledgers if willing else None
    )
    found = Training._answering(training, drawn)
    assert found.asked == 20
    assert (len(found.clients) == 20) == (not dropout and willing is None)


@pytest.mark.parametrize("every", [1, 2, 3, 10])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("ends", ["completed", "budget", "interrupted", "callback"])
def test_rounds_are_saved_in_turn_and_at_any_end_and_told_of_after_that(monkeypatch, every, first, ends):
    """A round of which a callback was told is kept; the last one is on disk however the rounds end."""
    events = []

    class Hears(Callback):
        def on_round(self, row):
            events.append(("told", row["round"]))
            if ends == "callback" and row["round"] == 4:
                raise ValueError("enough")

    def does(state, remembered, journal):
        if state.round == 4 and ends == "budget":
            return None
        if state.round == 4 and ends == "interrupted":
            raise KeyboardInterrupt
        return SimpleNamespace(round=state.round + 1), remembered, {"round": state.round}

    privacy = SimpleNamespace(rounds=6)
    training = SimpleNamespace(
        plan=SimpleNamespace(shortened=False, privacy=privacy), callbacks=(Hears(),), _round=does,
        _checkpoint_every=lambda journal: every, _save=lambda state, *given: events.append(("saved", state.round)),
        run=SimpleNamespace(weights="weights"),
    )  # fmt: skip
    kept = []
    monkeypatch.setattr(loop, "save_weights", lambda path, weights: kept.append((path, weights)))
    monkeypatch.setattr(loop, "complete", lambda plan, state: state.round)
    monkeypatch.setattr(loop, "is_finite", lambda state: True)
    found = Training._rounds(training, SimpleNamespace(round=first), {}, None, ())
    done = {"completed": 6, "budget": 4, "interrupted": 4, "callback": 5}[ends]
    assert found.state.round == done
    assert found.status == ("interrupted" if ends == "callback" else ends)
    assert (found.failure is not None) == (ends == "callback")
    due = []
    for round_ in range(first, done):
        due += [("saved", round_ + 1)] * ((round_ + 1) % every == 0) + [("told", round_)]
    assert events == due + [("saved", done)] * (done % every != 0)
    assert kept == [("weights", done)] * (done % every == 0)


@pytest.mark.parametrize("shortened", [False, True])
@pytest.mark.parametrize("finite", [False, True])
def test_a_run_whose_rounds_are_done_writes_its_weights_again(monkeypatch, shortened, finite):
    """Those that are there may be of an earlier round: the process ended between the checkpoint and the weights."""
    kept = []
    training = SimpleNamespace(
        plan=SimpleNamespace(shortened=shortened, privacy=SimpleNamespace(rounds=3)), callbacks=(),
        _save=None, run=SimpleNamespace(weights="weights"),
    )  # fmt: skip
    monkeypatch.setattr(loop, "save_weights", lambda path, weights: kept.append((path, weights)))
    monkeypatch.setattr(loop, "complete", lambda plan, state: state.round)
    monkeypatch.setattr(loop, "is_finite", lambda state: finite)
    found = Training._rounds(training, SimpleNamespace(round=3), {}, None, ())
    status = "budget" if shortened else "completed"
    assert (found.status, kept) == (status if finite else "diverged", [("weights", 3)])


@pytest.mark.parametrize(("reproducible", "due"), [(True, 7), (False, 1)])
def test_what_cannot_be_done_again_is_saved_after_every_round(reproducible, due):
    plan = SimpleNamespace(settings=SimpleNamespace(run=SimpleNamespace(checkpoint_every=7)))
    journal = SimpleNamespace(reproducible=reproducible)
    assert Training._checkpoint_every(SimpleNamespace(plan=plan), journal) == due


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
def test_a_row_has_the_speed_of_its_own_round_unless_that_would_tell_of_a_cohort(monkeypatch, hides, aborted):
    kept = []
    monkeypatch.setattr(loop, "hides_times", lambda plan: hides)
    monkeypatch.setattr(loop, "keep_seconds", lambda *given: kept.append(given))
    privacy = SimpleNamespace(at=lambda round_: SimpleNamespace(cohort=10.0 * round_))
    training = SimpleNamespace(plan=SimpleNamespace(privacy=privacy), run="run")
    found = Training._times(training, 3, 4.0, aborted=aborted)
    assert found == (
        {"seconds": None} if hides else {"seconds": 4.0} | ({} if aborted else {"clients_per_second": 7.5})
    )
    assert kept == ([("run", 3, 4.0)] if hides else [])


BEFORE = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}


@pytest.mark.parametrize(
    ("weights", "fits"),
    [
        (BEFORE, True), (BEFORE | {"b": torch.tensor([3.5])}, False), (BEFORE | {"w": torch.tensor([1.0, 2.5])}, False),
        ({"w": BEFORE["w"]}, False), (BEFORE | {"c": torch.zeros(1)}, False),
        (BEFORE | {"w": torch.tensor([[1.0, 2.0]])}, False),
    ],
)  # fmt: skip
def test_a_run_goes_on_from_the_weights_that_it_began_with(tmp_path, weights, fits):
    path = tmp_path / "initial.safetensors"
    settings = SimpleNamespace(model=SimpleNamespace(initial="theirs"))
    training = SimpleNamespace(run=SimpleNamespace(initial_weights=path), plan=SimpleNamespace(settings=settings))
    Training._check_initial(training, weights)  # there is no file: it begins
    save_weights(path, BEFORE)
    with nullcontext() if fits else pytest.raises(InputError, match=r"other weights than model\.initial = theirs"):
        Training._check_initial(training, weights)
    path.write_bytes(b"cut by a crash")
    Training._check_initial(training, weights)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e30])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("which", ["model", "result"])
def test_a_model_that_is_not_finite_is_seen(value, place, which):
    state = {name: {"a": torch.zeros(2), "b": torch.zeros(2)} for name in ("model", "result")}
    state[which]["b"][place] = value
    assert loop.is_finite(SimpleNamespace(**state)) == (value == 1e30)


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("answering", [5, 4])
def test_a_client_that_is_not_there_ends_a_round_where_that_was_asked_for(aborts, answering):
    """Before anybody computes; and as one does that fails while it computes."""
    computed = []

    def sums(model, bound, cohort):
        computed.append(len(cohort.clients))
        raise RoundAborted

    settings = SimpleNamespace(server=SimpleNamespace(abort_on_failure=aborts))
    training = SimpleNamespace(
        plan=SimpleNamespace(settings=settings), backend=SimpleNamespace(cohort_sum=sums),
        _answering=lambda drawn: replace(drawn, clients=drawn.clients[:answering]),
    )  # fmt: skip
    state, drawn = SimpleNamespace(round=2, model={}, bound=1.0), Cohort(round=2, clients=np.arange(5))
    assert Training._released(training, state, {"kept": 1}, drawn, None) == (None, {"kept": 1})
    assert computed == ([] if aborts and answering < 5 else [answering])


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("otherwise", [None, InputError("later")])
@pytest.mark.parametrize(("used_up", "affordable"), [(0, 9), (1, 9), (2, 9), (0, 0), (1, 1), (2, 1)])
def test_an_attempt_that_never_has_a_sum_is_followed_by_a_further_one_as_long_as_there_is_budget(
    monkeypatch, used_up, affordable, anew, otherwise
):
    """Each has a question of its own, hence a charge; a run that goes on begins with the last one.

    Where no budget is left and the last one may have a sum later, the run ends and can go on with it.
    """
    begun, said = [], []
    monkeypatch.setattr(loop, "round_inputs", lambda *given: "inputs")
    monkeypatch.setattr(loop, "further_question", lambda inputs: inputs + "+")
    monkeypatch.setattr(loop, "tell", lambda callbacks, name, text: said.append((name, text)))

    def begin(round_, inputs, *, anew):
        begun.append((round_, inputs, anew))
        return f"cohort {len(begun)}" if len(begun) <= affordable else None

    def released(state, remembered, drawn, door):
        if len(begun) <= used_up:
            raise AttemptUsedUp("no sum", otherwise)
        return "release", {"noise": drawn}

    journal = SimpleNamespace(begin=begin, last_question=lambda round_, inputs: inputs + "!")
    training = SimpleNamespace(environment={}, callbacks=(), _door=lambda journal: None, _released=released)
    state = SimpleNamespace(round=2, model={}, bound=1.0)
    ends = otherwise is not None and 0 < affordable <= used_up
    with pytest.raises(InputError, match="later") if ends else nullcontext():
        found = Training._attempted(training, state, {}, journal, anew=anew)
        last = f"cohort {used_up + 1}"
        assert found == ((last, "release", {"noise": last}) if used_up < affordable else None)
    tries = min(used_up, affordable) + 1
    assert begun == [(2, "inputs!" + "+" * number, anew) for number in range(tries)]
    assert said == [("on_remark", "no sum; a further attempt is made and charged")] * len(begun[1:affordable])


def test_a_round_that_no_budget_is_left_for_releases_nothing():
    training = SimpleNamespace(
        plan=SimpleNamespace(privacy=SimpleNamespace(ends=())), _attempted=lambda state, remembered, journal: None
    )
    assert Training._round(training, SimpleNamespace(round=2, model={}, bound=1.0), {}, None) is None


def test_the_spread_of_updates_is_measured_around_the_model_of_the_round(monkeypatch):
    """Not around its average over rounds, which no client begins from."""
    asked = []
    monkeypatch.setattr(loop, "update_spread", lambda *given: (asked.append(given), SpreadOf(variance=2.0))[1])
    training = SimpleNamespace(
        plan=SimpleNamespace(settings=SimpleNamespace(
            track=SimpleNamespace(public_clients=7), privacy=SimpleNamespace(client=SimpleNamespace(limit=None)),
        )), public_clients="clients", validation=SimpleNamespace(score_name="score"),
        _validated=lambda state: {"mean": 0.5},
    )  # fmt: skip
    state = SimpleNamespace(model="model", average="average", round=3)
    found = Training._measured(training, state, ())
    assert asked == [("clients", "model", 3, 7)]
    assert found == {"validation_score": {"mean": 0.5}, "variance": 2.0}


@dataclass
class SpreadOf:
    variance: float
