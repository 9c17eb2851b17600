import ast
import importlib
import re
import warnings
from pathlib import Path

import pytest

from dpfedmeta.cli import arguments
from dpfedmeta.cli.arguments import parse_with_settings, parser, run_command, settings_from
from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import FIRST_ALGORITHMS, algorithm_names, summary_of
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError, RefusedPlan, going_on_with


def parsed(*words):
    made = parser("A test.", settings=True)
    made.add_argument("--dry-run", action="store_true")
    return parse_with_settings(made, ["--algo", "dp-agr", "--dataset", "strokes", *words])


def exit_of(main, capfd):
    with pytest.raises(SystemExit) as caught:
        run_command(main)
    return caught.value.code, capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--server.rounds", "17"),
        ("--server.rounds=17",),
        ("--rounds", "17"),
        ("--rounds=17",),
        ("--rounds", "3", "--server.rounds=17"),
        ("--rounds=17", "--dry-run", "--seed", "5"),
    ],
)
def test_both_ways_to_give_a_setting(words):
    _, settings = parsed(*words)
    assert settings.server.rounds == 17


def test_the_scripts_own_options_may_stand_anywhere():
    options, settings = parsed("--rounds", "4", "--dry-run", "--server.lr=1e-4")
    assert options.dry_run
    assert (settings.server.rounds, settings.server.lr) == (4, 1e-4)


def test_values_keep_equal_signs_and_signs():
    assert settings_from(["--run.name=a=b"]) == {"run.name": "a=b"}
    assert settings_from(["--run.name", "-x"]) == {"run.name": "-x"}
    assert settings_from(["--run.seed", "-1"]) == {"run.seed": "-1"}
    assert settings_from(["--run.name="]) == {"run.name": ""}


@pytest.mark.parametrize("words", [("--rounds",), ("--rounds", "--seed", "3"), ("--seed=3", "--rounds")])
def test_a_missing_value_is_said(words):
    with pytest.raises(InputError, match="--rounds: a value is missing"):
        parsed(*words)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--round", "--rounds"),
        ("--server.round", "--server.rounds"),
        ("--noise_multiplier", "--server.noise_multiplier"),
    ],
)
def test_an_unknown_option_names_the_nearest(option, meant):
    for words in ((option, "3"), (f"{option}=3",)):
        with pytest.raises(InputError, match=f"{option}: unknown option; did you mean {meant}"):
            parsed(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "3", "--rounds", "4"), "note: --rounds 3 is replaced by --rounds 4\n"),
        (("--rounds=3", "--dry-run", "--server.rounds=4"), "note: --rounds 3 is replaced by --server.rounds 4\n"),
        (("--rounds", "4", "--server.rounds=4", "--dry-run", "--dry-run"), ""),
        (("--rounds", "3", "--rounds=4", "--rounds=4", "--seed=4"), "note: --rounds 3 is replaced by --rounds 4\n"),
    ],
)
def test_an_option_that_is_given_twice_is_not_replaced_in_silence(words, said, capfd):
    assert parsed(*words)[1].server.rounds == 4
    assert capfd.readouterr() == ("", said)


def test_words_behind_a_flag_are_not_its_value(capfd):
    made = parser("Does it.", settings=False)
    made.add_argument("--json", action="store_true")
    made.add_argument("runs", nargs="*")
    made.add_argument("--out")
    made.add_argument("--shots", nargs="+")
    assert made.parse_known_args(["--json", "one", "--out=a", "--json", "two"])[0].json
    made.parse_known_args(["--out", "a", "--shots", "1", "2", "--out", "a", "one", "--shots", "1", "2"])
    made.parse_known_args(["--out", "a", "--", "--out", "b"])
    assert capfd.readouterr().err == ""
    made.parse_known_args(["--shots", "1", "2", "--shots", "1", "3"])
    assert capfd.readouterr().err == "note: --shots 1 2 is replaced by --shots 1 3\n"


def test_options_are_not_abbreviated():
    with pytest.raises(InputError, match="--dry: unknown option"):
        parsed("--dry")


def test_a_word_without_a_name_is_refused():
    with pytest.raises(InputError, match="stray: expected --name value"):
        parsed("stray")


def test_algo_and_dataset_are_needed():
    with pytest.raises(InputError, match="--algo and --dataset are needed"):
        parse_with_settings(parser("A test.", settings=True), ["--rounds", "3"])


