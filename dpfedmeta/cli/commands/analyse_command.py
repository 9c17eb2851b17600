"""Questions to all clients that serve training, each with a noise and a charge of its own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, check_alone, parser, print_json, print_line, settings_from
from dpfedmeta.cli.server_arguments import add_real_clients, check_real_clients, server_options
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.plugin_names import names

if TYPE_CHECKING:
    from dpfedmeta.analytics.analysis_request import FixedCohort, Request
    from dpfedmeta.analytics.execute import AskedOf
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.files.run_directory import RunDirectory

SUMMARY = "private counts before training: a first clip bound, classes, names; the gain after it"

_FOLDER = "dpfedmeta.analytics.analyses"
# Options of single analyses: (name, type, what it is, whose).
_OWN: tuple[tuple[str, Any, str, str], ...] = (
    ("quantile", float, "share of clients whose norm lies below the answer (clip.quantile)", "quantile"),
    ("lowest", float, "first edge of the grid of norms (0.001)", "quantile"),
    ("highest", float, "last edge (1000)", "quantile"),
    ("bins", int, "bins between them, in geometric steps (60)", "quantile"),
    ("share", float, "share of the clients that an episode shall fit (0.9)", "histogram"),
    ("most-names", int, "names of one client that count (1)", "heavy-hitters"),
    ("length", int, "bytes of a name (24)", "heavy-hitters"),
)


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser("Ask all clients one question, privately.", settings=True, program="dpfedmeta analyse")
    kinds = names(_FOLDER)
    made.add_argument("kind", nargs="?", help=f"one of {', '.join(kinds)}")
    made.add_argument("run", nargs="?", type=Path, metavar="RUN", help="gain: the run whose model is adapted")
    made.add_argument("--epsilon", type=float, help="target for (client, public), of this analysis alone")
    made.add_argument("--delta", type=float, help="delta of that target (privacy.client.delta, or 1e-6)")
    made.add_argument("--cohort", type=float, help="expected number of clients that are asked (2000, or all)")
    made.add_argument("--names", type=Path, metavar="FILE", help="heavy-hitters: file, one client a line, tabs between")
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--noise-seed", type=int, help="set the noise: a simulation without a guarantee")
    made.add_argument("--secure-rng", action="store_true", help="randomness straight from the operating system")
    made.add_argument("--dry-run", action="store_true", help="print the noise and the guarantees, and ask nobody")
    made.add_argument("--resume", type=Path, metavar="ANALYSIS", help="go on with an analysis that was stopped")
    made.add_argument("--json", action="store_true", help="print summary.json and nothing else")
    made.add_argument(
        "--fixed-cohort", action="store_true", help="ask exactly --cohort clients, to simulate real clients"
    )
    add_real_clients(made, required=False, before="real clients: ")
    for name, kind, words, whose in _OWN:
        made.add_argument(f"--{name}", type=kind, help=f"{whose}: {words}")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, ask, tell."""
    made = options_of()
    options, rest = made.parse_known_args(words)
    _check_real(options)
    if options.resume is not None:
        if options.kind is not None or rest:
            raise InputError("--resume: the analysis continues as it began; leave out its kind and all settings")
        beside = {"resume", "data_dir", "json", "keys", "roster", "listen", "port", "seconds", "fewest", "wait"}
        check_alone(made, options, "--resume, which goes on with what was begun", beside)
        from dpfedmeta.analytics.execute import resume
        from dpfedmeta.analytics.verification import is_analysis

        if not is_analysis(options.resume):
            raise InputError(f"--resume {options.resume}: holds no ledger of an analysis")
        with _real_clients(options, console) as asked_of:
            return _show(console, resume(options.resume, options.data_dir, asked_of=asked_of), as_json=options.json)
    request, settings = _request(options, settings_from(rest))
    if options.dry_run:
        return _plan(console, request)
    from dpfedmeta.analytics.execute import Place, begin

    place = Place() if settings is None else Place(folder=settings.run.dir, name=settings.run.name)
    given: dict[str, Any] = settings_from(rest)
    place = Place(folder=given.get("run.dir", place.folder), name=given.get("run.name", place.name))
    given = {"data_folder": options.data_dir, "secure_rng": options.secure_rng}
    with _real_clients(options, console) as asked_of:
        return _show(console, begin(request, place, asked_of=asked_of, **given), as_json=options.json)


def _real_clients(options: argparse.Namespace, console: Console) -> AbstractContextManager[AskedOf | None]:
    """Those of a roster, while the server listens; None: those of a simulation."""
    if options.keys is None and options.roster is None:
        return nullcontext(None)
    from dpfedmeta.federation.entry_points import asking_clients, cards_of

    def say(line: str) -> None:
        if not options.json:
            print_line(console, line)

    return asking_clients(server_options(options), cards_of(options.roster), say)


