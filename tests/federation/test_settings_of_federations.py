"""The settings of a federation that come with the product: they are accepted, and say what they do not promise."""

from pathlib import Path

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.server.federation_checks import check_federation
from dpfedmeta.planning.caveats import TaskFacts, cautions
from dpfedmeta.planning.run_plan import make_plan

PRESETS = Path(__file__).parents[2] / "configs" / "federations"


def plan_of(name, dataset, **given):
    settings = resolve(None, dataset, PRESETS / f"{name}.yaml", given)
    task, _ = load_task(dataset)
    check_federation(settings, [number.to_bytes(32, "big") for number in range(settings.population.clients)])
    return make_plan(settings, task), cautions(settings, TaskFacts.of(settings, task))


@pytest.mark.parametrize(
    ("silos", "dropout"),
    [("8", "0.2"), pytest.param("3", "0.2", marks=pytest.mark.slow), pytest.param("50", "0.2", marks=pytest.mark.slow)],
)
def test_silos_promise_their_records_towards_the_server_and_no_silo(silos, dropout):
    given = {"population.clients": silos, "population.cohort": silos, "aggregation.dropout": dropout}
    plan, said = plan_of("cross-silo", "strokes", **given)
    (record,) = (cell for cell in plan.planned if (cell.unit, cell.observer) == ("record", "server"))
    assert 2.4 < record.epsilon <= 2.5
    assert plan.privacy.at(0).rate == 1
    assert plan.algorithm.parts == 25
    client = next(cell for cell in plan.planned if (cell.unit, cell.observer) == ("client", "server"))
    assert client.epsilon > 50
    assert any("so sampling adds no privacy" in caution for caution in said)


@pytest.mark.slow
def test_devices_promise_whole_clients_towards_the_public():
    plan, said = plan_of("cross-device", "cifar-fs")
    assert plan.planned[0].epsilon <= 8
    assert said == ()
