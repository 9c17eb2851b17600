"""Moments of tables: clients with rows of their own, shared labels, numbers to predict, classes of their own."""

import json
import re
import warnings

import numpy as np
import pytest
import torch
import yaml

import dpfedmeta as dp
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import load_weights
from dpfedmeta.learning.algorithms import moments
from dpfedmeta.learning.record_dp.closed_heads import NearbyLine, OwnClassMeans, PosteriorMeans
from dpfedmeta.planning.early_checks import check_first
from tests.conftest import dpfedmeta

ALGORITHMS = ("moments-agr", "moments-agrlr", "moments-agrlr-secure")
KINDS = {
    "labels": {"labels": ["healthy", "ill", "unsure"]},
    "numbers": {"kind": "regression", "targets": {"centre": 20, "scale": 8, "lowest": 0, "highest": 100}},
    "own": {},
    "own-cut": {},
}
FEW = {
    "task.shots": 2, "task.queries": 2, "evaluation.shots": 1, "evaluation.queries": 1, "evaluation.episodes": 2,
    "evaluation.validation_episodes": 2, "run.workers": 1,
}  # fmt: skip


def table_of(kind, folder, clients=6):
    """Ragged clients with a row of NaN, and made-up people for validation and test."""
    draws, column = np.random.default_rng(0), "target" if kind == "numbers" else "class"
    lines = [f"client,split,{column},x0,x1,x2,x3"]
    for name, split in [(f"c{number}", "train") for number in range(clients)] + [("v", "val"), ("t", "test")]:
        count = 24 if split != "train" else int(draws.integers(10, 40))
        for row in range(count):
            label, numbers = row % 3, draws.normal(size=4)
            numbers[label] += 2.0
            shown = {
                "labels": KINDS["labels"]["labels"][label],
                "numbers": f"{20 + 5 * label}",
                "own": f"{name}-{label}",
                "own-cut": f"{name}-{label}",
            }
            lines.append(",".join([name, split, shown[kind], *(f"{each:.3f}" for each in numbers)]))
    (folder / "people.csv").write_text("\n".join(lines))
    content = {"name": "people", "source": {"reader": "vectors", "path": "people.csv"}, "features": 4}
    (folder / "people.yaml").write_text(yaml.safe_dump(content | KINDS[kind]))
    return folder / "people.yaml"