def _request(options: argparse.Namespace, given: dict[str, str]) -> tuple[Request, Settings | None]:
    kinds = names(_FOLDER)
    if options.kind not in kinds:
        raise InputError(f"analyse{f' {options.kind}' if options.kind else ''}: expected one of {', '.join(kinds)}")
    if (options.run is None) == (options.kind == "gain"):
        raise InputError("gain needs the folder of a run (analyse gain RUN), and no other analysis takes one")
    if options.names is not None and options.kind != "heavy-hitters":
        raise InputError(f"--names: belongs to heavy-hitters, not to {options.kind}")
    if options.epsilon is not None and not 0 < options.epsilon < math.inf:
        raise InputError(f"--epsilon {options.epsilon!r}: a target is a finite number above 0")
    if options.roster is not None and options.run is None:
        from dpfedmeta.federation.identity.credentials import read_roster

        # Of the training's cohort nothing is used here, but it has to be one of these clients.
        everybody = str(len(read_roster(options.roster)))
        given = {"population.clients": everybody, "population.cohort": everybody} | given
    settings, own = _settings(options, given), _own(options)
    from dpfedmeta.analytics.analysis_request import FixedCohort, Request, made, options_of, read_names

    if options.kind == "quantile" and settings is not None:
        own.setdefault("quantile", settings.clip.quantile)
    if options.run is not None:
        own["run"] = str(options.run)
    analysis = made(options.kind, own)
    clients = len(read_names(options.names)) if settings is None else settings.population.clients
    delta = options.delta if options.delta is not None else 1e-6 if settings is None else settings.privacy.client.delta
    cohort = options.cohort
    if cohort is None:
        cohort = float(clients) if options.kind == "heavy-hitters" and clients <= _MOST else min(2000.0, clients)
    request = Request(
        kind=options.kind,
        epsilon=analysis.default_epsilon if options.epsilon is None else options.epsilon,
        delta=delta,
        cohort=cohort,
        clients=clients,
        own=options_of(analysis),
        settings=settings,
        names=None if options.names is None else str(options.names),
        run=own.get("run"),
        noise_seed=options.noise_seed,
        fixed=_fixed(options, settings, FixedCohort),
    )
    return request, settings


def _check_real(options: argparse.Namespace) -> None:
    if (options.keys is None) != (options.roster is None):
        missing = "--roster FILE" if options.roster is None else "--keys DIR"
        raise InputError(f"real clients: give {missing} too; both come from `federate keys`")
    check_real_clients(options)
    if options.keys is not None and options.names is not None:
        raise InputError("--names and --roster both say who the clients are; drop one of them")


def _fixed(options: argparse.Namespace, settings: Settings | None, made: type[FixedCohort]) -> FixedCohort | None:
    if options.roster is None and not options.fixed_cohort:
        return None
    return made() if settings is None else made.of(settings)


# Everybody's names are asked for up to so many clients: a table is as long as there may be names.
_MOST = 20_000


def _settings(options: argparse.Namespace, given: dict[str, str]) -> Settings | None:
    """Return the settings that describe the clients; None: a file does."""
    place = {"run.dir", "run.name"}
    if options.names is not None:
        if options.algo or options.dataset or options.config or set(given) - place:
            raise InputError("--names: the file says who the clients are; drop --algo, --dataset and settings")
        return None
    if options.run is None:
        return resolve(options.algo, options.dataset, options.config, given)
    if options.algo or options.dataset or options.config or set(given) - place:
        raise InputError(f"gain {options.run}: the run says who the clients are; drop --algo, --dataset and settings")
    from dpfedmeta.core.files.run_checks import check_is_run
    from dpfedmeta.core.files.run_directory import CONFIG, RunDirectory
    from dpfedmeta.training.results.snapshot import read_run
    from dpfedmeta.training.verification.file_claims import check_config
    from dpfedmeta.training.verification.proven import Proven

    check_is_run(options.run)
    run = RunDirectory(options.run)
    # The file can be edited, and what is asked is charged by it.
    check_config(run, Proven.of(run, read_run(run).content))
    return resolve(None, None, options.run / CONFIG, given)


def _own(options: argparse.Namespace) -> dict[str, Any]:
    own = {}
    for name, _, _, whose in _OWN:
        value = getattr(options, name.replace("-", "_"))
        if value is None:
            continue
        if whose != options.kind:
            raise InputError(f"--{name}: belongs to {whose}, not to {options.kind}")
        own[name.replace("-", "_")] = value
    return own


def _plan(console: Console, request: Request) -> int:
    from dpfedmeta.accounting.observers.four_guarantees import guarantees
    from dpfedmeta.planning.caveats import dishonest_words
    from dpfedmeta.training.terminal.tables import ANSWERED, guarantee_table

    plan = request.planned()
    noise = plan.at(0).noise
    print_line(console, f"noise: {noise.words if noise else 'none'}")
    print_line(console, dishonest_words(plan))
    console.print(guarantee_table(guarantees(plan), f"What {request.kind} would promise", ANSWERED))
    return DONE


def _show(console: Console, run: RunDirectory, *, as_json: bool) -> int:
    from dpfedmeta.analytics.statement import STATEMENT
    from dpfedmeta.core.files.run_directory import SUMMARY

    if as_json:
        print_json(run.read_json(SUMMARY))
        return DONE
    text = (run.path / STATEMENT).read_text(encoding="utf-8")
    console.print(text, highlight=False, soft_wrap=True, markup=False, end="")
    print_line(console, f"kept in {run.path}; count it in training: --privacy.spent_before {run.path}")
    return DONE
