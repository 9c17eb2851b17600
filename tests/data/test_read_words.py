"""What each reader drops, cuts, scales, rounds or turns: each is said by check-task, or refused. One table."""

import csv

import numpy as np
import pytest
from PIL import ExifTags, Image

from dpfedmeta.data.user_sources.readers import READERS
from tests.conftest import dpfedmeta

DRAW = np.random.default_rng(0)


def shades(*size):
    return DRAW.integers(0, 256, size, dtype=np.uint8)


def turned(pixels):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return Image.fromarray(pixels), {"exif": exif}


# How an odd image is made, its ending, and what its owner is told; None: nothing is changed.
IMAGES = {
    "as it is": (lambda: Image.fromarray(shades(12, 12)), "png", None),
    "not square": (lambda: Image.fromarray(shades(12, 20)), "png", "are not square: the middle square is used"),
    "large": (lambda: Image.fromarray(shades(24, 24)), "png", "are made smaller, to 12 x 12"),
    "small": (lambda: Image.fromarray(shades(9, 9)), "png", "are enlarged, to 12 x 12"),
    "coloured": (lambda: Image.fromarray(shades(12, 12, 3)), "png", "are coloured and become grey"),
    "transparent": (lambda: Image.fromarray(shades(12, 12, 4)), "png", "are transparent in parts: white stands behind"),
    "16 bits": (
        lambda: Image.fromarray((shades(12, 12).astype(np.uint16) << 8) + 7), "png", "rounded to 256 shades",
    ),
    "turned": (lambda: turned(shades(12, 12)), "jpg", "are turned as their camera says"),
    "CMYK": (lambda: Image.fromarray(shades(12, 12, 4), mode=None).convert("RGB").convert("CMYK"), "jpg", "are CMYK"),
    "pages": (
        lambda: (
            Image.fromarray(shades(12, 12)),
            {"save_all": True, "append_images": [Image.fromarray(shades(12, 12))]},
        ),
        "tiff", "hold several pages or frames: the first is read",
    ),
    "of no kind that is read": (lambda: b"raw", "heic", "images of kinds that are not read"),
    "damaged": (lambda: b"nothing", "png", "files do not decode"),
}  # fmt: skip
# What stands in one field of a table, and what its owner is told; None: it is read as it is written.
FIELDS = {
    "a number": ("1.5", None),
    "with a sign and an exponent": ("+1.5e0", None),
    "spaces around it": (" 1.5\u00a0", None),
    "a comma": ("1,5", "write decimals with a point"),
    "Python's underscore": ("1_5", "'1_5' is not a number"),
    "a space within": ("1 500", "is not a number"),
    "a unit": ("15%", "is not a number"),
    "a limit": ("<0.5", "is not a number"),
    "a date": ("2020-01-02", "is not a number"),
    "true": ("TRUE", "is not a number"),
    "hexadecimal": ("0x1F", "is not a number"),
    "another minus": ("\u22121.5", "is not a number"),
    "infinity": ("inf", "missing, infinite or too large"),
    "beyond float32": ("1e39", "missing, infinite or too large"),
    "that would drown others": ("123456", "more than 10,000"),
    "blank": ("", "no number in some columns: x0 1 (blank)"),
    "NaN": ("nan", "no number in some columns: x0 1 (nan)"),
    "a question mark": ("?", "no number in some columns: x0 1 (?)"),
}  # fmt: skip
TOKENS = {
    "ids": ("3 1 2", None),
    "further spaces": ("  3   1 2 ", None),
    "longer than length": ("1 2 3 4 5 6 7 8 9", "9 tokens, and the task says length: 8"),
    "beyond the vocabulary": ("40", "is not a token from 1 to 39"),
    "the padding": ("1 0 2", "'0' is not a token"),
    "a fraction": ("1.5", "is not a token"),
    "a word": ("one", "is not a token"),
    "none": (" ", "no tokens"),
}
NAMES = {
    "another spelling": ("C0", "in two spellings"),
    "a mark of a missing one": ("NA", "a class that is missing"),
    "none": ("", "no class"),
    "shortened by a spreadsheet": ("1.23E+15", "lost its digits"),
    "spaces around it": (" c0 ", None),
}
ARRAYS = {
    "numbers": (lambda held: held, None),
    "integers": (lambda held: held | {"records": np.rint(held["records"]).astype(np.int64)}, None),
    "bytes": (lambda held: held | {"records": np.abs(held["records"]).astype(np.uint8)}, "bytes (uint8)"),
    "images": (lambda held: held | {"records": np.zeros((54, 4, 4))}, "images belong into files"),
    "complex": (lambda held: held | {"records": held["records"] + 1j}, "expected numbers"),
    "NaN": (
        lambda held: held | {"records": np.where(np.arange(5) == 1, np.nan, held["records"])},
        "no number in some columns: 2 54 (nan)",
    ),
    "a further array": (lambda held: held | {"weights": np.ones(54)}, "unknown array weights"),
    "shorter": (lambda held: held | {"classes": held["classes"][:-1]}, "arrays of different lengths"),
    "bytes as names": (lambda held: held | {"classes": held["classes"].astype("S")}, "bytes; store them as text"),
    "floats as names": (
        lambda held: held | {"classes": np.repeat(2.0**60 + np.arange(9), 6)},
        "tells whole numbers apart only",
    ),
}  # fmt: skip
SIZES = ("--ways", "1", "--shots", "1", "--task.queries", "1", "--evaluation.queries", "1")


