import gzip
import io
import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_data import token_rows, vector_rows, write_clients, write_csv, write_image, write_task
from rich.console import Console

import dpfedmeta
from dpfedmeta.cli.commands import check_task_command as check_task
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.names import split_of, splits_of
from dpfedmeta.data.populations.capacity_checks import check_shape, largest_shape
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.data.populations.population import clients_digest, open_population
from dpfedmeta.data.populations.population_statement import population_statement
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.csv_table import read_table
from tests.data.own_data import read_back

PARTS = ("train", "val", "test")
SHAPE = EpisodeShape(ways=2, shots=1, queries=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))


def refusal(dataset, **how):
    with pytest.raises(InputError) as caught:
        open_dataset(str(dataset), **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(names=st.sets(st.integers(0, 99).map(str), max_size=60), least=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_every_part_has_enough_where_there_are_enough_and_else_the_hash_decides(names, least):
    made, hashed = splits_of(names, least), {name: split_of(name) for name in names}
    counts = [list(made.values()).count(split) for split in ("train", "val", "test")]
    before = [list(hashed.values()).count(split) for split in ("train", "val", "test")]
    if min(before) >= least or len(names) < 3 * least:
        assert made == hashed
    else:
        assert min(counts) >= least
    assert made == splits_of(sorted(names, reverse=True), least)


def test_a_part_that_the_hash_leaves_poor_gets_classes(tmp_path):
    names = ["cat", "dog", "plane", "naïve", "c1", "c5"]
    before = [split_of(name) for name in names]
    assert min(before.count(split) for split in ("train", "val", "test")) < 2
    for name in names:
        write_image(tmp_path / "mine" / name / "a.png", 1)
    dataset = open_dataset(str(tmp_path / "mine"), ways=2)
    assert [dataset.train.classes, dataset.val.classes, dataset.test.classes] == [2, 2, 2]
    # 9 would be needed for 3 ways: the hash decides, and what is missing is said.
    held = ", ".join(f"{before.count(split)} in {split}" for split in ("train", "val", "test"))
    assert f"({held}); each split needs classes of its own: give 3 times task.ways" in refusal(
        tmp_path / "mine", ways=3
    )
    with pytest.raises(InputError, match=r"3 times task\.ways classes in all"):
        check_shape(dataset.val, EpisodeShape(ways=3, shots=1, queries=1), "val")


@pytest.mark.parametrize(
    ("clients", "counts", "asked", "due"),
    [
        # Classes that belong to nobody: each of them may be drawn.
        ("", (9, 4, 7), (5, 5, 15), (3, 3, 1)),
        ("", (9, 8, 30), (2, 2, 3), (2, 2, 3)),
        ("", (9, 1, 30), (2, 2, 3), None),
        ("", (9,), (2, 1, 1), None),
        # Of clients one that is able is enough, and its small classes take no part.
        ("aabb", (9, 1, 4, 5), (2, 5, 5), (2, 3, 1)),
        ("aaabb", (9, 1, 3, 9, 2), (2, 2, 2), (2, 2, 1)),
        ("aaabb", (4, 1, 3, 9, 8), (3, 1, 1), (2, 1, 1)),
        ("aabb", (9, 1, 1, 5), (2, 1, 1), None),
        ("abc", (9, 9, 9), (2, 1, 1), None),
    ],
)
def test_the_largest_episode_that_a_pool_fills(tmp_path, clients, counts, asked, due):
    names = tuple(f"c{place}" for place in range(len(counts)))
    first = tuple(int(sum(counts[:place])) for place in range(len(counts)))
    pool = ClassPool(path=tmp_path, names=names, first=first, counts=counts, clients=tuple(clients))
    found = largest_shape(pool, EpisodeShape(ways=asked[0], shots=asked[1], queries=asked[2]))
    assert (found and (found.ways, found.shots, found.queries)) == due
    if found:
        check_shape(pool, found, "val")


def test_a_table_as_programs_write_it(tmp_path):
    rows = [["class", "tokens"], ["Füße, groß", "1 2"], [], ["", ""], ["日本", " 3  4 "]]
    table = read_table(write_csv(tmp_path / "t.csv", rows, begin="\ufeff"), "tokens")
    assert [row.label for row in table.rows] == ["Füße, groß", "日本"]
    assert [row.place for row in table.rows] == ["line 2", "line 5"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", ("empty", "first line must name the columns")),
        (b"0.1,0.2\n0.3,0.4\n", ("column class: missing", "'0.1,0.2'")),
        (b"Class,x\na,1\n", ("column class: missing", "did you mean class?")),
        (b"class;x\na;1\n", ("column class: missing", "separate columns by commas")),
        (b"class,x,x\na,1,1\n", ("column x: named twice",)),
        (b"class,x\n\xff,1\n", ("cannot be read as CSV in UTF-8 (line 2, character 1: byte 0xff is not UTF-8",)),
        (
            b"class,Gr\xf6\xdfe\nd,1\n",
            ("(line 1, character 9: byte 0xf6 is not UTF-8, cp1252 perhaps; save it as UTF-8",),
        ),
        (b'class,x\n"a,1\n', ("cannot be read as CSV",)),
        (
            b"class,x\na,1,2\nb\n,3\n",
            ("3 line(s)", "line 2: 3 values for 2 columns", "line 3: 1 values", "line 4: no class"),
        ),
        (b"class,split,x\na,trian,1\n", ("line 2: split must be one of train, val, test, found 'trian'",)),
        (b"class,split,x\na,train,1\na,,2\n", ("1 record(s) without a split, while others have one: line 3",)),
        (b"client,class,x\nanna,a,1\n,a,2\n", ("1 record(s) without a client",)),
        (b"class,split,x\na,train,1\na,val,2\n", ("the splits overlap", "a (in train at line 2, in val at line 3)")),
        (
            b"client,class,split,x\nanna,a,train,1\nanna,b,test,2\n",
            ("1 client(s) are in two", "must not take part in training"),
        ),
        (b"class,x\na,1\na,2\n", ("no class in the train split (0 in train, 1 in val, 0 in test)",)),
        (b"class,x\na,1\na,one\nb,2,\n", ("line 4: 3 values",)),
        (b"class,x\na,1\na,one\n", ("1 value(s) are not numbers: line 3, column x: 'one' is not a number",)),
        (b"class,x\na,nan\na,inf\na,1e400\n", ("3 value(s)", "line 2, number 1: nan", "line 4, number 1: inf")),
        (b"class,x\na,1e39\n", ("too large: line 2, number 1: 1e+39",)),
        (b"class,x\na,1\nb,1\nc,1e5\nd,1\n", ("1e+05 reach the network", "mean and deviation")),
        (b"class\na\n", ("no column of numbers",)),
        (b"class,x\n0,1\n1.5,1\n-1,1\nnan,1\n", ("3 record(s)", "line 3: class '1.5'", "line 4: class '-1'", "line 5")),
        # Written where a value is missing, by pandas, R and Excel: a class of all records without one.
        (b"class,x\na,1\nNaN,1\nNA,1\n#N/A,1\nNone,1\n", ("4 record(s)", "line 3: class 'NaN'", "'None'", "missing")),
        (b"client,class,x\nanna,a,1\nNULL,a,2\n", ("1 record(s)", "line 3: client 'NULL'")),
        (b"PK\x03\x04\x14\n", ("class: missing", "this is an Excel workbook")),
        (b"<!DOCTYPE html>\n<p>\n", ("class: missing", "this is a web page")),
        (b"sep=,\nclass,x\na,1\n", ("found 'sep=,'", "line 1 is for spreadsheets only; remove it")),
        (b"# measured 2024, twice\nclass,x\na,1\n", ("line 1 is a comment; remove it",)),
        (gzip.compress(b"class,x\na,1\n", mtime=0), ("it is compressed by gzip", "unpack it")),
        (lzma.compress(b"class,x\na,1\n"), ("it is compressed by xz; unpack it",)),
        (b"class,x\na,1e-4\nb,-9e-4\nc,0\nd,0\n", ("no number above 0.0009 reaches the network, less than 0.001",)),
        (b"class,x\na,0\nb,0\nc,0\nd,0\n", ("no number above 0 reaches the network",)),
    ],
)
def test_what_is_wrong_with_vectors_is_said_in_one_line(tmp_path, text, parts):
    (tmp_path / "mine.csv").write_bytes(text)
    message = refusal(tmp_path / "mine.csv", ways=1)
    assert str(tmp_path / "mine.csv") in message
    assert all(part in message for part in parts), message


def test_vectors_of_a_table_and_of_numpy_are_the_same(tmp_path):
    rows = vector_rows()
    write_csv(tmp_path / "v.csv", rows)
    np.savez(
        tmp_path / "v.npz",
        records=np.array([row[1:] for row in rows[1:]], dtype=np.float32),
        classes=np.array([row[0] for row in rows[1:]]),
    )
    one, two = (open_dataset(str(tmp_path / name), ways=2) for name in ("v.csv", "v.npz"))
    assert one.task.form == two.task.form
    assert one.task.form.shape == (5,)
    for split in ("train", "val", "test"):
        a, b = getattr(one, split), getattr(two, split)
        assert (a.names, a.counts) == (b.names, b.counts)
        assert np.array_equal(a.images, b.images)
        assert a.classes >= 2
    episode = draw_episode(one.train, np.random.default_rng(0), SHAPE)
    held = np.array([row[1:] for row in rows[1:]], dtype=np.float32)
    assert all((held == row).all(1).any() for row in episode.support_images.numpy())


def test_constants_of_a_task_file_are_applied_to_vectors(tmp_path):
    write_csv(tmp_path / "v.csv", vector_rows(features=2))
    task = write_task(tmp_path / "t.yaml", "vectors", "v.csv", features=2, mean=[1.0, 2.0], deviation=[4.0])
    plain, scaled = open_dataset(str(tmp_path / "v.csv"), ways=2), open_dataset(str(task), ways=2)
    a, b = (draw_episode(d.train, np.random.default_rng(0), SHAPE).query_images.numpy() for d in (plain, scaled))
    assert np.allclose((a - np.array([1.0, 2.0])) / 4.0, b, atol=1e-6)
    write_task(tmp_path / "t.yaml", "vectors", "v.csv", features=3)
    assert "records of 2 numbers, but the task says features: 3" in refusal(task)


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"records": np.zeros((2, 3))}, "no array classes"),
        ({"records": np.zeros((2, 3)), "classes": np.array(["a", 1], dtype=object)}, "without pickles"),
        ({"records": np.zeros((2, 3)), "classes": np.array(["a"])}, "arrays of different lengths"),
        ({"records": np.zeros(2), "classes": np.array(["a", "b"])}, "expected numbers [n, d]"),
        ({"records": np.zeros(()), "classes": np.array(["a"])}, "expected numbers [n, d]"),
        ({"records": np.zeros((2, 3)), "targets": np.array(1.0)}, "arrays of different lengths"),
        ({"records": np.zeros((2, 3)), "targets": np.array([1.0, np.nan])}, "1 number(s) are missing or infinite"),
        ({"records": np.array([["a"]]), "classes": np.array(["a"])}, "expected numbers [n, d]"),
        ({"records": np.zeros((1, 3)), "classes": np.array(["a"]), "labels": np.zeros(1)}, "unknown array labels"),
        ({"records": np.zeros((1, 3)), "classes": np.array(["a"]), "splits": np.array(["x"])}, "split that is not"),
        ({"records": np.full((1, 3), np.nan), "classes": np.array(["a"])}, "record 0, number 1: nan"),
        ({"records": np.zeros((2, 3, 32, 32)), "classes": np.array(["a", "b"])}, "2 arrays of 3 x 32 x 32"),
        ({"records": np.zeros((2, 28, 28), np.uint8), "classes": np.array(["a", "b"])}, "images belong into files"),
        ({"records": np.zeros((2, 3)), "classes": np.array([0.0, 0.5])}, "record 1: class '0.5'"),
        ({"records": np.zeros((2, 3)), "classes": np.array([0.0, np.nan])}, "record 1: class 'nan'"),
        ({"records": np.zeros((2, 3)), "classes": np.array([0, -1])}, "record 1: class '-1'"),
        ({"records": np.zeros((2, 3)), "classes": [0, 1], "clients": np.array([0.0, np.nan])}, "client 'nan'"),
        ({"records": np.zeros((1, 3)), "classes": np.array(["a"]), "client": np.zeros(1)}, "did you mean clients?"),
        (
            {"records": np.zeros((2, 3)), "classes": 2.0**53 + np.array([0, 1])},
            "classes: numbers up to 9007199254740992",
        ),
        ({"records": np.zeros((2, 3)), "classes": np.array([2.0**60, np.nan])}, "record 1: class 'nan'"),
        ({"records": np.zeros((2, 3)), "classes": np.array([2.0**60, np.inf])}, "record 1: class 'inf'"),
        (
            {"records": np.zeros((2, 3)), "classes": np.float32([2**24, 1])},
            "as float32, which tells whole numbers apart",
        ),
        (
            {"records": np.zeros((2, 3)), "classes": [0, 1], "clients": np.float16([1, 2049])},
            "clients: numbers up to 2048",
        ),
    ],
)
def test_what_is_wrong_with_arrays_is_said(tmp_path, arrays, part):
    np.savez(tmp_path / "v.npz", **arrays)
    assert part in refusal(tmp_path / "v.npz")


