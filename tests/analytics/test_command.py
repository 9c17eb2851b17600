"""`dpfedmeta analyse`: bad input is one line, and leaves nothing behind."""

from pathlib import Path

import pytest
from rich.console import Console

from dpfedmeta.analytics import execute
from dpfedmeta.cli.commands.analyse_command import main
from dpfedmeta.core.errors import InputError

STROKES = "--algo dp-const --dataset strokes --clients 300"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "expected one of gain, heavy-hitters, histogram, quantile"),
        ("quantiles", "expected one of"),
        ("quantile", "--algo and --dataset are needed"),
        (f"quantile {STROKES} --epsilon 0", "--epsilon 0"),
        (f"quantile {STROKES} --epsilon nan", "--epsilon nan"),
        (f"quantile {STROKES} --delta 1", "--delta 1"),
        (f"quantile {STROKES} --cohort 301", "--cohort 301"),
        (f"quantile {STROKES} --noise-seed -1", "--noise-seed -1: expected"),
        (f"quantile {STROKES} --dry-run --noise-seed {2**128}", "--noise-seed 340282.*of at most 128 bits"),
        (f"quantile {STROKES} --quantile 1", "--quantile 1"),
        (f"quantile {STROKES} --lowest 3 --highest 2", "0 < lowest < highest"),
        (f"quantile {STROKES} --share 0.5", "--share: belongs to histogram"),
        (f"quantile {STROKES} --names F", "--names: belongs to heavy-hitters"),
        (f"histogram {STROKES} --share 1.5", "--share 1.5"),
        (f"histogram {STROKES} --clip.bound 3", "--clip.bound"),
        ("gain", "needs the folder of a run"),
        ("gain NO", "is this the directory of a run"),
        ("heavy-hitters --names NO", "--names NO: cannot be read"),
        ("heavy-hitters --names EMPTY", "is empty"),
        ("heavy-hitters --names SOME --algo dp-agr", "the file says who the clients are"),
        ("heavy-hitters --names SOME --most-names 0", "--most-names 0"),
        ("heavy-hitters --names SOME --noise-seed 3 --secure-rng", "drop one"),
        ("--resume NO", "no ledger of an analysis"),
        ("quantile --resume NO", "leave out its kind"),
        *(
            (f"--resume NO {words}", f"{words.split()[0]}: does not go with --resume, .*; leave it out")
            for words in (
                *("--dry-run", "--epsilon 0.01", "--delta 1e-7", "--cohort 9", "--algo maml", "--noise-seed 3"),
                *("--secure-rng", "--fixed-cohort", "--bins 9", "--names SOME", "--dataset strokes", "--config X"),
            )
        ),
        ("--resume NO --json --data-dir NO --wait 9", "no ledger of an analysis"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "SOME").write_text("a\nb\n")
    with pytest.raises(InputError, match=problem) as raised:
        main(words.split(), Console(quiet=True))
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "SOME"]


class Asked(Exception):
    """Clients would be asked."""


@pytest.mark.parametrize(
    ("words", "due"),
    [
        (f"quantile {STROKES}", {"epsilon": 0.1, "delta": 1e-6, "cohort": 300.0, "clients": 300, "noise_seed": None}),
        (f"quantile {STROKES} --privacy.client.delta 3e-7", {"delta": 3e-7}),
        (f"quantile {STROKES} --privacy.client.delta 3e-7 --delta 2e-8", {"delta": 2e-8}),
        (f"histogram {STROKES} --delta 1e-9 --epsilon 0.25", {"delta": 1e-9, "epsilon": 0.25}),
        ("heavy-hitters --names SOME", {"delta": 1e-6, "cohort": 2.0, "clients": 2, "names": "SOME"}),
        ("heavy-hitters --names SOME --delta 1e-4 --noise-seed 0", {"delta": 1e-4, "noise_seed": 0}),
        (f"quantile {STROKES[:-3]}2001", {"cohort": 2000.0, "clients": 2001}),
        (f"quantile {STROKES} --cohort 7", {"cohort": 7.0}),
        (f"heavy-hitters {STROKES[:-3]}20000", {"cohort": 20000.0, "clients": 20000}),
        (f"heavy-hitters {STROKES[:-3]}20001", {"cohort": 2000.0, "clients": 20001}),
        (f"quantile {STROKES}", {"own": {"quantile": 0.5, "lowest": 0.001, "highest": 1000.0, "bins": 60}}),
        (f"quantile {STROKES} --quantile 0.75 --bins 9", {"own": {"quantile": 0.75, "bins": 9}}),
        (f"quantile {STROKES} --clip.quantile 0.25", {"own": {"quantile": 0.25}}),
    ],
)
def test_what_is_asked_is_what_is_given_else_as_the_settings_say(tmp_path, monkeypatch, words, due):
    found, due = [], dict(due)

    def begin(request, place, **given):
        found.append(request)
        raise Asked

    monkeypatch.setattr(execute, "begin", begin)
    monkeypatch.chdir(tmp_path)
    Path("SOME").write_text("a\nb\n")
    with pytest.raises(Asked):
        main(words.split(), Console(quiet=True))
    (request,) = found
    own = due.pop("own", {})
    assert {name: getattr(request, name) for name in due} == due
    assert {name: request.own[name] for name in own} == own


def test_training_with_a_private_start_is_planned_after_it():
    from dpfedmeta.config.load import resolve
    from dpfedmeta.data.task_file import load_task
    from dpfedmeta.planning.privacy.solve import make_privacy

    settings = resolve("dp-const", "strokes", None, {"clip.start": "quantile"})
    with pytest.raises(InputError, match=r"clip\.start = quantile"):
        make_privacy(settings, load_task("strokes")[0])
