"""A row that is wrong, in whatever way and for whichever reader: the client goes on with all others, in a real home."""

import csv
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.sound_rows import any_rows
from dpfedmeta.federation.client.client import RealClient
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_home import claim
from dpfedmeta.federation.offers.signed_plan import sign_plan
from dpfedmeta.federation.wire_format import Attempt, Offer, Question, QuestionKind, Said
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from tests.federation.sessions import RUN
from tests.federation.silos import CLIENTS, MICRO, SMALL, private_key

LABELS = ("ill", "unsure", "well")
COLUMNS = ("age", "pulse")
MORE = {"task.shots": "6", "task.queries": "6", "population.max_participations": "null", "run.precision": "float32"}
VECTORS, TEXTS, IMAGES = {"model.name": "mlp"}, {"model.name": "text"}, {}
SERVER = Identity(private_key("server"))


def table(path, head, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def numbered(rows=60):
    """(label, values) of three labels; some rows stand there twice."""
    draws = np.random.default_rng(3)
    found = [(LABELS[number % 3], [*draws.normal(size=2).round(2).tolist()]) for number in range(rows - 2)]
    return [*found, *found[:2]]


def vectors(root):
    return table(root / "own.csv", ["class", *COLUMNS, "split"], [[label, *v, "train"] for label, v in numbered()])


def own_classes(root):
    return table(root / "own.csv", ["client", "class", *COLUMNS], [["ann", label, *v] for label, v in numbered()])


def numbers(root):
    return table(root / "own.csv", ["target", *COLUMNS], [[round(20 + 4 * v[0], 2), *v] for _, v in numbered()])


def arrays(root):
    save(root / "own.npz", [v for _, v in numbered()], classes=[label for label, _ in numbered()])
    return root / "own.npz"


def arrays_of_numbers(root):
    save(root / "own.npz", [v for _, v in numbered()], targets=[20 + v[0] for _, v in numbered()])
    return root / "own.npz"


def token_rows():
    draws = np.random.default_rng(4)
    return [(LABELS[number % 3], draws.integers(1, 9, 1 + number % 4).tolist()) for number in range(60)]


def tokens(root):
    return table(root / "own.csv", ["class", "tokens"], [[label, " ".join(map(str, v))] for label, v in token_rows()])


def arrays_of_tokens(root):
    rows = token_rows()
    save(root / "own.npz", [[*v, *[0] * (4 - len(v))] for _, v in rows], classes=[label for label, _ in rows])
    return root / "own.npz"


def image(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (12, 12), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def folder(root):
    for number in range(60):
        image(root / "own" / LABELS[number % 3] / f"{number}.png", number)
    return root / "own"


def divided(root):
    for number in range(60):
        image(root / "own" / "train" / LABELS[number % 3] / f"{number}.png", number)
    for part in ("val", "test"):
        image(root / "own" / part / "ill" / "0.png", 99)
    return root / "own"


def listing(root):
    folder(root)
    rows = [[f"own/{LABELS[number % 3]}/{number}.png", LABELS[number % 3]] for number in range(60)]
    return table(root / "own.csv", ["path", "class"], rows)


def save(path, records, **more):
    np.savez(path, records=np.asarray(records, dtype=np.float64), **{k: np.asarray(v) for k, v in more.items()})


def with_line(path, line):
    """One line more, as bytes, among the others."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:20], line, *lines[20:]]))


def extended(path, record, **more):
    held = dict(np.load(path))

    def among(array, new):
        return [*array.tolist()[:20], new, *array.tolist()[20:]]

    save(path, among(held["records"], record), **{name: among(held[name], more[name]) for name in more})


def _line(text):
    return lambda path: with_line(path, text if isinstance(text, bytes) else text.encode())


def _record(record, **more):
    return lambda path: extended(path, record, **more)


def _file(name, content=b"no image"):
    def made(path):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)

    return made


def linked_to_nothing(path):
    (path / "ill" / "gone.png").symlink_to(path / "nowhere.png")


def listed_too(label, name, content=b"no image"):
    def made(path):
        if content is not None:
            (path.parent / name).write_bytes(content)
        with_line(path, f"{name},{label}\n".encode())

    return made


LINES = {
    "too few fields": "ill,1\n",
    "too many fields": "ill,1,2,train,5,6\n",
    "a quote that does not end": 'ill,"1,2,train\n',
    "a stray quote": 'ill,"1"2,2,train\n',
    "not UTF-8": b"ill,1,2,train\xff\n",
}
NOT_NUMBERS = {
    "NaN": "ill,nan,2,train\n",
    "infinity": "ill,1,-inf,train\n",
    "a blank": "ill,,2,train\n",
    "a word": "ill,about 3,2,train\n",
    "a decimal comma": 'ill,"1,5",2,train\n',
    "beyond float32": "ill,1e39,2,train\n",
    "so large that it drowns others": "ill,20000,2,train\n",
}
LABELLED = {
    "a label that is not listed": "dead,1,2,train\n",
    "another spelling": "Ill,1,2,train\n",
    "no class": ",1,2,train\n",
    "a missing class": "NA,1,2,train\n",
}
SPLIT = {"a split that is none": "ill,1,2,trial\n", "no split": "ill,1,2,\n", "kept back": "ill,1,2,test\n"}
OWN = {
    "a second client": "bob,ill,1,2\n",
    "no client": ",ill,1,2\n",
    "a missing client": "NA,ill,1,2\n",
    "another spelling": "ann,Ill,1,2\n",
    "a negative class": "ann,-1,1,2\n",
    "a fraction": "ann,1.5,1,2\n",
    "a shortened class": "ann,1.23E+15,1,2\n",
    "NaN": "ann,ill,nan,2\n",
}
TARGETS = {
    "out of range": "61,1,2\n",
    "no number": "many,1,2\n",
    "NaN": "nan,1,2\n",
    "a blank": ",1,2\n",
    "NaN in a feature": "20,nan,2\n",
}
ARRAYS = {
    "NaN": _record([np.nan, 1.0], classes="ill"),
    "infinity": _record([np.inf, 1.0], classes="ill"),
    "so large that it drowns others": _record([2e4, 1.0], classes="ill"),
    "a label that is not listed": _record([1.0, 1.0], classes="dead"),
    "no class": _record([1.0, 1.0], classes=""),
}
TOKENS = {
    "outside the vocabulary": "ill,1 9\n",
    "too long": "ill,1 2 3 4 5\n",
    "none": "ill,\n",
    "no token": "ill,1 x\n",
    "a label that is not listed": "dead,1 2\n",
    "too few fields": "ill\n",
    "a quote that does not end": 'ill,"1 2\n',
}
FILES = {
    "does not decode": _file("ill/more.png"),
    "of a kind that is not read": _file("ill/more.heic"),
    "of such a kind, alone in its class": _file("rare/more.dcm"),
    "deeper": _file("ill/more/0.png"),
    "in another class": _file("rare/0.png"),
    "beside the classes": _file("0.png"),
    "as if a part": _file("test/ill/0.png"),
    "as if a part of more": _file("holdout/ill/0.png"),
    "in a class that looks like a part": _file("test/0.png"),
    "a link to nothing": linked_to_nothing,
}
WRONG = {
    vectors: {name: _line(text) for name, text in (LINES | NOT_NUMBERS | LABELLED | SPLIT).items()},
    own_classes: {name: _line(text) for name, text in OWN.items()},
    numbers: {name: _line(text) for name, text in TARGETS.items()},
    arrays: ARRAYS,
    arrays_of_numbers: {
        "out of range": _record([1.0, 1.0], targets=61.0),
        "NaN": _record([1.0, 1.0], targets=np.nan),
        "NaN in a feature": _record([np.nan, 1.0], targets=20.0),
    },
    tokens: {name: _line(text) for name, text in TOKENS.items()},
    arrays_of_tokens: {
        "outside the vocabulary": _record([9, 0, 0, 0], classes="ill"),
        "a fraction": _record([1.5, 0, 0, 0], classes="ill"),
        "none": _record([0, 0, 0, 0], classes="ill"),
        "NaN": _record([np.nan, 0, 0, 0], classes="ill"),
    },
    folder: FILES,
    divided: {
        "does not decode": _file("train/ill/more.png"),
        "deeper": _file("train/ill/more/0.png"),
        "beside the classes": _file("train/0.png"),
        "beside the parts": _file("ill/more.png"),
        "kept back": _file("val/ill/more.png"),
        "of a kind that is not read": _file("train/ill/more.heic"),
    },
    listing: {
        "does not decode": listed_too("ill", "more.png"),
        "of a kind that is not read": listed_too("ill", "more.heic"),
        "no such file": listed_too("ill", "gone.png", None),
        "no path": _line(",ill\n"),
        "a path that is too long": _line("x" * 5000 + ",ill\n"),
        "listed twice": _line("own/ill/0.png,ill\n"),
        "listed twice, in two classes": _line("own/ill/0.png,well\n"),
        "no class": _line("own/ill/0.png,\n"),
        "too few fields": _line("own/ill/0.png\n"),
        "not UTF-8": _line(b"own/\xe4.png,ill\n"),
    },
}
# Rows that are sound by themselves: they take part, or a class of one row comes to be.
SOUND = {
    (vectors, "no split"), (own_classes, "a second client"), (own_classes, "no client"),
    (own_classes, "a missing client"), (own_classes, "another spelling"), (listing, "listed twice"),
    (listing, "listed twice, in two classes"),
}  # fmt: skip
# Rows that are none of the client's part, and nothing is wrong with them.
UNTOLD = {
    (vectors, "kept back"), (folder, "as if a part"), (divided, "kept back"),
}  # fmt: skip
KINDS = {
    vectors: {"labels": [*LABELS]}, arrays: {"labels": [*LABELS]}, own_classes: {},
    numbers: {"kind": "regression"}, arrays_of_numbers: {"kind": "regression"},
    tokens: {"labels": [*LABELS]}, arrays_of_tokens: {"labels": [*LABELS]}, folder: {}, divided: {}, listing: {},
}  # fmt: skip
CASES = [(made, name) for made, wrong in WRONG.items() for name in wrong]


class Silent:
    """A source of noise that is none."""

    reproducible = True

    def generator(self, *keys):
        return self

    def normal(self, size):
        return np.zeros(size)

    def again(self, *keys):
        return self

    def of_clients(self, *keys):
        return self


class Home:
    """One client of one plan, whose data change."""

    def __init__(self, made, root):
        self.made, self.root, self.home = made, root, root / "home"
        root.mkdir(parents=True)
        self.path = made(root)
        shutil.copytree(root, root.with_name(f"{root.name}-kept"))
        self.plan, self.task, self.signed = planned(made, root)

    def restored(self):
        kept = self.root.with_name(f"{self.root.name}-kept")
        for name in ("own", "own.csv", "own.npz"):
            target = self.root / name
            if target.is_dir():
                shutil.rmtree(target)
            if (kept / name).is_dir():
                shutil.copytree(kept / name, target)
            elif (kept / name).exists():
                shutil.copy(kept / name, target)

    def message(self):
        """(sum in units of C_q, Counter of the records that are read, the log's lines) of the honest plan."""
        said = []
        party = RealClient(
            self.path, private_key(0), self.home / "ledger.jsonl", server=SERVER.public,
            promise=Promise(participations=10), say=said.append,
            claimed=lambda: claim(self.home, self.path, private_key(0)),
        )  # fmt: skip
        offer = Offer(number=0, signature=self.signed.signature, text=self.signed.text).encode()
        asked = Question(
            asked=QuestionKind.PLAN, attempt=Attempt(run=RUN, round=0, again=()), plan=self.signed.digest,
            recipient=Identity(private_key(0)).public, body=offer,
        )  # fmt: skip
        assert party.answer(asked.signed(SERVER))[6] == Said.ACCEPTED
        (joined,) = list[Any](party._joined.values())
        bound = 0.02
        weights = self.plan.algorithm.initial(self.plan.network, 0)
        model = self.plan.algorithm.learned(self.plan.network, weights)
        (sent,) = replace(joined.side, source=Silent()).sent(model, bound, 0, [0])
        held = Counter()
        if joined.why is None:
            images, places, names = joined.images.labelled()
            held.update((names[place], record.tobytes()) for record, place in zip(images, places, strict=True))
        return np.asarray(sent.cpu()).astype(float) * self.parts / bound, held, said

    @property
    def parts(self):
        return self.plan.privacy.record.query_records


def planned(made, root):
    content = {"name": "own", "source": {"reader": "vectors", "path": "public.csv"}} | KINDS[made]
    given = SMALL | MICRO | MORE
    public = root / "public"
    public.mkdir()
    if made in (folder, divided, listing):
        for part in ("train", "val", "test"):
            for number in range(12):
                image(public / "images" / part / f"{part}er" / "abc"[number % 3] / f"{number}.png", number)
        content |= {"source": {"reader": "folder", "path": "images"}, "image_size": 12, "channels": 1}
    elif made in (tokens, arrays_of_tokens):
        content |= {"source": {"reader": "tokens", "path": "public.csv"}, "length": 4, "vocabulary": 9}
        given |= TEXTS
        rows = [[f"{part}er", part, label, "1 2"] for part in ("train", "val", "test") for label in LABELS * 20]
        table(public / "public.csv", ["client", "split", "class", "tokens"], rows)
    else:
        given |= VECTORS
        content["features"] = 2
        what = "class"
        if "kind" in content:
            given |= {"task.ways": "1"}
            content["targets"], what = {"centre": 20, "scale": 4, "lowest": 0, "highest": 60}, "target"
        rows = [
            [f"{part}er", part, 1 if what == "target" else label, 1, 2]
            for part in ("train", "val", "test")
            for label in LABELS * 20
        ]
        table(public / "public.csv", ["client", "split", what, *COLUMNS], rows)
    (public / "task.yaml").write_text(yaml.safe_dump(content))
    settings = resolve("dp-agrlr-micro", str(public / "task.yaml"), command_line=given)
    task, _ = load_task(settings.dataset, None)
    plan = make_plan(settings, task)
    roster = tuple(Identity(private_key(number)).public for number in range(CLIENTS))
    return plan, task, sign_plan(plan, task, run=RUN, server=SERVER, roster=roster)


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Of each reader, with the message without a wrong row."""
    made_so_far = {}

    def home_of(made):
        if made not in made_so_far:
            home = Home(made, tmp_path_factory.mktemp("rows") / made.__name__)
            made_so_far[made] = (home, home.message())
        home, before = made_so_far[made]
        home.restored()
        return home, before

    return home_of


@pytest.mark.parametrize(("made", "name"), CASES, ids=[f"{made.__name__}: {name}" for made, name in CASES])
def test_one_wrong_row_moves_one_part_and_no_other_row(homes, made, name):
    home, (before, rows, quiet) = homes(made)
    WRONG[made][name](home.path)
    after, others, said = home.message()
    moved = float(np.linalg.norm(after - before))
    assert moved <= 2 + 1e-6
    assert rows <= others
    assert sum((others - rows).values()) == ((made, name) in SOUND)
    if (made, name) not in SOUND:
        assert moved == 0
    # The owner hears of it, and of sound rows nothing.
    told = [line for line in said if "are wrong and left out" in line]
    assert bool(told) == ((made, name) not in SOUND | UNTOLD)
    assert not any("null records" in line for line in quiet)
    assert home.parts > 4
    assert np.linalg.norm(before) > 0.1


def test_a_line_is_a_row_and_names_of_columns_may_go_over_several(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text('\n\nclass,"blood\npressure"\nill,1\n\n,\nwell,"2"\nwell,"3\nill,4\n')
    found = any_rows(path)
    assert [(row.label, row.place, [*value]) for row, value in zip(found.rows, found.values, strict=True)] == [
        ("ill", "line 5", [1.0]),
        ("well", "line 8", [2.0]),
        ("ill", "line 10", [4.0]),
    ]
    assert found.unsound == ("line 9: no line of CSV in UTF-8 (unexpected end of data)",)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_rows_that_are_read_together_are_judged_alone(tmp_path, count):
    """Whatever stands beside them, in the order of the file."""
    draws = np.random.default_rng(count)
    wrong = draws.random(count) < 0.2
    lines = [["ill", "x" if odd else number] for number, odd in enumerate(wrong)]
    path = table(tmp_path / "own.csv", ["class", "age"], [*lines, ["ill", count]])
    found = any_rows(path)
    kept = [number for number in range(count) if not wrong[number]]
    assert [[*value] for value in found.values] == [[number] for number in [*kept, count]]
    assert len(found.unsound) == wrong.sum()
