import os
from pathlib import Path

import pytest
import torch
import yaml

from dpfedmeta.data.dataset import open_dataset

TINY = {
    "name": "tiny",
    "source": {"reader": "strokes", "seed": 1, "variation": 1.0},
    "split": {"train": 12, "val": 8, "test": 8},
    "image_size": 28,
    "channels": 1,
    "images_per_class": 20,
    "train_rotations": 4,
}


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """No test touches the user's cache or state; torch keeps to one thread, as the workers do."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_CACHE", str(folder))
        patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
        yield folder


@pytest.fixture(scope="session")
def tiny_task_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def tiny_strokes(tiny_task_file, own_cache):
    return open_dataset(str(tiny_task_file))


@pytest.fixture(scope="session")
def data_folder():
    """The real images, for tests marked `data`."""
    named = os.environ.get("DPFEDMETA_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "omniglot").is_dir():
        pytest.skip("no real images: set DPFEDMETA_DATA to the folder with omniglot/")
    return folder


@pytest.fixture(scope="session")
def only_ours():
    """A check that passes on the product and fails on every planted mistake."""

    def check_all(check, ours, *planted):
        """The check passes on our code and fails on each planted mistake."""
        check(ours)
        for mistake in planted:
            with pytest.raises(AssertionError):
                check(mistake)

    return check_all
