"""The client's side of a loop: whatever the server or a restart does, one charge gives one answer."""

import json
import math
import shutil

import numpy as np
import pytest

import dpfedmeta as dp
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.ledger.hash_chain import read_chain
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.federation import client_rounds
from dpfedmeta.federation.client.promise_checks import check_floors
from dpfedmeta.federation.client_rounds import _MARK
from dpfedmeta.privacy.rounds.round_sum import form_of
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity

RECORD = dp.RecordRelease(records=4, clip=1.0, noise_multiplier=3.0)
MODEL = {"a": np.zeros(3), "b": np.zeros((2, 2))}


def rows(value, count=4):
    return [{"a": np.full(3, value), "b": np.full((2, 2), value)} for _ in range(count)]


@pytest.fixture
def rounds(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))

    def made(clip=None, like=MODEL, **changes):
        return dp.PrivateRounds(
            clients=40, cohort=40, rounds=9, promise=dp.Promise(epsilon=6.0, delta=1e-4), like=like, sampler="fixed",
            clip=clip or dp.clip.Constant(initial=2.0), run_dir=tmp_path / "server", **changes,
        )  # fmt: skip

    return made


@pytest.fixture
def client(rounds, tmp_path):
    with rounds() as private:
        offers = {record: dp.sign_rounds(private, record=record) for record in (RECORD, None)}

    def made(record=RECORD, folder="client", **promise):
        offer, key = offers[record]
        return dp.ClientRounds(offer, tmp_path / folder, server=key, **({"epsilon": 2.0} | promise))

    return made


def test_a_message_is_the_clipped_sum_of_records_with_the_noise_that_is_charged(client, tmp_path):
    exact = {"a": 2.5 * np.array([1, 0, 0]), "b": np.zeros((2, 2))}
    gradients = [exact, {"a": np.array([0, 0.5, 0]), "b": np.zeros((2, 2))}, {"a": np.full(3, math.nan), "b": 0}]
    mine = client()
    sent = dp.ClientRounds.update(mine.message(0, 2.0, gradients))
    assert {name: value.shape for name, value in sent.items()} == {"a": (3,), "b": (2, 2)}
    many = np.concatenate([dp_noise(seed) for seed in range(300)])
    assert many.mean() == pytest.approx(0.0, abs=0.06)
    assert many.std() == pytest.approx(3.0 / 4, rel=0.05)
    assert mine.spent == pytest.approx(gaussian_epsilon(1 / 3, 1e-5))
    lines, _ = read_chain(tmp_path / "client/ledger.jsonl", "ledger")
    one = {"zero-out": 1 / 3, "row-deleted": 1 / 3}
    exchanged = dict.fromkeys(("row-relabelled", "row-exchanged-same-label", "row-exchanged"), 2 / 3)
    assert [line["mu"] for line in lines[1:]] == [one | exchanged]
    assert mine.spent_by_relation["row-exchanged"] == pytest.approx(gaussian_epsilon(2 / 3, 1e-5))


def dp_noise(seed):
    """The noise on nobody's records, from a chosen generator."""
    generator = KeyedSource(seed).generator(Purpose.QUERY_NOISE, 0)
    values = RECORD.released([], form_of(MODEL), generator).value
    return np.concatenate([value.reshape(-1) for value in values.values()])


def test_the_sum_before_noise_is_that_of_shortened_records():
    form = form_of({"w": np.zeros(2)})

    def released(gradients):
        return RECORD.released(gradients, form, KeyedSource(7).generator(Purpose.QUERY_NOISE, 0)).value["w"]

    long, short, bad = {"w": np.array([5.0, 0.0])}, {"w": np.array([0.0, 0.25])}, {"w": np.array([math.inf, 1.0])}
    others = [{"w": np.zeros(3)}, {"v": np.zeros(2)}, None, "w"]
    moved = released([long, short, bad]) - released([])
    assert moved == pytest.approx(np.array([1.0, 0.25]) / 4, abs=1e-5)
    assert released(others) == pytest.approx(released([]))
    # More records than were said, or none at all, are no error either.
    assert np.linalg.norm(released([long] * 50) - released([])) == pytest.approx(1.0, abs=1e-5)