def test_a_default_data_set_is_the_weakest():
    made = parser("A test.", settings=True)
    assert parse_with_settings(made, ["--algo", "maml"], "strokes")[1].dataset == "strokes"
    assert parse_with_settings(made, ["--algo", "maml", "--dataset", "omniglot"], "strokes")[1].dataset == "omniglot"


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help", "all"], ["--algo", "maml", "--help", "all"]])
def test_help_lists_what_is_needed_first_or_all(capsys, words):
    with pytest.raises(SystemExit) as caught:
        parser("A test.", settings=True).parse_args(words)
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "--server.noise_multiplier (--noise-multiplier)" in shown
    assert "dp-agrlr-micro" in shown.replace("\n" + " " * 24, "")
    settings = re.findall(r"^  --([a-z_]+(?:\.[a-z_0-9]+)+)", shown, re.MULTILINE)
    everything = [name for name, _, _ in setting_fields() if name not in ("algo", "dataset")]
    if "all" in words:
        assert settings == everything
        assert all(f"\n  {name}\n      {summary_of(name)}\n" in shown for name in algorithm_names())
    else:
        assert {*SHORT_FORMS.values()} < {*settings} < {*everything}
        assert len(settings) <= 22
        assert "unless the preset sets another value" in shown
        assert "--help all shows all settings" in shown


def test_a_preset_is_summed_up_in_a_sentence():
    summaries = {name: summary_of(name) for name in algorithm_names()}
    assert all(8 <= len(said) <= 300 and said.count("(") == said.count(")") for said in summaries.values()), summaries
    assert summaries["meta-sgd"].startswith("Meta-SGD (Li et al. 2017)")
    assert {*FIRST_ALGORITHMS} < summaries.keys()


@pytest.mark.parametrize("dataset", ["omniglot", "cifar-fs"])
def test_help_with_a_preset_shows_what_it_sets(capsys, dataset):
    with pytest.raises(SystemExit):
        parser("A test.", settings=True).parse_args(["--algo", "dp-agr", "--dataset", dataset, "--help", "all"])
    shown = capsys.readouterr().out
    settings = resolve("dp-agr", dataset)
    assert f"[value with dp-agr on {dataset}]" in shown
    assert f"--server.rounds (--rounds) [{settings.server.rounds}]" in shown
    assert f"--privacy.client.epsilon (--epsilon) [{settings.privacy.client.epsilon:g}]" in shown
    assert f"--model.width [{settings.model.width}]" in shown


def settings_shown(capsys, *words):
    with pytest.raises(SystemExit):
        parser("A test.", settings=True).parse_args(["--algo", "dp-agr", *words, "--help", "all"])
    return capsys.readouterr().out


def test_help_shows_what_holds_with_the_settings_that_are_typed(capsys):
    shown = settings_shown(capsys, "--ways", "20", "--noise-multiplier=2", "--seeds", "3")
    assert "[value with dp-agr and what is typed here]" in shown
    five = resolve("dp-agr", "omniglot").meta.lr
    assert f"--meta.lr [{4 * five:g}]" in shown
    assert "--server.noise_multiplier (--noise-multiplier) [2]" in shown
    assert "--privacy.client.epsilon (--epsilon) [null]" in shown


def test_help_keeps_the_value_all_of_another_option(capsys):
    assert "--meta.adapt [all]" in settings_shown(capsys, "--meta.adapt", "all")


def test_help_says_once_what_is_given_twice(capsys):
    with pytest.raises(SystemExit):
        parser("A test.", settings=True).parse_args(["--algo", "dp-agr", "--rounds", "3", "--rounds", "4", "--help"])
    said = capsys.readouterr()
    assert said.err.splitlines() == ["note: --rounds 3 is replaced by --rounds 4"]
    assert "--server.rounds (--rounds) [4]" in said.out


@pytest.mark.parametrize("words", [("--rounds", "many"), ("--rounds",), ("--epsilon", "3", "--noise-multiplier", "2")])
def test_a_refused_value_still_gets_help(capsys, words):
    assert "[value with dp-agr]" in settings_shown(capsys, *words)


@pytest.mark.parametrize("code", [0, 130])
def test_the_commands_own_code_is_kept(code, capfd):
    assert exit_of(lambda _: code, capfd) == (code, "")


def noted(error):
    with pytest.raises(type(error)) as raised, going_on_with(lambda: "dpfedmeta train --resume runs/x"):
        raise error
    return raised.value


FAILURES = [
    (InputError("key:  wrong\nvalue"), 2, "error: key: wrong value"),
    (RefusedPlan("it would not hold"), 2, "error: it would not hold"),
    (InputError("[red]brackets[/red] " + "long " * 100), 2, "error: [red]brackets[/red] " + "long " * 99 + "long"),
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (
        OSError(28, "No space left on device", "runs/x"),
        1,
        "error: runs/x: No space left on device; stopped; all files written so far are intact: make room (or the "
        "disk writable), then type the same command again",
    ),
    (
        noted(OSError(28, "No space left on device", "runs/x")),
        1,
        "error: runs/x: No space left on device; stopped; all files written so far are intact: make room (or the "
        "disk writable), then go on with: dpfedmeta train --resume runs/x",
    ),
    (noted(KeyboardInterrupt()), 130, "error: interrupted; go on with: dpfedmeta train --resume runs/x"),
    (OSError("broken"), 1, "error: writing a file: broken; stopped"),
    (RuntimeError("a worker\nwas killed"), 1, "error: a worker was killed"),
]


