from pathlib import Path

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.config.packaged_files import SETTINGS, SWEEPS, read_named
from dpfedmeta.core.errors import InputError


@pytest.mark.parametrize("name", ["cross-silo", "federations/cross-silo", "configs/federations/cross-silo.yaml"])
def test_a_name_is_read_from_the_package_wherever_one_stands(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert "dp-agrlr-secure" in read_named(Path(name), SETTINGS)
    assert resolve(None, "strokes", Path(name)).population.clients == 8


def test_a_file_of_ones_own_is_stronger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cross-silo").write_text("mine")
    assert read_named(Path("cross-silo"), SETTINGS) == "mine"


def test_what_is_not_there_is_answered_with_what_is():
    with pytest.raises(FileNotFoundError, match="did you mean cross-silo"):
        read_named(Path("cross-sillo"), SETTINGS)
    with pytest.raises(FileNotFoundError, match=r"with the package come .*window"):
        read_named(Path("nothing-of-the-kind"), SWEEPS)


def test_a_bare_name_of_a_preset_means_algo():
    """paper/dp-agr has other settings than the preset, and would be taken without a word."""
    with pytest.raises(InputError, match="dp-agr is a preset: --algo dp-agr"):
        resolve(None, "strokes", Path("dp-agr"))


def test_a_sweep_is_no_file_of_settings(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("method: grid\nparameters: {}\n")
    with pytest.raises(InputError, match="dpfedmeta sweep"):
        resolve(None, "strokes", file)
