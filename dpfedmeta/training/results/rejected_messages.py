"""Messages that no honest client sends, set to 0: counted for the owner of the server, and for nobody else."""

from __future__ import annotations

import json

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, end_of_whole_lines
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines

LEFT_OUT = "left-out.jsonl"


def keep_left_out(run: RunDirectory, round_: int, messages: int) -> None:
    """SECRET: how many messages of a round were not of the model's form, not finite, or longer than an honest one.

    Guarantee:
        The count lies in the server's private folder and enters nothing that leaves it: it depends on the clients' data
        where their code does.
    """
    append_lines(run.secret / LEFT_OUT, [{"round": round_, "messages": messages}], SECRET)


def left_out(run: RunDirectory) -> dict[int, int]:
    """SECRET: messages that were left out, by round; of a round that was done again those of its last attempt.

    Raises:
        InputError: The file is damaged.
    """
    path = run.secret / LEFT_OUT
    if not path.exists():
        return {}
    content = path.read_bytes()
    try:
        lines = [json.loads(line) for line in content[: end_of_whole_lines(content)].decode().splitlines()]
        return {int(line["round"]): int(line["messages"]) for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f'{path}: damaged: a line is not {{"round": ..., "messages": ...}}') from error
