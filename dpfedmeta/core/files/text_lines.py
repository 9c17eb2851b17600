"""Lines of a text file in which each line is somebody, whatever characters people put into it."""

from pathlib import Path

from dpfedmeta.core.files.read_files import WrongEncoding, decoded


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
