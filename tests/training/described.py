"""The description that a run of strokes gives of its data."""

from dataclasses import asdict

from dpfedmeta.accounting.ledger.ledger import RunIdentity
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.load import to_yaml
from dpfedmeta.data.episodes.shape import ASKED, OWN
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.training.results.facts import Described


def described(settings, plan, kind=None):
    """Of private images, so that no number but 160 records is in it."""
    kind = kind or (ASKED if settings.population.kind == "real" else settings.population.kind)
    population = PopulationStatement(
        kind=kind,
        clients=plan.clients,
        form=0 if kind in (ASKED, OWN) else 1,
        records=160,
        own_test=settings.population.own_test,
    )
    return Described.of(population, settings, task_of(settings)[0])


def identity(settings, plan, kind=None, **given):
    """First line of the ledger of such a run, but for its plan."""
    return RunIdentity(config=to_yaml(settings), described=asdict(described(settings, plan, kind)), **given)
