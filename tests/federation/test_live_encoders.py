"""Processes over TLS whose clients encode their images by Lite0 itself, each on its own."""

import pytest

from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.data.dataset import open_dataset
from tests.federation.live import live
from tests.federation.test_encoded_clients import ENCODED


@pytest.mark.slow
def test_processes_end_with_the_weights_of_the_simulation(silos, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra encoders is not installed")
    given = {**ENCODED, "model.encoder_size": "32"}
    expected = silos.simulated("dp-agr", tmp_path, **given)
    # As `dpfedmeta encode` does it beforehand: this test's server may start no workers.
    open_dataset(str(silos.public), encoding=encoding_of_run(silos.settings("dp-agr", **given)))
    (tmp_path / "live").mkdir()
    with live(tmp_path / "live", silos, algo="dp-agr", given=given) as processes:
        server, clients = processes.server(), processes.everybody()
        assert server.code() == 0
        assert [client.code() for client in clients.values()] == [0] * len(clients)
        found = processes.run / "checkpoint" / "model.safetensors"
        assert found.read_bytes() == expected.weights.read_bytes()
        for number in clients:
            assert list((processes.home(number) / "images").glob("features-lite0-32-*.npy"))
