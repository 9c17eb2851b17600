"""No image is left out without a word, and nothing of a training client's is in the words for everybody."""

import pytest
import yaml
from own_data import write_clients, write_image
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.inspection import Episodes, inspect_task
from dpfedmeta.data.names import splits_of
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources import folder, image_files
from dpfedmeta.data.user_sources.image_files import check_fit, form_of_images
from dpfedmeta.data.user_sources.sound_rows import any_rows, own_digests

EPISODES = Episodes(shape=EpisodeShape(ways=2, shots=1, queries=1), evaluation_queries=1)
NAMES = [f"c{number}" for number in range(6)]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(NAMES):
        for image in range(2):
            write_image(tmp_path / "mine" / name / f"{image}.png", 10 * number + image)
    return tmp_path / "mine"


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "JFIF", "PNG", "pbm", "Jpeg", "dib"])
def test_images_by_other_extensions_are_taken(mine, suffix):
    for name in NAMES:
        kind = {"png": "PNG", "pbm": "PPM", "dib": "BMP"}.get(suffix.lower(), "JPEG")
        Image.new("L", (12, 12), 7).save(mine / name / f"x.{suffix}", kind)
    dataset = open_dataset(str(mine), ways=2)
    assert sum(sum(getattr(dataset, part).counts) for part in ("train", "val", "test")) == 18


@pytest.mark.parametrize("suffix", ["heic", "HEIC", "avif", "dcm", "nef", "svg"])
@pytest.mark.parametrize("whole", [True, False])
def test_images_of_kinds_that_are_not_read_are_refused(mine, suffix, whole):
    """Also where a class holds nothing else: it was no class before."""
    place = mine / "c9" if whole else mine / "c1"
    place.mkdir(exist_ok=True)
    for number in range(3):
        (place / f"x{number}.{suffix}").write_bytes(b"whatever")
    said = rf"3 \.{suffix.lower()}: images of kinds that are not read .first: {place.name}/x0\.{suffix}.; convert them"
    with pytest.raises(InputError, match=said):
        open_dataset(str(mine), ways=2)
    # A real client takes part with the others, and its owner is told.
    found = any_rows(mine)
    assert len(found.rows) == 2 * len(NAMES)
    assert f"{place.name}/x0.{suffix}: of a kind that is not read" in found.unsound


def linked(mine):
    """The same classes as links to folders elsewhere, which are read like folders."""
    root = mine.parent / "linked"
    root.mkdir()
    for name in NAMES:
        (root / name).symlink_to(mine / name)
    return root


def test_what_is_refused_in_folders_is_refused_behind_links(mine):
    root = linked(mine)
    assert open_dataset(str(root), ways=2).train.classes == open_dataset(str(mine), ways=2).train.classes
    (mine / "c1" / "x.heic").write_bytes(b"whatever")
    with pytest.raises(InputError, match=r"1 \.heic: images of kinds that are not read .first: c1/x\.heic."):
        open_dataset(str(root), ways=2)
    (mine / "c1" / "x.heic").unlink()
    write_image(mine / "c1" / "deeper" / "0.png", 5)
    with pytest.raises(InputError, match=r"1 images lie in folders below those of .* .first: c1/deeper/0\.png"):
        open_dataset(str(root), ways=2)
    (mine / "c1" / "deeper" / "0.png").rename(mine / "c1" / "deeper" / "notes.txt")
    (said,) = [line for line in inspect_task(str(root), None, EPISODES)[0].remarks if line.startswith("left out")]
    assert "1 .txt" in said


def test_links_that_lead_back_end_there(mine):
    """What is in the folder, or above it, is not looked at again."""
    (mine / "c0" / "up").symlink_to(mine)
    (mine / "c0" / "self").symlink_to(mine / "c0")
    (mine / "c0" / "project").symlink_to(mine.parent)
    (mine / "c1" / "beside").symlink_to(mine / "c2")
    (mine / "c2" / "notes.txt").write_text("x")
    files = [*image_files._walked(mine)]
    assert sum(file.name == "notes.txt" for file in files) == 1
    assert len(files) == 2 * len(NAMES) + 1
    assert open_dataset(str(mine), ways=2).train.classes > 0


def test_folders_elsewhere_that_link_to_one_another_are_walked_once_each(mine, tmp_path):
    places = [tmp_path / "elsewhere" / f"p{number}" for number in range(9)]
    for place in places:
        place.mkdir(parents=True)
        (place / "notes.txt").write_text("x")
        (mine / place.name).symlink_to(place)
    for one in places:
        for other in places:
            (one / f"to {other.name}").symlink_to(other)
    assert sum(file.name == "notes.txt" for file in image_files._walked(mine)) == len(places)


def test_what_came_into_a_folder_later_is_refused_though_its_decoded_copy_is_there(mine):
    """Nothing that is read has changed, so nothing is decoded again; a task file says the size."""
    task = mine.parent / "task.yaml"
    source = {"reader": "folder", "path": "mine"}
    task.write_text(yaml.safe_dump({"name": "mine", "source": source, "image_size": 12, "channels": 1}))
    first = open_dataset(str(task), ways=2)
    assert open_dataset(str(task), ways=2) == first
    write_image(mine / "c1" / "deeper" / "0.png", 5)
    with pytest.raises(InputError, match="1 images lie in folders below those of their class"):
        open_dataset(str(task), ways=2)
    (mine / "c1" / "deeper" / "0.png").rename(mine / "c1" / "x.heic")
    with pytest.raises(InputError, match=r"1 \.heic: images of kinds that are not read"):
        open_dataset(str(task), ways=2)


