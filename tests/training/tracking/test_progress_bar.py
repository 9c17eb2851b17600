import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table

import dpfedmeta as dp
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.worker_pool import InProcess, Watched
from dpfedmeta.training.terminal import progress
from dpfedmeta.training.terminal.progress import Terminal
from dpfedmeta.training.terminal.progress_bar import Heartbeat, Pace, bar, clock, share_bar
from dpfedmeta.training.terminal.tables import as_text

EPSILONS = {"client_public": 0.5, "client_server": None, "record_server": 2.25, "record_public": None}
PUBLIC = Pace(rounds=10, every=4, final_validations=3.0, speed=50.0, round_seconds=2.0)


def row(number, **more):
    return {"round": number, "clip": 0.3, "clip_mode": "constant", "epsilons": EPSILONS, **more}


def shown(rows, *, terminal, width=200):
    """What a console gets to see of some rounds with a validation before the last one."""
    console = Console(force_terminal=terminal, file=io.StringIO(), width=width)
    with Terminal(console) as screen:
        screen._pace = PUBLIC
        screen.on_start(".")
        for each in rows[:-1]:
            screen.on_round(each)
        screen.on_evaluation("validation", 0.0)
        screen.on_evaluation("validation", 1.0)
        screen.on_round(rows[-1] | {"validation_accuracy": {"mean": 0.75, "ci95": 0.02}})
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_time_left_counts_validations_and_the_final_evaluation():
    # Three validations are left (after rounds 4, 8 and 10), and the final evaluation takes as long as three more.
    measured = replace(PUBLIC, validation_seconds=5.0)
    assert measured.seconds_left == 10 * 2 + (3 + 3) * 5
    after = measured.after_round(row(3))
    assert after.seconds_left == 6 * 2 + (2 + 3) * 5
    assert replace(measured, done=10).seconds_left == 15
    assert (PUBLIC.words, after.words) == ("over 20 s left  about 50 clients/s", "37 s left  about 50 clients/s")
    assert replace(after, round_seconds=1500.0).words.startswith("2 h 30 min left")
    assert replace(PUBLIC, round_seconds=None).words == ""


def test_a_private_run_shows_no_time_of_its_own_rounds():
    private = [row(number, seconds=None) for number in range(3)]
    told = [row(number, seconds=8.0 + number, clients_per_second=7.0) for number in range(3)]
    paces = [PUBLIC, PUBLIC]
    for one, other in zip(private, told, strict=True):
        paces = [paces[0].after_round(one), paces[1].after_round(other)]
    assert (paces[0].round_seconds, paces[0].speed) == (2.0, 50.0)
    assert (paces[1].round_seconds, paces[1].speed) == (9.0, 7.0)


def test_between_validations_a_screen_shows_round_speed_time_left_and_epsilon():
    printed = shown([row(number, seconds=3.0, clients_per_second=20.0) for number in range(3)], terminal=True)
    for words in ("3/10", "20 clients/s", "s left", "eps client/public 0.5", "eps record/server 2.25"):
        assert words in printed
    assert "eps record/public" not in printed
    # The cursor comes back, however the run ends.
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")


def test_on_a_narrow_screen_the_count_of_rounds_and_the_time_left_come_first():
    printed = shown([row(number, seconds=3.0, clients_per_second=20.0) for number in range(3)], terminal=True, width=60)
    assert " 3/10" in printed
    assert "s left" in printed


def test_where_nobody_looks_there_is_no_bar_and_no_control_character():
    assert shown([row(number) for number in range(3)], terminal=False).splitlines() == [
        "round     1 of 10  eps client/public 0.5  eps record/server 2.25",
        "round     2 of 10  eps client/public 0.5  eps record/server 2.25",
        "round     3  validation 75.0% ± 2.0  clip 0.3  eps client/public 0.5  record/server 2.25",
    ]


def test_a_log_has_a_line_per_ten_seconds_where_rows_tell_their_times():
    """A private run's rows have none: there every round has its line, since when lines come would tell of cohorts."""
    now, console = [0.0], Console(file=io.StringIO(), width=200)
    every = list(range(1, 13))
    for times, numbers in (
        ({"seconds": 4.0, "clients_per_second": 20.0}, [1, 4, 7, 10]),
        # As the loop writes them, and as earlier versions did.
        ({"seconds": None}, every),
        ({}, every),
    ):
        terminal = Terminal(console)
        terminal._heart = Heartbeat(say=terminal._say, clock=lambda: now[0])
        before = len(console.file.getvalue().splitlines())  # type: ignore[attr-defined]
        for number in range(12):
            now[0] = 4.0 * number
            terminal.on_round(row(number) | times)
        lines = console.file.getvalue().splitlines()[before:]  # type: ignore[attr-defined]
        assert [int(line.split()[1]) for line in lines] == numbers


def test_a_long_evaluation_says_how_far_it_is():
    now, console = [0.0], Console(file=io.StringIO(), width=200)
    terminal = Terminal(console)
    terminal._heart = Heartbeat(say=terminal._say, clock=lambda: now[0]).started()
    for share in range(11):
        now[0] = 3.0 * share
        terminal.on_evaluation("test", share / 10)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert printed == ["test classes: 40% evaluated", "test classes: 80% evaluated"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_share_that_is_done_is_a_bar_on_a_screen_and_one_line_in_a_log(terminal):
    console = Console(force_terminal=terminal, file=io.StringIO(), width=100)
    with share_bar(console) as tell:
        tell("40 episodes", 0.0)
        tell("40 episodes", 0.5)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "40 episodes" in printed
    assert terminal == ("50%" in printed)
    assert terminal or printed == "40 episodes: 0%\n"


def test_watched_workers_give_the_same_and_tell_their_share():
    told: list[float] = []
    found = list(Watched(InProcess(), told.append).map(pow, ((2, n) for n in range(4))))
    assert found == list(InProcess().map(pow, ((2, n) for n in range(4))))
    assert told == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (12, "12 s"), (90, "2 min"), (7500, "2 h 05 min")])