def test_whole_numbers_that_are_told_apart_are_names(tmp_path):
    classes = np.repeat(2**53 + np.arange(9), 2)
    np.savez(tmp_path / "v.npz", records=np.arange(18.0)[:, None], classes=classes)
    dataset = open_dataset(str(tmp_path / "v.npz"), ways=1)
    assert dataset.train.classes + dataset.val.classes + dataset.test.classes == 9
    np.savez(tmp_path / "v.npz", records=np.arange(18.0)[:, None], classes=(classes - 10).astype(float))
    assert sum(getattr(open_dataset(str(tmp_path / "v.npz"), ways=1), part).classes for part in PARTS) == 9


def test_one_array_under_the_name_of_an_archive(tmp_path):
    with (tmp_path / "v.npz").open("wb") as file:
        np.save(file, np.zeros((2, 3)))
    assert "one array (.npy) under the name .npz; store records and classes together: np.savez('v.npz'" in refusal(
        tmp_path / "v.npz"
    )


def test_constants_that_leave_nothing_of_the_numbers(tmp_path):
    write_csv(tmp_path / "v.csv", vector_rows(features=2))
    task = write_task(tmp_path / "t.yaml", "vectors", "v.csv", features=2, mean=[0.0], deviation=[1e5])
    assert "less than 0.001; correct mean and deviation" in refusal(task, ways=2)
    write_task(tmp_path / "t.yaml", "vectors", "v.csv", features=2, mean=[0.0], deviation=[1e2])
    open_dataset(str(task), ways=2)


