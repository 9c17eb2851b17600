"""What a round's numbers depend on: each part of it is in the digest, and nothing is that says nothing."""

import platform

import pytest
import torch

from dpfedmeta.core import provenance as module
from dpfedmeta.core.provenance import SWITCHES, environment_of, versions

CPU = torch.device("cpu")
LIBRARIES = ["Python", "torch", "numpy", "scipy", "opacus", "numba", "llvmlite", "cryptography"]


def digest():
    return environment_of(CPU)


PARTS = {
    "source": (module, "source_digest"),
    "processor": (module, "processor"),
    "system": (platform, "system"),
    "machine": (platform, "machine"),
    "kernels": (torch.backends.cpu, "get_cpu_capability"),
}


@pytest.mark.parametrize("part", PARTS)
def test_another_part_is_another_environment(monkeypatch, part):
    before = digest()
    monkeypatch.setattr(*PARTS[part], lambda: "another")
    assert digest() != before


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_version_is_another_environment(monkeypatch, library):
    before, installed = digest(), versions()
    assert list(installed) == LIBRARIES
    monkeypatch.setattr(module, "versions", lambda: {**installed, library: "0.0.1"})
    assert digest() != before


@pytest.mark.parametrize("name", [*SWITCHES, "ATEN_CPU_CAPABILITY", "MKL_CBWR", "NUMBA_CPU_NAME"])
def test_a_switch_of_a_library_is_part_of_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, "one")
    one = digest()
    monkeypatch.setenv(name, "other")
    assert digest() != one
    monkeypatch.delenv(name)
    assert digest() != one


def test_what_changes_no_number_is_none():
    assert digest() == digest()
    assert environment_of(torch.device("cuda")) is None


def test_clients_side_by_side_are_part_of_the_environment():
    assert len({environment_of(CPU, chunk) for chunk in (1, 2, 3, 16)}) == 4
    assert environment_of(CPU, None) == environment_of(CPU, 1)