def test_a_time_is_never_no_minutes(seconds, words):
    assert clock(seconds) == words


def ended(monkeypatch, path, resume="resume {path} now", **summary):
    """What is printed at the end of a run."""
    plan = PrivacyPlan(clients=40, cohort=10, rounds=9, noise_multiplier=2.0)
    monkeypatch.setattr(progress, "read_content", lambda path, torn: SimpleNamespace(plan=plan, charges=()))
    monkeypatch.setattr(progress, "spent", lambda plan, charges: guarantees(plan))
    for name in ("accuracy_table", "error_table"):
        monkeypatch.setattr(progress, name, lambda summary, name=name: name)
    console = Console(file=io.StringIO(), width=300, markup=False)
    screen = Terminal(console, resume=resume)
    screen.on_start(path)
    screen.on_end({"status": "completed", "rounds": 3, "times": None} | summary)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("accuracy", [None, {}, {"mean": 0.5}])
@pytest.mark.parametrize("error", [None, {"mean": 0.5}])
def test_what_was_reached_is_shown_as_it_was_measured(monkeypatch, tmp_path, accuracy, error):
    shown = ended(monkeypatch, tmp_path, accuracy=accuracy, error=error)
    assert ("accuracy_table" in shown) == (accuracy is not None)
    assert ("error_table" in shown) == (accuracy is None and error is not None)
    assert "What was spent, from the ledger" in shown


@pytest.mark.parametrize("status", ["completed", "budget", "interrupted"])
@pytest.mark.parametrize("times", [None, "coarse"])
def test_how_a_run_ended_is_said_with_what_is_left_of_it(monkeypatch, tmp_path, status, times):
    shown = ended(monkeypatch, tmp_path, status=status, times=times)
    cut = status == "interrupted"
    assert f"{status} after {'3 of 9 rounds, ' if cut else ''}{'at most ' if times else ''}" in shown
    assert f"all files are in {tmp_path}" in shown
    assert (f"go on with: resume {tmp_path} now" in shown) == cut
    assert ("exact times reveal cohorts" in shown) == (times is not None)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluation_moves_the_bar_and_times_a_validation(monkeypatch, split):
    now, words = [10.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    screen = Terminal(Console(file=io.StringIO()))
    screen._pace, screen._bar = PUBLIC, SimpleNamespace(update=lambda done, line: words.append(line), stop=lambda: None)
    for done, when in ((0.0, 10.0), (0.5, 12.0), (1.0, 17.0)):
        now[0] = when
        screen.on_evaluation(split, done)
    assert words == [f"{split} classes: {100 * done:.0f}% evaluated" for done in (0.0, 0.5, 1.0)]
    assert screen._pace.validation_seconds == (7.0 if split == "validation" else None)


@pytest.mark.parametrize(
    ("minutes", "rounds", "seconds"),
    [(5.0, 20, 15.0), (None, 20, None), (5.0, 0, None), (0.0, 20, 0.0), (5.0, 1, 300.0)],
)
def test_before_the_first_round_a_round_takes_its_part_of_what_was_measured(minutes, rounds, seconds):
    settings = SimpleNamespace(evaluation=SimpleNamespace(every=7))
    planned = SimpleNamespace(
        minutes=minutes, rounds=rounds, settings=settings, final_validations=2.5, clients_per_second=33.0
    )
    found = Pace.of(planned)
    assert found == Pace(rounds=rounds, every=7, final_validations=2.5, speed=33.0, round_seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60.0, "1 min"), (89.0, "1 min"), (91.0, "2 min"), (99 * 60, "99 min"),
     (100 * 60, "1 h 40 min"), (125 * 60, "2 h 05 min")],
)  # fmt: skip
def test_a_time_has_two_units(seconds, words):
    assert clock(seconds) == words


@pytest.mark.parametrize("name", ["[/b]", "[anna]", "{x}"])
def test_a_bar_shows_the_names_of_people_as_they_are(name):
    console = Console(force_terminal=True, file=io.StringIO(), width=100)
    with share_bar(console) as tell:
        tell(name, 0.1)
    line = bar(console, 4)
    line.update(1, name)
    line.stop()
    assert console.file.getvalue().count(name) >= 2  # type: ignore[attr-defined]


def test_how_to_go_on_can_be_typed_whatever_the_folder_is_called(monkeypatch, tmp_path):
    shown = ended(monkeypatch, Path("runs [old]/a"), progress.COMMAND, status="interrupted")
    assert "all files are in runs [old]/a\n" in shown
    assert "go on with: dpfedmeta train --resume 'runs [old]/a'\n" in shown
    shown = ended(monkeypatch, Path("runs/a"), progress.COMMAND, status="interrupted")
    assert "go on with: dpfedmeta train --resume runs/a\n" in shown


def test_words_of_others_are_no_markup_in_a_table_or_a_title():
    table = Table("[/b]", title="by [anna]")
    table.add_row("x [old]")
    text = as_text(table)
    assert all(word in text for word in ("[/b]", "by [anna]", "x [old]"))


def test_words_of_others_are_no_markup_in_python(monkeypatch, capsys, tmp_path):
    def say(console, resume):
        console.print("all files are in [/b] [old]")
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "Terminal", say)
    with pytest.raises(KeyboardInterrupt):
        dp.train(resume=tmp_path)
    assert capsys.readouterr().out == "all files are in [/b] [old]\n"
