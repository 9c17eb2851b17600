"""Tables and folders as people bring them: trained on, or refused in one line, and check-task says which.

Of each kind: what `train` leaves, None where it trains. Numbers are drawn; nothing here comes from people.
"""

import numpy as np
import pytest
from PIL import Image

DRAW = np.random.default_rng(5)
HEAD = ("client", "class", "a", "b", "c", "d")
SHAPE = ("--task.ways", 2, "--task.shots", 2, "--task.queries", 2, "--evaluation.queries", 2)


def rows(clients=12, size=20, classes=("ill", "well"), form="{:.3f}".format):
    found = []
    for client in range(clients):
        for _ in range(size(client) if callable(size) else size):
            kind = DRAW.integers(len(classes))
            found.append([f"c{client}", classes[kind], *map(form, DRAW.normal(size=4) + kind)])
    return found


def changed(place, value):
    """Rows of which one cell is another, or every line's where the place is only a column."""
    found = rows()
    for line in [found[7]] if isinstance(place, tuple) else found:
        line[place[1] if isinstance(place, tuple) else place] = value
    return found


def table(head, lines, mark=","):
    return "\n".join(mark.join(line) for line in [head, *lines]) + "\n"


def one_class_each():
    return [[line[0], "ill" if int(line[0][1:]) % 2 else "well", *line[2:]] for line in rows()]


def with_parts(name):
    return [[*line, name or ("train", "val", "test")[int(line[0][1:]) % 3]] for line in rows(18, 30)]


TABLES = {
    "ragged clients, few in validation": (table(HEAD, rows(9, lambda client: 1 + 3 * client)), "put clients with more"),
    "clients alike": (table(HEAD, rows(size=30)), None),
    "one client": (table(HEAD, rows(1, 60)), "give 3 clients or more"),
    "one class in all": (table(HEAD, rows(classes=("ill",))), "the best holds 1 such classes"),
    "clients of one class each": (table(HEAD, one_class_each()), "the best holds 1 such classes"),
    "labels 0 and 1": (table(HEAD, rows(size=30, classes=("0", "1"))), None),
    "labels with spaces, of other alphabets": (table(HEAD, rows(size=30, classes=("Größe 1", "健康"))), None),
    "seven classes": (table(HEAD, rows(size=80, classes=tuple("abcdefg"))), None),
    "semicolons": (table(HEAD, rows(), ";"), "separate columns by commas"),
    "tabs": (table(HEAD, rows(), "\t"), "separate columns by commas"),
    "commas in numbers": (table(HEAD, rows(form=lambda v: f'"{v:.2f}"'.replace(".", ","))), "is not a number"),
    "an empty cell": (table(HEAD, changed((7, 3), "")), "line 9, column b: '' is not a number"),
    "NA": (table(HEAD, changed((7, 3), "NA")), "line 9, column b: 'NA' is not a number"),
    "infinite": (table(HEAD, changed((7, 3), "inf")), "line 9, number 2: inf"),
    "a constant column": (table(HEAD, changed(5, "1")), None),
    "numbers near 1e30": (table(HEAD, changed(5, "4e30")), "give mean and deviation in a task file"),
    "two columns of one name": (table(("client", "class", "a", "a", "c", "d"), rows()), "column a: named twice"),
    "a column of words": (table(HEAD, changed(5, "yes")), "column d: 'yes' is not a number"),
    "a byte order mark and CRLF": ("\ufeff" + table(HEAD, rows(size=30)).replace("\n", "\r\n"), None),
    "Latin-1": (table(HEAD, rows(classes=("Größe", "ill"))).encode("latin-1"), "cannot be read as CSV in UTF-8"),
    "no client": (table(HEAD[1:], [line[1:] for line in rows(20, 60, tuple("abcdefghijklmnopqrst"))]), None),
    "another name for the class": (table(("client", "diagnosis", *"abcd"), rows()), "what is learned to class"),
    "targets in place of target": (table(("client", "targets", *"abcd"), rows()), "or target for numbers to predict"),
    "parts": (table((*HEAD, "split"), with_parts("")), None),
    "a part that is none": (table((*HEAD, "split"), with_parts("holdout")), "split must be one of train, val, test"),
    "a header alone": (table(HEAD, []), "no record in it"),
    "nothing": ("", "empty; the first line must name the columns"),
    "a short line": (table(HEAD, [*rows(), ["c1", "ill", "1", "2", "3"]]), "5 values for 6 columns"),
}  # fmt: skip


