"""`federate`: what is wrong is one line with an exit code, and nobody else is harmed."""

import pytest
from rich.console import Console

from benchmarks.federation_demo import DemoOptions, _server_words
from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.commands.federate_command import _server_parser, main
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.identity.credentials import read_card, read_roster
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
    ],
)
def test_a_server_s_bad_input(said, made, words, reason):
    known = ["server", "--keys", made / "operator", "--roster", made / "roster.txt", "--algo", "dp-agrlr-micro"]
    known += ["--dataset", "strokes", "--cohort", "1", "--run.dir", made / "runs", "--run.name", "x"]
    with pytest.raises(InputError, match=reason):
        said(*known, *words)
    assert not (made / "runs").exists()


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
