import pytest

from tests.federation.silos import make_silos


@pytest.fixture(scope="session")
def silos(tmp_path_factory, own_cache):
    return make_silos(tmp_path_factory.mktemp("silos"))


@pytest.fixture(autouse=True)
def on_a_machine_of_its_own(tmp_path, monkeypatch):
    """Where no other test's homes and runs are known: all tests have the same images."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
