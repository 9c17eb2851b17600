"""What a round may be done with, what it is charged with, and in which order both reach the disk."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, read, spent
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.learning.server_step import initial_state
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.rounds import cohort_log
from dpfedmeta.privacy.rounds.cohort_log import Participations, participations_file, reopen_participations
from dpfedmeta.privacy.rounds.round_journal import Journal, release_digest, round_inputs
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.training.run_training import run_training

GIVEN = {
    "model.width": "4", "server.rounds": "6", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "clip.window": "2", "population.clients": "2000", "population.cohort": "200", "population.max_participations": "2",
    "server.noise_multiplier": "2", "privacy.client.delta": "0.0001",
}  # fmt: skip
TINY = {
    **GIVEN, "server.rounds": "3", "population.cohort": "6", "population.clients": "60", "evaluation.every": "3",
    "evaluation.validation_episodes": "2", "evaluation.episodes": "2", "run.workers": "1", "run.noise_seed": "3",
    "record.client_ledgers": "true", "run.checkpoint_every": "1", "privacy.client.delta": "0.001",
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tiny_strokes):
    return make_plan(resolve("dp-agrlr-micro", "strokes", None, GIVEN), tiny_strokes.task)


def journal_of(plan, folder, **changes):
    folder.mkdir(exist_ok=True)
    given = {"budget": Budget(limits=(math.inf,) * 4), "source": KeyedSource(5), "environment": "here", **changes}
    participations = Participations(folder / "participations")
    return Journal(
        plan=plan.privacy, ledger=Ledger(folder / "ledger", plan.privacy), participations=participations, **given
    )


def begin(journal, state, *, anew=False):
    inputs = round_inputs(state.round, state.model, state.bound, journal.environment)
    return journal.begin(state.round, inputs, anew=anew)


@pytest.fixture
def journal(plan, tmp_path):
    return journal_of(plan, tmp_path)


@pytest.fixture
def state(plan):
    return initial_state({"w": torch.linspace(-1, 1, 7), "b": torch.zeros(2)}, plan.policy)


def test_the_same_state_is_charged_once_and_gets_the_same_cohort(journal, state):
    one, two = begin(journal, state), begin(journal, state)
    assert np.array_equal(one.clients, two.clients)
    assert one.again == two.again == ()
    assert len(journal.ledger.charges) == 1
    assert journal.participations.counts == dict.fromkeys(one.clients.tolist(), 1)


def test_with_a_drawn_key_a_charge_has_fresh_bytes_and_what_was_drawn_is_drawn_again(plan, state, tmp_path):
    own = journal_of(plan, tmp_path / "one", source=FreshSource(5))
    one, two = begin(own, state), begin(own, state)
    (charge,) = own.ledger.charges
    assert np.array_equal(one.clients, two.clients)
    assert one.fresh == two.fresh == charge.stream != b""
    assert json.loads((tmp_path / "one" / "ledger").read_text().splitlines()[-1])["fresh"] == charge.fresh
    assert read(tmp_path / "one" / "ledger")[1] == (charge,)
    # A copy from before the charge: the same key, the same state, another cohort and other noise.
    copy = journal_of(plan, tmp_path / "two", source=FreshSource(5))
    other = begin(copy, state)
    assert other.fresh != one.fresh
    assert not np.array_equal(other.clients, one.clients)
    # With a chosen seed there is nothing fresh: a simulation repeats.
    chosen = journal_of(plan, tmp_path / "three")
    assert begin(chosen, state).fresh == b""
    assert "fresh" not in (tmp_path / "three" / "ledger").read_text()


def test_without_its_fresh_bytes_a_charged_round_is_a_further_attempt(plan, state, tmp_path):
    own = journal_of(plan, tmp_path, source=FreshSource(5))
    first = begin(own, state)
    own.ledger.charges[0] = replace(own.ledger.charges[0], fresh="")
    again = begin(own, state)
    assert [(event.round, event.attempt) for event in own.ledger.charges] == [(0, 0), (0, 1)]
    assert again.fresh not in (b"", first.fresh)
    with pytest.raises(InputError, match="cannot be drawn again"):
        reopen_participations(RunDirectory(lost(tmp_path / "lost")), plan.privacy, FreshSource(5), own.ledger.charges)


def lost(folder):
    (folder / "secret").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("fresh", [7, "xyz", None])
def test_damaged_fresh_bytes_are_no_charge(plan, state, tmp_path, fresh):
    own = journal_of(plan, tmp_path, source=FreshSource(5))
    begin(own, state)
    with pytest.raises((TypeError, ValueError)):
        type(own.ledger.charges[0]).from_json(own.ledger.charges[0].as_json() | {"fresh": fresh})


def other_model(state):
    moved = state.model["w"].clone()
    moved[3] = torch.nextafter(moved[3], torch.tensor(1.0))
    return replace(state, model={**state.model, "w": moved})


OTHERS = {
    "model by one bit": (other_model, {}),
    "another name": (lambda s: replace(s, model={"v": s.model["w"], "b": s.model["b"]}), {}),
    "bound by one bit": (lambda s: replace(s, bound=math.nextafter(s.bound, 9.0)), {}),
    "environment": (lambda s: s, {"environment": "elsewhere"}),
    "no environment": (lambda s: s, {"environment": None}),
    "secure": (lambda s: s, {"source": OperatingSystemSource()}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_a_release_is_computed_from_makes_another_charge(journal, state, what):
    change, more = OTHERS[what]
    first = begin(journal, state)
    other = replace(journal, **more)
    again = begin(other, change(state))
    assert [(event.round, event.attempt) for event in journal.ledger.charges] == [(0, 0), (0, 1)]
    assert len({event.inputs for event in journal.ledger.charges}) == 2
    assert again.again != first.again
    assert again.again[0] == 1
    assert not np.array_equal(again.clients, first.clients)


@pytest.mark.parametrize("more", [{"environment": None}, {"source": OperatingSystemSource()}], ids=str)
def test_where_nothing_can_be_done_again_every_attempt_is_charged(plan, state, tmp_path, more):
    own = journal_of(plan, tmp_path, **more)
    assert not own.reproducible
    keys = [begin(own, state).again[:1] for _ in range(3)]
    assert keys == [(), (1,), (2,)]
    assert len({event.inputs for event in own.ledger.charges}) == 3


def test_two_rounds_of_one_state_have_different_inputs(journal, state):
    begin(journal, state)
    begin(journal, replace(state, round=1))
    assert len({event.inputs for event in journal.ledger.charges}) == 2


def test_what_a_release_does_not_depend_on_changes_nothing(journal, state):
    begin(journal, state)
    begin(journal, replace(state, first={n: v + 1 for n, v in state.first.items()}, averaged=3))
    assert len(journal.ledger.charges) == 1


def test_anew_is_a_further_attempt_with_keys_that_no_other_has(journal, state):
    cohorts = [begin(journal, state), *(begin(journal, state, anew=True) for _ in range(3))]
    assert [event.attempt for event in journal.ledger.charges] == [0, 1, 2, 3]
    assert len({cohort.again for cohort in cohorts}) == 4
    assert [cohort.again[:1] for cohort in cohorts] == [(), (1,), (2,), (3,)]
    assert len({tuple(cohort.clients.tolist()) for cohort in cohorts}) == 4


def test_an_attempt_in_two_environments_has_two_keys(plan, state, tmp_path):
    """Two copies that go on in different environments draw different noise for their further attempts."""
    keys = []
    for place in ("one", "two"):
        own = journal_of(plan, tmp_path / place, environment="first")
        begin(own, state)
        keys.append(begin(replace(own, environment=place), state).again)
    assert keys[0] != keys[1]
    assert keys[0][0] == keys[1][0] == 1


def test_cohorts_of_rounds_and_attempts_are_independent(journal, state):
    """200 of 2,000 clients: two cohorts share Bin(2000, 0.01), 20 of them; the same one would share about 200."""
    cohorts = [begin(journal, replace(state, round=r)) for r in range(4)]
    cohorts.append(begin(journal, replace(state, round=3), anew=True))
    sets = [set(cohort.clients.tolist()) for cohort in cohorts]
    for place, one in enumerate(sets):
        assert 130 < len(one) < 270
        for other in sets[:place]:
            assert 1 <= len(one & other) <= 48


def test_attempts_count_towards_the_cap(journal, state, tmp_path):
    for _ in range(8):
        begin(journal, state, anew=True)
    invited = [json.loads(line)["clients"] for line in (tmp_path / "participations").read_text().splitlines()]
    counts = np.bincount(np.concatenate(invited), minlength=2000)
    assert counts.max() == 2
    assert journal.participations.counts == {c: int(n) for c, n in enumerate(counts) if n}


def test_the_budget_ends_a_run_before_a_charge_that_exceeds_it(plan, state, tmp_path):
    for most in (0, 1, 3):
        budget = Budget.of(guarantees(plan.privacy, rounds=most))
        own = journal_of(plan, tmp_path / str(most), budget=budget)
        begun = [begin(own, replace(state, round=r)) for r in range(most)]
        assert None not in begun
        before = (len(own.ledger.charges), dict(own.participations.counts))
        assert begin(own, replace(state, round=most)) is None
        assert (len(own.ledger.charges), dict(own.participations.counts)) == before


def test_a_further_attempt_is_paid_for_like_another_round(plan, state, tmp_path):
    own = journal_of(plan, tmp_path, budget=Budget.of(guarantees(plan.privacy, rounds=3)))
    assert begin(own, state) is not None
    assert begin(own, state, anew=True) is not None
    assert begin(own, state, anew=True) is not None
    assert begin(own, state, anew=True) is None
    assert begin(own, replace(state, round=1)) is None
    assert begin(own, state) is not None


def test_what_was_released_is_recognised_by_every_bit(journal, state):
    digests = [release_digest(SimpleNamespace(value=each.model)) for each in (state, other_model(state))]
    assert len(set(digests)) == 2
    journal.released[0] = digests[0]
    assert journal.repeats(0, digests[0])
    assert not journal.repeats(0, digests[1])
    assert journal.repeats(1, digests[1])


def test_a_further_attempt_forgets_the_releases_that_it_supersedes(journal, state):
    begin(journal, state)
    begin(journal, replace(state, round=1))
    journal.released = {0: "a", 1: "b", 2: "c"}
    begin(journal, replace(state, round=1), anew=True)
    assert journal.released == {0: "a"}


def recorded(monkeypatch, pool):
    """Every write, flush and rename of the process, and every use of a training client's data, in order."""
    seen = []

    def name(handle):
        path = Path(f"/proc/self/fd/{handle}").readlink()
        return "lineage" if path.parent.name == "lineage" else path.name

    def spy(what, honest, named):
        def call(*words, **more):
            done = honest(*words, **more)
            seen.append((what, named(*words)))
            return done

        monkeypatch.setattr(os, what, call)

    spy("write", os.write, lambda handle, content: name(handle))
    spy("pwrite", os.pwrite, lambda handle, content, place: name(handle))
    spy("fsync", os.fsync, lambda handle: name(handle if isinstance(handle, int) else handle.fileno()))
    renamed = Path.replace

    def replaced(self, target):
        seen.append(("replace", Path(target).name))
        return renamed(self, target)

    monkeypatch.setattr(Path, "replace", replaced)
    episode = VirtualPopulation.episode

    def used(self, client):
        if self.pool == pool:
            seen.append(("use", str(client)))
        return episode(self, client)

    monkeypatch.setattr(VirtualPopulation, "episode", used)
    return seen