def test_infinity_is_one_refusal_without_a_warning(tmp_path):
    """Warnings are errors here: a difference of infinities made one."""
    with np.errstate(over="ignore"):
        np.savez(tmp_path / "v.npz", records=np.full((18, 2), 1e6).astype(np.float16), classes=np.repeat(range(9), 2))
    code, shown = check(tmp_path / "v.npz", "--ways", 1, "--shots", 1, "--task.queries", 1)
    assert code == 2
    assert "36 value(s) are missing, infinite or too large" in shown


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "v.npz").write_bytes(b"PK\x03\x04 cut off")
    assert "cannot be read as .npz" in refusal(tmp_path / "v.npz")


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ("1 40", "line 2: '40' is not a token from 1 to 39"),
        ("1 0", "line 2: '0' is not a token"),
        ("1 -3", "line 2: '-3' is not a token"),
        ("1 2.5", "'2.5' is not a token"),
        ("1 " + "9" * 30, "is not a token"),
        ("1 " + "9" * 5000, "is not a token"),
        ("1 ²", "line 2: '²' is not a token from 1 to 39"),
        ("1 ٣", "line 2: '٣' is not a token from 1 to 39"),
        # Twelve digits that say little, and then many.
        ("1 000000000003999999", "line 2: '000000000003999999' is not a token from 1 to 39"),
        ("", "line 2: no tokens"),
        ("1 2 3 4 5 6 7 8 9", "line 2: 9 tokens, and the task says length: 8"),
    ],
)
def test_what_is_wrong_with_tokens_is_said(tmp_path, tokens, part):
    rows = token_rows()
    rows[1][1] = tokens
    write_csv(tmp_path / "t.csv", rows)
    assert part in refusal(write_task(tmp_path / "t.yaml", "tokens", "t.csv", length=8, vocabulary=40))
    assert "vocabulary" in refusal(tmp_path / "t.csv")


