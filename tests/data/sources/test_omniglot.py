import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.sources.omniglot import decode

DRAWINGS = 4
BACKGROUND = ("Greek/character01", "Greek/character02", "Latin/character01")
EVALUATION = ("Tengwar/character01", "Tengwar/character02")
NAMES = BACKGROUND + EVALUATION


def drawing(character, number):
    """As published: mode 1, strokes 0 on 1; a bar whose place tells the character, its length the drawing."""
    pixels = np.ones((105, 105), dtype=bool)
    pixels[10 + 15 * character : 18 + 15 * character, : 20 * number] = False
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, format="PNG")
    return packed.getvalue()


def write_archive(path, characters, first, skip=(), spoil=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/", b"")
        for offset, name in enumerate(characters):
            for number in reversed(range(1, DRAWINGS + 1)):
                member = f"{path.stem}/{name}/{first + offset:04d}_{number:02d}.png"
                content = b"not an image" if (name, number) in spoil else drawing(first + offset, number)
                if (name, number) not in skip:
                    archive.writestr(member, content)
    return path


@pytest.fixture
def archives(tmp_path):
    background = write_archive(tmp_path / "images_background.zip", BACKGROUND, 0)
    return [background, write_archive(tmp_path / "images_evaluation.zip", EVALUATION, len(BACKGROUND))]


def test_images_come_in_the_order_of_the_names_as_white_on_black(archives):
    order = (NAMES[4], NAMES[0], NAMES[2])
    images = decode(archives, order, 105, DRAWINGS)
    assert images.shape == (3 * DRAWINGS, 1, 105, 105)
    assert images.dtype == np.uint8
    for row, character in enumerate((4, 0, 2)):
        for number in range(1, DRAWINGS + 1):
            image = images[row * DRAWINGS + number - 1, 0]
            expected = np.zeros((105, 105), dtype=np.uint8)
            expected[10 + 15 * character : 18 + 15 * character, : 20 * number] = 255
            assert np.array_equal(image, expected)


def test_images_are_resized(archives):
    images = decode(archives, NAMES, 28, DRAWINGS)
    assert images.shape == (len(NAMES) * DRAWINGS, 1, 28, 28)
    assert images.max() > 200
    assert np.median(images) == 0


def test_missing_drawings_are_counted_and_named(archives):
    write_archive(archives[0], BACKGROUND, 0, skip={("Greek/character02", 3)})
    with pytest.raises(InputError, match="1 of 5 characters") as caught:
        decode(archives, NAMES, 28, DRAWINGS)
    assert "images_background.zip" in str(caught.value)
    assert "Greek/character02, 3 found" in str(caught.value)


def test_a_character_that_is_in_no_archive(archives):
    with pytest.raises(InputError, match="Klingon/character01, 0 found"):
        decode(archives, [*NAMES, "Klingon/character01"], 28, DRAWINGS)


def test_a_member_that_is_no_image_names_its_archive(archives):
    write_archive(archives[1], EVALUATION, len(BACKGROUND), spoil={("Tengwar/character01", 2)})
    with pytest.raises(InputError, match=r"images_evaluation\.zip.*Tengwar/character01/0003_02\.png does not decode"):
        decode(archives, NAMES, 28, DRAWINGS)


def test_a_member_that_claims_to_be_huge_names_its_archive(archives):
    """Nobody takes memory for 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in ((b"IHDR", header), (b"IDAT", b""))
    )
    with zipfile.ZipFile(archives[1], "w") as archive:
        for offset, name in enumerate(EVALUATION, len(BACKGROUND)):
            for number in range(DRAWINGS):
                archive.writestr(f"x/{name}/{offset:04d}_{number + 1:02d}.png", image)
    with pytest.raises(InputError, match=r"images_evaluation\.zip: .*_01\.png does not decode \(Image size"):
        decode(archives, NAMES, 28, DRAWINGS)


def test_flipped_bytes_inside_a_member_name_the_archive(archives):
    content = bytearray(archives[0].read_bytes())
    start = content.index(b"IDAT")
    content[start + 4 : start + 12] = b"\0" * 8
    archives[0].write_bytes(content)
    with pytest.raises(InputError, match=r"images_background\.zip.*does not decode"):
        decode(archives, NAMES, 28, DRAWINGS)


@pytest.mark.parametrize("flag", [0x01, 0x20])
def test_a_member_that_claims_to_be_encrypted_or_patched_names_the_archive(archives, flag):
    content = bytearray(archives[0].read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := content.find(signature, place + 1)) >= 0:
            content[place + offset] |= flag
    archives[0].write_bytes(content)
    with pytest.raises(InputError, match=r"images_background\.zip.*does not decode"):
        decode(archives, NAMES, 28, DRAWINGS)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_archive_is_named(archives, share):
    content = archives[1].read_bytes()
    archives[1].write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"images_evaluation\.zip: not a readable zip archive"):
        decode(archives, NAMES, 28, DRAWINGS)


@pytest.fixture
def task_file(archives, tmp_path):
    (tmp_path / "omniglot").mkdir()
    for path in archives:
        path.rename(tmp_path / "omniglot" / path.name)
    splits = dict(zip(NAMES, ("train", "train", "val", "test", "test"), strict=True))
    (tmp_path / "split.csv").write_text("class,split\n" + "".join(f"{n},{s}\n" for n, s in splits.items()))
    task = {
        "name": "small-omniglot",
        "source": {
            "reader": "omniglot",
            "folder": "omniglot",
            "archives": [{"file": path.name, "digests": ["sha256:00"]} for path in archives],
        },
        "split": "split.csv",
        "image_size": 28,
        "channels": 1,
        "images_per_class": DRAWINGS,
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(task))
    return path


def test_complete_archives_of_unknown_digest_are_accepted_with_a_warning(task_file):
    with pytest.warns(UserWarning, match="content is complete"):
        dataset = open_dataset(str(task_file), task_file.parent)
    assert (dataset.train.names, dataset.val.names) == (BACKGROUND[:2], BACKGROUND[2:])
    assert dataset.test.names == EVALUATION
    again = open_dataset(str(task_file), task_file.parent)
    assert again.train.path == dataset.train.path


def test_incomplete_archives_of_unknown_digest_are_refused(task_file):
    path = task_file.parent / "omniglot" / "images_background.zip"
    write_archive(path, BACKGROUND, 0, skip={("Latin/character01", 1)})
    with pytest.raises(InputError, match="1 of 5 characters"):
        open_dataset(str(task_file), task_file.parent)


def test_an_absent_archive_says_where_to_put_it(task_file):
    folder = task_file.parent / "elsewhere"
    folder.mkdir()
    with pytest.raises(InputError, match=r"put images_background\.zip into") as caught:
        open_dataset(str(task_file), folder)
    assert str(folder / "omniglot") in str(caught.value)


@pytest.mark.slow
@pytest.mark.data
def test_the_published_archives(data_folder):
    dataset = open_dataset("omniglot", data_folder)
    pools = (dataset.train, dataset.val, dataset.test)
    assert [pool.classes for pool in pools] == [1150, 50, 423]
    assert len({name for pool in pools for name in pool.names}) == 1623
    assert len({first for pool in pools for first in pool.first}) == 1623
    assert [pool.rotations for pool in pools] == [4, 1, 1]
    images = dataset.train.images
    assert images.shape == (32460, 1, 28, 28)
    assert images.dtype == np.uint8
    sample = np.asarray(images[::37], dtype=np.float64)
    assert 5 < sample.mean() < 60
    assert sample.max() == 255
    corners = sample[:, 0][:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert np.median(corners) == 0
    assert (sample.reshape(len(sample), -1).max(1) > 100).all()
