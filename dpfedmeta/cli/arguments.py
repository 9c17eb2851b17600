"""Common parts of the commands: settings as options, and errors as one line with an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import json
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType

from dpfedmeta.cli.words_of_others import option_meant, run_meant, without_dashes
from dpfedmeta.config.dotted_keys import OPEN, SHORT_FORMS
from dpfedmeta.config.load import describe, of_preset, resolve
from dpfedmeta.config.presets import FIRST_ALGORITHMS, algorithm_names, summary_of
from dpfedmeta.config.settings import Settings, setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import DIVERGED
from dpfedmeta.core.pydantic_errors import as_number, nearest
from dpfedmeta.core.still_working import log_on_stderr

# What --help shows beside the settings that have a short form.
_FIRST_SETTINGS = ("population.kind", "population.episodes", "privacy.record.epsilon", "model.encoder", "run.name")
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Bad options are bad input: one line, exit code 2. With `settings`, --help ends with them, --help all with all."""

    settings = False
    everything = False
    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        if words != self.words:
            self.words = words
            taken = {name: action.nargs for action in self._actions for name in action.option_strings}
            _say_given_twice(words, taken)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        return super().format_help() + (f"\n{_settings_help(self.words, self.everything)}\n" if self.settings else "")

    def error(self, message: str) -> Any:
        number = re.search(r"invalid (float|int) value: '(.*)'$", message)
        hint = as_number(number[2], whole=number[1] == "int") if number else ""
        raise InputError(f"{message}{hint} (--help lists the options)")


