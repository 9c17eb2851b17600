"""Train one initialisation over a federation of clients, with the privacy that is promised before round 0."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, code_of_run, given_settings, parse_with_settings, parser, print_line
from dpfedmeta.cli.words_of_others import no_run
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.simulation.distributed.torchrun_env import Launch
    from dpfedmeta.training.results.summary import Status
    from dpfedmeta.training.throughput import Cost

SUMMARY = "train, evaluate and summarise one run, or go on with it (--resume)"


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser("Train, evaluate and summarise one run.", settings=True, program="dpfedmeta train")
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--dry-run", action="store_true", help="print the plan on these data, and stop")
    made.add_argument(
        "--calibration",
        type=float,
        metavar="S",
        help="seconds for which --dry-run also measures how long the run will take",
    )
    made.add_argument("--secure-rng", action="store_true", help="noise and cohorts straight from the operating system")
    made.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run, however it ended")
    made.add_argument(
        "--extend",
        type=Path,
        metavar="RUN",
        help="go on with a completed run until it has --rounds rounds in all, within its promise",
    )
    made.add_argument(
        "--changed-code", action="store_true", help="with --resume: changed code of your own may charge rounds again"
    )
    made.add_argument(
        "--candidate",
        metavar="HASH",
        help="mark of the private sweep that the run belongs to; sweep --private gives it",
    )
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, train, report."""
    return on_workers(words, console, None, None)


def on_workers(words: Sequence[str], console: Console, workers: Workers | None, launch: Launch | None) -> int:
    """The same on workers that are there already, as a launch brings them."""
    made = options_of()
    known, _ = made.parse_known_args(words)
    if known.resume is not None or known.extend is not None:
        return _resume(known, given_settings(made, words), console, workers)
    options, settings = parse_with_settings(made, words)
    if options.changed_code:
        raise InputError("--changed-code belongs to --resume: a new run has charged nothing yet; drop it")
    if options.calibration is not None and not options.dry_run:
        raise InputError("--calibration belongs to --dry-run; drop it, or add --dry-run")
    if options.calibration is not None and not 0 < options.calibration <= 600:
        raise InputError(f"--calibration {options.calibration}: a number of seconds above 0, at most 600")
    from dpfedmeta.core.files.run_directory import check_name, check_new
    from dpfedmeta.planning.early_checks import check_first, check_room

    mark = None if launch is None else {"launch": launch.name, "words": list(words)}
    if launch is not None and mark is not None and not options.dry_run and _goes_on(settings, launch, mark):
        run = Path(settings.run.dir, str(settings.run.name))
        return _go_on(run, {}, None, options.data_dir, console, workers)
    if options.dry_run:
        from dpfedmeta.training.trackers import check_variables

        check_name(settings.run.name)
        check_variables(settings.track)
    else:
        check_new(Path(settings.run.dir), settings.run.name)
    check_first(settings, options.data_dir)
    if options.dry_run and options.calibration is None and workers is None and not options.secure_rng:
        from dpfedmeta.training.dry_run import needs_no_network, plan_without_network

        if needs_no_network(settings) and (planned := plan_without_network(settings, options.data_dir)) is not None:
            from dpfedmeta.training.terminal.progress import Terminal

            Terminal(console).on_plan(planned)
            check_room(settings, planned.room)
            return _dry(None, console)
    return _train(settings, options, console, workers, mark)


def _candidate(given: str | None) -> str:
    """The mark that the ledger keeps.

    Raises:
        InputError: It is no hash.
    """
    if given is not None and not re.fullmatch("[0-9a-f]{64}", given):
        raise InputError(f"--candidate {given:.80}: expected the 64 hexadecimal digits that sweep --private gives")
    return given or ""


def _goes_on(settings: Settings, launch: Launch, mark: Mapping[str, object]) -> bool:
    """Return whether this is a further try of a launch at a run that an earlier try has begun.

    Raises:
        InputError: No later try could find the run.
    """
    if launch.may_restart and settings.run.name is None:
        raise InputError("torchrun --max-restarts: give the run a name (--run.name NAME), so that a restart finds it")
    from dpfedmeta.training.state.resume import begun_by

    return settings.run.name is not None and begun_by(Path(settings.run.dir, settings.run.name), mark)


