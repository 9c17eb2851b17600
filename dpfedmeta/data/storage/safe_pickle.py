"""Pickles as data: containers, numbers, text and numpy arrays, and nothing that could run.

A pickle is a program. Here its machine knows no function of Python at all: the few names that a pickled numpy array
mentions are bound to stand-ins which note down shape, type and bytes, and any other name is refused. Long byte strings
are not read but located, so the arrays of a gigabyte cache are mapped from the file.
"""

import io
import mmap
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from dpfedmeta.core.errors import InputError

# Shorter byte strings are simply read.
_LONG = 1 << 20
_KINDS = "biuf"


@dataclass(frozen=True)
class _Located:
    """A long byte string in the file."""

    offset: int
    length: int


class _Kind:
    """Placeholder for a numpy.dtype while a pickle is read."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name if isinstance(name, str) else bytes(name).decode("ascii")
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if isinstance(state[1], str) else bytes(state[1]).decode("ascii")

    def dtype(self) -> np.dtype[Any]:
        kind = np.dtype(self.name)
        if kind.kind not in _KINDS:
            raise pickle.UnpicklingError(f"an array of {kind}, not of numbers")
        return np.dtype(self.order + kind.str[1:]) if self.order in ("<", ">") else kind


class _Array:
    """Placeholder for a numpy.ndarray until the whole pickle is read."""

    def __init__(self, *_: Any) -> None:
        self.parts: tuple[Any, _Kind, Any, bool] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.parts = (shape, kind, content, bool(fortran))


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.parts = (shape, kind, content, order == "F")
    return array


def _scalar(kind: Any, content: Any) -> Any:
    return np.frombuffer(_as_bytes(content), dtype=kind.dtype())[0].item()


def _encode(text: Any, *_: Any) -> Any:
    """Python 3 writes bytes into old protocols as text in latin-1, to be encoded again."""
    return text if isinstance(text, _Located) else text.encode("latin-1")


def _as_bytes(content: Any) -> bytes:
    # Python 2 wrote byte strings, which arrive as text in latin-1.
    return content.encode("latin-1") if isinstance(content, str) else bytes(content)


_NUMPY: dict[str, Callable[..., Any]] = {"ndarray": _Array, "dtype": _Kind}
_RECONSTRUCT: dict[str, Callable[..., Any]] = {"_reconstruct": _Array, "scalar": _scalar}
_BUILTINS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in (list, dict, set, frozenset)}
_KNOWN: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": _NUMPY,
    "numpy.core.multiarray": _RECONSTRUCT,
    "numpy._core.multiarray": _RECONSTRUCT,
    "numpy.core.numeric": {"_frombuffer": _from_buffer},
    "numpy._core.numeric": {"_frombuffer": _from_buffer},
    "_codecs": {"encode": _encode},
    "collections": {"OrderedDict": OrderedDict},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
}
_PYTHON_UNPICKLER: Any = pickle._Unpickler  # the machine in Python: its steps can be replaced


class _PlainUnpickler(_PYTHON_UNPICKLER):  # type: ignore[misc]
    """Binds the names of numpy arrays to stand-ins, refuses all others, locates long byte strings."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_PYTHON_UNPICKLER.dispatch)

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin-1", fix_imports=False)
        self.source, self.size = file, size

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module][name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is code and not data") from None

    def locate(self, form: str, ordinary: Callable[[Any], None]) -> None:
        """Push a long string's place instead of the string."""
        if self._unframer.current_frame is not None:
            # Writers keep long strings out of frames.
            ordinary(self)
            return
        start = self.source.tell()
        (length,) = struct.unpack(form, self.read(struct.calcsize(form)))
        if length < _LONG:
            self.source.seek(start)
            ordinary(self)
            return
        offset = self.source.tell()
        if offset + length > self.size:
            raise EOFError("a byte string reaches beyond the end of the file")
        self.source.seek(length, io.SEEK_CUR)
        self.append(_Located(offset, length))

    def build(self) -> None:
        """Set the state of an array or type; of anything else, a function for one, there is none to set."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Kind):
            raise pickle.UnpicklingError("it sets the state of an object that is not an array")
        self.stack[-1].__setstate__(state)


def _locating(code: bytes, form: str) -> None:
    ordinary = _PlainUnpickler.dispatch[code[0]]
    _PlainUnpickler.dispatch[code[0]] = lambda machine: machine.locate(form, ordinary)


_PlainUnpickler.dispatch[pickle.BUILD[0]] = _PlainUnpickler.build
# Names by number, names from outside, and classes of old: no array needs them.
for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID, pickle.INST, pickle.OBJ):
    del _PlainUnpickler.dispatch[_code[0]]
for _code, _form in (
    (pickle.BINSTRING, "<i"),
    (pickle.BINBYTES, "<I"),
    (pickle.BINBYTES8, "<Q"),
    (pickle.BYTEARRAY8, "<Q"),
):
    _locating(_code, _form)


def load_plain(source: Path | bytes) -> Any:
    """The data in a pickle; its numpy arrays are read-only and, where they are long, mapped from the file.

    Args:
        source: A file, or what was in one. Pickles of Python 2 and 3, of numpy 1 and 2.

    Raises:
        pickle.UnpicklingError: It asks for something else than data, or is damaged.
        OSError: The file cannot be read.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    opened: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
    with opened as file:
        try:
            return _plain(_PlainUnpickler(file, size).load(), source)
        except pickle.UnpicklingError:
            raise
        # A damaged pickle can make the machine stumble in any of these ways.
        except (EOFError, LookupError, TypeError, ValueError, AttributeError, AssertionError, struct.error) as error:
            raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__}: {error})") from error
        except (RecursionError, MemoryError, OverflowError) as error:
            raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__})") from error


