"""What a few rounds of every preset, and of what presets do not use, came to: the house may change, they may not."""

import json

import golden_runs
import pytest

RECORDED = json.loads(golden_runs.FILE.read_text())
# What accountants compute is the same everywhere; what kernels add up is not, in its last bits.
CELLS = ("guarantees", "promised", "epsilons")
EVERYWHERE, SUMS = 1e-6, 1e-3


def differences(recorded, found, path="", tolerance=EVERYWHERE):
    """Where two recordings differ; floats by a relative tolerance."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for name in sorted({*recorded, *found}):
            yield from differences(recorded.get(name), found.get(name), f"{path}.{name}", tolerance)
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for number, pair in enumerate(zip(recorded, found, strict=True)):
            yield from differences(*pair, f"{path}[{number}]", tolerance)
    elif isinstance(recorded, float) and isinstance(found, float):
        if found != pytest.approx(recorded, rel=tolerance):
            yield f"{path}: {recorded} became {found}"
    elif recorded != found:
        yield f"{path}: {recorded} became {found}"


def check(name, found):
    """No processor is held to more than the others: bits are compared between two runs of one machine, below."""
    kept = golden_runs.recorded(found)
    for part in {*RECORDED[name], *kept}:
        tolerance = EVERYWHERE if part in CELLS else SUMS
        assert list(differences(RECORDED[name].get(part), kept.get(part), part, tolerance)) == []


# The real protocol, below, comes to the same numbers; stacked noise and Reptile are among the others, one by one.
TWICE = ("dp-agrlr-secure", "stacked-reptile")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in TWICE else name for name in golden_runs.RUNS],
)
def test_a_run_comes_out_as_it_was_recorded(name, tmp_path):
    check(name, golden_runs.golden_run(name, tmp_path))


# Runs of one machine are equal to the last bit: one by one, in noisy steps, and with noise that is correlated.
AGAIN = ("dp-agr", "dp-agrlr", "dp-agr-correlated")


@pytest.mark.parametrize(
    "name", [name if name in AGAIN else pytest.param(name, marks=pytest.mark.slow) for name in golden_runs.RUNS]
)
def test_a_run_again_gives_the_same_bits(name, tmp_path):
    first, again = (golden_runs.golden_run(name, tmp_path / each) for each in ("first", "again"))
    assert first == again


@pytest.mark.parametrize("name", [pytest.param("dp-agr-secure", marks=pytest.mark.slow), "dp-agrlr-secure"])
def test_the_real_protocol_in_every_round_gives_the_same_bits(name, tmp_path):
    plain = golden_runs.golden_run(name, tmp_path / "plain")
    protocol = golden_runs.golden_run(name, tmp_path / "protocol", **{"aggregation.protocol": "true"})
    assert protocol == plain
    check(name, protocol)


# Unpacking the others takes longer than their runs, whose algorithms are all in RUNS.
UNPACKED = [pytest.param(name, marks=pytest.mark.slow) if name != "mnist-shards" else name for name in golden_runs.REAL]


@pytest.mark.data
@pytest.mark.parametrize("name", UNPACKED)
def test_a_run_on_real_images_comes_out_as_it_was_recorded(name, tmp_path, data_folder):
    check(name, golden_runs.golden_run(name, tmp_path, data_folder))


def test_every_preset_is_recorded():
    from dpfedmeta.config.presets import algorithm_names

    # Features of an encoder have other last bits on other processors: tests/training/test_encoder_runs.py.
    recorded = {algo for algo, _, _ in golden_runs.RUNS.values()}
    assert recorded == {algo for algo in algorithm_names() if not algo.startswith(("encoder-", "moments-"))}


def test_a_recording_that_differs_is_seen():
    recorded = RECORDED["dp-agr"]
    check("dp-agr", recorded)
    planned = [recorded["promised"][0] * (1 + 3e-6), *recorded["promised"][1:]]
    moved = [*recorded["bounds"][:-1], recorded["bounds"][-1] * (1 + 3e-3)]
    for part, other in {"promised": planned, "bounds": moved, "charges": recorded["charges"] + 1}.items():
        with pytest.raises(AssertionError):
            check("dp-agr", {**recorded, part: other})
