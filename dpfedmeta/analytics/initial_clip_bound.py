"""First clip bound, found privately: an analysis before training, which training counts as spent."""

from dataclasses import replace
from pathlib import Path

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analyses.quantile import Quantile
from dpfedmeta.analytics.analysis_request import Request, options_of
from dpfedmeta.analytics.execute import Place, begin, resume
from dpfedmeta.analytics.verification import is_analysis
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import being_written
from dpfedmeta.core.files.run_directory import LEDGER, SUMMARY, RunDirectory, check_new
from dpfedmeta.planning.early_checks import check_registered
from dpfedmeta.planning.privacy.prior_spending import earlier_releases
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.training.dry_run import forecast
from dpfedmeta.training.run_training import default_name
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.trackers import trackers_of

# Clients that are asked for their norms, where there are so many.
DEFAULT_COHORT = 2000.0
# The name of an analysis that is only planned.
_TO_COME = "clip.start"


def with_private_start(
    settings: Settings, data_folder: Path | None, *, secure_rng: bool = False
) -> tuple[Settings, str]:
    """Ask for the quantile that clip.start names, and put the answer in its place.

    Args:
        settings: With clip.start = quantile.
        data_folder: Where data sets are; None: DPFEDMETA_DATA.
        secure_rng: Randomness from the operating system.

    Returns:
        (the settings of the training, what was found in words): clip.initial is the answer, and privacy.spent_before
        names the analysis.

    Raises:
        InputError: Too few clients for a bound that is more than noise; the analysis is charged all the same.
        RefusedPlan: The algorithm has no exact messages, or no plan of the training counts the analysis too.
    """
    request = _request(settings)
    given = _given(settings)
    planned_after_start(settings, data_folder)
    check_new(Path(settings.run.dir), settings.run.name)
    # Remarks are said by the training, which checks all of it again.
    remarks: list[str] = []
    for tracker in trackers_of(settings.track):
        tracker.check(settings.track, remarks.append)
    options = RunOptions(data_folder=data_folder, secure_rng=secure_rng)
    forecast(replace(given, run=replace(given.run, workers=1)), options, seconds=None)
    settings = _named(settings, request)
    run = _begun(request, _place(settings), data_folder, secure_rng=secure_rng)
    found = run.read_json(SUMMARY)["found"]
    if found["too_noisy"]:
        raise InputError(
            f"clip.start = quantile: the noise is too large compared with the answers of {request.cohort:g} clients "
            f"(the analysis is charged all the same: {run.path}); "
            "give --clip.initial, or ask more clients: dpfedmeta analyse quantile "
            "--cohort N"
        )
    if found.get("beyond"):
        raise InputError(
            f"clip.start = quantile: {Quantile().words(found)[0]} (the analysis is charged all the same: {run.path}); "
            "give --clip.initial"
        )
    spent_before = (*settings.privacy.spent_before, str(run.path))
    started = replace(
        given,
        run=settings.run,
        clip=replace(given.clip, initial=found["bound"]),
        privacy=replace(given.privacy, spent_before=spent_before),
    )
    return started, f"{Quantile().words(found)[0]}; charged in {run.path}, which this run counts as spent before"


def planned_after_start(settings: Settings, data_folder: Path | None = None) -> PrivacyPlan:
    """The training as it will be planned afterwards: what is refused then must not be charged before.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: Nothing of a target would be left, or rounds of this kind count nothing that was spent before.
    """
    check_registered(settings)
    given = _given(settings)
    own = Earlier(run=_TO_COME, head="", phases=_request(settings).planned().phases)
    counted = replace(given.privacy, spent_before=(*given.privacy.spent_before, _TO_COME))
    task, _ = task_of(given, data_folder)
    return make_privacy(replace(given, privacy=counted), task, earlier=(*earlier_releases(given), own))


def _given(settings: Settings) -> Settings:
    return replace(settings, clip=replace(settings.clip, start="given"))


def _request(settings: Settings) -> Request:
    clients = settings.population.clients
    return Request(
        kind="quantile",
        epsilon=Quantile.default_epsilon,
        delta=settings.privacy.client.delta,
        cohort=min(DEFAULT_COHORT, float(clients)),
        clients=clients,
        own=options_of(Quantile(quantile=settings.clip.quantile)),
        settings=_given(settings),
        noise_seed=settings.run.noise_seed,
    )


def _named(settings: Settings, request: Request) -> Settings:
    """Return the settings with the name of the run: given, or that of a try that was charged and began no run."""
    if settings.run.name is not None:
        return settings
    folder, ending = Path(settings.run.dir), analysis_name("")
    for path in sorted(folder.glob(f"{default_name(settings, '*')}{ending}")):
        name = path.name.removesuffix(ending)
        waits = is_analysis(path) and not (folder / name).exists() and not being_written(path)
        if waits and read_content(path / LEDGER, torn=True).identity.config == request.as_text():
            return replace(settings, run=replace(settings.run, name=name))
    return replace(settings, run=replace(settings.run, name=default_name(settings)))


def _begun(request: Request, place: Place, data_folder: Path | None, *, secure_rng: bool) -> RunDirectory:
    """The analysis of a training that was stopped before its own first line, or a new one.

    Raises:
        InputError: Something else has its name.
    """
    path = Path(place.folder, str(place.name))
    if not is_analysis(path):
        return begin(request, place, data_folder=data_folder, secure_rng=secure_rng)
    if read_content(path / LEDGER, torn=True).identity.config != request.as_text():
        raise InputError(f"{path}: is another analysis; choose another run.name")
    return resume(path, data_folder)


def analysis_name(run: str) -> str:
    """Return the name of the analysis that a run of this name begins with."""
    return f"{run}-quantile"


def _place(settings: Settings) -> Place:
    return Place(folder=settings.run.dir, name=analysis_name(str(settings.run.name)))
