"""A client's own table: which records it takes part with, and that a federation of tables is the simulation of them."""

import csv
import itertools
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.sources import DrawnSource
from dpfedmeta.data.task import Task
from dpfedmeta.data.user_sources.sound_rows import own_digests
from dpfedmeta.federation.client import local_data
from dpfedmeta.federation.client.client_home import claim
from dpfedmeta.federation.client.local_data import NoRecords, NullRecords, OwnRecords, open_records
from dpfedmeta.federation.offers.offered_settings import form_of, task_of
from dpfedmeta.federation.wire_format import Said
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.sessions import open_session
from tests.federation.silos import CLIENTS, MICRO, SEED, Silos, private_key
from tests.federation.test_training_participation import log_of, offered, with_folder

COLUMNS = ("age", "pulse", "oldpeak")
NOWHERE = DrawnSource(reader="strokes", seed=1, variation=1.0)
VECTORS = Task(name="clinics", source=NOWHERE, features=3)
REGRESSION = replace(VECTORS, kind="regression", targets=TargetRange(centre=1, scale=2, lowest=0, highest=9))
# Of strokes, but for the network.
TABLE = {"model.name": "mlp", "run.precision": "float32"}


def rows_of(number, classes=("ill", "well", "unsure"), records=6):
    """[(class, values)], the values near a point that belongs to client and class."""
    generator = np.random.default_rng(number)
    centres = {name: generator.normal(size=3).round(2) for name in classes}
    return [(name, (centres[name] + generator.normal(size=3) / 8).round(3)) for name in classes for _ in range(records)]


def write(path, rows, columns=COLUMNS, **more):
    """Columns beside the features stand first; `more`: columns of one value for all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = [COLUMNS.index(name) for name in columns if name in COLUMNS]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*more, "class", *columns])
        for label, values in rows:
            writer.writerow([*more.values(), label, *(values[place] for place in order)])
    return path


def opened(path, folder, columns=COLUMNS, task=VECTORS):
    return open_records(path, task, columns, folder / "decoded")


def held(pool):
    return {
        name: np.array(pool.images[first : first + count]).tolist()
        for name, first, count in zip(pool.names, pool.first, pool.counts, strict=True)
    }


def test_a_table_is_one_client_of_its_classes(tmp_path):
    pool = opened(write(tmp_path / "clinic.csv", rows_of(0)), tmp_path)
    assert (pool.names, pool.counts) == (("ill", "unsure", "well"), (6, 6, 6))
    assert np.allclose(held(pool)["ill"], [values for label, values in rows_of(0) if label == "ill"])


def test_arrays_hold_the_same(tmp_path):
    rows = rows_of(0)
    np.savez(tmp_path / "clinic.npz", records=np.stack([v for _, v in rows]), classes=[label for label, _ in rows])
    table = opened(write(tmp_path / "clinic.csv", rows), tmp_path)
    assert held(opened(tmp_path / "clinic.npz", tmp_path)) == held(table)
    assert own_digests(tmp_path / "clinic.npz") == own_digests(tmp_path / "clinic.csv")


def test_columns_are_found_by_name_in_any_order(tmp_path):
    expected = held(opened(write(tmp_path / "one.csv", rows_of(0)), tmp_path))
    turned = write(tmp_path / "two.csv", rows_of(0), columns=COLUMNS[::-1])
    assert held(opened(turned, tmp_path)) == expected
    # Without the plan's names the order of the file is taken: another one.
    assert held(opened(turned, tmp_path, columns=())) != expected
    # And a cache of the one is not taken for the other.
    assert held(opened(turned, tmp_path)) == expected


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers to predict"])
@pytest.mark.parametrize("new", ["age,oldpeak,pulse", "oldpeak,age,pulse", "age,pulse,oldpeak"])
def test_a_corrected_header_of_the_same_file_is_read_anew(tmp_path, new, numbers):
    """What was decoded under the wrong names is not trained on, though no number of the file changed."""
    task = REGRESSION if numbers else VECTORS
    path = write(tmp_path / "clinic.csv", [("7", values) for _, values in rows_of(0)] if numbers else rows_of(0))
    if numbers:
        path.write_text(path.read_text().replace("class,", "target,", 1))
    before = opened(path, tmp_path, task=task)
    path.write_text(path.read_text().replace(",".join(COLUMNS), new, 1))
    after = opened(path, tmp_path, task=task)
    due = np.array(before.images)
    due[:, : len(COLUMNS)] = due[:, [new.split(",").index(name) for name in COLUMNS]]
    assert np.array_equal(after.images, due)
    # Under the same names it is the same file of decoded records.
    assert (after.path == before.path) == (new == ",".join(COLUMNS))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("age", "pulse"), "column oldpeak: missing; the plan's 3 columns are age, pulse, oldpeak"),
        (("age", "puls", "oldpeak"), r"column pulse: missing; column puls: unknown; did you mean pulse"),
    ],
)
def test_other_columns_are_named(tmp_path, columns, said):
    path = write(tmp_path / "clinic.csv", rows_of(0), columns=COLUMNS[: len(columns)])
    path.write_text(path.read_text().replace(",".join(COLUMNS[: len(columns)]), ",".join(columns), 1))
    with pytest.raises(InputError, match=said):
        opened(path, tmp_path)


def test_validation_and_test_records_stay_out(tmp_path):
    path = write(tmp_path / "clinic.csv", rows_of(0), split="train")
    text = path.read_text()
    path.write_text(text + text.split("\n", 1)[1].replace("train,", "test,"))
    assert opened(path, tmp_path).counts == (6, 6, 6)
    assert len(own_digests(path)) == 18
    path.write_text(text.replace("train,", "val,"))
    with pytest.raises(InputError, match="has no sound record in its train part"):
        opened(path, tmp_path)


def test_all_records_of_a_client_s_table_are_its_own_whatever_name_stands_beside_them(tmp_path):
    """Which name is the client's would follow from the other rows."""
    path = write(tmp_path / "all.csv", rows_of(0), client="north")
    assert opened(path, tmp_path).counts == (6, 6, 6)
    path.write_text(path.read_text() + "south,ill,1,2,3\n")
    assert opened(path, tmp_path).counts == (7, 6, 6)
    assert len(own_digests(path)) == 19


