"""Two spellings of one client or class, and marks that stand where a name is missing, in each kind of data."""

import numpy as np
import pytest
from own_data import write_csv, write_image, write_task

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.client_inspection import inspect_client
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.missing import is_missing
from dpfedmeta.data.names import check_spellings, is_shortened, missing_classes
from dpfedmeta.data.user_sources.sound_rows import own_digests


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))


ALIKE = [
    *(("7", "7.0"), ("7", "007"), ("3", "3e0"), ("0", "-0"), ("1.5", "1.50"), ("'3", "=3"), ('="3"', "3")),
    *(("Ann7", "ann7"), ("Straße", "STRASSE"), ("Ann\xa07", "Ann 7"), ("Ann  7", "Ann 7"), ("Zoé", "Zoe\u0301")),
    *(("k1", "k\u200b1"), ("k1", "\ufeffk1"), ("７", "7"), ("'Ann'", "ann")),
]
OTHER = [
    *(("01", "10"), ("1_2", "12"), ("k3", "k03"), ("a+", "a"), ("Zoe", "Zoé"), ("1.1", "11"), ("-1", "1")),
    *(("12345678901234567890", "12345678901234567891"), ("'", '"'), ("a.b", "ab"), ("1-2", "12"), ("", "0")),
]


@pytest.mark.parametrize(("one", "two"), ALIKE)
def test_two_spellings_of_one_name(one, two):
    with pytest.raises(InputError, match=r"f: 1 name\(s\) in two spellings: client .* \(line 2\) and .* \(line 5\)"):
        check_spellings("f", [("client", one, "line 2"), ("client", one, "line 3"), ("client", two, "line 5")])
    # A class may be called as a client is.
    check_spellings("f", [("client", one, "line 2"), ("class", two, "line 5")])


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_names_that_differ_in_more_than_spelling(one, two):
    check_spellings("f", [("class", one, "line 2"), ("class", two, "line 3")])


@pytest.mark.parametrize(("one", "two"), [("a", "A"), ("ς", "σ"), ("²", "2"), ("+", "-"), ("３", "3")])
def test_classes_of_one_letter_are_what_they_are(one, two):
    check_spellings("f", [("class", one, "line 2"), ("class", two, "line 3")])
    assert missing_classes({"+", "-"}) == set()
    assert missing_classes({"-", ".", "ill"}) == {"-", "."}
    assert missing_classes({"+", "nan", "?"}) == {"nan"}


def test_spellings_that_look_alike_are_told_by_their_codes():
    with pytest.raises(InputError, match=r"class 'Zo\\xe9' \(a\) and 'Zoe\\u0301' \(b\)"):
        check_spellings("f", [("class", "Zoé", "a"), ("class", "Zoe\u0301", "b")])


def table(folder, names, column):
    """Six records for each name, two in each class or client."""
    rows = [[name, f"c{number % 3}", number / 7] for name in names for number in range(6)]
    return write_csv(folder / "v.csv", [[column, "class" if column == "client" else "client", "x"], *rows])


def arrays(folder, names, column):
    other = [f"c{number % 3}" for _ in names for number in range(6)]
    held = {"clients": np.repeat(names, 6), "classes": other}
    if column == "class":
        held = {"classes": held["clients"], "clients": other}
    np.savez(folder / "v.npz", records=np.arange(len(other))[:, None] / 7, **held)
    return folder / "v.npz"


def tokens(folder, names, column):
    rows = [[name, f"c{number % 3}", number + 1] for name in names for number in range(6)]
    write_csv(folder / "t.csv", [[column, "class" if column == "client" else "client", "tokens"], *rows])
    return write_task(folder / "t.yaml", "tokens", "t.csv", length=2, vocabulary=20)


def images(folder, names, column):
    for number, name in enumerate(names):
        for other in range(3):
            path = (name, f"c{other}") if column == "client" else (f"c{other}", name)
            for image in range(2):
                write_image(folder.joinpath("i", *path) / f"{image}.png", 10 * number + image)
    return folder / "i"


def listed(folder, names, column):
    files = sorted(images(folder, names, column).rglob("*.png"))
    rows = [[*file.relative_to(folder / "i").parts[:2], file.relative_to(folder)] for file in files]
    return write_csv(folder / "l.csv", [["client", "class", "path"], *rows])


