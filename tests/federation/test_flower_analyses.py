"""An analysis over Flower on loopback, by the command that an operator types: the numbers of the simulation."""

import json
import socket
import threading

import pytest
from rich.console import Console

from dpfedmeta.analytics.verification import verify
from dpfedmeta.cli.commands.analyse_command import main
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import SUMMARY, RunDirectory
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.identity.credentials import card_line
from dpfedmeta.federation.identity.invitation import INVITATION, make_operator, read_invitation
from tests.federation.silos import CLIENTS, NOISE, SMALL
from tests.federation.wires import Wire, attend

OPTIONS = {"--epsilon": "20", "--delta": "1e-3", "--noise-seed": str(NOISE), "--aggregation.dropout": "0.2"}


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.fixture
def operator(silos, tmp_path):
    """A server's keys that clients know, and a roster."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    make_operator(tmp_path / "keys", ["127.0.0.1"], port, silos.server)
    cards = [card_line(key, f"silo-{number}") for number, key in enumerate(silos.keys)]
    (tmp_path / "roster.txt").write_text("".join(f"{card}\n" for card in cards))
    return tmp_path


class Attending:
    """Clients in threads, each with its own images and ledger."""

    def __init__(self, silos, home, promise=None):
        self.over, invitation = False, read_invitation(home / "keys" / INVITATION)
        self.threads = []
        for number, key in enumerate(silos.keys):
            party = silos.client(number, home, promise)
            wire = Wire(server=invitation.server, authority=invitation.authority, private=key, patience=60)
            self.threads.append(threading.Thread(target=self._attend, args=(party, wire), daemon=True))

    def _attend(self, party, wire):
        attend(party, wire, over=lambda: self.over)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.over = True


def analyse(home, kind, dataset, *more, name="asked", small=SMALL):
    given = {key: value for key, value in small.items() if not key.startswith("run.") and key != "population.cohort"}
    # A simulation needs to be told of its clients; real ones are counted by the roster.
    given |= {} if more[0] == "--keys" else {"population.cohort": small["population.cohort"]}
    settings = [word for key, value in given.items() for word in (f"--{key}", value)]
    own = [word for pair in OPTIONS.items() for word in pair]
    place = ["--run.dir", str(home), "--run.name", name, "--run.seed", SMALL["run.seed"]]
    words = [kind, "--algo", "dp-agr", "--dataset", str(dataset), *own, *settings, *place, *more]
    return main(words, Console(soft_wrap=True))


def test_it_is_asked_over_the_wire_and_numbers_are_those_of_the_simulation(silos, operator, capsys):
    assert analyse(operator, "histogram", silos.everybody, "--fixed-cohort", name="simulated") == 0
    there = ["--keys", str(operator / "keys"), "--roster", str(operator / "roster.txt"), "--wait", "60"]
    with Attending(silos, operator):
        assert analyse(operator, "histogram", silos.public, *there) == 0
    text = capsys.readouterr().out
    assert "phase: 5 of 5 clients answered, 0 declined" in text
    expected, run = (RunDirectory(operator / name) for name in ("simulated", "asked"))
    assert run.read_json(SUMMARY)["found"] == expected.read_json(SUMMARY)["found"]
    assert "statement.txt agrees" in verify(run).remarks
    for number in range(CLIENTS):
        home = operator / f"client{number}"
        assert len((home / "ledger.jsonl").read_text().splitlines()) == 2
        assert "histogram: one vector under masks" in (home / "log.txt").read_text()
    # Complete: nobody is asked again, and nobody has to be there.
    assert main(["--resume", str(run.path), "--json"], Console(soft_wrap=True)) == 0
    assert json.loads(capsys.readouterr().out)["found"] == expected.read_json(SUMMARY)["found"]


def test_declined_by_all_it_goes_on_where_they_promise_more(silos, operator, capsys):
    there = ["--keys", str(operator / "keys"), "--roster", str(operator / "roster.txt"), "--wait", "60"]
    with Attending(silos, operator, Promise(epsilon=0.01)) as clients:
        with pytest.raises(InputError, match="go on with --resume"):
            analyse(operator, "quantile", silos.public, *there)
        assert "0 of 5 clients answered, 5 declined" in capsys.readouterr().out
    for thread in clients.threads:
        thread.join(30)
    for number in range(CLIENTS):
        (operator / f"client{number}" / "ledger.jsonl").unlink()
    with Attending(silos, operator):
        assert main(["--resume", str(operator / "asked"), *there], Console(soft_wrap=True)) == 0
    assert "statement.txt agrees" in verify(RunDirectory(operator / "asked")).remarks


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--keys", "K"], "give --roster FILE too"),
        (["--roster", "R"], "give --keys DIR too"),
        (["--keys", "K", "--roster", "R"], "R: the roster cannot be read"),
        (["--keys", "K", "--roster", "R", "--names", "F"], "drop one"),
        (["--fixed-cohort", "--cohort", "2.5"], "a whole number"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    kind = ["heavy-hitters"] if "--names" in words else ["histogram", "--algo", "dp-agr", "--dataset", "strokes"]
    with pytest.raises(InputError, match=problem) as raised:
        main([*kind, *words], Console(quiet=True))
    assert "\n" not in str(raised.value)
    assert not [*tmp_path.iterdir()]
