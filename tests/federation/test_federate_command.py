"""`federate`: what is wrong is one line with an exit code, and nobody else is harmed."""

import shlex
import subprocess
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.federation_demo import DemoOptions, _Client, _process, _server_words
from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.commands import analyse_command
from dpfedmeta.cli.commands.federate_command import _server_parser, main
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation import entry_points
from dpfedmeta.federation.identity.credentials import checked_fewest, read_card, read_roster
from dpfedmeta.federation.identity.invitation import INVITATION
from dpfedmeta.planning.run_plan import make_plan
from tests.federation.silos import write_classes


@pytest.fixture
def said(capsys):
    def run(*words):
        code = main([str(word) for word in words], Console(soft_wrap=True))
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def made(tmp_path, said):
    said("keys", "--server", "--out", tmp_path / "operator", "--host", "127.0.0.1", "--port", 9)
    said("keys", "--out", tmp_path / "a" / "clinic.pem")
    (tmp_path / "roster.txt").write_text((tmp_path / "a" / "clinic.card").read_text())
    write_classes(tmp_path / "images", range(2), images=1)
    (tmp_path / "empty" / "class").mkdir(parents=True)
    return tmp_path


def test_it_says_what_it_knows(said):
    assert said()[0] == 2
    code, text = said("--help")
    assert code == 0
    assert all(word in text for word in ("keys", "server", "client", "demo"))
    with pytest.raises(InputError, match="did you mean client"):
        said("clint")


def test_keys_are_files_that_the_others_read(made):
    (card,) = read_roster(made / "roster.txt")
    assert card == read_card((made / "a" / "clinic.card").read_text())
    assert card.name == "clinic"


@pytest.mark.parametrize("name", ["z.card", "z.home", "z.flower"])
@pytest.mark.parametrize("more", [(), ("--rotate", "a/clinic.pem")])
def test_a_key_does_not_lie_where_its_card_or_home_will(made, said, monkeypatch, name, more):
    """The card was written over it, and the key existed nowhere any more."""
    monkeypatch.chdir(made)
    with pytest.raises(InputError, match=rf"^--out {name}: .* are endings of what lies beside a key; .*z\.pem$"):
        said("keys", "--out", name, *more)
    assert not (made / name).exists()
    assert said("keys", "--out", "z.pem")[0] == 0


def test_the_card_of_another_key_stays(made, said):
    before = (made / "a" / "clinic.card").read_bytes()
    with pytest.raises(InputError, match=r"clinic\.card: exists already, perhaps of another key"):
        said("keys", "--out", made / "a" / "clinic.key")
    assert not (made / "a" / "clinic.key").exists()
    assert (made / "a" / "clinic.card").read_bytes() == before


def client(made, **given):
    words = {
        "data": made / "images",
        "invitation": made / "operator" / INVITATION,
        "identity": made / "a" / "clinic.pem",
        "participations": 3,
    } | given
    return ["client", *(word for name, value in words.items() for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"data": "nowhere"}, "nowhere: not there"),
        ({"data": "empty"}, "empty: a folder without classes; expected empty/CLASS/IMAGE"),
        ({"invitation": "nowhere"}, "the invitation cannot be read"),
        ({"identity": "nowhere"}, "the identity key cannot be read"),
        ({"participations": 0}, "participations = 0"),
        ({"epsilon": -1}, "epsilon = -1"),
        ({"server": "nowhere"}, "expected HOST:PORT"),
    ],
)
def test_a_client_s_bad_input(said, made, given, reason, monkeypatch):
    """It is known before anybody is called: there is no server here."""
    monkeypatch.chdir(made)
    with pytest.raises(InputError, match=reason):
        said(*client(made, **given))


def test_a_client_that_promises_nothing(said, made):
    with pytest.raises(InputError, match="epsilon and participations are both missing"):
        said(*client(made)[:-2])


OPTIONS_OF_CLIENTS = [
    ("--home", "there", "home", Path("there")),
    ("--unit", "client", "promise.unit", "client"),
    ("--epsilon", "2.5", "promise.epsilon", 2.5),
    ("--delta", "1e-7", "promise.delta", 1e-7),
    ("--participations", "4", "promise.participations", 4),
    ("--adversarial", "0.25", "promise.floors.adversarial", 0.25),
    ("--colluding", "3", "promise.floors.colluding", 3),
    ("--server", "elsewhere:7", "server", "elsewhere:7"),
    ("--patience", "12.5", "patience", 12.5),
    ("--dry-run", None, "dry_run", True),
    ("--stay", None, "stay", True),
    ("--change-limit", None, "change_limit", True),
]


