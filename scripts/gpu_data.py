"""Data archives in pieces that fit into one transfer each: `gpu_data.py FOLDER .gpu` makes .gpu/data-1, data-2, ..."""

import sys
from pathlib import Path

# A transfer takes 64 MiB in all.
MOST = 50 * 2**20
DATASETS = ("cifar-fs", "mini-imagenet", "omniglot")


def main(source: Path, target: Path) -> None:
    """Each file in pieces FILE.part-NN, and the pieces in as few folders as hold them in their order."""
    number, room = 1, MOST
    for path in sorted(path for name in DATASETS for path in (source / name).glob("*") if path.is_file()):
        with path.open("rb") as whole:
            part = 0
            while True:
                if room < 2**20:
                    number, room = number + 1, MOST
                content = whole.read(room)
                if not content and part:
                    break
                place = target / f"data-{number}" / path.parent.name
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{path.name}.part-{part:02}").write_bytes(content)
                part, room = part + 1, room - len(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