def test_tokens_are_padded(tmp_path):
    write_csv(tmp_path / "t.csv", token_rows(length=6))
    task = write_task(tmp_path / "t.yaml", "tokens", "t.csv", length=8, vocabulary=40)
    pool = open_dataset(str(task), ways=2).train
    assert pool.images.shape[1:] == (8,)
    assert not pool.images[:, 5:].any()
    assert pool.images[:, :5].all()


def test_a_list_of_images_is_found_from_any_folder(tmp_path, monkeypatch):
    for label in range(6):
        for image in range(2):
            write_image(tmp_path / "data" / "im gs" / f"{label}" / f"ü,{image}.png", label * 10 + image)
    rows = [["class", "path"]]
    rows += [[f"c{label}", f"im gs\\{label}\\ü,{image}.png"] for label in range(6) for image in range(2)]
    write_csv(tmp_path / "data" / "list.csv", rows)
    write_task(tmp_path / "list.yaml", "manifest", "data/list.csv", channels=1, image_size=12)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    direct, described = (open_dataset(str(tmp_path / name), ways=2) for name in ("data/list.csv", "list.yaml"))
    assert direct.task.form.shape == (1, 12, 12)
    assert np.array_equal(direct.train.images, described.train.images)
    monkeypatch.chdir(tmp_path)
    # What a run keeps is found from everywhere.
    kept = resolve("maml", "list.yaml").dataset
    monkeypatch.chdir("/")
    assert open_dataset(kept, ways=2).train == described.train