@pytest.mark.parametrize("option", [None, *OPTIONS_OF_CLIENTS], ids=lambda option: option and option[0])
def test_every_option_of_a_client_is_what_it_promises_and_does(said, made, monkeypatch, option):
    """One at a time: the others are what they are by default."""
    given = []
    monkeypatch.setattr(entry_points, "run_client", lambda options, say: given.append(options))
    due = {
        "data": made / "images", "invitation": made / "operator" / INVITATION, "identity": made / "a" / "clinic.pem",
        "home": made / "a" / "clinic.home", "promise.unit": "record", "promise.epsilon": None, "promise.delta": 1e-5,
        "promise.participations": 3, "promise.floors.adversarial": 0.0, "promise.floors.colluding": 0,
        "server": None, "patience": 600.0, "dry_run": False, "stay": False, "change_limit": False,
    }  # fmt: skip
    name, word, field, value = option or (None, None, None, None)
    words = client(made)
    if option is not None:
        words, due[field] = [*words, name, *([] if word is None else [word])], value
    if name == "--participations":
        words = [*client(made)[:-2], name, word]
    assert said(*words)[0] == 0
    (options,) = given
    assert {each: attrgetter(each)(options) for each in due} == due


def test_a_client_without_a_server(said, made):
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9: the server did not answer for 0 s"):
        said(*client(made, patience=0.1))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--roster", "nowhere"], "the roster cannot be read"),
        (["--keys", "nowhere"], "nowhere: no such folder"),
        (["--clients", "5"], r"population\.clients = 5, but the roster names 1"),
        (["--rouns", "5"], "--rouns: unknown option"),
        (["--fewest", "0"], "--fewest 0: expected 1 to 1, the number of clients in the roster"),
        (["--fewest", "-3"], "--fewest -3: expected 1 to 1"),
        (["--fewest", "2"], "--fewest 2: expected 1 to 1"),
        (["--page", "65536"], "--page 65536: expected a port, a number up to 65535"),
        (["--page", "-1"], "--page -1: expected a port"),
    ],
)
def test_a_server_s_bad_input(said, made, words, reason):
    known = ["server", "--keys", made / "operator", "--roster", made / "roster.txt", "--algo", "dp-agrlr-micro"]
    known += ["--dataset", "strokes", "--cohort", "1", "--run.dir", made / "runs", "--run.name", "x"]
    with pytest.raises(InputError, match=reason):
        said(*known, *words)
    assert not (made / "runs").exists()


OPTIONS_OF_SERVERS = [
    (["--seconds", "0"], "--seconds 0: expected a number of seconds above 0"),
    (["--seconds", "-1"], "--seconds -1: expected a number of seconds above 0"),
    (["--wait", "0"], "--wait 0: expected a number of seconds above 0"),
    (["--wait", "nan"], "--wait nan: expected a number of seconds above 0"),
    (["--wait", "inf"], "--wait inf: expected a number of seconds above 0"),
    (["--listen", "host:7"], "--listen host:7: expected an address alone; the port goes to --port"),
    (["--port", "65536"], "--port 65536: expected a port, a number up to 65535"),
    (["--port", "-1"], "--port -1: expected a port, a number up to 65535"),
]


@pytest.mark.parametrize(("words", "reason"), OPTIONS_OF_SERVERS)
@pytest.mark.parametrize("command", ["server", "analyse"])
def test_options_of_a_server_that_no_server_could_use(made, command, words, reason):
    """Of training as of an analysis; before a file is read."""
    options = ["--keys", str(made / "nowhere"), "--roster", str(made / "nowhere"), *words]
    with pytest.raises(InputError) as found:
        main(["server", *options], None) if command == "server" else analyse_command.main(options, None)
    assert str(found.value) == reason


@pytest.mark.parametrize("words", [["--seconds", "0.1"], ["--wait", "1e9"], ["--listen", "::1"], ["--port", "65535"]])
def test_options_of_a_server_at_their_ends(made, words):
    options = ["--keys", str(made / "nowhere"), "--roster", str(made / "nowhere"), *words, "--page", "0"]
    for page in ("0", "65535"):
        with pytest.raises(InputError, match="the roster cannot be read"):
            main(["server", *options[:-1], page], None)