def test_a_folder_is_no_table_and_a_table_no_folder(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(
        InputError, match=r"images: a folder, but the plan counts with vectors; give a \.csv, \.parquet"
    ):
        opened(tmp_path / "images", tmp_path)
    pictures = Task(name="pictures", source=NOWHERE, image_size=28, channels=1)
    path = write(tmp_path / "clinic.csv", rows_of(0))
    with pytest.raises(InputError, match="column path: missing"):
        opened(path, tmp_path, columns=(), task=pictures)
    with pytest.raises(InputError, match=r"absent.csv: not there; --data names a folder of images, or a \.csv, "):
        own_digests(tmp_path / "absent.csv")


def test_tokens_are_known_without_their_padding(tmp_path):
    task = Task(name="texts", source=NOWHERE, length=4, vocabulary=9)
    (tmp_path / "texts.csv").write_text("class,tokens\nham,1 2 3\nham,4\nspam,5 6\n")
    records = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]], dtype=np.uint8)
    np.savez(tmp_path / "texts.npz", records=records, classes=["ham", "ham", "spam"])
    found = [held(opened(tmp_path / name, tmp_path, (), task)) for name in ("texts.csv", "texts.npz")]
    assert found[0] == found[1] == {"ham": [[1, 2, 3, 0], [4, 0, 0, 0]], "spam": [[5, 6, 0, 0]]}
    assert own_digests(tmp_path / "texts.csv") == own_digests(tmp_path / "texts.npz")


