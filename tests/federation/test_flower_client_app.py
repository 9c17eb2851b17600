"""A client under `flwr run`: its home, its promise, and what leaves it when it cannot take part."""

import errno
import math
import shutil
from typing import ClassVar

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dpfedmeta.federation.client import client as real
from dpfedmeta.federation.client import client_home
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.flower.flower_channel import content_of, record_of
from dpfedmeta.federation.flower.flower_environment import KIND
from dpfedmeta.federation.identity.credentials import write_identity
from dpfedmeta.federation.identity.invitation import INVITATION, make_operator
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.silos import make_silos
from tests.federation.test_flower_apps import free_port, in_flowers_own_process


class Charging:
    """Charges each answer, and keeps what it was made with."""

    made: ClassVar[dict[str, object]] = {}

    def __init__(self, data, private, ledger, **given):
        self.ledger = ledger
        type(self).made = {"data": data, "ledger": ledger, **given}

    def answer(self, question):
        with self.ledger.open("a") as ledger:
            ledger.write('{"round": 0}\n')
        return question[::-1]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A client's images, its key and the operator's invitation."""
    folder = tmp_path_factory.mktemp("node")
    silos = make_silos(folder / "silos")
    make_operator(folder / "operator", ["127.0.0.1"], free_port(), silos.server)
    write_identity(folder / "id.pem", silos.keys[0])
    places = {"data": silos.folders[0], "identity": folder / "id.pem", "invitation": folder / "operator" / INVITATION}
    return {key: str(place) for key, place in places.items()}


@pytest.fixture
def asked(files, tmp_path, monkeypatch):
    """A function that asks the app one question, with more of the node's config; and the client's home."""
    home = tmp_path / "home"
    home.mkdir()
    apps, _ = in_flowers_own_process(monkeypatch)
    monkeypatch.setattr(real, "RealClient", Charging)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    config = {**files, "home": str(home), "participations": 5}

    def ask(**more):
        context = Context(run_id=1, node_id=1, node_config={**config, **more}, state=RecordDict(), run_config={})
        question = Message(record_of(b"abc"), dst_node_id=1, message_type=KIND)
        return content_of(apps.client_app()(question, context))

    return ask, home


def test_it_answers_from_its_home_with_the_promise_of_its_config(asked):
    ask, home = asked
    assert ask(unit="client", epsilon=3.0, delta=1e-6) == b"cba"
    assert Charging.made["promise"] == Promise(unit="client", epsilon=3.0, delta=1e-6, participations=5)
    assert Charging.made["ledger"] == home / "ledger.jsonl"
    assert ask() == b"cba"
    assert Charging.made["promise"] == Promise(participations=5)


def test_a_home_that_was_set_back_does_not_answer(asked, tmp_path, capsys):
    """A whole home from a backup forgets what was spent since."""
    ask, home = asked
    assert ask() == b"cba"
    shutil.copytree(home, tmp_path / "backup")
    assert ask() == b"cba"
    shutil.rmtree(home)
    shutil.move(tmp_path / "backup", home)
    with pytest.raises(Refused, match="its own machine says why"):
        ask()
    assert "on this machine its ledger went on to line 2, and this one has 1" in capsys.readouterr().err
    # What a config says, it would say after each restore.
    for word in (True, "true"):
        with pytest.raises(Refused):
            ask(**{"change-limit": word})


def test_no_answer_leaves_that_cannot_be_noted(asked, monkeypatch, capsys):
    ask, _ = asked
    assert ask() == b"cba"

    def full(*given):
        raise OSError(errno.ENOSPC, "no space left", "register")

    monkeypatch.setattr(client_home, "_note", full)
    with pytest.raises(Refused):
        ask()
    assert "no space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"unit": "clinic"}, "unit = clinic"), ({"delta": 2.0}, "delta = 2.0"), ({"home": ""}, "home: is missing"),
        ({"identity": "/nowhere.pem"}, "/nowhere.pem"), ({"epsilon": "abc"}, "epsilon = 'abc'"),
        ({"epsilon": True}, "epsilon = True"), ({"delta": "1e-5"}, "delta = '1e-5'"),
        ({"participations": 2.9}, "participations = 2.9"), ({"participations": True}, "participations = True"),
        ({"participations": math.inf}, "participations = inf"), ({"epsilon": math.nan}, "epsilon = nan"),
        ({"home": "~nobody-of-this-name/x"}, "home directory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_its_config_is_told_here_alone(asked, capsys, wrong, said):
    ask, _ = asked
    with pytest.raises(Refused) as told:
        ask(**wrong)
    assert str(told.value) == "this client cannot take part; its own machine says why"
    assert said in capsys.readouterr().err
