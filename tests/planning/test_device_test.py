"""A device whose gradients are not the CPU's is refused before round 0."""

from dataclasses import replace

import pytest
import torch

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.network_trial import device_test
from dpfedmeta.planning.network_trial.device_test import check_same_on
from dpfedmeta.planning.network_trial.synthetic_clients import RehearsedClients, rehearsal_of
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.training import setup as prepared
from dpfedmeta.training.setup import RunOptions
from tests.simulation.test_devices import DEVICES

CPU = torch.device("cpu")
SMALL = {"task.ways": "3", "task.shots": "2", "task.queries": "2", "model.width": "4"}


def settings_of(algo):
    return resolve(algo, "strokes", None, SMALL)


def rehearsal(algo):
    settings = settings_of(algo)
    plan = make_plan(settings, load_task("strokes")[0])
    return rehearsal_of(settings, plan.network, plan.algorithm, private=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr", "dp-agrlr-micro"])
def test_the_same_gradients_are_accepted(algo, device):
    check_same_on(torch.device(device), rehearsal(algo))


def on_a_device_that(changes, monkeypatch):
    """RehearsedClients whose second copy, that of the device, gives changed rows."""
    built = []

    def clients(own, *device):
        compute, other = RehearsedClients(own, *device), bool(device)
        built.append(own)
        return lambda *given: [changes(rows) if other else rows for rows in compute(*given)]

    monkeypatch.setattr(device_test, "RehearsedClients", clients)
    return built


@pytest.mark.parametrize(
    "changes",
    [lambda rows: -rows, lambda rows: 1.06 * rows, torch.zeros_like, lambda rows: rows * float("nan")],
    ids=["other sign", "longer", "zero", "not a number"],
)
def test_other_gradients_are_refused_in_one_line(changes, monkeypatch):
    on_a_device_that(changes, monkeypatch)
    with pytest.raises(InputError, match=r"^run.device = cpu: PyTorch .* computes other gradients"):
        check_same_on(CPU, rehearsal("dp-agr"))


def test_rounding_and_one_client_of_a_tie_are_no_fault(monkeypatch):
    def tie(rows):
        rows = rows * (1 + 1e-5)
        if not seen:
            rows[0] = -rows[0]
        seen.append(1)
        return rows

    seen = []

    on_a_device_that(tie, monkeypatch)
    check_same_on(CPU, rehearsal("dp-agr"))


def test_units_without_a_gradient_show_nothing(monkeypatch):
    """Behind dead units both devices have 0; of those that have a gradient half are wrong here."""

    def clients(own, *device):
        wrong = -1.0 if device else 1.0
        return lambda *given: [torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [wrong, 2.0]])]

    monkeypatch.setattr(device_test, "RehearsedClients", clients)
    with pytest.raises(InputError, match="computes other gradients"):
        check_same_on(CPU, rehearsal("dp-agr"))
    monkeypatch.setattr(device_test, "RehearsedClients", lambda *given: lambda *rest: [torch.zeros(3, 2)])
    with pytest.raises(InputError, match="has no gradient on synthetic records, so nothing shows"):
        check_same_on(CPU, rehearsal("dp-agr"))


def test_most_units_have_to_agree(monkeypatch):
    def most(rows):
        seen.append(1)
        return -rows if len(seen) % 3 else rows

    seen = []
    on_a_device_that(most, monkeypatch)
    with pytest.raises(InputError, match="computes other gradients"):
        check_same_on(CPU, rehearsal("dp-agr"))


def test_what_is_compared_is_float32_whatever_the_run_rounds_to(monkeypatch):
    before = torch.backends.cudnn.allow_tf32
    own = rehearsal("dp-agr")
    built = on_a_device_that(lambda rows: rows, monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    check_same_on(CPU, replace(own, network=replace(own.network, precision="bfloat16")))
    assert {each.network.precision for each in built} == {"float32"}
    assert torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = before


def test_a_run_on_a_gpu_is_compared_before_anything_is_written(monkeypatch, tmp_path):
    class Asked(Exception):
        pass

    def asked(device, own):
        raise Asked(device.type, own.network.name)

    monkeypatch.setattr(prepared, "_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(prepared, "check_same_on", asked)
    with pytest.raises(Asked) as found, prepared.prepared(settings_of("dp-agr"), RunOptions(), lambda _: None):
        pass
    assert found.value.args == ("cuda", "conv4-strided")