def exact_sum(release, gradients):
    """What leaves before its noise, which depends on nothing here: by its difference from nobody's."""
    form = form_of({"w": np.zeros(2)})
    both = [release.released(given, form, KeyedSource(7).generator(Purpose.QUERY_NOISE, 0)).value["w"]
            for given in (gradients, [])]  # fmt: skip
    return (both[0].astype(np.float64) - both[1].astype(np.float64)) * release.records


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 30])
def test_a_record_less_moves_the_sum_by_what_is_charged_however_many_there_are(count):
    """A fixed number of them let another one in: the sum moved by 2 where 1 was charged."""
    release = dp.RecordRelease(records=3, clip=1.0, noise_multiplier=4.0)
    layer = release.layer
    draw, largest = np.random.default_rng(count), dict.fromkeys(("row-deleted", "row-exchanged"), 0.0)
    for trial in range(30):
        directions = draw.normal(size=(count + 1, 2)) * (1.0 if trial % 2 else 0.01) + [2.0 * (trial % 3), 0.0]
        directions /= np.maximum(1.0, np.linalg.norm(directions, axis=1))[:, None]
        *gradients, other = ({"w": each} for each in directions)
        place = int(draw.integers(count))
        rest = [*gradients[:place], *gradients[place + 1 :]]
        whole = exact_sum(release, gradients)
        assert np.linalg.norm(whole) <= release.records * (1 + 1e-5)
        for relation, neighbour in (("row-deleted", rest), ("row-exchanged", [*rest, other])):
            moved = float(np.linalg.norm(whole - exact_sum(release, neighbour)))
            largest[relation] = max(largest[relation], moved)
            assert moved <= layer.moved(relation) + 1e-5
    cases = [[1.0, 0.0], [0.0, 0.1], [0.1, 0.0], [-1.0, 0.0]]
    four = [{"w": np.array(each)} for each in cases]
    assert np.linalg.norm(exact_sum(release, four) - exact_sum(release, four[1:])) <= 1.0 + 1e-5
    assert [layer.moved(each) for each in ("zero-out", "in-place", "row-deleted", "row-exchanged")] == [1, 2, 1, 2]


def test_sums_just_inside_and_just_outside_the_ball_are_as_near_as_they_were():
    """A projection that shortened by a hair, as a message is, would part them."""
    release = dp.RecordRelease(records=3, clip=1.0, noise_multiplier=4.0)
    full = [{"w": np.array([1.0, 0.0])}] * 2
    sums = [exact_sum(release, [*full, {"w": np.array([1.0, 0.0])}, {"w": np.array([tiny, 0.0])}])[0]
            for tiny in (0.0, 1e-3)]  # fmt: skip
    assert sums[0] == pytest.approx(sums[1], abs=1e-6)


@pytest.mark.parametrize("relation", ["zero-out", "row-deleted", "row-exchanged"])
def test_a_limit_is_for_the_relation_that_is_named_and_stays_so(client, relation):
    mine = client(epsilon=3.0, relation=relation)
    mine.message(0, 2.0, rows(0.1))
    assert mine.spent == mine.spent_by_relation[relation]
    if relation != "row-exchanged":
        assert mine.spent == pytest.approx(gaussian_epsilon(1 / 3, 1e-5))
    with pytest.raises(dp.InputError, match="has the limit epsilon 3, delta 1e-05, relation"):
        client(epsilon=3.0)
    with pytest.raises(dp.InputError, match="relation = removed: expected one of zero-out"):
        client(folder="other", relation="removed")


def test_a_charge_is_not_used_again_whatever_is_handed_over(client):
    mine = client()
    first = mine.message(0, 2.0, rows(0.1))
    spent = mine.spent
    assert mine.message(0, 2.0, rows(9.0)) == first
    assert client().message(0, 2.0, rows(-9.0)) == first  # after a restart
    assert mine.spent == spent


