"""Going on with a run: its own settings and its own secret, or the reason why not."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, cast

from dpfedmeta.accounting.ledger.ledger import RunIdentity, read_content
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings, setting_fields, value_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_checks import check_no_analysis
from dpfedmeta.core.files.run_directory import (
    CONFIG,
    OVER,
    PLAN,
    REPORT,
    SUMMARY,
    RunDirectory,
    load_weights,
    write_text,
)
from dpfedmeta.core.pydantic_errors import counted_words

if TYPE_CHECKING:
    from dpfedmeta.data.task import Task
    from dpfedmeta.training.results.summary import Status

# What may differ from the run that is continued: it changes no result, or the rounds it touches are charged again.
MAY_CHANGE = ("run.workers", "run.device", "run.chunk")
# A run directory, and how its run ended.
Done = tuple[RunDirectory, "Status"]
_LAUNCH = "launch.json"
# In plan.json: digests of the user's own code.
CODE = "code"


def settings_of_run(run: RunDirectory, given: Mapping[str, str], *, brought: bool = False) -> Settings:
    """The settings that a run began with, with the workers and the device of today.

    Args:
        run: The run.
        given: Settings of today, by their full names.
        brought: Whether the workers are there already (ranks): the number that the run began with is not theirs.

    Raises:
        InputError: Not a run, or another setting is given.
    """
    for name in given:
        if name not in MAY_CHANGE:
            raise InputError(
                f"--{name}: a run goes on with the settings it began with; besides --resume only "
                f"{', '.join('--' + each for each in MAY_CHANGE)} and --data-dir may be given; for more rounds: "
                f"--extend {quote(str(run.path))} --rounds N; for a new run like it: "
                f"--config {quote(str(run.path / CONFIG))} --run.name NEW"
            )
    text = identity_of(run).config
    check_no_analysis(run.path, text)
    path = run.path / CONFIG
    if not path.exists() or path.read_bytes() != text.encode():
        # The ledger holds it too.
        write_text(path, text)
    settings = resolve(None, None, path, given)
    if brought and "run.workers" not in given:
        settings = replace(settings, run=replace(settings.run, workers=None))
    return settings


def check_same_settings(run: RunDirectory, kept: Settings, given: Settings, advice: str) -> None:
    """Refuse to go on with settings that would change a result.

    Args:
        run: The run.
        kept: The settings that it began with.
        given: Those that it shall go on with.
        advice: What to do where they differ, at the end of a sentence.

    Raises:
        InputError: Names the first setting that differs.
    """
    for name, _, _ in setting_fields():
        if name not in MAY_CHANGE and value_of(kept, name) != value_of(given, name):
            raise InputError(
                f"{run.path}: it began with {name} = {value_of(kept, name)}, but {value_of(given, name)} is given; "
                f"a run goes on with the settings it began with{advice}"
            )


def go_on(
    run: RunDirectory,
    settings_of: Callable[[], Settings],
    train: Callable[[Settings], Done],
    *,
    extend: bool = False,
    told: Callable[[str], object],
    page: Callable[[RunDirectory], object] | None = None,
) -> Done:
    """Go on with a run as its one writer; one that has ended gets the page that it lacks.

    Args:
        run: The run.
        settings_of: Reads the settings that it goes on with, before PyTorch and the data are read.
        train: Trains on.
        extend: Whether a completed run gets further rounds.
        told: Told what is left to do of a run that has ended.
        page: Writes the last page; None: there is none to write.

    Returns:
        The run directory, and how the run ended.

    Raises:
        InputError: Another process writes this run, or it cannot go on with these settings.
    """
    with only_writer(run.path):
        settings = settings_of()
        ended = None if extend else finished(run)
        if ended is None:
            return train(settings)
        lacking = None if page is None or reported(run) else page
        told(f"{run.path}: {ended} already; {'only its report' if lacking else 'nothing'} is left to do")
        if lacking:
            lacking(run)
        return run, cast("Status", ended)


def identity_of(run: RunDirectory) -> RunIdentity:
    """Return the identity in the first line of a run's ledger."""
    return read_content(run.ledger, torn=True).identity