def test_everything_is_on_disk_before_what_rests_on_it(tiny_task_file, tiny_strokes, tmp_path, monkeypatch):
    """Participants, charge, register, the clients' own charges, their data, the row, the checkpoint: in this order."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    settings = resolve("dp-agrlr-micro", str(tiny_task_file), None, {**TINY, "run.dir": str(tmp_path), "run.name": "r"})
    seen = recorded(monkeypatch, tiny_strokes.train)
    run, status = run_training(settings)
    assert status == "completed"
    drawn = [json.loads(line)["clients"] for line in (run.secret / "participations.jsonl").read_text().splitlines()]
    assert len(read(run.ledger)[1]) == len(drawn) == 3
    starts = [place for place, one in enumerate(seen) if one == ("write", "participations.jsonl")]
    assert len(starts) == 3
    used = [place for place, (what, _) in enumerate(seen) if what == "use"]
    # Before the first charge a few clients are looked at, and that before there is a run.
    written = min(place for place, (what, _) in enumerate(seen) if what in ("write", "replace"))
    assert all(place < written for place in used if place < starts[0])
    assert max(used) > starts[0]
    for round_, (start, end) in enumerate(zip(starts, [*starts[1:], len(seen)], strict=True)):
        part = seen[start:end]
        order = [
            ("write", "participations.jsonl"),
            ("fsync", "participations.jsonl"),
            ("write", "ledger.jsonl"),
            ("fsync", "ledger.jsonl"),
            ("pwrite", "lineage"),
        ]
        last = end == len(seen)
        # The ledger is closed over weights that are on disk.
        assert [one for one in part if one in order] == order + last * order[2:]
        assert not last or max(p for p, one in enumerate(part) if one[1] == "model.safetensors") < part.index(
            order[2], part.index(order[-1])
        )
        charged, data = part.index(("pwrite", "lineage")), [p for p, (what, _) in enumerate(part) if what == "use"]
        invited = [f"{client}.jsonl" for client in drawn[round_]]
        own = [p for p, (what, file) in enumerate(part) if what in ("write", "fsync") and file in invited]
        assert len(own) >= 2 * len(invited)
        row = [p for p, one in enumerate(part) if one in (("write", "rounds.jsonl"), ("fsync", "rounds.jsonl"))]
        saved = part.index(("replace", f"round-{round_ + 1:06d}.safetensors"))
        flushed = part.index(("fsync", f".round-{round_ + 1:06d}.safetensors.{os.getpid()}"))
        assert charged < min(own) <= max(own) < min(data, default=end) <= max(data, default=start) < min(row)
        assert len(row) == 2
        assert max(row) < flushed < saved
        # The folder's new name is flushed too.
        assert ("fsync", "checkpoint") in part[saved:]


@pytest.mark.parametrize("source", [KeyedSource(5), OperatingSystemSource()], ids=["seed", "system"])
def test_who_came_in_a_round_of_its_own_choice_is_known_after_a_crash(tiny_strokes, tmp_path, source):
    """A round that is done again has nobody in it and costs nothing; the others come when they are due."""
    given = {"model.width": "4", "server.rounds": "4", "population.clients": "40", "population.cohort": "40"}
    plan = make_plan(resolve("dp-agr-checkins", "strokes", None, given), tiny_strokes.task)
    state = initial_state({"w": torch.zeros(3)}, plan.policy)
    made = journal_of(plan, tmp_path, source=source, budget=Budget.of(plan.planned))
    cohorts = [begin(made, state), begin(made, state, anew=True)]
    assert len(cohorts[1].clients) == 0
    # The process dies here, and all that the next one has is on disk.
    run = RunDirectory(tmp_path)
    (tmp_path / "secret").mkdir()
    (tmp_path / "participations").rename(participations_file(run))
    participations, remarks = reopen_participations(run, plan.privacy, source, made.ledger.charges)
    assert not remarks
    made = replace(made, participations=participations)
    cohorts += [begin(made, replace(state, round=round_)) for round_ in range(1, 4)]
    cohorts.append(begin(made, replace(state, round=3), anew=True))
    came = np.concatenate([cohort.clients for cohort in cohorts])
    assert sorted(came.tolist()) == list(range(40))
    assert [charge.attempt for charge in made.ledger.charges] == [0, 1, 0, 0, 0, 1]
    whole = spent(plan.privacy, made.ledger.charges)
    assert [cell.epsilon for cell in whole] == [cell.epsilon for cell in plan.planned]


def test_an_invitation_that_is_not_on_disk_counts_for_nobody(tmp_path, monkeypatch):
    known = Participations(tmp_path / "participations")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cohort_log, "append_lines", full)
    with pytest.raises(OSError, match="No space"):
        known.record(Cohort(round=0, clients=np.array([3, 5])))
    assert (known.counts, known.latest, known.before(1)) == ({}, {}, [])