def test_another_question_gets_no_answer_from_the_same_charge(client, rounds, tmp_path):
    mine = client()
    mine.message(0, 2.0, rows(0.1))
    with pytest.raises(dp.InputError, match="charged for another question"):
        mine.message(0, 3.0, rows(0.1))
    # The same round of another offer of the same run.
    with rounds() as private:
        offer, key = dp.sign_rounds(private, record=dp.RecordRelease(records=4, clip=5.0, noise_multiplier=3.0))
    with pytest.raises(dp.InputError, match="charged for another question"):
        dp.ClientRounds(offer, tmp_path / "client", server=key, epsilon=2.0).message(0, 2.0, rows(0.1))
    assert len((tmp_path / "client/ledger.jsonl").read_text().splitlines()) == 2


def test_equal_records_get_other_noise_in_another_round_and_at_another_client(client):
    mine = client(epsilon=50.0)
    sent = [mine.message(number, 2.0, rows(0.1)) for number in range(3)]
    sent += [client(folder="other").message(0, 2.0, rows(0.1))]
    assert len({*sent}) == 4


def test_an_answer_that_is_not_kept_any_more_is_not_computed_again(client, tmp_path):
    mine = client(epsilon=50.0)
    mine.message(0, 2.0, rows(0.1))
    mine.message(1, 2.0, rows(0.1))
    with pytest.raises(dp.InputError, match="its answer is not kept"):
        mine.message(0, 2.0, rows(0.2))
    (next((tmp_path / "client/runs").iterdir()) / "last_answer.bin").unlink()
    # Charged and perhaps sent: another update under this charge has noise of its own, and is one more release; the
    # same update is the same message.
    again = mine.message(1, 2.0, rows(0.1))
    assert again == mine.message(1, 2.0, rows(5.0))


def test_a_ledger_that_was_rolled_back_beside_a_newer_answer_is_refused(client, tmp_path, monkeypatch):
    mine = client(epsilon=50.0)
    mine.message(0, 2.0, rows(0.1))
    shutil.copy(tmp_path / "client/ledger.jsonl", tmp_path / "old")
    mine.message(1, 2.0, rows(0.1))
    shutil.copy(tmp_path / "old", tmp_path / "client/ledger.jsonl")
    with pytest.raises(dp.InputError, match="is an older copy"):
        mine.message(1, 2.0, rows(0.7))
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "of another machine"))
    with pytest.raises(dp.InputError, match="knows nothing of this answer"):
        mine.message(1, 2.0, rows(0.7))


def test_a_folder_that_was_restored_answers_nothing_on_its_machine_and_says_less_nowhere(
    client, tmp_path, monkeypatch, capsys
):
    """A backup of all of it, keys, ledger and last answer: it would answer again what it does not count."""
    folder, backup = tmp_path / "client", tmp_path / "backup"
    mine = client(epsilon=50.0)
    first = mine.message(0, 2.0, rows(0.1))
    shutil.copytree(folder, backup)
    later, spent = mine.message(1, 2.0, rows(0.1)), mine.spent
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    before = (folder / "ledger.jsonl").read_bytes()
    for act in (
        lambda: mine.message(1, 2.0, rows(0.1)),
        lambda: mine.message(2, 2.0, rows(0.1)),
        lambda: mine.spent,
        lambda: client(epsilon=50.0),
    ):
        with pytest.raises(dp.InputError, match="is an older copy; on this machine its ledger went on to line 3"):
            act()
    assert (folder / "ledger.jsonl").read_bytes() == before
    # Taken all the same, what was lost is charged again, and that round is not answered a second time.
    lowered = client(epsilon=49.0, change_limit=True)
    assert "it is taken all the same (--change-limit), and what is missing is charged" in capsys.readouterr().err
    assert lowered.spent == spent
    with pytest.raises(dp.InputError, match="round 1 was answered, and its answer is not kept any more"):
        lowered.message(1, 2.0, rows(0.1))
    assert lowered.spent == spent
    assert client(epsilon=49.0).message(2, 2.0, rows(0.1))
    # Another machine knows nothing of it, and says so.
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "of another machine"))
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    assert client(epsilon=50.0).message(1, 2.0, rows(0.1)) not in (first, later)
    assert "was not used on this machine before; its ledger counts 1 answers" in capsys.readouterr().err