@pytest.mark.parametrize("column", ["client", "class"])
@pytest.mark.parametrize("form", [table, arrays, tokens, images, listed])
def test_in_every_kind_of_data(tmp_path, form, column):
    with pytest.raises(
        InputError, match=rf"two spellings: {column} '(k3|K3)' \(.*\) and '(k3|K3)' \(.*write them alike"
    ):
        open_dataset(str(form(tmp_path, ["k3", "a", "K3", "b", "d"], column)), ways=1)


@pytest.mark.parametrize("form", [table, arrays, tokens, images, listed])
def test_numbers_with_zeros_before_them_are_names(tmp_path, form):
    opened = open_dataset(str(form(tmp_path, [f"{number:02d}" for number in range(1, 11)], "client")), ways=1)
    assert len({*opened.train.clients, *opened.val.clients, *opened.test.clients}) == 10


def test_folders_of_classes_in_all_parts(tmp_path):
    for part, names in (("train", ("ann", "b")), ("val", ("c", "Ann")), ("test", ("d", "e"))):
        for name in names:
            write_image(tmp_path / "p" / part / name / "0.png", 3)
    with pytest.raises(InputError, match=r"class 'ann' \(train/ann\) and 'Ann' \(val/Ann\)"):
        open_dataset(str(tmp_path / "p"), ways=1)


@pytest.mark.parametrize("name", ["classes", "clients"])
def test_names_that_are_bytes_are_refused(tmp_path, name):
    """As h5py gives them: a class would be called b'ill'."""
    held = {"classes": np.array(["ill", "well"]), "clients": np.array(["ann", "ann"])}
    np.savez(tmp_path / "v.npz", records=np.ones((2, 1)), **held)
    assert [label for label, _ in own_digests(tmp_path / "v.npz")] == ["ill", "well"]
    np.savez(tmp_path / "v.npz", records=np.ones((2, 1)), **held | {name: held[name].astype("S")})
    with pytest.raises(InputError, match=rf"v\.npz: {name}: bytes; store them as text: {name}\.astype\(str\)"):
        own_digests(tmp_path / "v.npz")


@pytest.mark.parametrize("kind", ["table", "arrays", "folder", "list"])
def test_a_class_in_two_spellings_is_two_of_a_real_client_whose_owner_is_told(tmp_path, kind):
    """Which of them is meant would follow from other rows."""
    rows = [[label, number] for label in ("well", "ill", "Well") for number in range(4)]
    if kind == "table":
        path = write_csv(tmp_path / "v.csv", [["class", "x"], *rows])
    elif kind == "arrays":
        path = tmp_path / "v.npz"
        np.savez(path, records=np.arange(12.0)[:, None], classes=[row[0] for row in rows])
    else:
        for label, number in rows:
            write_image(tmp_path / "own" / label / f"{number}.png", number)
        path = tmp_path / "own"
        if kind == "list":
            path = write_csv(
                tmp_path / "l.csv", [["class", "path"], *((label, f"own/{label}/{n}.png") for label, n in rows)]
            )
    assert {label for label, _ in own_digests(path)} == {"well", "ill", "Well"}
    (said,) = inspect_client(path, EpisodeShape(ways=2, shots=1, queries=1)).remarks
    assert "two spellings: class" in said


@pytest.mark.parametrize(
    "mark",
    [
        *(
            "#REF!",
            "#DIV/0!",
            "#N/A",
            "#NAME?",
            "#WERT!",
            "#NV",
            "?",
            "-",
            ".",
            "--",
            "–",
            "*",
            "missing",
            "NULL",
            "null",
        ),
        *("NaT", "nan", "NaN", "NA", "na", "n.a.", "N/A", "None", "(blank)", "\\N", "<NA>", "1.23457E+15", "1e+16"),
    ],
)
@pytest.mark.parametrize("column", ["class", "client"])
def test_marks_of_what_is_missing_are_no_names(tmp_path, mark, column):
    assert is_missing(mark) or is_shortened(mark)
    with pytest.raises(InputError, match=rf"6 record\(s\) .*line 8: {column} "):
        open_dataset(str(table(tmp_path, ["a", mark, "b", "c"], column)), ways=1)


@pytest.mark.parametrize("name", ["none", "#cat", "a-b", "C++", "unknown", "Nan7", "3e0", "1e5", "7-8", "?!a", "日本"])
def test_names_that_are_no_marks(name):
    assert not is_missing(name)
    assert not is_shortened(name)