@pytest.mark.parametrize("word", ["²", "①", "٣", "1.5", "-3", "0", "9", "9" * 5000, "000000000001999"])
def test_a_sequence_with_what_is_no_token_is_left_out_and_said_to_the_owner(tmp_path, word):
    """Its digests are asked first: there the word is left out, whatever it is."""
    path, task = tmp_path / "texts.csv", Task(name="texts", source=NOWHERE, length=4, vocabulary=9)
    path.write_text(f"class,tokens\nham,1 2\nham,3 {word}\nspam,4\n")
    assert [label for label, _ in own_digests(path)] == ["ham", "ham", "spam"]
    told = []
    pool = open_records(path, task, (), tmp_path / "decoded", told.append)
    assert held(pool) == {"ham": [[1, 2, 0, 0]], "spam": [[4, 0, 0, 0]]}
    wrong = f"1 sequence(s) cannot be used: line 3: {word[:20]!r} is not a token from 1 to 8"
    assert told == [f"{path}: 1 row(s) are wrong and left out; the others take part: {wrong}"]


def test_a_token_is_a_number_of_at_most_twelve_digits(tmp_path):
    path, task = tmp_path / "texts.csv", Task(name="texts", source=NOWHERE, length=4, vocabulary=9)
    path.write_text(f"class,tokens\nham,1 {8:012}\nspam,2 8\n")
    assert held(opened(path, tmp_path, (), task)) == {"ham": [[1, 8, 0, 0]], "spam": [[2, 8, 0, 0]]}
    path.write_text(f"class,tokens\nham,1 {8:013}\nspam,2 8\n")
    assert held(opened(path, tmp_path, (), task)) == {"spam": [[2, 8, 0, 0]]}


def test_a_record_of_a_table_spends_in_one_home_only(tmp_path):
    first = write(tmp_path / "a" / "clinic.csv", rows_of(0))
    claim(tmp_path / "one.home", first, private_key("one"))
    # One of its records, written otherwise, among another clinic's.
    label, values = rows_of(0)[0]
    other = write(tmp_path / "b" / "clinic.csv", rows_of(1))
    sound = other.read_text()
    other.write_text(sound + f"{label},{','.join(f'{value:.9f}' for value in values)}\n")
    with pytest.raises(InputError, match=r"these records took part from .*one\.home"):
        claim(tmp_path / "two.home", other, private_key("two"))
    # The same numbers under another class are another person's, as far as anybody can tell.
    other.write_text(sound + f"well,{','.join(map(str, values))}\n")
    claim(tmp_path / "two.home", other, private_key("two"))


def test_a_plan_names_the_columns_of_the_server_s_table(tmp_path, tables):
    session = open_session(tables, tmp_path, "dp-agrlr-micro", **MICRO, **TABLE)
    assert session.signed.columns == COLUMNS
    assert session.signed.task.features == 3
    content = {"task": form_of(session.signed.task) | {"columns": ["age", "age", "pulse"]}}
    for wrong in (["age", "age", "pulse"], ["age"]):
        with pytest.raises(Refused, match=r"the plan names [13] columns for records of the form \(3,\)"):
            task_of({"task": content["task"] | {"columns": wrong}})
    for wrong in ("pulse\x1b[2J", "pulse\nround 0: nothing left this machine", " "):
        with pytest.raises(Refused, match="characters that cannot be printed"):
            task_of({"task": content["task"] | {"columns": ["age", wrong, "oldpeak"]}})


def other_columns(path):
    write(path, rows_of(7))
    path.write_text(path.read_text().replace("pulse", "weight", 1))


def too_few(path):
    write(path, rows_of(7, records=1))


def other_units(path):
    write(path, [(label, [1e6 * value for value in values]) for label, values in rows_of(7)])


@pytest.mark.parametrize("made", [other_columns, too_few, other_units])
def test_a_table_that_does_not_fit_sends_noise_and_tells_its_owner(tables, tmp_path, made):
    session = open_session(tables, tmp_path, "dp-agrlr-micro", **MICRO, **TABLE)
    party = with_folder(session, tmp_path, made)
    assert offered(session, party)[6] == Said.ACCEPTED
    said = log_of(tmp_path)
    assert "ONLY NOISE: " in said
    assert {
        "other_columns": "column pulse: missing",
        "too_few": "no rows that could be taken together",
        "other_units": "reach the network, more than 10,000",
    }[made.__name__] in said