def leave(root, place):
    """What a network drive and a telephone leave in a folder."""
    for name in ("@eaDir/0.png", ".thumbnails/0.png", "__MACOSX/0.png", "._0.png"):
        write_image(root / place / name, 5)
    for name in ("notes.txt", "list.TXT", "README"):
        (root / place / name).write_text("x")


def test_what_is_left_out_is_counted_by_extension(mine):
    leave(mine, "c0")
    leave(mine, ".")
    write_image(mine / "beside.png", 1)
    report, dataset = inspect_task(str(mine), None, EPISODES)
    assert sum(split.images for split in report.splits.values()) == 12
    assert [*dataset.train.names, *dataset.val.names, *dataset.test.names].count("@eaDir") == 0
    (said,) = [line for line in report.remarks if line.startswith("left out")]
    for part in ("4 in folders of the system", "4 hidden", "4 .txt", "2 without extension", "1 .png"):
        assert part in said
    assert said.endswith("1 of them images at another depth (first: beside.png)")


def test_a_link_to_nothing_is_no_image_at_another_depth(mine):
    (mine / "c0" / "x.png").symlink_to("/nowhere/x.png")
    (said,) = [line for line in inspect_task(str(mine), None, EPISODES)[0].remarks if line.startswith("left out")]
    assert said == "left out: 1 links to what is not there"


def test_what_training_clients_leave_is_not_told_to_everybody(tmp_path):
    names = [f"p{number}" for number in range(9)]
    root = write_clients(tmp_path / "people", names, 2, 2)
    parts = splits_of(names, 1)
    training = next(name for name in names if parts[name] == "train")
    assert folder.remarks(root, load_task(str(root))[0], public=True) == ()
    leave(root, f"{training}/class0")
    assert folder.remarks(root, load_task(str(root))[0], public=True) == ()
    assert len(folder.remarks(root, load_task(str(root))[0], public=False)) == 1
    leave(root, folder.public_files(root)[-1].parent.relative_to(root))
    (said,) = folder.remarks(root, load_task(str(root))[0], public=True)
    assert "2 .txt" in said
    assert "4 .txt" in folder.remarks(root, load_task(str(root))[0], public=False)[0]


@pytest.mark.parametrize("where", ["c0/more/a.png", "c0/more/most/a.png"])
def test_images_below_those_of_their_class_are_refused_as_they_would_be_left_out(tmp_path, where):
    for number in range(9):
        place = tmp_path / f"c{number}"
        place.mkdir()
        for image in range(3):
            Image.new("L", (8, 8)).save(place / f"{image}.png")
    assert len({name for name, _ in own_digests(tmp_path)}) == 9
    deeper = tmp_path / where
    deeper.parent.mkdir(parents=True)
    Image.new("L", (8, 8)).save(deeper)
    with pytest.raises(InputError, match=r"1 images lie in folders below those of their class \(first: c0/more"):
        open_dataset(str(tmp_path))
    found = any_rows(tmp_path)
    assert (len(found.rows), found.unsound) == (27, (f"{where}: in no folder of a class (CLASS/IMAGE)",))


def pictures(root, *kinds):
    """Files of (mode, width, height)."""
    root.mkdir()
    files = [root / f"{number}.png" for number in range(len(kinds))]
    for file, (mode, width, height) in zip(files, kinds, strict=True):
        Image.new(mode, (width, height)).save(file)
    return files


@pytest.mark.parametrize(
    ("grey", "colour", "channels", "rest"),
    [(3, 0, 1, 0), (3, 2, 1, 2), (2, 2, 3, 2), (2, 3, 3, 2), (0, 3, 3, 0), (5, 4, 1, 4)],
)
def test_most_images_decide_the_colours(tmp_path, grey, colour, channels, rest):
    found = form_of_images(pictures(tmp_path / "all", *[("L", 20, 20)] * grey, *[("RGB", 20, 20)] * colour))
    assert found.as_keys() == {"channels": channels, "image_size": 20}
    assert found.words.startswith(f"{channels} x 20 x 20, the median side and the commoner colours of {grey + colour} ")
    assert (f"; {rest} " in found.words) == bool(rest)


@pytest.mark.parametrize(
    ("sides", "size"),
    [((10, 20, 40), 20), ((40, 10, 20), 20), ((10, 30), 30), ((4, 4, 4), 8), ((90, 90, 84), 84), ((7, 8, 9), 8)],
)
def test_the_median_of_shorter_sides_decides_the_size(tmp_path, sides, size):
    files = pictures(tmp_path / "all", *(("L", *pair) for side in sides for pair in ((side, side + 50),)))
    found = form_of_images(files)
    assert found.size == size
    small = [side for side in sides if 2 * side < size]
    assert (f"; {len(small)} have less than half of it" in found.words) == bool(small)
    turned = pictures(tmp_path / "turned", *(("L", side + 50, side) for side in sides))
    assert form_of_images(turned).size == size


@pytest.mark.parametrize(("small", "side", "fits"), [(0, 9, True), (1, 9, True), (2, 9, False), (9, 10, True)])
def test_few_images_may_be_smaller_than_half_the_size(tmp_path, small, side, fits):
    """A tenth of them and no more; exactly half is large enough."""
    files = pictures(tmp_path / "all", *[("L", side, 50)] * small, *[("L", 20, 20)] * (10 - small))
    if fits:
        check_fit(files, 20)
        return
    with pytest.raises(
        InputError, match=rf"{small} of 10 images have less than half the median side of 20 pixels .*9 x"
    ):
        check_fit(files, 20)
