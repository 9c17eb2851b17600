"""Readers of files that anybody may have written: damaged input is one line, never a traceback or a wrong acceptance.

DPFEDMETA_FUZZ is the number of inputs over all readers (default 600; `make test-slow` takes 100,000).
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fuzzed_readers import READERS, attempt, mutated, mutations, seeds

COUNT = int(os.environ.get("DPFEDMETA_FUZZ", "600"))


def fuzz(name, folder, count, derandomize):
    _, file, share = READERS[name]
    path, corpus = folder / file, seeds(name)
    tried = {"inputs": 0, "accepted": 0}

    @settings(
        max_examples=max(20, int(share * count)), deadline=None, derandomize=derandomize, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    @given(st.sampled_from(corpus), mutations())
    def run(seed, changes):
        tried["inputs"] += 1
        tried["accepted"] += attempt(name, path, mutated(seed, changes))

    run()
    return tried


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_accepted(name, tmp_path):
    for seed in seeds(name):
        if seed[:8] != b"REFUSED ":
            attempt(name, tmp_path / READERS[name][1], seed)


@pytest.mark.parametrize("name", READERS)
def test_a_few_hundred_damaged_files(name, tmp_path):
    tried = fuzz(name, tmp_path, min(COUNT, 600), derandomize=True)
    assert tried["inputs"] >= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_hundred_thousand_damaged_files(name, tmp_path, record_property):
    tried = fuzz(name, tmp_path, max(COUNT, 100_000), derandomize=False)
    print(f"\nfuzzed {name}: {tried['inputs']} inputs, {tried['accepted']} accepted, 0 crashes")
