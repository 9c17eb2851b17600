"""A folder that does not fit a plan changes what a client sends, and nothing else that a server could see."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import dimension
from dpfedmeta.core.version import __version__
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.local_data import NullRecords, OwnRecords
from dpfedmeta.federation.offers.signed_plan import FORM, sign_plan
from dpfedmeta.federation.wire_format import Attempt, Offer, QuestionKind, Said, opened_answer
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.simulation import cohort_sums
from dpfedmeta.simulation.client_runner import ClientRunner
from tests.federation.sessions import RUN, open_session
from tests.federation.silos import MICRO, NOISE, SECURE, write_classes

# Next to no noise: what is left of a message would be seen.
QUIET = 1e-6


def few_images(folder):
    write_classes(folder, range(50, 52), images=3)


def one_class(folder):
    write_classes(folder, [50])


def broken_files(folder, many=99):
    write_classes(folder, range(50, 53))
    for file in sorted(folder.glob("*/*.png"))[:many]:
        file.write_bytes(b"no image")


def deep_pixels(folder, many=99):
    """Of 12 bits, whose range the task does not say: another plan may."""
    write_classes(folder, range(50, 53))
    for file in sorted(folder.glob("*/*.png"))[:many]:
        Image.fromarray(np.full((28, 28), 4_000, dtype=np.uint16)).save(file)


UNFIT = {made.__name__: made for made in (one_class, broken_files, deep_pixels)}


def with_folder(session, home, made, **given):
    """The session's client 0 with another folder."""
    folder = home / "its images"
    made(folder)
    party = RealClient(
        folder,
        session.silos.keys[0],
        home / "client0" / "ledger.jsonl",
        server=Identity(session.silos.server).public,
        promise=Promise(participations=10),
        noise_seed=NOISE,
        **given,
    )
    session.parties[session.silos.roster[0]] = party
    return party


def offered(session, party, signed=None):
    signed = signed or session.signed
    body = Offer(number=0, signature=signed.signature, text=signed.text).encode()
    at = Attempt(run=signed.run, round=0)
    return party.answer(session.question(0, asked=QuestionKind.PLAN, body=body, plan=signed.digest, attempt=at))


def log_of(home):
    return (home / "client0" / "log.txt").read_text()


@pytest.mark.parametrize("kind", UNFIT)
def test_an_offer_is_accepted_whatever_the_folder_holds(silos, tmp_path, kind):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party = with_folder(session, tmp_path, UNFIT[kind])
    accepted = offered(session, session.parties[silos.roster[0]])
    assert accepted[6] == Said.ACCEPTED
    # The process of a client with an unfit plan ends, which a server sees as well.
    assert party.unfit is None
    assert "ONLY NOISE: " in log_of(tmp_path)
    assert "the server is not told" in log_of(tmp_path)


@pytest.mark.parametrize("made", [broken_files, deep_pixels])
def test_an_image_that_does_not_decode_takes_no_part_and_its_owner_is_told(silos, tmp_path, made):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party = with_folder(session, tmp_path, partial(made, many=1))
    assert offered(session, party)[6] == Said.ACCEPTED
    (joined,) = party._joined.values()
    assert joined.why is None
    assert joined.images.pool.counts == (5, 6, 6)
    said = log_of(tmp_path)
    assert "1 row(s) are wrong and left out; the others take part: 1 images do not decode" in said
    assert "ONLY NOISE" not in said


def elsewhere():
    raise InputError("these records took part from another home")


def test_records_that_belong_to_another_home_take_no_part_and_the_server_is_not_told(silos, tmp_path):
    """They may have come into the folder long after the client was started; a decline would tell of them."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party = with_folder(session, tmp_path, few_images, claimed=elsewhere)
    assert offered(session, party)[6] == Said.ACCEPTED
    assert party.unfit is None
    assert re.search("ONLY NOISE: .*these records took part from another home; this client sends", log_of(tmp_path))
    (joined,) = party._joined.values()
    assert isinstance(joined.images, NullRecords)
    assert party.answer(session.question(0))[6] == Said.VECTOR


def test_records_are_claimed_whenever_they_are_read(silos, tmp_path):
    """For each offer, and again by a process that was started anew in the middle of a run."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    claims = []
    for count in (1, 2):
        party = with_folder(session, tmp_path, lambda folder: folder.exists() or few_images(folder),
                            claimed=lambda: claims.append(1))  # fmt: skip
        if count == 1:
            assert [offered(session, party)[6] for _ in range(2)] == [Said.ACCEPTED] * 2
        assert party.answer(session.question(0))[6] == Said.VECTOR
        assert len(claims) == count