def settings_of(kind, algo, folder, clients=6, **given):
    file = table_of(kind, folder, clients)
    more: dict[str, object] = {"task.ways": 2} if kind.startswith("own") else {}
    if kind == "own-cut":
        more |= {"meta.own.radius": 3, "model.name": "gaussian"}
    if algo == "moments-agrlr-secure" and kind.startswith("own"):
        more |= {"meta.own.scale": 30}  # So few clients could not draw their shares of the noise.
    if algo == "moments-agr":
        more |= {"privacy.client.delta": 1e-3}
    return dp.Settings.preset(algo, file, {**FEW, **more, **given, "run.dir": str(folder), "run.name": "run"})


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_preset_takes_a_table_as_it_is_and_its_run_verifies(kind, algo, tmp_path):
    run = dp.train(settings_of(kind, algo, tmp_path), quiet=True)
    assert all(
        torch.isfinite(value).all()
        for value in load_weights(tmp_path / "run" / "checkpoint" / "model.safetensors").values()
    )
    cells = {(cell["unit"], cell["observer"]): cell for cell in run.summary["guarantees"]}
    if "agrlr" in algo:
        assert cells["record", "server"]["epsilon"] == pytest.approx(2.5, abs=0.02)
        assert cells["record", "server"]["adjacency"] == "row-deleted"
        assert {"row-deleted", "row-exchanged", "zero-out"} <= {*cells["record", "server"]["relations"]}
    if "secure" in algo:
        # Any number of rows: nothing bounds a client as a whole.
        assert cells["client", "public"]["epsilon"] is None
        assert cells["client", "server"]["epsilon"] is None
    rng = np.random.default_rng(1)
    records = rng.normal(size=(12, 4)).astype(np.float32)
    labels = [0, 1, 0, 1] * 3 if kind != "numbers" else [20.0, 25.0, 30.0] * 4
    found = dp.load(tmp_path / "run").adapt(records, labels).predict(records)
    assert np.isfinite(np.asarray(found)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_client_judges_adapts_keeps_and_predicts_as_of_any_run(kind, tmp_path):
    """`evaluate --own-test` and `--on`, `run.adapt`, its file, and `predict` by the names of columns."""
    # With drawn noise so few records have fewer right answers now and then.
    given = {"population.own_test": 0.34, "run.noise_seed": 5}
    run = dp.train(settings_of(kind, "moments-agrlr-secure", tmp_path, **given), quiet=True)
    judged = dpfedmeta("evaluate", "run", "--own-test", folder=tmp_path).out
    found = json.loads((tmp_path / "run/secret/people-own-test.json").read_text())
    assert [each["name"] for each in found["clients"]] == [f"c{number}" for number in range(6)]
    assert "which did not" in found["protocol"]
    assert "no guarantee covers them" in judged
    head, *rows = (tmp_path / "people.csv").read_text().splitlines()
    new = [line for line in rows if line.startswith("t,")]
    (tmp_path / "new.csv").write_text("\n".join([head, *new]))
    given = {"labels": "accuracy", "numbers": "error"}.get(kind, "accuracy")
    assert given in dpfedmeta("evaluate", "run", "--on", "new.csv", "--repeats", "2", folder=tmp_path).out
    values = np.array([line.split(",")[3:] for line in new], dtype=np.float32)
    said = [line.split(",")[2] for line in new]
    names = sorted({*said})
    if kind == "numbers":
        model = run.adapt(values, [float(each) for each in said])
    elif kind == "labels":
        model = run.adapt(values, said)
    else:
        model = run.adapt(values, [names.index(each) for each in said], class_names=names)
    model.save(tmp_path / "personal.safetensors")
    told = json.loads(dpfedmeta("predict", "personal.safetensors", "new.csv", "--json", folder=tmp_path).out)
    predicted = [row["predicted"] for row in told["predictions"]]
    if kind == "numbers":
        assert predicted == pytest.approx(model.predict(values).tolist(), abs=1e-5)
        assert float(np.abs(np.array(predicted) - np.array(said, dtype=float)).mean()) < 6.0
    else:
        assert predicted == model.predict_names(values)
        # Three classes that are two deviations apart in one number each.
        assert np.mean([one == other for one, other in zip(predicted, said, strict=True)]) > 0.6


def test_another_unit_is_asked_about_wherever_a_model_meets_records(tmp_path):
    """`evaluate --on`, the command `predict`, `run.adapt` and predictions in Python."""
    settings = settings_of("labels", "moments-agrlr-secure", tmp_path)
    content = yaml.safe_load((tmp_path / "people.yaml").read_text())
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(content | {"mean": [0.7] * 4, "deviation": [1.2] * 4}))
    run = dp.train(settings, quiet=True)
    head, *rows = (tmp_path / "people.csv").read_text().splitlines()
    own = [line.split(",") for line in rows if line.startswith("t,")]
    grams = [[*line[:3], f"{1000 * float(line[3])}", *line[4:]] for line in own]
    for name, table, asked in (("own", own, False), ("grams", grams, True)):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *map(",".join, table)]))
        said = [line[2] for line in table]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            model = run.adapt(tmp_path / f"{name}.csv", said)
            adapted, _ = len(found), model.predict_names(tmp_path / f"{name}.csv")
        model.save(tmp_path / f"{name}.safetensors")
        told = [
            " ".join(str(each.message) for each in found[:adapted]),
            " ".join(str(each.message) for each in found[adapted:]),
            dpfedmeta("evaluate", "run", "--on", f"{name}.csv", "--repeats", "2", folder=tmp_path).err,
            dpfedmeta("predict", f"{name}.safetensors", f"{name}.csv", folder=tmp_path).err,
        ]
        assert [len(re.findall("column x0: .* another unit", " ".join(each.split()))) for each in told] == [asked] * 4