def folder(place, sizes=(28,), counts=(12,), modes="L"):
    for kind in range(24):
        (place / f"k{kind}").mkdir(parents=True)
        for number in range(counts[kind % len(counts)]):
            size, mode = sizes[(kind + number) % len(sizes)], modes[number % len(modes)]
            pixels = DRAW.integers(0, 255, (size, size) if mode == "L" else (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"k{kind}/{number}.png")
    return place


def broken(place):
    (folder(place) / "k3/4.png").write_bytes(b"no image")


def with_notes(place):
    (folder(place, sizes=range(20, 29)) / "k0/notes.txt").write_text("notes")


FOLDERS = {
    "images of all sizes, and notes": (with_notes, None),
    "grey and colour images": (lambda place: folder(place, modes=("L", "RGB")), None),
    "classes of 2 to 12 images": (lambda place: folder(place, counts=range(2, 13)), "classes have too few"),
    "an empty folder": (lambda place: place.mkdir(), "a folder without classes"),
    "a broken image": (broken, "does not decode"),
}


def outcome(dpfedmeta, tmp_path, data, refusal):
    """Both commands agree; a run leaves its accuracy, and a refusal one line and no run."""
    checked = dpfedmeta("check-task", data, *SHAPE, code=2 if refusal else 0)
    words = ("--algo", "dp-agr", "--dataset", data, *SHAPE, "--rounds", 2, "--cohort", 3, "--noise-multiplier", 1,
             "--meta.steps", 2, "--run.workers", 1, "--run.dir", tmp_path / "runs", "--run.name", "run",
             "--evaluation.episodes", 4, "--evaluation.validation_episodes", 4)  # fmt: skip
    trained = dpfedmeta("train", *words, code=2 if refusal else 0)
    if refusal is None:
        assert "this run, adapted" in trained.out
        return
    assert refusal in trained.error
    assert refusal in " ".join((checked.out + checked.err).split())
    assert not (tmp_path / "runs").exists()


def cases(known):
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(*case, id=name, marks=marks[case[1] is not None]) for name, case in known.items()]


@pytest.mark.parametrize(("text", "refusal"), cases(TABLES))
def test_a_table_is_trained_on_or_refused_in_a_line(dpfedmeta, tmp_path, text, refusal):
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    outcome(dpfedmeta, tmp_path, path, refusal)


@pytest.mark.parametrize(("make", "refusal"), cases(FOLDERS))
def test_a_folder_is_trained_on_or_refused_in_a_line(dpfedmeta, tmp_path, make, refusal):
    make(tmp_path / "images")
    outcome(dpfedmeta, tmp_path, tmp_path / "images", refusal)


def test_a_second_run_over_the_same_people_is_said(dpfedmeta, tmp_path):
    """Not one over others, and nothing is said where nothing is promised."""
    labelled, other = tmp_path / "table.csv", tmp_path / "other.csv"
    for path in (labelled, other):
        path.write_text(table(HEAD, rows(size=30)))
    words = (*SHAPE, "--rounds", 1, "--cohort", 3, "--run.workers", 1, "--evaluation.episodes", 4,
             "--evaluation.validation_episodes", 4, "--algo")  # fmt: skip
    said = "2 runs in runs (a, c) trained on the same people; promises add up"
    private = ("dp-agr", "--noise-multiplier", 1)
    for name, data, more in (("a", labelled, private), ("b", other, private), ("c", labelled, ("maml",)),
                             ("d", labelled, (*private, "--dry-run")), ("d", labelled, private)):  # fmt: skip
        trained = dpfedmeta("train", "--dataset", data, *words, *more, "--run.name", name, folder=tmp_path)
        assert (said in trained.out.replace("\n", " ")) == (name == "d"), trained.out
