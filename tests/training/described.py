"""The description that a run of strokes gives of its data."""

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.data.episodes.shape import ASKED
from dpfedmeta.data.populations.population_statement import PopulationStatement
from dpfedmeta.training.results.facts import Described


def described(settings, plan):
    """Of private images, so that no number but 160 records is in it."""
    kind = ASKED if settings.population.kind == "real" else settings.population.kind
    population = PopulationStatement(
        kind=kind,
        clients=plan.clients,
        form=0 if kind == ASKED else 1,
        records=160,
        own_test=settings.population.own_test,
    )
    return Described.of(population, settings, task_of(settings)[0])
