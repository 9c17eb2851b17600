import pytest

from tests.federation.silos import make_silos


@pytest.fixture(scope="session")
def silos(tmp_path_factory, own_cache):
    return make_silos(tmp_path_factory.mktemp("silos"))