def test_records_that_cannot_be_read_take_no_part_and_are_not_claimed(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party = with_folder(session, tmp_path, broken_files, claimed=elsewhere)
    assert offered(session, party)[6] == Said.ACCEPTED


def test_offers_of_other_sizes_count_no_images(silos, tmp_path):
    """Each fits up to a size that the server does not learn; nothing is charged for any of them."""
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party, task = with_folder(session, tmp_path, few_images), session.signed.task
    # The last one: images that cannot be moved so far.
    said, sizes = [], [(2, 1, 14), (2, 2, 0), (3, 1, 0), (2, 1, 15)]
    for number, (ways, queries, shift) in enumerate(sizes):
        sized = {"task.ways": ways, "task.shots": 1, "task.queries": queries, "task.shift": shift}
        given = MICRO | {name: str(value) for name, value in sized.items()}
        plan = make_plan(silos.settings("dp-agrlr-micro", silos.everybody, **given), task)
        signed = sign_plan(plan, task, run=bytes([number]) * 32, server=Identity(silos.server), roster=silos.roster)
        said.append(offered(session, party, signed)[6])
    assert said == [Said.ACCEPTED] * len(sizes)
    assert log_of(tmp_path).count("ONLY NOISE: ") == 1
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 1


def test_no_number_of_a_null_record_is_one():
    """Also where a message follows the support images alone."""
    null = NullRecords(clients=3, number=1, why=None, form=(1, 4, 4), shape=EpisodeShape(ways=2, shots=3, queries=1))
    episode = null.episode(1)
    assert (episode.support_images.shape, episode.query_images.shape) == ((6, 1, 4, 4), (2, 1, 4, 4))
    assert episode.support_images.isnan().all()
    assert episode.query_images.isnan().all()
    for look in (null.episode, null.holdings):
        with pytest.raises(IndexError, match="this machine holds client 1 of 3"):
            look(0)


@pytest.mark.parametrize(
    ("algo", "given", "noise"),
    [
        ("dp-agr", {}, 0.0),
        ("dp-agrlr-micro", MICRO | {"record.query_noise": str(QUIET)}, QUIET / 2),  # of two micro-episodes
    ],
)
def test_a_message_without_images_is_the_noise_of_an_honest_one(silos, tmp_path, algo, given, noise):
    """Null records in place of images: not images of zeros, which have a gradient, and not silence."""
    session = open_session(silos, tmp_path, algo, **given)
    party, bound = with_folder(session, tmp_path, one_class), 0.5
    # At the initial weights gradients of equal images cancel.
    coins = torch.Generator().manual_seed(1)
    session.model = {name: value + torch.randn(value.shape, generator=coins) for name, value in session.model.items()}
    offered(session, party)
    question = session.question(0, bound=bound)
    body = opened_answer(party.answer(question), Said.VECTOR, question, silos.roster[0])
    values = np.frombuffer(body, dtype="<f4")
    assert len(values) == dimension(session.side.form(session.model))
    assert np.linalg.norm(values) == pytest.approx(noise * bound * np.sqrt(len(values)), rel=0.2)
    assert "only noise" in log_of(tmp_path).splitlines()[-1]
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("algo", "given"), [pytest.param("dp-agrlr-secure", SECURE, marks=pytest.mark.slow), ("dp-agr-secure", {})]
)
def test_whole_numbers_without_images_are_a_share_of_the_noise(silos, tmp_path, monkeypatch, algo, given):
    """Its law is that of an honest client's; without it nothing is left."""
    session = open_session(silos, tmp_path, algo, **{"aggregation.dropout": "0.2"} | given)
    with_folder(session, tmp_path, one_class)
    whole = session.plan.privacy.at(0).whole
    share = whole.share(5)
    (party,) = [session.parties[silos.roster[0]]]
    assert offered(session, party)[6] == Said.ACCEPTED
    (joined,) = party._joined.values()
    task = session.question(0)[119:-64]
    attempt, half = Attempt(run=RUN, round=0), 1 << (whole.bits - 1)
    monkeypatch.setattr(type(joined.source), "again", lambda self, *given: self, raising=False)
    joined = replace(joined, fresh_of=lambda attempt: bytes(32))
    sent = (joined.whole(task, attempt, 5) + half) % (2 * half) - half
    assert np.mean(sent.astype(float) ** 2) == pytest.approx(share, rel=0.25)
    monkeypatch.setattr(cohort_sums, "own_share", lambda rounded, grid, share, generator: 0 * rounded)
    assert not joined.whole(task, attempt, 5).any()