def _train(
    settings: Settings,
    options: argparse.Namespace,
    console: Console,
    workers: Workers | None,
    mark: Mapping[str, object] | None,
) -> int:
    from dpfedmeta.reporting.html.pictures import draw_pictures
    from dpfedmeta.training.run_training import run_training
    from dpfedmeta.training.setup import RunOptions
    from dpfedmeta.training.terminal.progress import Terminal

    run_options = RunOptions(
        data_folder=options.data_dir,
        secure_rng=options.secure_rng,
        pictures=draw_pictures,
        page=draw_pictures,
        workers=workers,
        launch=mark,
        candidate=_candidate(options.candidate),
    )
    if not options.dry_run:
        if settings.clip.start == "quantile":
            from dpfedmeta.analytics.initial_clip_bound import with_private_start

            settings, words = with_private_start(settings, options.data_dir, secure_rng=options.secure_rng)
            print_line(console, words)
        try:
            with Terminal(console) as terminal:
                ended = run_training(settings, run_options, [terminal])
        except KeyboardInterrupt as error:
            if not getattr(error, "__notes__", []):  # a run that was begun says how it goes on
                error.add_note("no run was begun: nothing of it was written or charged")
            raise
        return _said(*ended, console)
    from dpfedmeta.training.dry_run import forecast

    spent = time.process_time()  # libraries and settings
    return _dry(
        forecast(settings, run_options, [Terminal(console)], seconds=options.calibration, before=spent), console
    )


def _dry(cost: Cost | None, console: Console) -> int:
    """The last line of a dry run."""
    words = cost or "nothing was run; --calibration 10 tries it out for ten seconds, and says how long it will take"
    print_line(console, f"  {words}")
    return DONE


def _resume(options: argparse.Namespace, given: dict[str, str], console: Console, workers: Workers | None) -> int:
    from dpfedmeta.core.files.run_checks import check_has_ledger

    option, path = ("--resume", options.resume) if options.extend is None else ("--extend", options.extend)
    if options.resume is not None and options.extend is not None:
        raise InputError("--extend, --resume: give one: --resume for an interrupted run, --extend for a completed one")
    for name in ("algo", "dataset", "config", "dry_run", "calibration", "secure_rng", "candidate"):
        if getattr(options, name) not in (None, False):
            raise InputError(
                f"--{name.replace('_', '-')}: {option} goes on with the settings that the run began with; leave it out"
            )
    if not path.is_dir():
        raise InputError(f"{option} {no_run(path)}")
    check_has_ledger(path)
    rounds = _whole_number(given) if options.extend is not None else None
    return _go_on(path, given, rounds, options.data_dir, console, workers, changed_code=options.changed_code)


def _go_on(
    path: Path,
    given: dict[str, str],
    rounds: int | None,
    data_folder: Path | None,
    console: Console,
    workers: Workers | None,
    *,
    changed_code: bool = False,
) -> int:
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.reporting.html.pictures import draw_pictures
    from dpfedmeta.training.state.how_to_resume import check_simulated
    from dpfedmeta.training.state.resume import go_on, settings_of_run

    run = RunDirectory(path)
    check_simulated(run)

    def settings_now() -> Settings:
        settings = settings_of_run(run, given, brought=workers is not None)
        if rounds is not None:
            from dpfedmeta.accounting.ledger.ledger import read_content
            from dpfedmeta.training.state.extend import extended_plan

            extended_plan(run, settings, read_content(run.ledger, torn=True), rounds)
        return settings

    def train(settings: Settings) -> tuple[RunDirectory, Status]:
        from dpfedmeta.training.run_training import run_training
        from dpfedmeta.training.setup import RunOptions
        from dpfedmeta.training.terminal.progress import Terminal

        options = RunOptions(
            data_folder=data_folder,
            resume=run,
            extend_to=rounds,
            changed_code=changed_code,
            pictures=draw_pictures,
            page=draw_pictures,
            workers=workers,
        )
        with Terminal(console) as terminal:
            return run_training(settings, options, [terminal])

    said = partial(console.print, highlight=False, soft_wrap=True)
    ended = go_on(run, settings_now, train, extend=rounds is not None, told=said, page=draw_pictures)
    return _said(*ended, console)


def _whole_number(given: dict[str, str]) -> int:
    """Takes --rounds, which --extend needs, out of what is given."""
    text = given.pop("server.rounds", None)
    if text is None:
        raise InputError("--extend: give the rounds that the run is to have in total (--rounds N)")
    if not text.isascii() or not text.isdigit():
        raise InputError(f"--rounds {text}: expected a whole number, the total number of rounds")
    return int(text)


def _said(run: RunDirectory, status: Status, console: Console) -> int:
    from dpfedmeta.core.files.run_directory import REPORT

    if (run.path / REPORT).exists():
        print_line(console, f"report: {run.path / REPORT}")
    return code_of_run(run.path, status)
