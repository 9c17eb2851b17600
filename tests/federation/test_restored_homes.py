"""A client's home goes back in time, is copied, or is asked twice: no two answers of it ever share noise.

Noise is an answer minus the exact message, so it is measured on what leaves, whatever made it.
"""

import itertools
import json
import shutil
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.core.random.random_sources import Purpose
from dpfedmeta.federation.client.client_budget import Promise, participation
from dpfedmeta.federation.client.client_state import asked_digest
from dpfedmeta.federation.wire_format import Attempt, Offer, Question, QuestionKind, RoundTask, Said, opened_answer
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.simulation.cohort_sums import rounded_messages
from tests.federation.sessions import RUN, open_session
from tests.federation.silos import CLIENTS, MICRO, SECURE

# Of the correlation of two independent noises, in standard deviations; seeds here are the operating system's.
SURE = 6.5


@dataclass(frozen=True)
class NoNoise:
    """A source whose noise is 0, and whose other coins are those of the client."""

    honest: Any

    def generator(self, purpose, *key):
        return self.honest.generator(purpose, *key) if purpose is Purpose.ROUNDING else self

    def normal(self, size):
        return np.zeros(size)

    def discrete_normal(self, variance, size):
        return np.zeros(size, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What left, and what it would be without noise, in units of the clip bound."""

    values: np.ndarray
    exact: np.ndarray

    @property
    def noise(self):
        return self.values - self.exact


@pytest.fixture(scope="module", params=["vectors", "sums"])
def session(request, silos, tmp_path_factory):
    algo, given = {"vectors": ("dp-agrlr-micro", MICRO), "sums": ("dp-agrlr-secure", SECURE)}[request.param]
    return open_session(silos, tmp_path_factory.mktemp("session"), algo, **given)


class Home:
    """One client's home, its process, and all that it ever answered."""

    def __init__(self, session, folder, answers=None, folders=None):
        self.session, self.folder, self.silos = session, folder, session.silos
        self.answers = [] if answers is None else answers
        self.images = self.silos.folders[0] if folders is None else folders
        self.start()

    def start(self):
        self.client = replace(self.silos, folders=(self.images,) * CLIENTS).client(
            0, self.folder, Promise(participations=50), noise_seed=None
        )
        signed = self.session.signed
        body = Offer(number=0, signature=signed.signature, text=signed.text).encode()
        came = self.client.answer(self.session.question(0, asked=QuestionKind.PLAN, body=body, plan=signed.digest))
        assert came[6] == Said.ACCEPTED

    @property
    def inside(self):
        return self.folder / "client0"

    def ask(self, round_, bound=0.5, again=()):
        """Whether it answers; the answer is kept."""
        question = self.session.question(0, round_, bound=bound, again=again)
        opened = Question.opened(question, Identity(self.silos.server).public, self.silos.roster[0])
        joined = next(iter(self.client._joined.values()))
        if not self.session.plan.privacy.secure:
            answer = opened_answer(self.client.answer(question), Said.VECTOR, question, self.silos.roster[0])
            if answer is None:
                return False
            values = np.frombuffer(answer, "<f4").astype(float)
        else:
            values = self._whole(joined, opened)
            if values is None:
                return False
        self.answers.append(
            Answer(values=values / self.unit(bound), exact=self._exact(joined, opened) / self.unit(bound))
        )
        return True

    def unit(self, bound):
        return bound if not self.session.plan.privacy.secure else 1.0

    def _whole(self, joined, question):
        """As a phase of the protocol does it, up to the masks."""
        company = tuple(range(CLIENTS))
        with self.client._alone():
            try:
                self.client._charged(joined, question.attempt, asked_digest(question.body, company))
            except Refused:
                return None
            kept = joined.kept.once(
                question.attempt,
                asked_digest(question.body, company),
                lambda: joined.whole(question.body, question.attempt, CLIENTS).astype("<u4").tobytes(),
            )
        return centred(joined, np.frombuffer(kept, "<u4").astype(np.int64))

    def _exact(self, joined, question):
        source = joined._at(question.attempt).source
        task = RoundTask.decode(question.body, joined.dimension)
        quiet = replace(joined.side, source=NoNoise(source))
        if not self.session.plan.privacy.secure:
            (values,) = quiet.sent(joined._model(task), task.bound, question.attempt.round, [0])
            return values.numpy().astype(float)
        arrays = {name: value.numpy() for name, value in joined._model(task).items()}
        common = (arrays, (task.bound, joined.side.whole.share(CLIENTS)), question.attempt.round, [0])
        (whole,) = rounded_messages(quiet, *common, quiet.source)
        return whole.astype(float)


def centred(joined, values):
    half = 1 << (joined.side.whole.bits - 1)
    return ((values + half) % (2 * half) - half).astype(float)


def assert_no_two_share_noise(answers):
    """Two answers are the same bytes, or their noises are independent."""
    for one, other in itertools.combinations(answers, 2):
        if np.array_equal(one.values, other.values):
            continue
        product = one.noise @ other.noise / (np.linalg.norm(one.noise) * np.linalg.norm(other.noise))
        assert abs(product) * np.sqrt(len(one.noise)) < SURE
        # Nor is any coordinate of the one that of the other.
        assert not np.isclose(one.noise, other.noise, rtol=0, atol=1e-6 * np.abs(one.noise).max()).mean() > 0.2


def back(home, older, *names):
    """Put these of an older copy in place, or all of it."""
    for name in names or sorted(path.name for path in home.inside.iterdir()):
        path, before = home.inside / name, older / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if before.is_dir():
            shutil.copytree(before, path)
        elif before.exists():
            shutil.copy(before, path)


def older_ledger(home, older):
    back(home, older, "ledger.jsonl")
    return [home]


def older_runs(home, older):
    back(home, older, "runs")
    return [home]


def no_ledger(home, older):
    (home.inside / "ledger.jsonl").unlink()
    return [home]


def no_runs(home, older):
    shutil.rmtree(home.inside / "runs")
    return [home]


def two_processes(home, older):
    return [home, Home(home.session, home.folder, home.answers)]


def copied(home, older):
    other = home.folder.parent / "copy"
    shutil.copytree(home.inside, other / "client0")
    return [home, Home(home.session, other, home.answers)]


def restored(home, older):
    back(home, older)
    return [home]


def restored_and_copied(home, older):
    return copied(restored(home, older)[0], older)


KINDS = [older_ledger, older_runs, no_ledger, no_runs, two_processes, copied, restored, restored_and_copied]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_two_answers_share_noise(session, tmp_path, kind):
    """Rounds 0 and 1 are answered; then the home is another one, and old and new rounds are asked in every way."""
    home = Home(session, tmp_path / "home")
    assert home.ask(0)
    shutil.copytree(home.inside, tmp_path / "older")
    assert home.ask(1)
    homes = kind(home, tmp_path / "older")
    for each in homes:
        each.start()
    for each, (round_, bound, again) in itertools.product(
        homes, ((1, 0.5, ()), (1, 0.7, ()), (1, 0.7, (1, 5)), (2, 0.5, ()), (2, 0.9, ()))
    ):
        each.ask(round_, bound, again)
    # Whose ledger went back says no word more; the others go on.
    assert (len(home.answers) == 2) == (kind in (older_ledger, no_ledger))
    assert_no_two_share_noise(home.answers)


def test_every_charge_has_fresh_bytes_of_its_own(session, tmp_path):
    """Also of one question over the same images: a home that forgot its answer gives one that tells nothing of it."""
    home = Home(session, tmp_path / "home")
    assert home.ask(0)
    shutil.copytree(home.inside, tmp_path / "older")
    assert home.ask(1)
    ledger = home.inside / "ledger.jsonl"
    fresh = [line["fresh"] for line in lines_of(ledger)]
    back(home, tmp_path / "older")
    home.start()
    assert home.ask(1)
    fresh.append(lines_of(ledger)[-1]["fresh"])
    assert len(set(fresh)) == len(fresh) == 3
    assert not np.array_equal(home.answers[1].values, home.answers[2].values)
    assert_no_two_share_noise(home.answers)


def lines_of(ledger):
    return [json.loads(line) for line in ledger.read_text().splitlines()[1:]]


def test_a_home_that_is_restored_at_every_instant_of_an_answer_gives_no_other_noise_away(
    session, tmp_path, monkeypatch
):
    """Copied between charge and answer: the same question gets the same bytes, other images get other noise."""
    home, copies = Home(session, tmp_path / "home"), []

    def watched(path, content, mode):
        if path.name == "last_answer.bin":
            copies.append(tmp_path / "instant")
            shutil.copytree(home.inside, tmp_path / "instant" / "client0")
        replace_file(path, content, mode)

    monkeypatch.setattr("dpfedmeta.federation.client.client_state.replace_file", watched)
    assert home.ask(0)
    monkeypatch.undo()
    (copy,) = copies
    # As it was: charged, and the answer is not there.
    charged = (copy / "client0" / "ledger.jsonl").read_text()
    same = Home(session, copy, home.answers)
    assert same.ask(0)
    assert np.array_equal(home.answers[0].values, home.answers[1].values)
    assert (copy / "client0" / "ledger.jsonl").read_text() == charged
    shutil.rmtree(copy / "client0")
    shutil.copytree(tmp_path / "home" / "client0", copy / "client0")
    (copy / "client0" / "ledger.jsonl").write_text(charged)
    next((copy / "client0" / "runs").glob("*/last_answer.bin")).unlink()
    other = Home(session, copy, home.answers, folders=session.silos.folders[1])
    assert other.ask(0)
    assert not np.array_equal(home.answers[0].exact, home.answers[2].exact)
    assert not np.array_equal(home.answers[0].values, home.answers[2].values)
    assert_no_two_share_noise(home.answers)


def test_a_round_that_an_earlier_version_charged_has_no_second_noise(session, tmp_path):
    """Its ledger has no fresh bytes: what was answered is answered again, and nothing else is."""
    home, at = Home(session, tmp_path / "home"), Attempt(run=RUN, round=0)
    ledger = home.client._ledger
    joined = next(iter(home.client._joined.values()))
    joined.kept.begin(at)
    one = participation(session.plan.privacy, Promise(participations=50), 0)
    question = Question.opened(session.question(0), Identity(session.silos.server).public, session.silos.roster[0])
    company = tuple(range(CLIENTS)) if session.plan.privacy.secure else ()
    ledger.charge(0, one, run=RUN.hex(), question=asked_digest(question.body, company))
    assert ledger.stream(RUN.hex(), (0,)) == b""
    before = (home.inside / "ledger.jsonl").read_text()
    if session.plan.privacy.secure:
        with pytest.raises(Refused, match="charged without fresh bytes"):
            home._whole(joined, question)
    else:
        assert not home.ask(0)
        assert "charged without fresh bytes" in (home.inside / "log.txt").read_text()
    assert (home.inside / "ledger.jsonl").read_text() == before
