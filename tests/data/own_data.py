"""Small data sets of one's own, as files."""

import csv
import json
import re
from dataclasses import asdict

import numpy as np
import yaml
from PIL import Image

from dpfedmeta.data.populations.population_statement import PopulationStatement


def read_back(statement):
    """The statement as a verifier reads it from a ledger; its sentence is made anew."""
    found = PopulationStatement(**json.loads(json.dumps(asdict(statement))))
    assert found.text == json.loads(json.dumps(statement.as_json()))["text"] == statement.text
    assert not re.search("[{}]", found.text)
    return found


def write_image(path, seed, *, size=12):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_clients(root, clients, classes=3, images=4):
    """CLIENT/CLASS/IMAGE; all clients have classes of the same names."""
    for number, client in enumerate(clients):
        for label in range(classes):
            for image in range(images):
                write_image(root / client / f"class{label}" / f"{image}.png", number * 1000 + label * 50 + image)
    return root


def write_csv(path, rows, *, begin=""):
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(begin)
        csv.writer(file).writerows(rows)
    return path


def vector_rows(classes=9, records=6, features=5, seed=0):
    """A header and rows around a centre of each class's own."""
    generator = np.random.default_rng(seed)
    rows = [["class", *(f"x{number}" for number in range(features))]]
    for label in range(classes):
        centre = generator.normal(size=features)
        noise = generator.normal(size=(records, features))
        rows += [[f"c{label}", *row] for row in np.round(centre + 0.3 * noise, 4).tolist()]
    return rows


def token_rows(classes=9, records=6, length=8, vocabulary=40, seed=0):
    """A header and rows of tokens, half of them of the class's own."""
    generator = np.random.default_rng(seed)
    rows = [["class", "tokens"]]
    for label in range(classes):
        own = generator.integers(1, vocabulary, 3)
        for _ in range(records):
            every = np.concatenate([generator.choice(own, 3), generator.integers(1, vocabulary, length - 4)])
            rows.append([f"c{label}", " ".join(map(str, every))])
    return rows


def write_task(path, reader, data, **keys):
    path.write_text(yaml.safe_dump({"name": path.stem, "source": {"reader": reader, "path": data}, **keys}))
    return path


SMALL = json.loads('{"task.ways": 3, "task.shots": 2, "task.queries": 1, "evaluation.queries": 2}')


class Named:
    """A table or a series as pandas has them, as far as readers look."""

    def __init__(self, values, columns=None, index=None):
        self.values = np.asarray(values)
        self.index = list(range(len(self.values)) if index is None else index)
        if columns is not None:
            self.columns = list(columns)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.columns if hasattr(self, "columns") else self.values.tolist())

    def __getitem__(self, name):
        return Named(self.values[:, self.columns.index(name)], index=self.index)

    def to_numpy(self):
        return self.values