def load_pickle(source: Path | bytes, where: str) -> Any:
    """`load_plain` with errors for the person who gave the file.

    Raises:
        InputError: It cannot be read, is damaged, or contains code.
    """
    try:
        return load_plain(source)
    except pickle.UnpicklingError as error:
        if _is_page(source):
            raise InputError(
                f"{where}: a web page, not the file: the download gave a page to log in or to confirm; fetch it by hand"
            ) from error
        raise InputError(f"{where}: not read, nothing of it was executed: {error}") from error
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror})") from error


def _is_page(source: Path | bytes) -> bool:
    """Return whether a file is an HTML or XML page: a download that needs a log-in often gives one."""
    if isinstance(source, bytes):
        beginning = source[:512]
    else:
        with source.open("rb") as file:
            beginning = file.read(512)
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml"))


def _plain(value: Any, source: Path | bytes) -> Any:
    """Stand-ins replaced by arrays, in containers of any depth."""
    if isinstance(value, _Array):
        return _array(value, source)
    if isinstance(value, _Located):
        return _content(value, source).tobytes()
    if isinstance(value, dict):
        return {_plain(key, source): _plain(entry, source) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        # Most lists are long and flat.
        if not any(isinstance(entry, _Array | _Located | dict | list | tuple) for entry in value):
            return value
        return type(value)(_plain(entry, source) for entry in value)
    return value


def _array(array: _Array, source: Path | bytes) -> Any:
    if array.parts is None:
        raise pickle.UnpicklingError("an array without content")
    shape, kind, content, fortran = array.parts
    dtype = kind.dtype() if isinstance(kind, _Kind) else None
    if dtype is None or isinstance(content, list):
        raise pickle.UnpicklingError("an array of objects, not of numbers")
    if isinstance(content, _Located):
        flat = _content(content, source).view(dtype)
    else:
        flat = np.frombuffer(_as_bytes(content), dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _content(place: _Located, source: Path | bytes) -> Any:
    if isinstance(source, bytes):
        return np.frombuffer(source, dtype=np.uint8, count=place.length, offset=place.offset)
    return np.memmap(source, dtype=np.uint8, mode="r", offset=place.offset, shape=(place.length,))


def forget_pages(array: Any) -> None:
    """Give back the memory of a mapped array's pages, which are read again when they are needed again."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
