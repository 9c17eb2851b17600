"""A private sweep: a random number of runs, settings drawn from a fixed list, and only the best is released."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.private_selection import DRAWN_BITS, RunCount, SelectionCost, selection_cost
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli.sweeps.runner import prepare, settings_of, why_not_finished
from dpfedmeta.cli.sweeps.sweep_file import Sweep, Trial
from dpfedmeta.cli.sweeps.sweep_folder import PROMISED, SweepFolder, SweepOptions, opened
from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import SELECTION, SUMMARY, RunDirectory, write_text
from dpfedmeta.training.verification.chosen_run import mark_of, selection_content
from dpfedmeta.training.verification.proven import Proven, state_choice

BEST, _SECRET, _DRAWN = "best", "secret", "drawn.json"
_RELEASED = "released.json"
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True, kw_only=True)
class PrivateSweep:
    """A checked private sweep.

    Attributes:
        sweep: What is left to sweep.
        trials: The list to draw from.
        count: The law of how often.
        cost: What the best costs.
        plans: Of the list.
    """

    sweep: Sweep
    trials: tuple[Trial, ...]
    count: RunCount
    cost: SelectionCost
    plans: tuple[PrivacyPlan, ...]

    @property
    def selection(self) -> dict[str, Any]:
        """Content of selection.json."""
        return selection_content(self.cost, self.plans)


def check_private(sweep: Sweep, options: SweepOptions, count: RunCount) -> PrivateSweep:
    """Check everything before the first draw.

    Raises:
        InputError: A setting would tell of a run that is not released, or the list is no list.
        RefusedPlan: The runs have no plain Renyi divergence.
    """
    if sweep.method != "grid":
        raise InputError(
            f"method = {sweep.method}: a private sweep draws its settings with replacement from a list that is fixed "
            "before; write method: grid, whose combinations are that list"
        )
    if options.jobs != 1 or options.launched:
        raise InputError("--private runs one at a time, on one machine: leave out --jobs and --launch")
    left, trials, planned = prepare(sweep, options, private=True)
    for trial in trials:
        settings = settings_of(trial)
        if settings.run.noise_seed is not None:
            raise InputError("run.noise_seed: is set, so every run would have the same noise; leave it out")
        if settings.population.register is not None:
            raise InputError("population.register: would count each run and tell how many there are; leave it out")
        if settings.track.to or settings.track.wandb != "off" or settings.track.tensorboard:
            raise InputError("track: a tracker would tell of runs that are not released; leave out track settings")
    plans = tuple(planned.values())
    return PrivateSweep(sweep=left, trials=trials, count=count, cost=selection_cost(plans, count), plans=plans)


def price_lines(cost: SelectionCost) -> list[str]:
    """For people."""
    capped = f", at most {cost.cap} (exceeded with probability {rounded_up(cost.beyond, 2)}, counted)"
    beyond = "" if cost.cap is None else capped
    return [
        f"{cost.settings} settings; {cost.mean:g} runs in expectation{beyond}. How many there are is secret.",
        f"(client, public), {cost.adjacency}, delta = {asked(cost.delta)}: epsilon = {rounded_up(cost.epsilon, 4)} of "
        f"the chosen run, {rounded_up(cost.single, 4)} of one run without a choice (by the same moments)",
        "Towards the server, and for records beyond their client, nothing is promised of the search: all runs compose.",
    ]


def run_private(
    sweep: Sweep, options: SweepOptions, count: RunCount, page: Callable[[RunDirectory], object]
) -> tuple[RunDirectory, SelectionCost]:
    """Do the runs, and release the best by public validation, once.

    K and the settings are drawn from the operating system and on disk before the first run, so a search that was cut
    off goes on with the same; a run that did not finish is done again, with fresh noise and cohorts. The chosen run
    alone gets a `page`, after its price.

    Guarantee:
        (client, public) `cost`, for whoever sees the folder `best` and what is printed. The folder `secret` holds the
        other runs, how many there are, and their times; how long the command took tells of that as well.

    Raises:
        InputError: As `check_private` says; or a run failed, whose output is in the private folder.
    """
    made = check_private(sweep, options, count)
    with opened(options.out, made.sweep, options.fixed, private=True) as (folder, lock):
        _check_promised(folder.path / PROMISED, made.cost)
        best, hidden = RunDirectory(folder.path / BEST), folder.path / _SECRET
        if best.path.exists():
            if not (best.path / SELECTION).exists():
                # Lost since: the summary says that it was chosen.
                best.write_json(SELECTION, made.selection)
            _keep_released(folder.path, best)
            return best, made.cost
        own = SweepFolder(hidden)
        chosen = _released(folder.path, own)
        hidden.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        hidden.chmod(_PRIVATE_FOLDER)
        if chosen is None:
            # Names that say nothing of how many there are, since the chosen run keeps its own.
            trials = [replace(made.trials[place], name=name) for place, name in _drawn(hidden, made)]
            for trial in trials:
                _finish(own, trial, replace(options, out=hidden), lock, mark_of(made.selection))
            chosen = own.run(max(trials, key=lambda trial: _score(own.run(trial))))
        _release(chosen, best.path, made, page)
        return best, made.cost


def _check_promised(path: Path, cost: SelectionCost) -> None:
    wanted: dict[str, Any] = json.loads(json.dumps(asdict(cost)))
    if not path.exists():
        write_text(path, json.dumps(wanted, indent=2) + "\n")
    elif RunDirectory(path.parent).read_json(path.name) != wanted:
        raise InputError(
            f"{path.parent}: a private sweep with other numbers began here; go on with the same, or choose another "
            "--out"
        )


def _keep_released(folder: Path, chosen: RunDirectory) -> None:
    """Write down which run is released, before anybody sees it; a folder releases no other one.

    Raises:
        InputError: Another run was released here.
    """
    content = read_content(chosen.ledger, torn=True)
    released = {"candidate": content.identity.candidate, "run": content.identity.run, "head": content.heads[-1]}
    if not (folder / _RELEASED).exists():
        write_text(folder / _RELEASED, json.dumps(released, indent=2) + "\n")
    elif (before := RunDirectory(folder).read_json(_RELEASED)) != released:
        raise InputError(
            f"{folder / _RELEASED}: names run {before.get('run')}, and {chosen.path} is another one; put the released "
            "run back"
        )


def _released(folder: Path, own: SweepFolder) -> RunDirectory | None:
    """SECRET: the run that a crash kept from being moved after it was chosen; None: none was released.

    Raises:
        InputError: One was released, and is gone.
    """
    if not (folder / _RELEASED).exists():
        return None
    before = RunDirectory(folder).read_json(_RELEASED)
    for run in own.started():
        if run.ledger.exists() and read_content(run.ledger, torn=True).identity.run == before.get("run"):
            return run
    raise InputError(
        f"{folder}: its best was released (run {before.get('run')}) and is no longer {folder / BEST}; another one is "
        f"not in the price. Put it back as {folder / BEST}, or search again with another --out, which costs as much "
        "again"
    )


def _drawn(hidden: Path, made: PrivateSweep) -> list[tuple[int, str]]:
    """SECRET: (place in the list, name) of each run; drawn once."""
    path = hidden / _DRAWN
    if not path.exists():
        runs = made.count.of(Fraction(secrets.randbits(DRAWN_BITS), 2**DRAWN_BITS))
        drawn = [(secrets.randbelow(len(made.trials)), secrets.token_hex(8)) for _ in range(runs)]
        write_text(path, json.dumps(drawn) + "\n")
    try:
        found = [(int(place), str(name)) for place, name in json.loads(path.read_text(encoding="utf-8"))]
        if not found or not all(0 <= place < len(made.trials) for place, _ in found):
            raise ValueError
    except (OSError, *DAMAGED_JSON) as error:
        raise InputError(f"{path}: damaged; restore it from a backup: drawn again it is another search") from error
    return found


def _finish(own: SweepFolder, trial: Trial, options: SweepOptions, lock: int, mark: str) -> None:
    """Do one run, whose ledger says from its first line on that it is a candidate, unless it is done."""
    if own.run(trial).path.exists():
        if _is_finished(own, trial, mark):
            return
        own.put_aside(trial)
    for part in (own.runs, own.path / "logs"):
        part.mkdir(exist_ok=True)
    with own.log(trial).open("wb") as log:
        done = subprocess.run(
            [*options.words(trial), f"--candidate={mark}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
        )
    if done.returncode != 0 or not _is_finished(own, trial, mark):
        raise InputError(
            f"{own.path}: a run failed, so nothing is released; its output is in {own.path / 'logs'}. The same command "
            "goes on"
        )


def _is_finished(own: SweepFolder, trial: Trial, mark: str) -> bool:
    """Return whether the run is done as a candidate of this search."""
    if why_not_finished(own, trial) is not None:
        return False
    return read_content(own.run(trial).ledger, torn=True).identity.candidate == mark


def _score(run: RunDirectory) -> float:
    """Accuracy on public validation classes: post-processing of what the run would release."""
    from dpfedmeta.reporting.compare.seed_groups import last_validation

    found = last_validation(run.rounds())
    if found is None:
        raise InputError(f"{run.path}: has no validation accuracy to choose by; nothing is released")
    return float(found.mean)


def _release(chosen: RunDirectory, best: Path, made: PrivateSweep, page: Callable[[RunDirectory], object]) -> None:
    """Release the chosen run, with its price in it; no day and no time of a file tells when in the search it was."""
    chosen.write_json(SELECTION, made.selection)
    summary = chosen.read_json(SUMMARY)
    summary.get("made_by", {}).pop("day", None)
    chosen.write_json(SUMMARY, summary)
    state_choice(chosen, Proven.of(chosen, read_content(chosen.ledger)))
    page(chosen)
    _keep_released(best.parent, chosen)
    for path in (chosen.path, *chosen.path.rglob("*")):
        os.utime(path)
    chosen.path.rename(best)


def private_cost(path: Path) -> SelectionCost | None:
    """Return the price of the private sweep in a folder; None: the folder holds none.

    Raises:
        InputError: Its file is damaged.
    """
    if not (path / PROMISED).exists():
        return None
    try:
        return SelectionCost(**RunDirectory(path).read_json(PROMISED))
    except TypeError as error:
        raise InputError(f"{path / PROMISED}: damaged ({error}); restore it from a backup") from error
