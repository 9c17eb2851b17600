"""Loops as people write them, and what their mistakes must not cost: policies, updates, edits, copies, sums."""

import decimal
import fractions
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.params import norm
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

SMALL = {
    "clients": 1000, "cohort": 100, "rounds": 3, "like": {"w": np.zeros(3)}, "noise_seed": 3,
    "promise": dp.Promise(epsilon=4.0, delta=1e-5),
}  # fmt: skip


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def update(client):
    return {"w": np.full(3, client % 7)}


# A policy of one's own: whatever kind of number it gives, a run that was cut off ends as one that was not.


@dataclass(frozen=True, kw_only=True)
class Bound:
    bound: float
    before: tuple[float, ...] = ()
    passed: float | None = None
    mode: str = "following"


@dataclass(frozen=True, kw_only=True)
class Following:
    """The next bound follows the release; each number of its answer is of the kind that `kinds` names."""

    kinds: tuple[str, ...]
    attachment: None = None

    def initial(self):
        return Bound(bound=0.5)

    def next_bound(self, state, aggregate):
        now = float(norm(aggregate.value)) / 6 + 0.25
        bound, kept, before, first = (KINDS[kind] for kind in self.kinds)
        # Passed on from round to round, and so through a file where the run was cut off.
        passed = first(2.0) if state.passed is None else state.passed
        return Bound(bound=kept(now), before=(*state.before, before(now)), passed=passed), bound(now)


KINDS = {
    "float": float,
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "80 bits": np.longdouble,
    "array": np.array,
    "array of float32": lambda value: np.array(value, dtype=np.float32),
    "tensor": torch.tensor,
    "whole": lambda value: 1,
    "numpy's whole": lambda value: np.int64(1),
    "one-element array": lambda value: np.array([value]),
    "complex": complex,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
}
TAKEN = list(KINDS)[:10]


def policy_run(path, kind, place, stop=None):
    kinds = ["float"] * 4
    kinds[place] = kind
    found = []
    with dp.PrivateRounds(**SMALL, clip=Following(kinds=tuple(kinds)), run_dir=path) as private:
        for round_ in private:
            if round_.number == stop:
                return found
            round_.map(update)
            found.append((round_.bound, round_.release()["w"].tobytes()))
    return found


@pytest.mark.parametrize("place", [0, 1, 2, 3], ids=["bound", "state", "tuple", "passed on"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_policy_of_ones_own_are_floats_or_refused_before_a_charge(tmp_path, kind, place):
    if kind not in TAKEN and not (kind == "Fraction" and place == 0):
        with pytest.raises(InputError, match="PrivateRounds: clip: its next_bound gives "):
            policy_run(tmp_path / "whole", kind, place)
        assert not (tmp_path / "whole").exists()
        return
    whole = policy_run(tmp_path / "whole", kind, place)
    assert len(whole) == 3
    assert {type(bound) for bound, _ in whole} == {float}
    cut = tmp_path / "cut"
    policy_run(cut, kind, place, 2)
    # It is computed again, and has the digest that the ledger holds.
    (cut / "releases/round-000001.safetensors").unlink()
    assert policy_run(cut, kind, place) == whole
    assert len(read_content(cut / "ledger.jsonl").charges) == 3
    verify_rounds(RunDirectory(cut))