@pytest.mark.parametrize(("algo", "given"), [("dp-agrlr-micro", MICRO), ("dp-agrlr-secure", SECURE)])
def test_a_computation_that_the_images_make_fail_is_not_seen(silos, tmp_path, monkeypatch, algo, given):
    """Or who holds such images would fall silent, and under secure aggregation the sum of all might be lost."""
    session = open_session(silos, tmp_path, algo, **given)
    sound = ClientRunner.context

    def failing(self, model):
        if isinstance(self.population, OwnRecords) and self.population.number == 0:
            raise RuntimeError("singular")
        return sound(self, model)

    monkeypatch.setattr(ClientRunner, "context", failing)
    found = session.asked()
    assert found.noise_variance == session.simulated(range(5)).noise_variance
    assert [heard.answered for heard in session.heard] == [5] * len(session.heard)
    assert "ONLY NOISE: round 0: RuntimeError: singular" in log_of(tmp_path)


def test_a_federation_trains_with_a_client_whose_folder_does_not_fit(silos, tmp_path):
    """Nobody declines, everybody is charged for every round, and the model is handed out to all."""
    heard = []
    session = open_session(silos, tmp_path / "unused", "dp-agrlr-secure", **SECURE)
    odd = with_folder(session, tmp_path, broken_files)
    parties = silos.parties(tmp_path) | {silos.roster[0]: odd}
    _, status = silos.serve(
        silos.settings("dp-agrlr-secure", **SECURE | {"server.rounds": "1"}),
        tmp_path,
        parties=parties,
        heard=heard.append,
    )
    assert status == "completed"
    assert all((asked.answered, asked.declined, asked.unsound) == (5, 0, 0) for asked in heard)
    assert odd.handed_out
    assert not (tmp_path / "client0" / "personal.safetensors").exists()
    assert len((tmp_path / "client0" / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_server_writes_no_line_of_its_own_into_a_client_s_log(silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party, content = session.parties[silos.roster[0]], json.loads(session.signed.text)
    content["settings"] = content["settings"].replace("algo: dp-agrlr-micro", 'algo: "x\\e[2J\\nround 0: nothing left"')
    text = json.dumps(content, sort_keys=True).encode()
    signature = Identity(silos.server).sign(FORM.mark + text)
    answer = offered(session, party, replace(session.signed, text=text, signature=signature))
    assert answer[6] != Said.ACCEPTED
    said = log_of(tmp_path)
    # Also of a plan of another form, which is what the process ends with.
    content["format"] = "9\x1b[2J"
    text = json.dumps(content, sort_keys=True).encode()
    signature = Identity(silos.server).sign(FORM.mark + text)
    offered(session, party, replace(session.signed, text=text, signature=signature))
    assert party.unfit is not None
    assert party.unfit.isprintable()
    assert "algo = x\\x1b[2J round 0: nothing left: unknown" in said
    assert all(letter.isprintable() or letter == "\n" for letter in said)
    assert all(line[:2] == "20" for line in said.splitlines())


@pytest.mark.parametrize("there", ["0.3.0", "0.5.0"])
def test_a_neighbouring_version_takes_part_where_it_computes_the_same_numbers(there, silos, tmp_path):
    session = open_session(silos, tmp_path, "dp-agrlr-micro", **MICRO)
    party, content = session.parties[silos.roster[0]], json.loads(session.signed.text)
    content["version"] = there

    def signed():
        text = json.dumps(content, sort_keys=True).encode()
        return replace(session.signed, text=text, signature=Identity(silos.server).sign(FORM.mark + text))

    assert offered(session, party, signed())[6] == Said.ACCEPTED
    content["privacy"]["record_delta"] *= 1.01
    assert offered(session, party, signed())[6] != Said.ACCEPTED
    assert f"(version {there} there, {__version__} here)" in log_of(tmp_path)
    assert party.unfit is None