def test_all_files_that_cannot_be_used_are_told_of_together(tmp_path):
    rows = [["class", "path"], *[["a", f"{number}.png"] for number in range(47)]]
    write_csv(tmp_path / "list.csv", rows)
    message = refusal(tmp_path / "list.csv")
    assert "47 of 47 images" in message
    assert message.endswith("line 11: 9.png: no such file; and 37 more")
    for label in range(6):
        for image in range(2):
            write_image(tmp_path / "mine" / f"c{label}" / f"{image}.png", image)
    for label in (1, 4):
        (tmp_path / "mine" / f"c{label}" / "1.png").write_bytes(b"no image")
    message = refusal(tmp_path / "mine", ways=2)
    assert "2 of 12 images do not decode" in message
    assert "c1/1.png" in message
    assert "c4/1.png" in message
    write_image(tmp_path / "x.png", 0)
    write_csv(tmp_path / "list.csv", [["class", "path"], ["a", "x.png"], ["b", "x.png"]])
    assert "line 3: x.png: already listed at line 2" in refusal(tmp_path / "list.csv")
    write_csv(tmp_path / "list.csv", [["class", "path", "spilt"], ["a", "x.png", "train"]])
    assert "column spilt: unknown; did you mean split?" in refusal(tmp_path / "list.csv")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve clients with classes of the same names; one of them holds nearly nothing."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    write_clients(root, [f"client{number:02d}" for number in range(12)])
    poor = next(f"client{number:02d}" for number in range(12) if splits_of_clients()[f"client{number:02d}"] == "train")
    for label in (1, 2):
        for image in (1, 2, 3):
            (root / poor / f"class{label}" / f"{image}.png").unlink()
    # What file managers leave behind, and a link to the folder above.
    for name in (".DS_Store", "Thumbs.db", "._0.png"):
        (root / "client00" / "class0" / name).write_bytes(b"x")
        (root / name).write_bytes(b"x")
    (root / "client00" / "loop").symlink_to(root, target_is_directory=True)
    return root, poor


def splits_of_clients():
    return splits_of([f"client{number:02d}" for number in range(12)], 1)


def test_real_clients_are_kept_apart(photos):
    dataset = open_dataset(str(photos[0]), ways=2)
    held = {split: set(getattr(dataset, split).clients) for split in ("train", "val", "test")}
    assert {name: split for split, names in held.items() for name in names} == splits_of_clients()
    for seed in range(5):
        # Two classes of one name, of two clients, would be one class.
        episode = draw_episode(dataset.test, np.random.default_rng(seed), EpisodeShape(ways=3, shots=2, queries=2))
        rows = {bytes((image * 255).round().byte().numpy().tobytes()) for image in episode.support_images}
        owners = {
            client
            for client, first, count in zip(dataset.test.clients, dataset.test.first, dataset.test.counts, strict=True)
            if any(image.tobytes() in rows for image in np.asarray(dataset.test.images[first : first + count]))
        }
        assert len(owners) == 1


