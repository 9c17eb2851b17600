"""The page that a server shows while it runs."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.server import status_page
from dpfedmeta.federation.server.client_requests import Heard
from dpfedmeta.federation.server.status_page import Page, Progress
from dpfedmeta.federation.wire_format import QuestionKind

ROW = {
    "round": 3,
    "clip": 0.1875,
    "aggregate_norm": 0.26,
    "noise_norm_expected": 0.25,
    "epsilons": {"record_server": 1.25, "client_server": float("inf"), "record_public": 1.0, "client_public": 2.0},
    "validation_accuracy": {"mean": 0.615, "ci95": 0.01, "episodes": 60},
}
ASKED = Heard(asked=QuestionKind.VECTOR, round=3, clients=3, answered=1, declined=1, unsound=0)


def progress(cohort=3, sampler="fixed", say=lambda line: None):
    made = Progress({b"a": "clinic A", b"b": "clinic <B>", b"c": "clinic C"}, lambda: (b"a", b"c"), say)
    settings = SimpleNamespace(
        population=SimpleNamespace(sampler=sampler, cohort=cohort, clients=3), algo="dp-agrlr-secure"
    )
    cell = {"unit": "record", "observer": "server", "epsilon": 2.5, "delta": 1e-5}
    made.on_plan(SimpleNamespace(settings=settings, rounds=20, guarantees=[SimpleNamespace(as_json=lambda: cell)]))
    return made


@pytest.fixture
def served():
    made = progress()
    page = Page(made)
    yield made, page
    page.close()


def read(address):
    with urllib.request.urlopen(address, timeout=5) as reply:
        return reply.read().decode(), reply.headers


def test_it_shows_rounds_clients_and_epsilon(served, tmp_path):
    told, page = served
    told.on_start(tmp_path / "heart-study")
    told.on_round(ROW)
    told.heard(ASKED)
    state = json.loads(read(page.address + "state.json")[0])
    assert (state["status"], state["run"], state["plan"]["rounds"]) == ("running", "heart-study", 20)
    assert state["connected"] == [
        {"name": "clinic A", "connected": True},
        {"name": "clinic <B>", "connected": False},
        {"name": "clinic C", "connected": True},
    ]
    assert state["rounds"][0]["epsilons"] == ROW["epsilons"] | {"client_server": None}
    assert state["heard"] == {
        "asked": "vector",
        "round": 3,
        "clients": 3,
        "answered": 1,
        "declined": 1,
        "absent": 1,
        "invalid": 0,
    }
    told.on_rewind(3)
    told.on_end({"status": "completed"})
    state = told.snapshot(operator=True)
    assert (state["rounds"], state["status"]) == ([], "completed")


@pytest.mark.parametrize(
    ("answered", "declined", "unsound", "lines"),
    [
        (3, 0, 0, []),
        (2, 1, 0, []),
        (0, 0, 0, ["round 3: vector: 0 of 3 clients answered, 0 declined, 0 sent an invalid answer, 3 did not"]),
        (2, 0, 1, ["round 3: vector: 2 of 3 clients answered, 0 declined, 1 sent an invalid answer, 0 did not"]),
    ],
)
def test_the_operator_is_told_of_answers_that_are_missing(answered, declined, unsound, lines):
    said = []
    told = progress(say=said.append)
    told.heard(replace(ASKED, answered=answered, declined=declined, unsound=unsound))
    assert said == [f"{line} answer in time" for line in lines]


@pytest.mark.parametrize(("cohort", "sampler"), [(2, "fixed"), (3, "poisson")])
def test_who_is_asked_is_not_told_where_it_is_secret(cohort, sampler):
    said = []
    told = progress(cohort, sampler, said.append)
    told.heard(ASKED)
    assert said == []
    assert told.snapshot(operator=True)["heard"] is None
    assert told.snapshot(operator=True)["plan"]["everyone"] is False
    assert progress().snapshot(operator=True)["plan"]["everyone"] is True


@pytest.mark.parametrize(
    ("cohort", "sampler", "shown"),
    [(3, "fixed", {"rounds", "there", "connected"}), (2, "fixed", set()), (3, "poisson", set())],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_what_tells_of_a_secret_cohort_is_for_the_operator_alone(cohort, sampler, shown, host, tmp_path):
    told = progress(cohort, sampler)
    page = Page(told, host)
    try:
        here = page.address.replace("0.0.0.0", "127.0.0.1") + "state.json"
        told.on_start(tmp_path / "heart-study")
        before = read(here)[0]
        told.on_round(ROW)
        told._present = lambda: (b"b",)
        state = json.loads(read(here)[0])
        held = {name for name in ("rounds", "there", "connected") if state[name] is not None}
        everything = {"rounds", "there", "connected"}
        assert held == (shown if host == "0.0.0.0" else everything)
        # A round and a client that leaves change nothing of what others see.
        assert (read(here)[0] == before) is (host == "0.0.0.0" and not shown)
    finally:
        page.close()


def test_before_there_is_a_plan_others_see_nobody():
    told = progress()
    told._state["plan"], told._all = {}, False
    state = told.snapshot(operator=False)
    assert (state["rounds"], state["there"], state["connected"]) == (None, None, None)
    assert told.snapshot(operator=True)["there"] == 2


def test_it_serves_two_things_and_is_bound_to_this_machine(served):
    _, page = served
    assert page.address.startswith("http://127.0.0.1:")
    text, headers = read(page.address)
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for path in ("secret/seed.json", "../setup.cfg", "state.json?x"):
        with pytest.raises(urllib.error.HTTPError):
            read(page.address + path)
    with pytest.raises(InputError, match="cannot listen"):
        Page(progress(), port=int(page.address.rstrip("/").rpartition(":")[2]))


def test_it_is_served_at_an_address_of_version_6_too():
    page = Page(progress(), "::1")
    try:
        assert page.address.startswith("http://[::1]:")
        assert "<html" in read(page.address)[0]
    finally:
        page.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("127.0.0.1", 200),
        ("localhost:8443", 200),
        ("LOCALHOST", 200),
        ("[::1]:9", 200),
        ("attacker.example", 421),
        ("attacker.example:80", 421),
        ("127.0.0.1.attacker.example", 421),
        ("localhost.attacker.example:1", 421),
        ("attacker.example:80:80", 421),
        ("", 421),
    ],
)
def test_a_name_of_somebody_else_that_leads_here_is_refused(served, host, status):
    _, page = served
    for path in ("", "state.json"):
        request = urllib.request.Request(page.address + path, headers={"Host": host})
        if status == 200:
            with urllib.request.urlopen(request, timeout=5) as reply:
                assert reply.status == 200
            continue
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5)
        assert refused.value.code == status
        assert refused.value.read() == b"the page is not served under this name\n"


def test_a_request_without_a_host_is_refused(served):
    _, page = served
    with socket.create_connection(("127.0.0.1", int(page.address.rstrip("/").rpartition(":")[2])), timeout=5) as raw:
        raw.sendall(b"GET /state.json HTTP/1.0\r\n\r\n")
        assert b" 421 " in raw.recv(100)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it(served, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    told, page = served
    told.on_start(tmp_path / "heart-study")
    told.on_round(ROW)
    told.heard(ASKED)
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'user'}"]
    words += ["--virtual-time-budget=3000", f"--window-size={width},900"]
    shown = subprocess.run([*words, "--dump-dom", page.address], capture_output=True, text=True, timeout=120).stdout
    for text in ("running, round 4 of 20", "clinic &lt;B&gt;", "record, server", "1.25", "61.5%", "1 of 3 answered"):
        assert text in shown
    picture = tmp_path / "page.png"
    subprocess.run([*words, f"--screenshot={picture}", page.address], capture_output=True, timeout=120, check=True)
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("everybody", [False, True])
def test_what_is_shown_to_whom_is_what_tells_of_no_secret_cohort(operator, fixed, everybody):
    """Each of the four alone: a round lasts as long as its slowest client, also where cohorts have one public size."""
    told = progress(3 if everybody else 2, "fixed" if fixed else "poisson")
    told.on_round(ROW)
    told.heard(ASKED)
    state = told.snapshot(operator=operator)
    everyone = fixed and everybody
    timely = operator or everyone
    assert state["rounds"] == ([ROW | {"epsilons": ROW["epsilons"] | {"client_server": None}}] if timely else None)
    assert state["there"] == (2 if timely else None)
    assert (state["connected"] is not None) == timely
    assert (state["heard"] is not None) == everyone
    assert state["plan"]["everyone"] == everyone
    assert (state["plan"]["rounds"], state["plan"]["clients"]) == (20, 3)


def test_rounds_that_are_done_again_leave_and_of_many_the_latest_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(status_page, "_MOST_ROUNDS", 3)
    told = progress()
    for number in range(5):
        told.on_round(ROW | {"round": number})
    shown = lambda: [row["round"] for row in told.snapshot(operator=True)["rounds"]]  # noqa: E731
    assert shown() == [2, 3, 4]
    told.on_rewind(3)
    assert shown() == [2]
    (tmp_path / "study").mkdir()
    (tmp_path / "study/rounds.jsonl").write_text("".join(json.dumps({"round": n}) + "\n" for n in range(7)))
    told.on_start(tmp_path / "study")
    assert shown() == [4, 5, 6]
    assert told.health()["status"] == "running"
    told.on_end({"status": "budget"})
    assert (told.health()["status"], told.snapshot(operator=False)["status"]) == ("budget", "budget")


@pytest.mark.parametrize(("host", "own"), [
    ("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("LocalHost", True), ("::1", True),
    ("0.0.0.0", False),
    ("10.0.0.7", False), ("::", False), ("fed.example.org", False), ("localhost.example.org", False),
])  # fmt: skip
def test_only_an_address_that_ends_here_is_the_operator_s(host, own):
    assert status_page._is_this_machine(host) == own