class _Help(argparse.Action):
    """--help, and --help all."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.everything = values == "all"
        parser.print_help()
        parser.exit()


def _say_given_twice(words: Sequence[str], taken: Mapping[str, Any]) -> None:
    """Say which options are given two values, of which the last one holds, as everywhere on a command line.

    Args:
        words: What was typed.
        taken: How many values each of the command's own options takes, as argparse says it; a setting takes one.
    """
    given: dict[str, tuple[str, str]] = {}
    for place, word in enumerate(takewhile(lambda word: word != "--", words)):
        option, equals, value = word.partition("=")
        if not option.startswith("--") or taken.get(option) == 0:
            continue
        name = SHORT_FORMS.get(option[2:], option[2:])
        if not equals:
            values = list(takewhile(lambda other: not other.startswith("--"), words[place + 1 :]))
            value = " ".join(values if taken.get(option) in ("+", "*") else values[:1])
        first, before = given.get(name, (option, value))
        given[name] = option, value
        if value != before:
            print(f"note: {first} {before} is replaced by {option} {value}", file=sys.stderr)


def parser(description: str, *, settings: bool, program: str | None = None) -> argparse.ArgumentParser:
    """A parser.

    Args:
        description: What the command does.
        settings: Whether it takes settings; what is shown of them is what holds with the --algo among the words.
        program: How it is called, for the line of its usage; None: the name of the running script.
    """
    made = _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=not settings,
    )
    made.settings = settings
    if settings:
        said = "this; all: every setting and preset"
        made.add_argument(
            "-h", "--help", nargs="?", choices=["all"], metavar="all", action=_Help, dest=argparse.SUPPRESS, help=said
        )
        _add_chosen(made)
    return made


def _add_chosen(made: argparse.ArgumentParser) -> None:
    made.add_argument("--algo", help=f"a preset: {', '.join(FIRST_ALGORITHMS)}; --help all says what others are")
    made.add_argument("--dataset", help="name of a task, or path of a task file or of your own data")
    made.add_argument(
        "--config", type=Path, help="YAML file with settings, or a name: cross-silo, cross-device, paper/dp-agr"
    )


def _settings_help(words: Sequence[str], everything: bool) -> str:
    """Settings with what holds by the preset, the file and the settings among the words."""
    choices = _Parser(add_help=False, allow_abbrev=False)
    _add_chosen(choices)
    for name in ({name for name, _, _ in setting_fields()} | set(SHORT_FORMS)) - {"algo", "dataset"}:
        choices.add_argument(f"--{name}", dest=SHORT_FORMS.get(name, name), nargs="?", default=argparse.SUPPRESS)
    # What is given twice was said already. `all` behind any other option is that option's value.
    place = next((place for place, word in enumerate(words) if word in ("-h", "--help")), len(words))
    after = place + (2 if [*words[place + 1 : place + 2]] == ["all"] else 1)
    choices.words = [*words[:place], *words[after:]]
    found = vars(choices.parse_known_args(choices.words)[0])
    algo, dataset, config = (found.pop(name) for name in ("algo", "dataset", "config"))
    given = {name: value for name, value in found.items() if value is not None}
    holding, meaning = None, "default, unless the preset sets another value; --algo NAME --help shows those of a preset"
    if config or algo:
        meaning = f"value with {config or algo}" + (f" on {dataset}" if dataset and not config else "")
        try:
            holding = resolve(algo, dataset, config, given) if config else of_preset(algo, dataset, given)
            meaning += " and what is typed here" if given else ""
        except InputError:
            # A value that is refused is why somebody asks for help.
            holding = resolve(algo, dataset, config) if config else of_preset(algo, dataset)
    presets = "".join(f"  {name}\n      {summary_of(name)}\n" for name in algorithm_names()) if everything else ""
    shown = describe(holding, None if everything else {*SHORT_FORMS.values(), *_FIRST_SETTINGS})
    rest = "" if everything else "\n--help all shows all settings"
    said = f"settings (short form) [{meaning}], also keys of the file of --config:\n{shown}{rest}"
    return f"presets:\n{presets}\n{said}" if everything else said


def parse_with_settings(
    made: argparse.ArgumentParser,
    words: Sequence[str],
    default_dataset: str | None = None,
    *,
    keep_both: Callable[[argparse.Namespace], bool] = lambda options: False,
) -> tuple[argparse.Namespace, Settings]:
    """Parse the command's own options; everything else is a setting.

    Args:
        made: The parser.
        words: What was typed behind the command's name.
        default_dataset: Where neither the words nor the file of --config name one.
        keep_both: Whether, with these options, a noise and a target of one cell may stand together.
    """
    options, rest = made.parse_known_args(words)
    given = settings_from(rest, _own_options(made))
    settings = resolve(
        options.algo,
        options.dataset,
        options.config,
        given,
        keep_both=keep_both(options),
        default_dataset=default_dataset,
    )
    return options, settings


def given_settings(made: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    """The settings among the words, by their full names, as typed."""
    return settings_from(made.parse_known_args(words)[1], _own_options(made))


def check_alone(
    made: argparse.ArgumentParser, options: argparse.Namespace, chosen: str, beside: Collection[str]
) -> None:
    """Refuse options of a command that another option of it would leave without effect.

    Args:
        made: The parser.
        options: What it parsed.
        chosen: The other option, as it is typed.
        beside: What goes with it, as attributes of `options`.

    Raises:
        InputError: One that does not go with it has another value than its default.
    """
    for action in made._actions:
        value = getattr(options, action.dest, action.default)
        if action.option_strings and value != action.default and action.dest not in beside:
            raise InputError(f"{action.option_strings[0]}: does not go with {chosen}; leave it out")


def _own_options(made: argparse.ArgumentParser) -> set[str]:
    return {option.removeprefix("--") for action in made._actions for option in action.option_strings}


def settings_from(words: Sequence[str], options: Collection[str] = ()) -> dict[str, str]:
    """`--name value` and `--name=value`, long or short; `options` are the command's own, for those who mistype one."""
    known = {name for name, _, _ in setting_fields()} | set(SHORT_FORMS)
    given: dict[str, str] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--"):
            meant = without_dashes(word, known) or _unnamed(word)
            raise InputError(f"{word}: expected --name value{meant}; --help lists the settings")
        name, equals, value = word[2:].partition("=")
        if name not in known and not name.startswith(OPEN):
            raise InputError(f"--{name}: unknown option{_meant(name, {*known, *options})}")
        if not equals:
            if not remaining or (remaining[0].startswith("--") and len(remaining[0]) > 2):
                raise InputError(f"--{name}: a value is missing")
            value = remaining.pop(0)
        elif not value and remaining and not remaining[0].startswith("--"):
            raise InputError(f"--{name}=: a value is missing; write --{name} {remaining[0]}")
        given[SHORT_FORMS.get(name, name)] = value
    return given


