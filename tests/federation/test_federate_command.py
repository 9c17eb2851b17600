"""`federate`: what is wrong is one line with an exit code, and nobody else is harmed."""

import pytest
from rich.console import Console

from dpfedmeta.commands.federate import main
from dpfedmeta.errors import InputError
from dpfedmeta.federation.credentials import read_card, read_roster
from dpfedmeta.federation.invitation import INVITATION
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
        ({"data": "nowhere"}, "nowhere: no such folder"),
        ({"data": "empty"}, "empty: a folder without classes; expected empty/CLASS/IMAGE"),
        ({"invitation": "nowhere"}, "no invitation can be read"),
        ({"identity": "nowhere"}, "no identity key can be read"),
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
    with pytest.raises(InputError, match="a client promises an epsilon, or how often"):
        said(*client(made)[:-2])


def test_a_client_without_a_server(said, made):
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9: no server since 0 s"):
        said(*client(made, patience=0.1))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--roster", "nowhere"], "no roster can be read"),
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


@pytest.mark.parametrize("words", [["--clients", "2"], ["--clients", "99"], ["--rounds", "0"]])
def test_a_demo_that_is_none(said, words):
    with pytest.raises(InputError):
        said("demo", *words)
