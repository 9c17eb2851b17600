import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks import device, device_engines, measure, settings, timing
from benchmarks import engines as engines
from benchmarks.machine import client_operations, convolution_seconds
from benchmarks.settings import ALGORITHMS, SETTINGS, TINY
from benchmarks.timing import CONVOLUTIONS, Cell, Speed
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.meta.meta_gradients import batched_query_gradients
from dpfedmeta.learning.models.layers.convolution import bfloat16_in_hardware
from dpfedmeta.reporting.plots.bench_plot import save_bench_plot

QUICK = device.Effort(clients=2, seconds=0.0, peers=False)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(SETTINGS, "tiny", TINY)


def available(algorithm):
    left_out = engines.missing_peers()
    return [name for name in engines.names(algorithm, peers=True) if name not in left_out]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_compute_the_same_meta_gradient(algorithm):
    first, *others = available(algorithm)
    for name in others:
        difference = engines.disagreement("tiny", algorithm, name, first)
        if not name.endswith(engines.ROUNDED):
            assert difference < 1e-3, name
            continue
        found = engines.engine("tiny", algorithm, name)(settings.episodes(TINY, 1)[0])
        distance = engines.distance_of_rounded(TINY, algorithm, found)
        assert 1e-3 < distance < measure.MOST_OF_ROUNDED
        assert distance == pytest.approx(difference, rel=0.01)


@pytest.mark.parametrize("has_it", [True, False])
def test_bfloat16_is_timed_where_training_would_take_it(monkeypatch, has_it):
    for module in (engines, device_engines):
        monkeypatch.setattr(module, "bfloat16_in_hardware", lambda: has_it)
    assert any(name.endswith(engines.ROUNDED) for name in engines.names("maml-1", peers=False)) == has_it
    found = device_engines.contestants(TINY, torch.device("cpu"), peers=False)
    assert any(own.name == "bfloat16" for own in found) == has_it
    assert not any(own.name == "tf32" for own in found)


def test_another_order_is_not_taken_for_rounding():
    found = engines.engine("tiny", "maml-1", "dpfedmeta")(settings.episodes(TINY, 1)[0])
    assert engines.distance_of_rounded(TINY, "maml-2", found) == math.inf


def test_another_meta_gradient_is_refused(monkeypatch):
    make, algorithms = engines.PEERS["plain loop"]  # type: ignore[attr-defined]
    wrong = {**engines.PEERS, "plain loop": (lambda s, _: make(s, "maml-2"), algorithms)}  # type: ignore[attr-defined]
    monkeypatch.setattr(engines, "PEERS", wrong)
    engines.engine.cache_clear()
    cells = [Cell(setting="tiny", algorithm="maml-1", name="plain loop")]
    with pytest.raises(InputError, match="plain loop and dpfedmeta differ by"):
        measure._check(cells)
    engines.engine.cache_clear()


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    def absent(*_):
        raise ImportError("No module named 'learn2learn'")

    peers = {**engines.PEERS, "learn2learn": (absent, ("maml-1",))}  # type: ignore[attr-defined]
    monkeypatch.setattr(engines, "PEERS", peers)
    engines.engine.cache_clear()
    assert engines.missing_peers()["learn2learn"] == "No module named 'learn2learn'"
    engines.engine.cache_clear()


def test_episodes_are_the_same_for_everybody_and_learnable():
    one, two = settings.episodes(TINY, 2)
    assert torch.equal(settings.episodes(TINY, 2)[0].support_images, one.support_images)
    assert not torch.equal(one.support_images, two.support_images)
    apart = one.support_images.unflatten(0, (5, 5)).var(1).mean() / one.support_images.var(0).mean()
    assert apart < 0.8  # images of a class are more alike than all