def told(path):
    """What check-task says, sound or not."""
    try:
        return dpfedmeta("check-task", path, *SIZES).out
    except AssertionError:
        left = dpfedmeta("check-task", path, *SIZES, code=2)
        return left.out + left.err


def folder_of(root, make, ending):
    for part, label in (("train", "a"), ("val", "b"), ("test", "c")):
        for number in range(3):
            (root / part / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(shades(12, 12)).save(root / part / label / f"{number}.png")
    found, odd = make(), root / "train" / "a" / f"odd.{ending}"
    if isinstance(found, bytes):
        odd.write_bytes(found)
        return odd
    image, more = found if isinstance(found, tuple) else (found, {})
    image.save(odd, **more)
    return odd


def check(said, due):
    if due is None:
        assert "cannot be used" not in said, said
        assert not [
            words for words in ("files are", "files have", "files hold", "left out:", "no number") if words in said
        ]
    else:
        assert due in said, said


@pytest.mark.parametrize("reader", ["folder", "manifest"])
@pytest.mark.parametrize("which", IMAGES)
def test_images(tmp_path, reader, which):
    make, ending, due = IMAGES[which]
    folder_of(tmp_path / "images", make, ending)
    task = tmp_path / "task.yaml"
    if reader == "manifest":
        with (tmp_path / "list.csv").open("w", newline="") as file:
            files = sorted((tmp_path / "images").glob("*/*/*"))
            csv.writer(file).writerows([("path", "class", "split"), *((f, f.parts[-2], f.parts[-3]) for f in files)])
        # A list names its files: one of a kind that is not read does not decode.
        due = "files do not decode" if which == "of no kind that is read" else due
    source = {"folder": "images", "manifest": "list.csv"}[reader]
    task.write_text(f"name: t\nsource: {{reader: {reader}, path: {source}}}\nchannels: 1\nimage_size: 12\n")
    check(told(task), due)


def table_of(path, column, field, label="c0"):
    """Nine classes of six records; one of them is odd."""
    with path.open("w", newline="") as file:
        write = csv.writer(file).writerow
        write(["class", *column])
        for number in range(54):
            values = [f"{value:.3f}" for value in DRAW.normal(size=len(column))]
            if column == ("tokens",):
                values = [" ".join(map(str, DRAW.integers(1, 40, 8)))]
            odd = number == 1
            write(
                [label if odd else f"c{number // 6}", *([field, *values[1:]] if odd and field is not None else values)]
            )
    return path


@pytest.mark.parametrize("which", FIELDS)
def test_fields_of_a_table(tmp_path, which):
    field, due = FIELDS[which]
    check(told(table_of(tmp_path / "t.csv", ("x0", "x1"), field)), due)


@pytest.mark.parametrize("which", NAMES)
def test_names(tmp_path, which):
    label, due = NAMES[which]
    check(told(table_of(tmp_path / "t.csv", ("x0", "x1"), None, label)), due)


@pytest.mark.parametrize("which", TOKENS)
def test_sequences_of_tokens(tmp_path, which):
    field, due = TOKENS[which]
    table_of(tmp_path / "t.csv", ("tokens",), field)
    (tmp_path / "t.yaml").write_text("name: t\nsource: {reader: tokens, path: t.csv}\nlength: 8\nvocabulary: 40\n")
    check(told(tmp_path / "t.yaml"), due)


@pytest.mark.parametrize("which", ARRAYS)
def test_arrays(tmp_path, which):
    change, due = ARRAYS[which]
    classes = np.repeat([f"c{number}" for number in range(9)], 6)
    np.savez(tmp_path / "t.npz", **change({"records": 3 * DRAW.normal(size=(54, 5)), "classes": classes}))
    check(told(tmp_path / "t.npz"), due)


def test_no_reader_is_left_out():
    assert {*READERS} == {"folder", "manifest", "vectors", "tokens"}