@pytest.mark.parametrize(("failure", "code", "line"), FAILURES)
def test_a_failure_is_one_line_with_its_code(failure, code, line, capfd):
    def main(_):
        raise failure

    assert exit_of(main, capfd) == (code, line + "\n")


@pytest.mark.parametrize("words", [["--episodes", "many"], ["--nothing"], ["--episodes"]])
def test_bad_options_of_a_script_without_settings_are_bad_input(words, capfd):
    def main(_):
        made = parser("A test.", settings=False)
        made.add_argument("--episodes", type=int)
        made.parse_args(words)

    code, errors = exit_of(main, capfd)
    assert code == 2
    assert re.fullmatch(r"error: .*--help lists the options\)\n", errors)


def test_warnings_are_one_line_and_the_way_they_are_shown_is_restored(capfd):
    shown = warnings.showwarning

    def main(_):
        warnings.simplefilter("always")
        warnings.warn("something is odd", stacklevel=1)
        return 0

    assert exit_of(main, capfd) == (0, "warning: something is odd\n")
    assert warnings.showwarning is shown


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("strokes", "; did you mean --dataset strokes?"),
        ("omniglot", "; did you mean --dataset omniglot?"),
        ("dp-agr", "; did you mean --algo dp-agr?"),
        ("nothing-of-that-name", ""),
        ("17", ""),
    ],
)
def test_a_word_without_a_name_may_be_a_task_or_an_algorithm(word, meant):
    with pytest.raises(InputError) as found:
        settings_from([word])
    assert str(found.value) == f"{word}: expected --name value{meant}; --help lists the settings"


@pytest.mark.parametrize("name", ["clip.own.depth", "meta.own.rank"])
def test_settings_of_own_members_have_the_names_that_these_give_them(name):
    assert settings_from([f"--{name}", "3"]) == settings_from([f"--{name}=3"]) == {name: "3"}
    # Of others only what there is.
    for wrong in (name.replace("own.", "owns."), f"x.{name}", name.replace(".own", "")):
        with pytest.raises(InputError, match=f"--{wrong}: unknown option"):
            settings_from([f"--{wrong}", "3"])


def test_all_settings_that_end_in_a_name_are_proposed_in_one_order():
    ending = sorted(f"--{name}" for name, _, _ in setting_fields() if name.endswith(".lr"))
    assert len(ending) > 1
    for _ in range(2):
        with pytest.raises(InputError) as found:
            settings_from(["--lr", "1"])
        assert str(found.value) == f"--lr: unknown option; did you mean {' or '.join(ending)}?"


@pytest.mark.parametrize("keep", [False, True])
def test_each_part_of_a_command_reaches_its_settings(monkeypatch, keep):
    seen, made = [], parser("A test.", settings=True)
    made.add_argument("--dry-run", action="store_true")
    monkeypatch.setattr(arguments, "resolve", lambda *given, **named: seen.append((given, named)) or "settings")
    words = ["--algo", "dp-agr", "--config", "mine.yaml", "--rounds", "7", *(["--dry-run"] if keep else [])]
    options, settings = parse_with_settings(made, words, "strokes", keep_both=lambda options: options.dry_run)
    assert (options.algo, settings) == ("dp-agr", "settings")
    due = {"keep_both": keep, "default_dataset": "strokes"}
    assert seen == [(("dp-agr", None, Path("mine.yaml"), {"server.rounds": "7"}), due)]


def test_words_of_others_are_no_markup(capfd):
    with pytest.raises(SystemExit) as caught:
        run_command(lambda console: console.print("report: runs/x [old]/[/b]/report.html") or 0)
    assert caught.value.code == 0
    assert capfd.readouterr().out == "report: runs/x [old]/[/b]/report.html\n"


def raised_on_purpose():
    """Every exception that the package defines, of whichever module."""
    package = Path(arguments.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(map(_is_exception, map(ast.unparse, node.bases))):
                yield ".".join(path.relative_to(package.parent).with_suffix("").parts), node.name


def _is_exception(base):
    return base.endswith(("Error", "Exception", "Warning", "Refused", "Aborted")) and base != "RefusedPlan"


RAISED = [*raised_on_purpose()]


@pytest.mark.parametrize(("module", "name"), RAISED, ids=[name for _, name in RAISED])
def test_what_is_raised_on_purpose_is_a_line_at_every_command(capfd, module, name):
    kind = getattr(importlib.import_module(module), name)
    error = kind.__new__(kind)
    Exception.__init__(error, "what is wrong")

    def main(console):
        raise error

    code, said = exit_of(main, capfd)
    assert code in (arguments.FAILED, arguments.BAD_INPUT)
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1


def test_a_mistake_in_the_program_is_not_hidden():
    def main(console):
        raise LookupError("a mistake")

    with pytest.raises(LookupError):
        run_command(main)