def test_two_copies_of_a_folder_do_not_answer_by_turns(client, tmp_path):
    mine = client(epsilon=50.0)
    mine.message(0, 2.0, rows(0.1))
    shutil.copytree(tmp_path / "client", tmp_path / "copy")
    copied = client(folder="copy", epsilon=50.0)
    copied.message(1, 2.0, rows(0.1))
    with pytest.raises(dp.InputError, match="is an older copy"):
        mine.message(1, 2.0, rows(0.1))


def test_without_a_register_it_is_said_that_an_older_copy_goes_unnoticed(client, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "file"))
    assert client(epsilon=50.0).message(0, 2.0, rows(0.1))
    assert "an older copy of" in capsys.readouterr().err


def test_beyond_the_promise_a_round_is_declined_and_nothing_is_charged(client, tmp_path):
    one = gaussian_epsilon(1 / 3, 1e-5)
    mine = client(epsilon=1.5 * one)
    mine.message(0, 2.0, rows(0.1))
    assert mine.spent == pytest.approx(one)
    mine.message(1, 2.0, rows(0.1))  # sqrt(2) mu is still within
    before = (tmp_path / "client/ledger.jsonl").read_bytes()
    with pytest.raises(dp.InputError, match="declined: it exceeds"):
        mine.message(2, 2.0, rows(0.1))
    assert (tmp_path / "client/ledger.jsonl").read_bytes() == before
    with pytest.raises(dp.InputError, match="has the limit epsilon"):
        client(epsilon=9.0)
    spent = mine.spent
    changed = client(epsilon=9.0, change_limit=True)
    assert changed.spent == spent
    changed.message(2, 2.0, rows(0.1))
    assert changed.spent == pytest.approx(gaussian_epsilon(math.sqrt(3) / 3, 1e-5))
    counted = client(record=None, folder="counted", epsilon=None, participations=1)
    counted.message(0, 2.0, MODEL)
    with pytest.raises(dp.InputError, match="declined"):
        counted.message(1, 2.0, MODEL)
    # Exact messages cost a record everything.
    with pytest.raises(dp.InputError, match="declined"):
        client(record=None, folder="exact").message(0, 2.0, MODEL)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epsilon", ["1", True, math.nan, math.inf, 0, -1.0, [1]]),
        ("delta", ["x", True, math.nan, 0.0, 1, None]),
        ("participations", ["3", True, math.nan, 2.5, 3.0, 0, -1]),
    ],
)
def test_a_promise_is_made_of_numbers(client, tmp_path, name, values):
    for value in values:
        with pytest.raises(InputError, match=rf"^{name} = "):
            client(folder="new", **{name: value})
    assert not (tmp_path / "new" / "ledger.jsonl").exists()
    right = {"epsilon": np.float64(2.0), "delta": np.float64(1e-5), "participations": 3}
    assert client(folder="new", **{name: right[name]}).spent == 0.0


@pytest.mark.parametrize(
    ("name", "values"),
    [("adversarial", [math.nan, 1, -0.1, "0.1", True]), ("colluding", [math.nan, 0.5, -1, "1", True])],
)
def test_floors_are_numbers(name, values):
    check_floors(0.0, 0)
    check_floors(0.999, 7)
    for value in values:
        with pytest.raises(InputError, match=f"^{name} = "):
            check_floors(**({"adversarial": 0.1, "colluding": 1} | {name: value}))