def _unnamed(word: str) -> str:
    """'; did you mean --algo X?' for what such an option takes."""
    from dpfedmeta.data.task_file import task_names

    if said := run_meant(word):
        return said
    if word in algorithm_names():
        return f"; did you mean --algo {word}?"
    return f"; did you mean --dataset {word}?" if word in task_names() else ""


def _meant(name: str, known: set[str]) -> str:
    """'; did you mean --X?': the settings that end in this name, else the nearest."""
    if said := option_meant(name, known):
        return said
    ending = sorted(each for each in known if each.endswith(f".{name}"))
    if ending:
        return f"; did you mean {' or '.join(f'--{each}' for each in ending)}?"
    return nearest(name, known).replace("did you mean ", "did you mean --")


def print_json(content: object) -> None:
    """On standard output, where --json promises it and nothing else."""
    print(json.dumps(content, indent=2, allow_nan=False))


def print_line(console: Console, line: RenderableType, style: str | None = None) -> None:
    """Print it as it is: nothing in it is markup or a number to colour, and nothing is wrapped."""
    console.print(line, style=style, highlight=False, soft_wrap=True, markup=False)


def run_command(main: Callable[[Console], int]) -> None:
    """Call `main` and leave with its exit code; errors are one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        # What a terminal cannot show is replaced: a display never ends a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    errors = Console(stderr=True, soft_wrap=True, emoji=False)
    terminate_like_ctrl_c()
    with warnings.catch_warnings(), log_on_stderr():
        _warn_in_one_line(errors)
        try:
            code = main(Console(emoji=False, markup=False))
        except InputError as error:
            code = _say(errors, str(error), BAD_INPUT)
        except KeyboardInterrupt as error:
            code = _say(errors, "; ".join(["interrupted", *_notes(error)]), INTERRUPTED)
        except OSError as error:
            code = _say(
                errors, f"{error.filename or 'writing a file'}: {error.strerror or error}; {_remedy(error)}", FAILED
            )
        except Exception as error:
            # What this program raises on purpose says in its text what is wrong; anything else is a mistake in it.
            if not (isinstance(error, RuntimeError) or type(error).__module__.startswith("dpfedmeta.")):
                raise
            code = _say(errors, str(error) or type(error).__name__, FAILED)
    sys.exit(code)


def code_of_run(run: Path, status: str) -> int:
    """Return the exit code of a command whose run has ended in this way.

    Raises:
        RuntimeError: Its training diverged.
    """
    if status == DIVERGED:
        from dpfedmeta.training.results.summary import NOT_FINITE

        raise RuntimeError(f"{run}: {NOT_FINITE}")
    return INTERRUPTED if status == "interrupted" else DONE


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
        on = (*_notes(error), "type the same command again")[0]
        return f"stopped; all files written so far are intact: make room (or the disk writable), then {on}"
    return "; ".join(["stopped", *_notes(error)])


def _notes(error: BaseException) -> Sequence[str]:
    """The command that goes on, where one is known (`going_on_with`)."""
    return getattr(error, "__notes__", ())[:1]


def _say(console: Console, message: str, code: int) -> int:
    console.print("error: " + " ".join(message.split()), style="red", highlight=False, markup=False)
    return code


def _warn_in_one_line(console: Console) -> None:
    said = set[str]()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) in said:
            return
        said.add(str(message))
        console.print(f"warning: {message}", style="yellow", highlight=False, markup=False)

    warnings.showwarning = show


def terminate_like_ctrl_c() -> None:
    """Make SIGTERM raise KeyboardInterrupt from now on, as Ctrl-C does."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
