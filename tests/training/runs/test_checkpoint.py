import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.server_step import initial_state
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.clip_policies.median_policy import Median, NormHistogram
from dpfedmeta.privacy.clip_policies.quantile_policy import BelowBound, QuantilePolicy
from dpfedmeta.privacy.clip_policies.window_literal_policy import WindowLiteral
from dpfedmeta.privacy.clip_policies.window_policy import Observation, Walk, Window
from dpfedmeta.privacy.clip_policies.window_products_policy import WindowProducts
from dpfedmeta.training.state import checkpoint as checkpoint_module
from dpfedmeta.training.state.checkpoint import Checkpoint, checkpoint_files, load_checkpoint, save_checkpoint

MODEL = {"w": torch.randn(3, 2, generator=torch.Generator().manual_seed(1)), "b": torch.tensor([0.1, -0.0])}
THIRD = 1 / 3


def states():
    window = initial_state(MODEL, Window(initial_bound=0.1))
    seen = (Observation(bound=THIRD, energy=-1e-300, spread=5e-324), Observation(bound=1e300, energy=0.1, spread=0.0))
    yield replace(window, round=7, bound=0.1 + 0.2, policy=replace(window.policy, observations=seen, centre=THIRD))
    literal = initial_state(MODEL, WindowLiteral(initial_bound=1.0, window=3, percentile=90, lowest=0.1, highest=9))
    yield replace(literal, policy=replace(literal.policy, norms=(THIRD, 2 / 7)))
    products = initial_state(MODEL, WindowProducts(initial_bound=1.0, window=2, walk=Walk(lowest=0.1, highest=9.0)))
    seen = replace(
        products.policy,
        releases=(np.array([THIRD, -0.0]), np.array([1e300, 5e-324])),
        products=((THIRD,), (2 / 7, -1e-300)),
        bounds=(1.25, 0.8),
        deviations=(THIRD, 0.0),
    )
    yield replace(products, policy=seen)
    yield initial_state(MODEL, Constant(initial_bound=math.inf))
    yield initial_state(
        MODEL,
        QuantilePolicy(
            initial_bound=1.0, quantile=0.5, rate=0.2, lowest=0.1, highest=2, attachment=BelowBound(scale=1.0)
        ),
    )
    median = initial_state(
        MODEL, Median(initial_bound=1.0, window=2, attachment=NormHistogram(scale=1.0, edges=(1.0, 2.0)))
    )
    yield replace(
        median, round=5, released=4, averaged=3, policy=replace(median.policy, shares=((THIRD, 0.5), (0.25, 1e-9)))
    )


@pytest.mark.parametrize("state", list(states()), ids=lambda state: type(state.policy).__name__)
def test_a_state_comes_back_bit_for_bit(tmp_path, state):
    save_checkpoint(tmp_path, Checkpoint(state=state, lines=9, head="a" * 64), keep=2)
    ((_, path),) = checkpoint_files(tmp_path)
    found = load_checkpoint(path, state)
    assert (found.lines, found.head) == (9, "a" * 64)
    for name in ("round", "released", "policy", "bound", "averaged"):
        assert repr(getattr(found.state, name)) == repr(getattr(state, name))
    for part in ("model", "first", "second", "average"):
        for name, value in getattr(state, part).items():
            assert getattr(found.state, part)[name].numpy().tobytes() == value.numpy().tobytes()


def test_the_last_ones_are_kept(tmp_path):
    state = next(states())
    for round_ in (5, 20, 999_999, 1_000_000):
        save_checkpoint(tmp_path, Checkpoint(state=replace(state, round=round_), lines=1, head="a" * 64), keep=2)
    assert [round_ for round_, _ in checkpoint_files(tmp_path)] == [1_000_000, 999_999]


def test_behind_damaged_later_ones_what_was_just_written_stays(tmp_path):
    state = next(states())

    def save(round_):
        save_checkpoint(tmp_path, Checkpoint(state=replace(state, round=round_), lines=1, head="a" * 64), keep=2)
        return [found for found, _ in checkpoint_files(tmp_path)]

    assert (save(2), save(4), save(6)) == ([2], [4, 2], [6, 4])
    for _, path in checkpoint_files(tmp_path):
        path.write_bytes(b"damaged")
    assert (save(1), save(3), save(5)) == ([1], [3, 1], [5, 3])


def test_a_flipped_bit_or_another_form_is_refused(tmp_path):
    state = next(states())
    save_checkpoint(tmp_path, Checkpoint(state=state, lines=1, head="a" * 64), keep=1)
    ((_, path),) = checkpoint_files(tmp_path)
    content = path.read_bytes()
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(InputError, match="damaged"):
            load_checkpoint(path, state)
    path.write_bytes(content)
    other = replace(state, model={"w": MODEL["w"]})
    with pytest.raises(InputError, match="not a checkpoint of this run"):
        load_checkpoint(path, other)
    with pytest.raises(InputError, match="cannot be read"):
        load_checkpoint(tmp_path / "round-000001.safetensors", state)


def test_a_disk_that_is_full_leaves_the_checkpoints_that_are_there(tmp_path, monkeypatch):
    state = next(states())

    def write(round_):
        save_checkpoint(tmp_path, Checkpoint(state=replace(state, round=round_), lines=1, head="a" * 64), keep=1)

    write(2)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(checkpoint_module, "replace_file", full)
        with pytest.raises(OSError, match="No space"):
            write(3)
    assert [round_ for round_, _ in checkpoint_files(tmp_path)] == [2]


@pytest.mark.parametrize("field", ["round", "released", "bound", "averaged", "lines", "head"])
def test_no_field_of_a_checkpoint_is_changed_without_its_digest(tmp_path, field):
    """Beside the tensors, which are the same."""
    state = next(states())
    save_checkpoint(tmp_path, Checkpoint(state=state, lines=1, head="a" * 64), keep=1)
    ((_, path),) = checkpoint_files(tmp_path)
    with safe_open(path, framework="pt") as file:
        words, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    told = json.loads(words["state"])
    told[field] = "b" * 64 if field == "head" else told[field] + 1
    path.write_bytes(save(tensors, words | {"state": json.dumps(told, sort_keys=True)}))
    with pytest.raises(InputError, match="its digest does not match"):
        load_checkpoint(path, state)