@pytest.mark.parametrize("value", [None, "text", 5, [1]])
def test_an_offer_and_a_key_are_bytes(rounds, tmp_path, value):
    with rounds() as private:
        offer, key = dp.sign_rounds(private)
    for given in ({"offer": value}, {"server": value}):
        words = {"offer": offer, "server": key} | given
        (name,) = given
        with pytest.raises(InputError, match=f"^ClientRounds: {name}: expected bytes, as sign_rounds gives them, got "):
            dp.ClientRounds(words["offer"], tmp_path / "c", server=words["server"], participations=3)
    given = {"server": bytearray(key), "participations": 3}
    dp.ClientRounds(bytearray(offer), tmp_path / "c", **given).message(0, 2.0, {"a": np.ones(3), "b": np.zeros((2, 2))})


def test_a_folder_does_not_lie_in_a_run(client, tmp_path):
    """An archive of the run would hold the key of the noise, and the bytes that make it."""
    run = tmp_path / "run"
    (run / "secret").mkdir(parents=True)
    for name in ("config.yaml", "ledger.jsonl"):
        (run / name).touch()
    with pytest.raises(InputError, match=rf"^ClientRounds: folder {run}/client: is inside the run {run}, which may be"):
        client(folder="run/client")
    assert not (run / "client").exists()
    client(folder="run/secret/client")
    # One of a version that took such a place: under another name alone its budget would begin anew.
    (run / "secret" / "client").rename(run / "client")
    with pytest.raises(InputError, match=f"or {run}/secret, and move there what it holds: a ledger goes along$"):
        client(folder="run/client")


def test_without_a_record_release_an_update_is_clipped_before_it_leaves(client):
    mine = client(record=None, epsilon=None, participations=3)
    for update, norm in (({"a": np.full(3, 7.0), "b": np.zeros((2, 2))}, 1.5), ({"a": np.ones(9)}, 0.0), (None, 0.0)):
        number = len(mine._ledger().keys(mine._run))
        sent = dp.ClientRounds.update(mine.message(number, 1.5, update))
        assert np.sqrt(sum((value**2).sum() for value in sent.values())) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("name", ["noise_multiplier", "promise", "rounds"])
def test_an_offer_whose_numbers_do_not_come_to_its_plan_is_refused(client, rounds, tmp_path, name):
    with rounds() as private:
        offer, key = dp.sign_rounds(private, record=RECORD)
        identity = Identity((private.run.secret / "identity.key").read_bytes())
    content = json.loads(offer[SIGNATURE_BYTES:])
    if name == "promise":
        content["planned"][0]["epsilon"] /= 2
    else:
        content["privacy"][name] *= 2
    text = json.dumps(content, sort_keys=True).encode()
    with pytest.raises(dp.InputError, match="not signed by the server"):
        dp.ClientRounds(offer[:SIGNATURE_BYTES] + text, tmp_path / "c", server=key, epsilon=2.0)
    with pytest.raises(dp.InputError, match="but the ledger gives"):
        dp.ClientRounds(identity.sign(_MARK + text) + text, tmp_path / "c", server=key, epsilon=2.0)
    assert not (tmp_path / "c").exists()


def test_two_processes_do_not_answer_from_one_folder_at_once(client, tmp_path):
    mine = client()
    with only_writer(tmp_path / "client"), pytest.raises(dp.InputError, match="this process itself"):
        mine.message(0, 2.0, rows(0.1))


@pytest.mark.parametrize(
    ("number", "bound"), [(-1, 2.0), (9, 2.0), (True, 2.0), (0, 0.0), (0, math.nan), (0, math.inf)]
)
def test_a_round_that_is_not_planned_is_not_charged(client, number, bound):
    mine = client()
    with pytest.raises(dp.InputError, match="no such round"):
        mine.message(number, bound, rows(0.1))
    assert mine.spent == 0.0