@pytest.mark.parametrize("wrong", [1, 18])
def test_an_owner_hears_of_wrong_rows_before_a_server_is_asked_and_none_is_asked_without_a_sound_one(
    tables, tmp_path, wrong
):
    session = open_session(tables, tmp_path, "dp-agrlr-micro", **MICRO, **TABLE)

    def not_numbers(path):
        write(path, rows_of(7))
        first, *lines = path.read_text().splitlines()
        odd = [line.replace(",", ",about ", 1) for line in lines[:wrong]]
        path.write_text("\n".join([first, *odd, *lines[wrong:]]))

    if wrong == 1:
        with_folder(session, tmp_path, not_numbers)
        assert "1 row(s) hold what is no number, and are left out unless a plan says" in log_of(tmp_path)
        assert "line 2, column age: 'about " in log_of(tmp_path)
        return
    with pytest.raises(InputError, match=r"line 2, column age: .about .* is not a number"):
        with_folder(session, tmp_path, not_numbers)


@pytest.fixture(scope="module")
def tables(tmp_path_factory, own_cache):
    """As silos, of tables: client number i of the simulation has number i in the roster."""
    root, places = tmp_path_factory.mktemp("tables"), range(CLIENTS)
    order = public_generator(SEED, Purpose.CLIENT_DATA, 1, 4).permutation(CLIENTS)
    own = [write(root / f"silo{place}.csv", rows_of(place)) for place in places]
    parts = [(f"silo{place}", "train", rows_of(place)) for place in places]
    public = [("val-client", "val", rows_of(20)), ("test-client", "test", rows_of(30))]
    for name, held_there in (("all", [*parts, *public]), ("public", [("nobody", "train", rows_of(40)), *public])):
        with (root / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "split", "class", *COLUMNS])
            writer.writerows([c, split, label, *values] for c, split, rows in held_there for label, values in rows)
    folders = tuple(own[place] for place in order.tolist())
    return Silos(root=root, everybody=root / "all.csv", public=root / "public.csv", folders=folders)


@pytest.mark.parametrize("algo", ["dp-agr", pytest.param("dp-agrlr-micro", marks=pytest.mark.slow)])
def test_weights_are_those_of_the_simulation_of_the_same_tables(tables, tmp_path, algo):
    tables.check_simulated(algo, tmp_path, **TABLE, **(MICRO if algo == "dp-agrlr-micro" else {}))


IMAGES = Task(
    name="photos", source=NOWHERE, image_size=4, channels=1, mean=(0.25,), deviation=(0.5,), train_rotations=4,
    train_flip=True,
)  # fmt: skip
LABELLED = Task(
    name="clinics", source=NOWHERE, features=3, mean=(55.0, 75.0, 2.0), deviation=(10.0, 9.0, 1.0),
    labels=("ill", "unsure", "well"),
)  # fmt: skip
# Fields of a pool that are the client's own, or that tasks of clients have not.
OWN_FIELDS = {
    "path",
    "names",
    "first",
    "counts",
    "clients",
    "groups",
    "shift",
    "turned",
    "made_from",
    "plain",
    "own_test",
}


@pytest.mark.parametrize("task", [IMAGES, LABELLED], ids=["images", "table"])
def test_whatever_the_plan_says_of_the_records_holds_for_those_of_a_client(tmp_path, task):
    """A field that is left out has a default, and the client would train on other numbers than the simulation."""
    if task is IMAGES:
        for name in ("a", "b"):
            (tmp_path / "own" / name).mkdir(parents=True)
            for number in range(3):
                Image.fromarray(np.full((4, 4), 20 * number, np.uint8)).save(tmp_path / "own" / name / f"{number}.png")
        path = tmp_path / "own"
    else:
        path = write(tmp_path / "clinic.csv", rows_of(0))
    pool = opened(path, tmp_path, columns=COLUMNS if task is LABELLED else (), task=task)
    due = {
        "rotations": task.train_rotations, "flip": task.train_flip, "mean": task.mean, "deviation": task.deviation,
        "labels": task.labels, "targets": task.form.targets,
    }  # fmt: skip
    assert {field.name for field in fields(ClassPool)} == {*due} | OWN_FIELDS
    assert {name: getattr(pool, name) for name in due} == due


