"""A task names the values that are black and white, for folders, lists, clients of a federation and the check."""

import numpy as np
import pytest
from own_data import write_csv, write_task
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.inspection import inspect_task
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.client.local_data import open_records
from dpfedmeta.federation.offers.offered_settings import form_of, task_of

RAMP = np.linspace(0.0, 1.0, 64).reshape(8, 8)
FORM = {"channels": 1, "image_size": 8}


@pytest.fixture
def scans(tmp_path, monkeypatch):
    """12 bits in 16."""
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))
    rows = [["class", "path"]]
    for label in range(6):
        place = tmp_path / "scans" / f"c{label}"
        place.mkdir(parents=True)
        for image in range(2):
            Image.fromarray(np.rint(RAMP * 4095).astype(np.uint16)).save(place / f"{image}.png")
            rows.append([f"c{label}", f"scans/c{label}/{image}.png"])
    write_csv(tmp_path / "list.csv", rows)
    return tmp_path


@pytest.mark.parametrize(("reader", "data"), [("folder", "scans"), ("manifest", "list.csv")])
def test_images_of_12_bits_need_a_task_that_names_their_range(scans, reader, data):
    with pytest.raises(InputError) as caught:
        open_dataset(str(scans / data), ways=2)
    assert "12 of 12 images" in str(caught.value)
    assert str(caught.value).count("write a task file with pixel_range") == 1
    assert "\n" not in str(caught.value)
    report, _ = inspect_task(str(scans / data), None)
    assert not report.sound
    task = write_task(scans / "t.yaml", reader, data, **FORM, pixel_range=[0, 4095])
    report, _ = inspect_task(str(task), None)
    assert report.unreadable == ()
    dataset = open_dataset(str(task), ways=2)
    assert np.abs(dataset.train.images[0, 0] - 255 * RAMP).max() <= 1.0
    # Another range is another data set: nothing decoded before is taken for it.
    write_task(scans / "t.yaml", reader, data, **FORM, pixel_range=[0, 8190])
    assert open_dataset(str(task), ways=2).train.images.max() in (127, 128)


def test_clients_of_a_federation_scale_as_the_plan_says(scans):
    task, _ = load_task(str(write_task(scans / "t.yaml", "folder", "scans", **FORM, pixel_range=[0, 4095])))
    told = task_of({"task": form_of(task)})
    assert told.pixel_range == (0, 4095)
    assert np.abs(open_records(scans / "scans", told, (), scans / "decoded").images[0, 0] - 255 * RAMP).max() <= 1.0
    assert "pixel_range" not in form_of(load_task("strokes")[0])


@pytest.mark.parametrize(
    ("reader", "keys", "part"),
    [
        ("folder", {**FORM, "pixel_range": [5, 5]}, "expected .LOW, HIGH. with LOW < HIGH"),
        ("folder", {**FORM, "pixel_range": [0, float("nan")]}, "pixel_range"),
        ("folder", {**FORM, "pixel_range": [0]}, "pixel_range"),
        ("vectors", {"features": 3, "pixel_range": [0, 1]}, "reader vectors has none, drop it"),
    ],
)
def test_ranges_that_are_none(tmp_path, reader, keys, part):
    with pytest.raises(InputError, match=part):
        load_task(str(write_task(tmp_path / "t.yaml", reader, "x", **keys)))