def test_rounds_that_clients_cannot_answer_are_not_signed(rounds, tmp_path):
    with rounds(like=None) as private, pytest.raises(dp.InputError, match="give PrivateRounds like=model"):
        dp.sign_rounds(private)
    shutil.rmtree(tmp_path / "server")
    quantile = dp.clip.Quantile(initial=1.0, count_noise=5.0)
    with rounds(clip=quantile) as private, pytest.raises(dp.InputError, match=r"use dp.clip.Window"):
        dp.sign_rounds(private)


def test_an_iterator_of_gradients_which_one_record_could_stop_is_refused(client):
    mine = client()
    with pytest.raises(dp.InputError, match="a list of gradients"):
        mine.message(0, 2.0, iter(rows(0.1)))
    assert mine.spent == 0.0


def test_a_client_alone_is_told_what_of_its_update_does_not_count(client, capsys):
    mine = client()
    assert mine.problem(rows(1.0)) is None
    assert mine.message(0, 2.0, rows(1.0, count=6)) is not None
    assert "6 gradients, where the offer counts with 4 records" in capsys.readouterr().err
    odd = [*rows(1.0, count=3), {"a": np.zeros(3)}]
    assert mine.message(1, 2.0, odd) is not None
    assert "1 of 4 gradients count as zero (number 3: an update of the form" in capsys.readouterr().err
    exact = client(None, "exact")
    assert exact.problem(rows(1.0)[0]) is None
    assert "it counts as zero" in exact.problem({"a": np.full(3, np.nan), "b": np.zeros((2, 2))})


@pytest.mark.parametrize("values", [{"records": 0}, {"records": 2.5}, {"clip": 0.0}, {"noise_multiplier": math.nan}])
def test_a_record_release_without_a_guarantee_is_refused(values):
    with pytest.raises(dp.RefusedPlan, match="RecordRelease"):
        dp.RecordRelease(**({"records": 4, "clip": 1.0, "noise_multiplier": 1.0} | values))


def test_a_loop_whose_clients_answer_for_themselves(client, rounds):
    """Also what the server has to bear: a client twice, another form in round 7, bytes that are no message."""
    clients = {number: client(folder=f"client-{number}", epsilon=50.0) for number in range(5)}
    with rounds() as private:
        for round_ in private:
            for number in round_.cohort:
                if number in clients:
                    reply = clients[number].message(round_.number, round_.bound, rows(0.5))
                    round_.add(number, dp.ClientRounds.update(reply))
                    round_.add(number, dp.ClientRounds.update(reply))
                elif round_.number == 7:
                    round_.add(number, {"a": np.zeros(4)})
                else:
                    round_.add(number, dp.ClientRounds.update(b"no message"))
            round_.release()
        assert private.ended == "completed"
        left_out = (private.run.secret / "left-out.jsonl").read_text().splitlines()
    assert [json.loads(line)["messages"] for line in left_out] == [40] * 9  # 5 second ones, 35 of no form
    assert [each.spent for each in clients.values()] == [pytest.approx(gaussian_epsilon(3 / 3, 1e-5))] * 5


def test_a_loop_that_never_releases_is_stopped_before_a_second_charge(rounds):
    with rounds() as private, pytest.raises(dp.InputError, match="round 0 was not released"):
        for round_ in private:
            round_.map(lambda client: MODEL)
    assert len((private.run.path / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_charge_that_could_not_be_noted_is_noted_before_its_answer_leaves(client, monkeypatch):
    """Else a backup of before would answer that round again, uncharged: nothing outside the folder knew of it."""
    mine, noted = client(), vars(client_rounds)["note_answered"]
    fails, calls = [True], list[object]()

    def note(home):
        if fails and fails.pop():
            raise OSError(28, "No space left on device")
        calls.append(home)
        return noted(home)

    monkeypatch.setattr(client_rounds, "note_answered", note)
    with pytest.raises(OSError, match="No space left"):
        mine.message(0, 2.0, rows(0.1))
    assert calls == []
    assert mine.message(0, 2.0, rows(0.1)) == mine.message(0, 2.0, rows(0.1))
    assert len(calls) == 2