def test_real_clients_are_a_population(photos):
    dataset = open_dataset(str(photos[0]), ways=2)
    names = sorted(set(dataset.train.clients))
    made = open_population("natural", dataset.train, SHAPE, len(names), 0)
    assert isinstance(made, RealPopulation)
    refused = []
    for client in range(len(names)):
        try:
            episode = made.episode(client)
        except InputError:
            refused.append(client)
            continue
        assert episode.support_images.shape == (2, 1, 12, 12)
        assert (made.episode(client).query_images == episode.query_images).all()
    assert len(refused) == 1  # counts as zero, like any client whose data do not fit
    assert f"{len(names)} clients that the data name" in population_statement(made).text
    assert read_back(population_statement(made)) == population_statement(made)
    kept = population_statement(made, 0.34)
    assert read_back(kept) == kept
    assert kept.text == population_statement(made).text + kept_back(0.34)
    other = open_population("natural", dataset.train, SHAPE, len(names), 1)
    assert clients_digest(made) != clients_digest(other)
    with pytest.raises(IndexError):
        made.episode(len(names))
    with pytest.raises(InputError, match=f"names {len(names)} clients.*use --clients {len(names)}"):
        open_population("natural", dataset.train, SHAPE, len(names) + 1, 0)
    with pytest.raises(InputError, match=r"population\.kind natural"):
        open_population("virtual", dataset.train, SHAPE, 3, 0)
    with pytest.raises(InputError, match=r"none of the .* holds 3 classes with 4 shots \+ 1 queries"):
        check_shape(dataset.train, EpisodeShape(ways=3, shots=4, queries=1), "train")
    larger = open_population("natural", dataset.train, SHAPE, len(names), 0, most_shots=9)
    sizes = {len(larger.episode(client).support_labels) for client in range(len(names)) if client not in refused}
    assert sizes == {2 * 3}  # all that four images leave beside a query


def test_settings_that_the_data_decide(photos, tmp_path):
    train = list(splits_of_clients().values()).count("train")
    found = resolve("dp-agr", str(photos[0]))
    assert (found.population.clients, found.population.kind) == (train, "natural")
    assert resolve("dp-agr", str(photos[0]), None, {"population.clients": "3"}).population.clients == 3
    assert dpfedmeta.Settings.preset("maml", photos[0]).population.clients == train
    write_csv(tmp_path / "v.csv", vector_rows())
    assert resolve("dp-agr", str(tmp_path / "v.csv")).model.name == "mlp"
    assert resolve("dp-agr", str(tmp_path / "v.csv")).population == resolve("dp-agr", "omniglot").population
    assert resolve("dp-agr", str(tmp_path / "v.csv"), None, {"model.name": "linear"}).model.name == "linear"


def test_classes_and_clients_are_not_mixed(photos, tmp_path):
    write_clients(tmp_path / "mine", ["anna", "ben"], 2, 2)
    write_image(tmp_path / "mine" / "cat" / "0.png", 0)
    message = refusal(tmp_path / "mine")
    assert "1 folder(s) hold images (cat) and 2 hold folders of images (anna)" in message
    for split, client in (("train", "anna"), ("val", "ben"), ("test", "anna")):
        write_clients(tmp_path / "split" / split, [client], 2, 2)
    assert "client(s) are in two" in refusal(tmp_path / "split")


def test_data_that_moved_are_found_by_the_data_folder(tmp_path):
    write_csv(tmp_path / "v.csv", vector_rows())
    kept = resolve("maml", str(tmp_path / "v.csv")).dataset
    (tmp_path / "new").mkdir()
    (tmp_path / "v.csv").rename(tmp_path / "new" / "v.csv")
    with pytest.raises(InputError, match=r"v\.csv: not there; check the path\. .* earlier run moved.*--data-dir"):
        load_task(kept)
    assert load_task(kept, tmp_path / "new")[0].form.shape == (5,)
    task = write_task(tmp_path / "t.yaml", "vectors", "gone.csv", features=5)
    assert "gone.csv: not there" in refusal(task)


