"""Refusals and notes that need no PyTorch."""

import warnings

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.planning.early_checks import check_first


def test_a_folder_with_the_name_of_a_built_in_task_is_not_passed_over_in_silence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_first(resolve("dp-agr", "strokes"))
    (tmp_path / "strokes").mkdir()
    with pytest.warns(UserWarning, match=r"dataset = strokes: the built-in task; .* give \./strokes"):
        check_first(resolve("dp-agr", "strokes"))
