"""What a round's numbers depend on: each part of it is in the digest, and nothing is that says nothing."""

import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path

import pytest
import torch

import dpfedmeta
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


def test_what_is_kept_of_an_installation(monkeypatch):
    """Each part from where it is known; a name of a processor, and none of its flags."""
    monkeypatch.setattr(module, "commit", lambda: "c" * 40 + " + changes")
    monkeypatch.setattr(module, "source_digest", lambda: "0123456789abcdef" * 4)
    monkeypatch.setattr(module, "processor", lambda: "Some CPU; fpu sse avx")
    monkeypatch.setattr(time, "gmtime", lambda: (2026, 3, 4, 5, 6, 7, 0, 1, 0))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert module.made_by() == {
        "commit": "c" * 40 + " + changes", "source": "0123456789abcdef", "day": "2026-03-04", "system": "Linux x86_64",
        "processor": "Some CPU", "cores": 3,
    }  # fmt: skip


def test_a_processor_is_its_name_and_its_instructions(tmp_path, monkeypatch):
    text = (
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu sse\n\nprocessor\t: 1\nmodel name\t: Another\n"
    )
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(module, "Path", lambda name: tmp_path / "cpuinfo")
    assert module.processor() == "Some CPU @ 2 GHz; fpu sse"
    (tmp_path / "cpuinfo").write_text("Hardware: arm\n")
    assert module.processor() == "; "
    (tmp_path / "cpuinfo").unlink()
    monkeypatch.setattr(platform, "processor", lambda: "by Python")
    assert module.processor() == "by Python"


def test_the_digest_of_a_package_is_that_of_its_modules_by_their_names(tmp_path, monkeypatch):
    for name, text in (("__init__.py", ""), ("b.py", "1"), ("a/c.py", "2"), ("a/data.txt", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(dpfedmeta, "__file__", str(tmp_path / "__init__.py"))
    before = module.source_digest.__wrapped__()
    lines = [f"{name} {hashlib.sha256(text).hexdigest()}\n" for name, text in
             (("__init__.py", b""), ("a/c.py", b"2"), ("b.py", b"1"))]  # fmt: skip
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "a/data.txt").write_text("4")
    assert module.source_digest.__wrapped__() == before
    (tmp_path / "a/c.py").rename(tmp_path / "c.py")
    assert module.source_digest.__wrapped__() != before


HEAD = ("rev-parse", "HEAD")
CHANGES = ("status", "--porcelain", "--", ".", "../configs", "../tasks")
LISTED = ("ls-files", "--error-unmatch", "--", "__init__.py")


@pytest.mark.parametrize(
    ("answers", "commit"),
    [
        ({LISTED: "__init__.py", HEAD: "abc", CHANGES: ""}, "abc"),
        ({LISTED: "", HEAD: "abc", CHANGES: ""}, "abc"),
        ({LISTED: "__init__.py", HEAD: "abc", CHANGES: " M ../configs/a.yaml"}, "abc + changes"),
        ({LISTED: None, HEAD: "abc", CHANGES: ""}, None),
        ({LISTED: "__init__.py", HEAD: None, CHANGES: ""}, None),
        ({LISTED: "__init__.py", HEAD: "abc", CHANGES: None}, None),
    ],
)
def test_a_commit_is_that_of_the_package_with_its_presets_and_tasks(monkeypatch, answers, commit):
    folder = Path(dpfedmeta.__file__).parent
    monkeypatch.setattr(module, "_git", lambda where, *words: answers[words] if where == folder else "elsewhere")
    assert module.commit.__wrapped__() == commit


def test_git_is_asked_without_the_variables_of_a_hook_and_not_for_long(monkeypatch):
    asked = []

    def run(words, **given):
        asked.append((words, given))
        return subprocess.CompletedProcess(words, 0, b" answer\n", b"")

    monkeypatch.setenv("GIT_DIR", "/another")
    monkeypatch.setenv("OTHER", "kept")
    monkeypatch.setattr(subprocess, "run", run)
    assert module._git(Path("/here"), "status", "x") == "answer"
    ((words, given),) = asked
    assert words == ["git", "--no-optional-locks", "-C", "/here", "status", "x"]
    assert (given["check"], given["timeout"], given["env"].get("OTHER")) == (True, 5.0, "kept")
    assert not any(name.startswith("GIT_") for name in given["env"])
    for error in (OSError(), subprocess.TimeoutExpired("git", 5), subprocess.CalledProcessError(1, "git")):

        def fails(words, error=error, **given):
            raise error

        monkeypatch.setattr(subprocess, "run", fails)
        assert module._git(Path("/here"), "status") is None