def check(*words):
    shown = io.StringIO()
    return check_task.main([*map(str, words)], Console(file=shown, width=300)), shown.getvalue()


def test_a_check_refuses_what_training_refuses(photos, tmp_path):
    small = ("--ways", 2, "--shots", 1, "--task.queries", 1, "--evaluation.queries", 3)
    code, shown = check(photos[0], *small)
    assert code == 0, shown
    train = list(splits_of_clients().values()).count("train")
    assert f"train: {train} clients, {train - 1} of them with enough for an episode" in shown
    code, shown = check(photos[0], *small[:-1], 4)
    assert code == 2
    assert "cannot be used: none of the" in shown
    write_csv(tmp_path / "v.csv", vector_rows())
    code, shown = check(tmp_path / "v.csv", *small)
    assert code == 0, shown
    assert "vectors of 5 numbers" in shown
    with pytest.raises(InputError, match="no contact sheet"):
        check(tmp_path / "v.csv", *small, "--out", tmp_path / "sheet.png")
    with pytest.raises(InputError, match=r"--rounds|--server\.rounds"):
        check(tmp_path / "v.csv", "--rounds", 3)


def test_vectors_in_python_are_trained_on_end_to_end(tmp_path):
    write_csv(tmp_path / "v.csv", vector_rows())
    generator, shape = np.random.default_rng(0), EpisodeShape(ways=2, shots=1, queries=1)

    def part():
        return generator.normal(size=(2, 5)).astype(np.float32), np.array([0, 1])

    clients = from_pairs([(part(), part()) for _ in range(20)], shape)
    assert dict(clients.problems()) == {}
    values = {
        "task.ways": 2,
        "task.shots": 1,
        "task.queries": 1,
        "evaluation.queries": 2,
        "evaluation.episodes": 2,
        "evaluation.validation_episodes": 2,
        "server.rounds": 2,
        "clip.window": 2,
        "population.clients": 20,
        "population.cohort": 10,
        "run.workers": 1,
        "run.dir": str(tmp_path / "runs"),
        "model.width": 4,
        "privacy.client.epsilon": 8.0,
    }
    settings_of = dpfedmeta.Settings.preset("dp-agr", tmp_path / "v.csv", values)
    run = dpfedmeta.train(settings_of, population=clients, quiet=True)
    model = run.adapt(np.eye(2, 5, dtype=np.float32), np.array([0, 1]))
    assert model.predict(np.eye(2, 5, dtype=np.float32)).shape == (2,)
    with pytest.raises(InputError, match=r"vectors: expected \[n, 5\]"):
        run.adapt(np.zeros((2, 4), np.float32), np.array([0, 1]))


@pytest.mark.parametrize("ending", ["csv", "CSV", "npz", "NPZ", "yaml", "YAML", "Yml"])
def test_extensions_in_any_case(tmp_path, ending):
    rows, path = vector_rows(), tmp_path / f"mine.{ending}"
    if ending.lower() == "npz":
        with path.open("wb") as file:
            np.savez(file, records=np.array([row[1:] for row in rows[1:]]), classes=[row[0] for row in rows[1:]])
    elif ending.lower() == "csv":
        write_csv(path, rows)
    else:
        write_csv(tmp_path / "v.csv", rows)
        write_task(path, "vectors", "v.csv", features=5)
    assert open_dataset(str(path), ways=2).task.form.shape == (5,)
    assert check(path, "--ways", 2, "--shots", 1, "--task.queries", 1, "--evaluation.queries", 1)[0] == 0


def test_every_image_of_a_list_that_cannot_be_used_is_told_with_its_line(tmp_path):
    """Of three mistakes all three, and of sound lines none."""
    for name in ("a", "b"):
        write_image(tmp_path / f"{name}.png", 3)
    rows = [["class", "path"], ["x", "a.png"], ["y", "nowhere.png"], ["x", "b.png"], ["y", " "], ["y", "a.png"]]
    write_csv(tmp_path / "list.csv", rows)
    said = refusal(tmp_path / "list.csv")
    assert "3 of 5 images cannot be used" in said
    assert "line 3: nowhere.png: no such file" in said
    assert "line 5: no path" in said
    assert "line 6: a.png: already listed at line 2" in said
    assert "line 4" not in said
