import collections
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage.safe_pickle import forget_pages, load_pickle, load_plain

DATA = {
    "image_data": np.arange(2 << 20, dtype=np.uint32).astype(np.uint8).reshape(128, 128, 128),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "big endian": np.arange(5, dtype=">i4"),
    "class_dict": collections.OrderedDict(n01=[0, 1, 2], n02=np.arange(3, 6)),
    "nested": [(1, {"deep": np.ones(2, dtype=np.float32)}), "text", None, True, 2.5, {1, 2}],
    b"bytes": b"\x00\xff" * 10,
    "number": np.int64(7),
}


def assert_same(found, expected):
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        for one, two in zip(found, expected, strict=True):
            assert_same(one, two)
    else:
        assert found == expected


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("of", [Path, bytes])
def test_data_comes_back(tmp_path, protocol, of):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(DATA, protocol=protocol))
    assert_same(load_plain(path if of is Path else path.read_bytes()), DATA)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_long_arrays_are_mapped_and_not_read(tmp_path, protocol):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(DATA, protocol=protocol))
    images = load_plain(path)["image_data"]
    base = images
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    forget_pages(images)
    assert np.array_equal(images, DATA["image_data"])


def python_2(array, key="data"):
    """What Python 2 wrote: byte strings for text and for the content of arrays."""
    content = array.tobytes()
    return b"".join(
        [
            b"\x80\x02}U", bytes([len(key)]), key.encode(), b"cnumpy.core.multiarray\n_reconstruct\n",
            b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01(", *(b"J" + struct.pack("<i", n) for n in array.shape),
            b"tcnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", len(content)), content, b"tbs.",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("side", [10, 1100])
def test_pickles_of_python_2(tmp_path, side):
    array = np.random.default_rng(0).integers(0, 256, size=(side, side), dtype=np.uint8)
    path = tmp_path / "old.pkl"
    path.write_bytes(python_2(array))
    assert pickle.loads(python_2(array), encoding="latin1")["data"].shape == array.shape
    assert_same(load_plain(path), {"data": array})


class Attack:
    """Leaves a mark where it is executed."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (os.system, "posix.system"),
        (eval, "builtins.eval"),
        (exec, "builtins.exec"),
        (getattr, "builtins.getattr"),
        (io.open, "io.open"),
        (np.load, "numpy.load"),
        (pickle.loads, "_pickle.loads"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_with_code_in_it_is_refused_in_one_line_and_nothing_runs(tmp_path, call, name, protocol):
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps({"data": [Attack(call, f"touch {tmp_path}/mark")]}, protocol=protocol))
    with pytest.raises(InputError, match="code and not data") as caught:
        load_pickle(path, "bad.pkl")
    assert str(caught.value).startswith("bad.pkl: not read, nothing of it was executed")
    assert "\n" not in str(caught.value)
    assert name.split(".")[1] in str(caught.value)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x82\x01.",
        b"P1\n.",
        # State for a stand-in's class, which would change it for the next pickle.
        b"cnumpy\nndarray\n(dS'parts'\nI1\nsb.",
        b"cbuiltins\ndict\n}b.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
    ],
)
def test_other_ways_to_code_are_refused(program):
    with pytest.raises(pickle.UnpicklingError):
        load_plain(program)
    assert_same(load_plain(pickle.dumps(DATA["fortran"])), DATA["fortran"])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
@pytest.mark.parametrize("protocol", [2, 3, 5])
def test_a_cut_off_pickle_is_damaged(tmp_path, share, protocol):
    content = pickle.dumps(DATA, protocol=protocol)
    path = tmp_path / "cut.pkl"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(pickle.UnpicklingError):
        load_plain(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x80\x04.", b"]" * 5 + b"0" * 9 + b".", b"\x80\x05\x96" + b"\xff" * 8]
)
def test_noise_is_damaged(content):
    with pytest.raises(pickle.UnpicklingError):
        load_plain(content)


@pytest.mark.parametrize("array", [np.array([{}], dtype=object), np.array(["text"])])
def test_arrays_of_anything_but_numbers_are_refused(array):
    with pytest.raises(pickle.UnpicklingError, match="not of numbers"):
        load_plain(pickle.dumps(array))


def test_an_absent_file_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_pickle(tmp_path / "absent.pkl", "absent.pkl")


@pytest.mark.parametrize("page", [b"<!DOCTYPE html>\n<html>", b"\n <html lang='en'>", b"\xef\xbb\xbf<!doctype HTML>"])
@pytest.mark.parametrize("as_file", [True, False])
def test_a_web_page_that_was_saved_as_a_pickle_is_named(tmp_path, page, as_file):
    path = tmp_path / "cache.pkl"
    path.write_bytes(page)
    with pytest.raises(InputError, match=r"cache\.pkl: a web page, not the file.*fetch it by hand"):
        load_pickle(path if as_file else page, "cache.pkl")