def test_nothing_is_promised_of_whole_clients_whose_rows_are_added_as_whole_numbers(tmp_path):
    given = {"privacy.client.epsilon": 8.0, "privacy.client.delta": 1e-3}
    with pytest.raises(RefusedPlan, match="nothing bounds a client as a whole"):
        dp.train(settings_of("labels", "moments-agrlr-secure", tmp_path, **given), quiet=True)


def test_four_hospitals_can_draw_the_noise_that_hides_a_record(tmp_path):
    """Before noise was solved for, as much of it was tried as hides a whole client, which nobody asked for."""
    promise = {"privacy.record.epsilon": 1.0, "privacy.record.delta": 1e-4}
    check_first(settings_of("labels", "moments-agrlr-secure", tmp_path, clients=4, **promise))


SUMS = "moments-agrlr-secure"
ALL: dict[str, object] = {"meta.own.directions": None}
ALONE: dict[str, object] = {"population.clients": 1, "population.cohort": 1}
CUT: dict[str, object] = {"meta.own.radius": 3}
SIX: dict[str, object] = {"population.cohort": 6}
FIXED: dict[str, object] = {"population.sampler": "fixed", **SIX}
# What everybody may know: kind of the labels, preset, most entries of a message, settings, and words of the one line.
REFUSED: dict[str, tuple[str, str, int, dict[str, object], str]] = {
    "directions": ("own", SUMS, 40, {"meta.own.directions": 4}, "41 entries .* most 40; give --meta.own.directions 3 "),
    "all columns": ("own", SUMS, 40, ALL, "41 entries .* give --meta.own.directions 3 or fewer"),
    "labels": ("labels", SUMS, 39, ALL, "40 entries .* uses all numbers of a record: leave columns out, down to 3"),
    "numbers": ("numbers", SUMS, 35, ALL, "36 entries .* down to 3"),
    "another network": ("own", SUMS, 41, CUT, "use --model.name gaussian"),
    "phases of cut records": (
        "own",
        "moments-then-gradients",
        41,
        {"meta.own.radius": 3, **SIX},
        "leave out meta.own.radius",
    ),
    "one client": ("labels", SUMS, 41, ALONE, "the sum of one client alone is its message"),
    "one of own labels": ("own", SUMS, 41, ALONE, "--algo moments-agrlr"),
    "fixed phases": ("own", "moments-then-gradients", 41, FIXED, "two phases whose cohorts have fixed sizes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_public_things_are_refused_in_one_line_before_anything_is_spent(case, tmp_path, monkeypatch):
    kind, algo, most, given, words = REFUSED[case]
    clients = 1 if given is ALONE else 6
    monkeypatch.setattr(moments, "MOST_ENTRIES", most)
    with pytest.raises((InputError, RefusedPlan), match=words) as refused:
        dp.train(settings_of(kind, algo, tmp_path, clients=clients, **given), quiet=True)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


# Rows beside those of a client, and what its owner hears of them; a column is of every row.
WRONG_ROWS = {
    "a class with one record": ("own", "a,train,lonely,1,2,3,4", "one record, which moments find no pair for: lonely"),
    "shared labels need no pair": ("labels", "a,train,unsure,1,2,3,4", None),
    "an unlisted label": ("labels", "a,train,strange,1,2,3,4", r"line 22: class 'strange': outside the task's public"),
    "no number": ("own", "a,train,a-1,nan,2,3,4", r"1 records are wrong and left out: .* line 22, number 1: nan"),
    "a constant column": ("own", None, r"one number in all records, which tell nothing: x0 \(7\)"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_the_owner_hears_of_rows_that_count_as_nothing_and_a_run_says_nothing(case, tmp_path, capsys):
    kind, row, words = WRONG_ROWS[case]
    file = table_of(kind, tmp_path)
    head, *rows = (tmp_path / "people.csv").read_text().splitlines()
    train = [f"a,{line.partition(',')[2]}" for line in rows if ",train," in line and "unsure" not in line][:20]
    if row is None:
        train = [",".join([*line.split(",")[:3], "7", *line.split(",")[4:]]) for line in train]
    (tmp_path / "people.csv").write_text("\n".join([head, *train, *([row] if row else [])]))
    told = dpfedmeta("check-task", str(file), "--client", "--ways", "2", "--shots", "1", "--task.queries", "1").out
    assert re.search(words, told) if words else "find no pair" not in told
    if case not in ("a class with one record", "a constant column"):
        return  # Simulations refuse the others, and real clients leave them out (federation/test_unsound_rows.py).
    (tmp_path / "people.csv").write_text("\n".join([head, *train, *([row] if row else []), *rows]))
    dp.train(dp.Settings.preset("moments-agrlr", file, {**FEW, "task.ways": 2, "run.dir": str(tmp_path)}), quiet=False)
    shown = capsys.readouterr()
    assert not re.search(words, shown.out + shown.err)


def head(*rows):
    means = torch.tensor(rows)
    return {"head.weight": means, "head.bias": torch.tensor([0.75, 0.25]).log() - means.square().sum(1) / 2.0}


def test_class_means_and_shares_move_towards_a_clients_own():
    own = torch.tensor([[3.0, 0.0], [5.0, 0.0]])
    found = PosteriorMeans(prior=2.0).start(head([0.0, 1.0], [1.0, 0.0]), lambda: own, torch.tensor([0, 0]), 2)
    torch.testing.assert_close(found["head.weight"], torch.tensor([[2.0, 0.5], [1.0, 0.0]]))
    shares = (found["head.bias"] + found["head.weight"].square().sum(1) / 2.0).exp()
    torch.testing.assert_close(shares, torch.tensor([(2 + 1.5) / 4, 0.5 / 4]))
    # A shift of all: a class without a record shifts with the others.
    shifts = PosteriorMeans(prior=2.0, shift=1.0)
    found = shifts.start(head([0.0, 1.0], [1.0, 0.0]), lambda: own, torch.tensor([0, 0]), 2)
    torch.testing.assert_close(found["head.weight"][1], torch.tensor([1.0, 0.0]) + torch.tensor([4.0, -1.0]) / 2.0)


def test_own_class_means_are_those_of_bayes():
    """By the density of a joint Gaussian of all records of a class, in one direction after the other."""
    variances, own, labels = [4.0, 0.25, 0.0], torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), [0, 1] * 3
    known = {"head.weight": torch.tensor(2 * [variances]), "head.bias": torch.zeros(2)}
    found = OwnClassMeans().start(known, lambda: own, torch.tensor(labels), 2)
    asked = torch.tensor([0.3, -1.2, 2.0])
    due = []
    for way in range(2):
        logs = 0.0
        for axis, variance in enumerate(variances):
            joint = torch.eye(4, dtype=torch.float64) + variance
            values = torch.cat([own[way::2, axis], asked[axis : axis + 1]]).double()
            gain = joint[3, :3] @ torch.linalg.inv(joint[:3, :3])
            left = joint[3, 3] - gain @ joint[:3, 3]
            logs += -0.5 * (values[3] - gain @ values[:3]) ** 2 / left
        due.append(logs)
    logits = found["head.weight"] @ asked + found["head.bias"]
    assert float(logits[0] - logits[1]) == pytest.approx(float(due[0] - due[1]), abs=1e-5)
    # Without a record all classes are alike, and one more than in training is too.
    nobody = OwnClassMeans().start(known, lambda: own[:0], torch.tensor([], dtype=torch.int64), 2)
    assert not any(bool(value.any()) for value in nobody.values())


def test_a_line_moves_towards_a_clients_own_numbers():
    known = {"head.weight": torch.tensor([[1.0]]), "head.bias": torch.tensor([0.0])}
    features = torch.linspace(-1.0, 1.0, 50)[:, None]
    numbers = 3.0 * features[:, 0] + 2.0
    near = NearbyLine(prior=1e9).start(known, lambda: features, numbers, 1)
    far = NearbyLine(prior=1e-6, shift=1e-6).start(known, lambda: features, numbers, 1)
    assert float(near["head.weight"]) == pytest.approx(1.0, abs=1e-5)
    assert (float(far["head.weight"]), float(far["head.bias"])) == pytest.approx((3.0, 2.0), abs=1e-4)
