"""Reading files: text as people save it (UTF-8, with or without a byte order mark), and digests."""

import hashlib
from pathlib import Path
from typing import TextIO

# How files begin that are no UTF-8, and what each is.
_NO_TEXT = {
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
    b"\x1f\x8b": "it is compressed by gzip, whatever its name says; unpack it (gunzip)",
    b"\xfd7zXZ": "it is compressed by xz; unpack it",
    b"\x28\xb5\x2f\xfd": "it is compressed by zstd; unpack it",
}
_LONGEST_BEGINNING = max(map(len, _NO_TEXT))
_UTF_8 = b"\xef\xbb\xbf"
_BLOCK = 1 << 20


class WrongEncoding(ValueError):
    """A file that is not UTF-8; says what to do."""


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark: it would be part of the first word.

    Raises:
        OSError: It cannot be read.
        WrongEncoding: It is not UTF-8.
    """
    return decoded(path.read_bytes())


def decoded(content: bytes) -> str:
    """The text of bytes, as `read_text`; line ends become one character.

    Raises:
        WrongEncoding: They are not UTF-8.
    """
    _check_beginning(content[:_LONGEST_BEGINNING])
    try:
        text = content.removeprefix(_UTF_8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongEncoding(f"it is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    # Files that were joined have a mark at each of their beginnings.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n\ufeff", "\n")


def read_lines(path: Path) -> list[str]:
    """The lines of a file in which each stands for somebody. They end in line feeds, and in nothing else.

    Raises:
        OSError: It cannot be read.
        WrongEncoding: It is not UTF-8, or carriage returns stand in it alone.
    """
    content = path.read_bytes()
    lines = decoded(content).split("\n")
    if b"\r" in content.replace(b"\r\n", b""):
        raise WrongEncoding("a carriage return stands in it without a line feed; end lines as Unix or Windows do")
    return lines[:-1] if lines[-1] == "" else lines


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """A file to be read line by line, as `read_text` reads a whole one; line ends stay, as csv wants them.

    Args:
        path: The file.
        errors: What becomes of single bytes that are not UTF-8, as in `open`.

    Raises:
        OSError: It cannot be read.
        WrongEncoding: It is UTF-16, or compressed. Other bytes that are not UTF-8 are an UnicodeDecodeError where they
            stand.
    """
    with path.open("rb") as file:
        _check_beginning(file.read(_LONGEST_BEGINNING))
    return path.open(encoding="utf-8-sig", errors=errors, newline="")


def _check_beginning(beginning: bytes) -> None:
    for mark, problem in _NO_TEXT.items():
        if beginning.startswith(mark):
            raise WrongEncoding(problem)


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