@pytest.mark.parametrize(("fewest", "due"), [(None, 3), (1, 1), (2, 2), (3, 3), (0, None), (-1, None), (4, None)])
def test_as_many_clients_can_be_waited_for_as_the_roster_names(monkeypatch, fewest, due):
    """From Python too, before a port is opened."""
    given = []
    monkeypatch.setattr(entry_points, "operator_identity", lambda keys: given.append(keys) or (b"", b""))
    monkeypatch.setattr(entry_points, "read_invitation", lambda path: (_ for _ in ()).throw(Reached))
    monkeypatch.setattr(entry_points, "listening", lambda *words: (_ for _ in ()).throw(Reached))
    cards = [SimpleNamespace(identity=bytes([number]) * 32, name=str(number)) for number in range(3)]
    options = entry_points.ServerOptions(keys=Path("keys"), roster=Path("roster"), fewest=fewest)
    for start in (
        lambda: entry_points.run_server(options, None, cards),
        lambda: entry_points.asking_clients(options, cards, print).__enter__(),
    ):
        with pytest.raises(Reached if due else InputError) as found:
            start()
        words = f"--fewest {fewest}: expected 1 to 3, the number of clients in the roster"
        assert due or str(found.value) == words
    assert len(given) == (2 if due else 0)
    assert due is None or checked_fewest(fewest, 3) == due


class Reached(Exception):
    """A port would be opened."""


@pytest.mark.parametrize("plain", [True, False])
def test_a_demo_s_server_has_a_plan(tmp_path, plain):
    """Of messages as of sums: the preset of silos has no target that covers a silo as a whole."""
    options = DemoOptions(clients=8, dataset="strokes", rounds=3, plain=plain)
    known, rest = _server_parser().parse_known_args(_server_words(options, tmp_path, "strokes", tmp_path)[1:])
    settings = resolve(known.algo, known.dataset, known.config, settings_from(rest))
    plan = make_plan(settings, load_task("strokes")[0])
    assert plan.privacy.server_sees == ("messages" if plain else "sum")
    (record,) = (cell for cell in plan.planned if (cell.unit, cell.observer) == ("record", "server"))
    assert record.epsilon <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize("words", [["--clients", "2"], ["--clients", "99"], ["--rounds", "0"]])
def test_a_demo_that_is_none(said, words):
    with pytest.raises(InputError):
        said("demo", *words)


@pytest.mark.parametrize("ending", ["card", "home", "flower"])
def test_a_key_does_not_have_the_name_of_what_lies_beside_it(said, tmp_path, ending):
    """A key called me.card was written, and its card took its place."""
    with pytest.raises(InputError, match=rf"me\.{ending}: \.card, \.flower, \.home are endings.*as .*me\.pem"):
        said("keys", "--out", tmp_path / f"me.{ending}")
    assert not list(tmp_path.iterdir())


def test_one_card_does_not_replace_that_of_another_key(said, tmp_path):
    said("keys", "--out", tmp_path / "clinic.north", "--flower")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"clinic\.card: exists already.*another name before its last dot"):
        said("keys", "--out", tmp_path / "clinic.south")
    (tmp_path / "clinic.card").unlink()
    with pytest.raises(InputError, match=r"clinic\.flower: exists already"):
        said("keys", "--out", tmp_path / "clinic.south", "--flower")
    del before[tmp_path / "clinic.card"]
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}
    said("keys", "--out", tmp_path / "clinic-south.pem", "--flower")
    assert (tmp_path / "clinic-south.card").exists()


@pytest.mark.parametrize("words", [["--flower"], ["--name", "x"], ["--rotate", "old.pem"], ["--home", "x"]])
def test_the_keys_of_a_server_take_no_option_of_a_client(said, tmp_path, words):
    with pytest.raises(InputError, match=f"{words[0]}: does not go with --server; leave it out"):
        said("keys", "--server", "--out", tmp_path / "operator", *words)
    assert not list(tmp_path.iterdir())


def test_the_demo_says_the_statement_that_finds_the_register_of_its_client(tmp_path, monkeypatch):
    """Its clients play machines of their own; without their register a statement warned of a backup."""
    client = _Client(name="client-1", holds="x", folder=tmp_path / "a b" / "client-1", tried=())
    client.folder.mkdir(parents=True)
    state, *words = shlex.split(client.statement)
    assert words == ["dpfedmeta", "account", "--statement", str(client.home)]
    given = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, env, **named: given.append(env) or running)
    running = SimpleNamespace(terminate=lambda: None, wait=lambda timeout: 0)
    with _process(["client"], client):
        pass
    assert "=".join(("DPFEDMETA_STATE", given[0]["DPFEDMETA_STATE"])) == state