def test_operations_are_counted_as_on_paper():
    """A 3 x 3 convolution takes 2 * 9 * c * d a pixel, three times, or twice where images need no gradient."""
    pixels, inputs = (256, 64, 16, 4), (3, 8, 8, 8)
    once = [2 * 9 * c * 8 * p for c, p in zip(inputs, pixels, strict=True)]
    image = 2 * once[0] + 3 * sum(once[1:])
    assert client_operations(TINY) == pytest.approx((TINY.steps * 25 + 50) * image)
    assert 0 < convolution_seconds(TINY, 0.0) < 10


def test_ratios_are_of_medians_and_empty_where_nothing_was_measured():
    found = {
        ("paper", "maml-1", "dpfedmeta"): Speed(rates=(9.0, 10.0, 100.0)),
        ("paper", "maml-1", "learn2learn"): Speed(rates=(5.0,)),
        ("paper", "maml-1", CONVOLUTIONS): Speed(rates=(20.0,)),
    }
    ratios = measure._ratios(found)
    assert (ratios["maml1_vs_learn2learn"], ratios["share_of_conv_peak"]) == (2.0, 0.5)
    assert ratios["agrlr_vs_opacus"] is None


def test_a_cell_is_timed_by_clients_and_drawn(tmp_path):
    rate = timing._rate(Cell(setting="tiny", algorithm="dp-agr", name="dpfedmeta"), 0.05)
    assert math.isfinite(rate)
    assert rate > 0
    rows = [
        {"setting": "tiny", "engine": name, "algorithm": "maml-1", "clients_per_second": value}
        for name, value in (("dpfedmeta", 20.0), ("learn2learn", 9.5))
    ]
    save_bench_plot(tmp_path / "bench.png", rows, "tiny")
    assert (tmp_path / "bench.png").stat().st_size > 5000
    json.dumps(rows)


def test_engines_side_by_side_agree_with_the_loop_and_say_how_fast():
    found = device.device_rows(TINY, torch.device("cpu"), QUICK)
    engines = {(row["algorithm"], row["engine"]) for row in found["rows"]}
    assert {("maml-2", "float32"), ("dp-agrlr", "per record, opacus")} <= engines
    assert (("maml-1", "bfloat16") in engines) == bfloat16_in_hardware()
    assert all(row["clients_per_second"] > 0 for row in found["rows"])
    assert {("divided", "side by side"), ("divided", "one pass for all clients")} <= engines
    assert ("dp-agrlr", "side by side") in engines
    assert found["ratios"]["maml-1_vs_learn2learn"] is None
    assert found["ratios"]["divided_vs_one_at_a_time"] > 0


def test_an_engine_that_computes_something_else_is_refused(monkeypatch):
    first_order = partial(batched_query_gradients, order=1)
    monkeypatch.setattr(device_engines, "batched_query_gradients", lambda *given: first_order(*given[:-1]))
    with pytest.raises(InputError, match=r"float32 on cpu and a loop on a CPU differ by .* in maml-2"):
        device.device_rows(TINY, torch.device("cpu"), QUICK)


def test_a_patient_look_goes_on_and_says_what_failed_and_what_had_no_time(monkeypatch):
    first_order = partial(batched_query_gradients, order=1)
    monkeypatch.setattr(device_engines, "batched_query_gradients", lambda *given: first_order(*given[:-1]))
    few = device_engines.contestants
    monkeypatch.setattr(device, "contestants", lambda *given, **more: few(*given, **more)[:3])
    kept = []
    effort = replace(QUICK, patient=True)
    found = device.device_rows(TINY, torch.device("cpu"), effort, lambda found: kept.append(len(found["rows"])))
    (failed,) = (words for words in found["left_out"] if words.startswith("maml-2, float32"))
    assert "differ by" in failed
    assert kept == sorted(kept)
    assert kept[-1] == len(found["rows"]) == 2
    none = device.device_rows(TINY, torch.device("cpu"), replace(effort, most=0.0))
    assert none["rows"] == []
    assert all(words.endswith("no time was left") for words in none["left_out"])
