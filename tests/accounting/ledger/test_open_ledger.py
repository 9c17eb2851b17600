import pytest

from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity
from dpfedmeta.accounting.ledger.ledger_register import Lineage
from dpfedmeta.accounting.ledger.open_ledger import open_ledger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.random.fresh_seeds import FreshSource
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource

RUN = "0123456789abcdef" * 2
PLAN = PrivacyPlan(clients=100, cohort=10, rounds=4, noise_multiplier=1.0)


@pytest.mark.parametrize("environment", ["the same", None])
@pytest.mark.parametrize(
    "source", [KeyedSource(5), FreshSource(5), OperatingSystemSource()], ids=lambda s: type(s).__name__
)
def test_a_line_that_a_crash_tore_may_be_lacking_only_where_it_comes_out_again(
    tmp_path, monkeypatch, source, environment
):
    """Its bytes of chance are lost with it, and so is what ran where nobody knows the environment."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    ledger = Ledger(run.ledger, PLAN, RunIdentity(run=RUN))
    ledger.charge(planned_charge(PLAN, 0))
    ledger.charge(planned_charge(PLAN, 1))
    lineage = Lineage(RUN)
    try:
        lineage.follow(ledger.lines, ledger.head)
        run.ledger.write_bytes(run.ledger.read_bytes()[:-9])
        if isinstance(source, KeyedSource) and environment is not None:
            opened = open_ledger(run, PLAN, source, environment, lineage)
            assert (len(opened.content.charges), opened.restorable) == (1, True)
        else:
            with pytest.raises(InputError, match="a stale copy, or lines are lost"):
                open_ledger(run, PLAN, source, environment, lineage)
    finally:
        lineage.close()
