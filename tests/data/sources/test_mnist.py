import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.sources import mnist


def idx(path, array, magic):
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0))
    return path


def half(folder, constants, count, seed):
    """A small half of MNIST in the folder, and the constants that describe it."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
    labels = generator.permutation(np.arange(count) % 10)
    files = {}
    for name, array, magic in (("images", images, 2051), ("labels", labels, 2049)):
        archive = getattr(constants, name)
        content = idx(folder / archive.file, array, magic).read_bytes()
        digest = f"md5:{hashlib.md5(content).hexdigest()}"
        files[name] = replace(archive, size=len(content), digests=(digest,), url=None)
    return replace(constants, count=count, **files), images, labels


@pytest.fixture
def small(tmp_path, monkeypatch):
    folder = tmp_path / "mnist"
    folder.mkdir()
    train, images, labels = half(folder, mnist.TRAIN, 60, 0)
    test, _, _ = half(folder, mnist.TEST, 20, 1)
    monkeypatch.setattr(mnist, "TRAIN", train)
    monkeypatch.setattr(mnist, "TEST", test)
    return tmp_path, images, labels


def test_both_halves_sorted_by_digit(small):
    folder, images, labels = small
    opened = mnist.open_mnist(folder)
    assert opened.train.images.shape == (60, 1, 28, 28)
    assert opened.test.images.shape == (20, 1, 28, 28)
    assert isinstance(opened.train.images, np.memmap)
    assert opened.train.labels.tolist() == sorted(labels.tolist())
    assert np.array_equal(opened.train.images[:, 0], images[np.argsort(labels, kind="stable")])
    assert opened.train.pool.names == tuple("0123456789")
    assert opened.train.pool.path != opened.test.pool.path
    assert mnist.open_mnist(folder) == opened


def test_the_pool_makes_episodes(small):
    pool = mnist.open_mnist(small[0]).train.pool
    episode = draw_episode(pool, np.random.default_rng(0), EpisodeShape(ways=3, shots=2, queries=1))
    assert episode.support_images.shape == (6, 1, 28, 28)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-40], r"bytes, the published file has \d+; fetch it again"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "checksum is not that of the published file"),
    ],
)
def test_size_and_checksum_are_checked(small, damage, reason):
    path = small[0] / "mnist" / mnist.TRAIN.images.file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=reason) as caught:
        mnist.open_mnist(small[0])
    assert path.name in str(caught.value)


def test_files_of_another_kind_are_refused(tmp_path):
    path = idx(tmp_path / "labels.gz", np.zeros(3), 2049)
    with pytest.raises(InputError, match="starts with 2051 is expected, this one starts with 2049"):
        mnist.read_idx(path, 2051)
    for content in (
        b"",
        b"no gzip",
        path.read_bytes()[:-3],
        gzip.compress(b"\0\0"),
        gzip.compress(b"\0\0\x08\x01" * 2),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable IDX file"):
            mnist.read_idx(path, 2049)


def test_an_absent_file_says_where_to_put_it(small):
    (small[0] / "mnist" / mnist.TEST.labels.file).unlink()
    with pytest.raises(InputError, match=r"put t10k-labels-idx1-ubyte\.gz into"):
        mnist.open_mnist(small[0])


@pytest.mark.data
def test_the_published_files(data_folder):
    opened = mnist.open_mnist(data_folder)
    assert opened.train.images.shape == (60_000, 1, 28, 28)
    assert opened.test.images.shape == (10_000, 1, 28, 28)
    assert opened.train.pool.counts == (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    assert np.bincount(opened.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_images_of_a_digit_are_for_clients_or_public_and_none_is_both(tmp_path):
    """Validation images are seen by everybody: one of a client among them would have no guarantee."""
    counts = tuple(5000 + 3 * digit + 1 for digit in range(10))
    first = tuple(sum(counts[:digit]) for digit in range(10))
    names = tuple("0123456789")
    train, test = (
        mnist.MnistHalf(pool=ClassPool(path=tmp_path / name, names=names, first=first, counts=counts))
        for name in ("train", "test")
    )
    pools = mnist.three_ways(mnist.Mnist(train=train, test=test))
    assert pools["test"] is test.pool
    for split in ("train", "val"):
        assert (pools[split].path, pools[split].names) == (train.pool.path, names)
    for digit, (begin, count) in enumerate(zip(first, counts, strict=True)):
        clients, public = (
            range(pools[split].first[digit], pools[split].first[digit] + pools[split].counts[digit])
            for split in ("train", "val")
        )
        assert clients == range(begin, begin + 5000)
        assert public == range(begin + 5000, begin + count)