NUMBERED = replace(LABELLED, kind="regression", labels=(), targets=TargetRange(centre=1, scale=2, lowest=0, highest=9))
KEYS = {
    "usual": {},
    "path": {"path": "other"},
    "content": {"content": "other"},
    "form": {"task": replace(IMAGES, image_size=5)},
    "channels": {"task": replace(IMAGES, channels=3)},
    "range of pixels": {"task": replace(IMAGES, pixel_range=(0.0, 4095.0))},
    "another range": {"task": replace(IMAGES, pixel_range=(1.0, 4095.0))},
    "numbers": {"task": NUMBERED},
    "their scale": {"task": replace(NUMBERED, targets=replace(NUMBERED.targets, scale=3))},
    "columns": {"task": LABELLED},
    "their order": {"task": LABELLED, "columns": COLUMNS[::-1]},
    "no names of them": {"task": LABELLED, "columns": ()},
    "the file's own order": {"task": LABELLED, "header": COLUMNS[::-1]},
    "another order": {"task": LABELLED, "header": (COLUMNS[1], COLUMNS[0], COLUMNS[2])},
    "of numbers to predict": {"task": NUMBERED, "header": COLUMNS[::-1]},
}


def test_decoded_records_are_those_of_their_files_form_and_columns(monkeypatch, tmp_path):
    """One folder of decoded records serves all plans of a client."""
    keys = {}

    class Kept(Exception):
        pass

    for name, changed in KEYS.items():
        usual = {"path": "own", "content": "some", "task": IMAGES, "columns": COLUMNS, "header": COLUMNS}
        given = usual | changed

        def noted(folder, kind, key, *others, name=name):
            keys[name] = (kind, [str(each) for each in key])
            raise Kept

        monkeypatch.setattr(local_data, "cached", noted)
        monkeypatch.setattr(local_data, "columns_in", lambda kind, path, given=given: given["header"])
        found = SimpleNamespace(digests=lambda given=given: [given["content"]])
        monkeypatch.setattr(local_data, "sound_rows", lambda *given, found=found: found)
        columns = given["columns"] if given["task"] is not IMAGES else ()
        with pytest.raises(Kept):
            open_records(tmp_path / given["path"], given["task"], columns, tmp_path)
    assert [pair for pair in itertools.combinations(KEYS, 2) if keys[pair[0]] == keys[pair[1]]] == []
    assert {*keys} == {*KEYS}


@pytest.mark.parametrize("made", [OwnRecords, NoRecords, NullRecords])
@pytest.mark.parametrize("asked", ["episode", "holdings"])
def test_a_machine_holds_its_own_client_and_no_other(made, asked):
    own = {"clients": 5, "number": 2}
    more = {
        OwnRecords: {"pool": None, "shape": None, "seed": 0},
        NoRecords: {"why": "gone"},
        NullRecords: {"why": "gone", "form": (1,), "shape": None},
    }[made]
    for other in (0, 1, 3, 4, 5):
        with pytest.raises(IndexError, match=f"client {other}: this machine holds client 2 of 5"):
            getattr(made(**own, **more), asked)(other)


@pytest.mark.parametrize(
    ("task", "label"), [(VECTORS, "ill"), (REGRESSION, "7")], ids=["classes", "numbers to predict"]
)
def test_a_client_may_hold_zeros_alone_and_numbers_to_predict_are_no_features(tmp_path, task, label):
    """What is too small for a whole data set is one client's; how large a target may be its own range says."""
    wide = replace(task, targets=task.targets and TargetRange(centre=0, scale=1e6, lowest=0, highest=1e6))
    path = write(tmp_path / "clinic.csv", [(label, np.zeros(3))] * 4)
    if task is REGRESSION:
        path.write_text(path.read_text().replace("class,", "target,", 1).replace("7,", "900000,"))
    assert sum(opened(path, tmp_path, task=wide).counts) == 4
    path.write_text(path.read_text().replace("0.0", "10001.0", 1))
    told = []
    assert sum(open_records(path, wide, COLUMNS, tmp_path / "decoded", told.append).counts) == 3
    assert "numbers up to 1e+04 reach the network, more than 10,000" in told[0]
