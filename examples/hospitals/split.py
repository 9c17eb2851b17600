"""Five hospitals on disk: the training classes of a benchmark dealt out as folders that no two of them share.

A hospital is good at some things: it holds all images of about a fifth of the classes, and none of the others.
Validation and test classes are public. The folders serve a simulation (`--dataset OUT/hospitals.yaml`) and real clients
alike (`federate.py client --data OUT/images/train/hospital-1`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool

# The data say who holds what, so somebody holds the public classes as well.
PUBLIC = {"val": "public-validation", "test": "public-test"}


def main(words: Sequence[str] | None = None) -> None:
    """Write the folders and their task files."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--dataset", default="cifar-fs", help="a benchmark of images (default: cifar-fs)")
    made.add_argument("--hospitals", type=int, default=5, help="how many (default: 5)")
    made.add_argument("--seed", type=int, default=0, help="who holds which classes (default: 0)")
    made.add_argument("--out", type=Path, default=Path("hospitals"), help="an empty or new folder (default: hospitals)")
    options = made.parse_args(words)
    held = write_hospitals(open_dataset(options.dataset), options.out, options.hospitals, options.seed)
    for name, classes in held.items():
        print(f"{name}: {len(classes)} classes: {', '.join(classes)}")


def write_hospitals(dataset: Dataset, out: Path, hospitals: int, seed: int) -> dict[str, list[str]]:
    """All images as PNG files; a task for all hospitals, one for each alone, one for all data in one place.

    Args:
        dataset: A benchmark of images.
        out: Where; nothing may be there yet.
        hospitals: How many.
        seed: Of the deal.

    Returns:
        Which classes each holds.
    """
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"error: {out}: there is something already; choose another --out")
    if not 2 <= hospitals <= dataset.train.classes:
        raise SystemExit(f"error: --hospitals {hospitals}: from 2 to {dataset.train.classes}, as many as classes")
    order = np.random.default_rng(seed).permutation(dataset.train.classes).tolist()
    dealt = {f"hospital-{n + 1}": sorted(order[n::hospitals]) for n in range(hospitals)}
    images, together = out / "images", out / "together"
    for name, indices in dealt.items():
        _write_classes(dataset.train, indices, images / "train" / name)
    for split, pool in (("val", dataset.val), ("test", dataset.test)):
        _write_classes(pool, range(pool.classes), images / split / PUBLIC[split])
    _write_task(dataset, images, out / "hospitals.yaml")
    for name in dealt:
        _link_parts(images, out / "alone" / name, [images / "train" / name])
        _write_task(dataset, out / "alone" / name, out / f"alone-{name}.yaml")
    _link_parts(images, together, [images / "train" / name for name in dealt])
    _write_task(dataset, together, out / "together.yaml")
    return {name: [dataset.train.names[index] for index in indices] for name, indices in dealt.items()}


def _write_classes(pool: ClassPool, indices: Sequence[int], folder: Path) -> None:
    for index in indices:
        inside = folder / Path(pool.names[index]).name
        inside.mkdir(parents=True)
        for place in range(pool.counts[index]):
            image = np.moveaxis(np.asarray(pool.images[pool.first[index] + place]), 0, -1)
            Image.fromarray(image.squeeze()).save(inside / f"{place:04d}.png", compress_level=1)


def _link_parts(images: Path, folder: Path, holders: Sequence[Path]) -> None:
    """The same files in the form train|val|test/CLASS/IMAGE: each class is a link."""
    parts = {"train": holders, "val": [images / "val" / PUBLIC["val"]], "test": [images / "test" / PUBLIC["test"]]}
    for split, sources in parts.items():
        (folder / split).mkdir(parents=True)
        for source in sources:
            for kind in sorted(source.iterdir()):
                (folder / split / kind.name).symlink_to(kind.resolve())


def _write_task(dataset: Dataset, folder: Path, path: Path) -> None:
    task = dataset.task
    content = {
        "name": path.stem,
        "source": {"reader": "folder", "path": str(folder.resolve())},
        "image_size": task.form.shape[1],
        "channels": task.form.shape[0],
        "train_flip": task.train_flip,
        "train_rotations": task.train_rotations,
        "mean": list(task.mean),
        "deviation": list(task.deviation),
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))


if __name__ == "__main__":
    main()
