from importlib import resources
from pathlib import Path

import pytest
import yaml

from dpfedmeta.config.dataset_names import data_of_run
from dpfedmeta.core.errors import InputError


def test_data_of_a_run_are_read_where_somebody_says_that_they_are(tmp_path):
    found, named = tmp_path / "found" / "birds", tmp_path / "named"
    found.mkdir(parents=True)
    (named / "birds").mkdir(parents=True)
    assert data_of_run(str(found), None) == str(found)
    assert data_of_run(str(found), named) == str(named / "birds")
    assert data_of_run("omniglot", named) == "omniglot"
    # A folder without them is no folder to be ignored.
    with pytest.raises(
        InputError, match=r"holds no birds, the data of this run; put it there, or leave --data-dir out"
    ):
        data_of_run(str(found), tmp_path / "found" / "birds")
    assert data_of_run(str(tmp_path / "gone"), named) == str(tmp_path / "gone")
    assert Path(data_of_run(str(found), named)).is_absolute()


def test_the_folder_of_archives_is_no_place_of_a_task_file(tmp_path):
    published = tmp_path / "mine.yaml"
    tasks = resources.files("dpfedmeta.tasks")
    published.write_text((tasks / "cifar-fs.yaml").read_text())
    (tmp_path / "cifar-fs-split.csv").write_text((tasks / "cifar-fs-split.csv").read_text())
    archives = tmp_path / "archives"
    archives.mkdir()
    assert data_of_run(str(published), archives) == str(published)
    (archives / "mine.yaml").write_text(published.read_text())
    assert data_of_run(str(published), archives) == str(archives / "mine.yaml")


@pytest.mark.parametrize("built_in", [True, False])
def test_a_folder_is_not_ignored_where_images_are_drawn(tmp_path, built_in):
    name = tmp_path / "mine.yaml"
    tiny = {"name": "tiny", "source": {"reader": "strokes", "seed": 1, "variation": 1.0}}
    tiny |= {"split": {"train": 3, "val": 3, "test": 3}, "image_size": 28, "channels": 1, "images_per_class": 20}
    name.write_text(yaml.safe_dump(tiny))
    with pytest.raises(InputError, match="drawn by strokes, and none are read; leave --data-dir out"):
        data_of_run("strokes" if built_in else str(name), tmp_path / "images")