def code_of(run: RunDirectory) -> dict[str, str]:
    """By module of the user's own: the digest that the run was computed with; empty: there was none."""
    plan = run.read_json(PLAN) if (run.path / PLAN).exists() else {}
    return dict(plan.get(CODE, {}))


def edited_since(run: RunDirectory, settings: Settings, task: "Task | None" = None) -> str | None:
    """Say that modules which a run's settings name are not what it was computed by; None: they are.

    A run that kept no digests is not compared. Modules of objects that were handed over in Python are not looked at.
    """
    kept = code_of(run)
    if not kept:
        return None
    from dpfedmeta.core.plugins.user_code import looked_for_here, own_sources  # what goes on needs none of it
    from dpfedmeta.data.task_file import load_task
    from dpfedmeta.planning.user_modules import own_modules

    looked_for_here()
    own = own_sources(own_modules(settings, task or load_task(settings.dataset)[0]))
    changed = sorted(name for name in own if kept.get(name) != own[name])
    return f"{', '.join(changed)}: not the code that this run was computed by" if changed else None


def check_same_code(run: RunDirectory, own: Mapping[str, str], *, allowed: bool) -> str | None:
    """Say that the user's own code (`own_sources`) is not what the run was computed by so far; None: it is.

    Raises:
        InputError: Rounds would be charged again for it, and that is not `allowed`.
    """
    plan = run.read_json(PLAN) if (run.path / PLAN).exists() else {}
    kept = plan.get(CODE, own)
    changed = sorted(name for name in {*kept, *own} if kept.get(name) != own.get(name))
    if not changed:
        return None
    from dpfedmeta.training.state.checkpoint import checkpoint_files  # brings PyTorch

    charged = {event.round for event in read_content(run.ledger, torn=True).charges}
    again = max(0, len(charged) - max((done for done, _ in checkpoint_files(run.path / "checkpoint")), default=0))
    words = f"{run.path}: {', '.join(changed)}: not the code that this run was computed by so far"
    words += f"; {counted_words(again, 'round')}"
    if again and not allowed:
        raise InputError(
            f"{words} would be charged again, with other results: put it back, or allow that by --changed-code (from "
            "Python changed_code=True)"
        )
    run.write_json(PLAN, {**plan, CODE: dict(own)})
    return f"{words} of those charged will be charged again"


def keep_launch(run: RunDirectory, mark: Mapping[str, object] | None) -> None:
    """Remember which launch began the run, for its restarts."""
    if mark is not None:
        run.write_json(_LAUNCH, mark)


def begun_by(path: Path, mark: Mapping[str, object]) -> bool:
    """Return whether this launch, with the same words, began the run in this folder before it was restarted."""
    return (path / _LAUNCH).exists() and RunDirectory(path).read_json(_LAUNCH) == mark


def finished(run: RunDirectory) -> str | None:
    """Status of a run that has nothing left to do; None: there is something to do, or to mend."""
    try:
        summary = run.read_json(SUMMARY)
        status = summary.get("status")
        weights = load_weights(run.weights)
    except InputError:
        return None
    from dpfedmeta.training.state.checkpoint import contradicts  # brings PyTorch

    if contradicts(run.weights.parent, weights):
        return None
    if read_content(run.ledger, torn=True).plan.rounds != summary.get("rounds") and status == "completed":
        return None  # extended since
    return str(status) if status in OVER else None


def reported(run: RunDirectory) -> bool:
    """Return whether the page of a finished run is at least as new as its summary.

    A crash, or a full disk, may have come between the two.
    """
    try:
        page, summary = ((run.path / name).stat().st_mtime_ns for name in (REPORT, SUMMARY))
    except OSError:
        return False
    return page >= summary
