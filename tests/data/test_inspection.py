import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dpfedmeta.cli.commands import check_task_command as check_task
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.inspection import contact_sheet, inspect_task


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for split, classes in (("train", 3), ("val", 2), ("test", 2)):
        for number in range(classes):
            inside = tmp_path / "mine" / split / f"{split}{number}"
            inside.mkdir(parents=True)
            for image in range(2 + number):
                pixels = generator.integers(0, 256, size=(10, 10 + number, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(inside / f"{image}.png")
    return tmp_path / "mine"


def test_a_sound_folder(folder):
    report, dataset = inspect_task(str(folder), None)
    assert report.sound
    assert report.problem is None
    assert dataset is not None
    train = report.splits["train"]
    assert (train.classes, train.images, train.fewest, train.most, train.smallest) == (3, 9, 2, 4, "train0")
    # Class number k has 2 + k images of width 10 + k.
    assert report.sizes == {"11 x 10": 9, "10 x 10": 6, "12 x 10": 4}
    assert report.modes == {"RGB": 19}
    assert (report.repeated, report.across_splits) == (0, ())


def test_repeated_images_are_found_by_content(folder):
    shutil.copy(folder / "train" / "train0" / "0.png", folder / "train" / "train0" / "copy.png")
    shutil.copy(folder / "train" / "train1" / "0.png", folder / "test" / "test1" / "other.png")
    report, _ = inspect_task(str(folder), None)
    assert report.repeated == 2
    assert report.across_splits == ("train/train1, test/test1",)
    assert not report.sound


def test_unreadable_files_are_all_listed(folder):
    for name in ("train/train1/0.png", "val/val0/1.png"):
        (folder / name).write_bytes(b"no image")
    report, dataset = inspect_task(str(folder), None)
    assert dataset is None
    assert len(report.unreadable) == 2
    assert all("0.png" in entry or "1.png" in entry for entry in report.unreadable)
    assert "does not decode" in str(report.problem)
    assert not report.sound


def test_a_file_without_content_is_said_to_be_empty(folder):
    (folder / "train/train1/0.png").write_bytes(b"")
    report, _ = inspect_task(str(folder), None)
    assert report.unreadable == (f"{folder}/train/train1/0.png: an empty file",)


def test_files_of_several_pages_are_counted(folder):
    """The first page alone is read: of a stack of slices all others would be left out without a word."""
    assert not any("several pages or frames" in words for words in inspect_task(str(folder), None)[0].remarks)
    pages = [Image.new("RGB", (10, 10), shade) for shade in ("red", "green", "blue")]
    pages[0].save(folder / "train/train1/stack.tiff", save_all=True, append_images=pages[1:])
    pages[0].save(folder / "val/val0/moving.gif", save_all=True, append_images=pages[1:])
    report, _ = inspect_task(str(folder), None)
    said = [words for words in report.remarks if words.startswith("2 files hold several pages or frames")]
    assert len(said) == 1
    assert "train1/stack.tiff" in said[0]


def test_a_range_that_no_file_needs_is_told(folder, tmp_path):
    task = tmp_path / "ranged.yaml"
    task.write_text(
        "name: ranged\nsource: {reader: folder, path: mine}\nchannels: 3\nimage_size: 10\npixel_range: [0, 1]\n"
    )
    assert any("pixel_range has no effect" in words for words in inspect_task(str(task), None)[0].remarks)
    assert not any("pixel_range" in words for words in inspect_task(str(folder), None)[0].remarks)


def test_a_built_in_task_and_a_contact_sheet(tiny_task_file):
    report, dataset = inspect_task(str(tiny_task_file), None)
    assert report.splits["val"].images == 160
    assert report.sizes == {}
    sheet = np.asarray(contact_sheet(dataset))
    assert sheet.shape == (3 * 8 * 44 + 2, 10 * 44 + 2, 3)
    assert sheet[1:].min() == 0
    with pytest.raises(InputError, match="no such task"):
        inspect_task("nothing", None)


def run(*words):
    shown = io.StringIO()
    return check_task.main([*map(str, words)], Console(file=shown, width=200)), shown.getvalue()


def test_the_command(folder, tmp_path, capsys):
    small = ("--ways", 2, "--shots", 1, "--task.queries", 1, "--evaluation.queries", 1)
    assert run(folder, *small, "--json", "--out", tmp_path / "sheet.png") == (0, "")
    content = json.loads(capsys.readouterr().out)
    assert content["sound"] is True
    assert set(content) == {field.name for field in dataclasses.fields(inspect_task(str(folder), None)[0])} | {"sound"}
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
    (folder / "val" / "val0" / "1.png").write_bytes(b"no image")
    code, shown = run(folder)
    assert code == 2
    assert "1 files do not decode" in shown
    assert "cannot be used" in shown
