"""Replies of Flower's nodes, decoded without trust: which client a node is, and the numbers that it sends.

A node's number follows from its key or its partition, since its id is another after each start. What the header of an
array claims is compared with what came. Flower's own decoder makes room for whatever a header claims (`numpy.load`),
and evaluates the header's text.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

Arrays = dict[str, npt.NDArray[Any]]

_MAGIC = b"\x93NUMPY"
# Bytes that state the length of the header, by the version of the format.
_LENGTHS = {1: 2, 2: 4, 3: 4}
_MOST_HEADER = 10_000
# As numpy writes it, in every version.
_HEADER = re.compile(
    rb"\{'descr': '([<|][fiub](?:1|2|4|8))', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,400})\), \} *\n"
)


def array_of(sent: Array) -> npt.NDArray[Any]:
    """Numbers that somebody else sent: a view of the bytes that came, so no more room is taken than these have.

    Raises:
        ValueError: They are no array of numbers in numpy's format, or more or fewer than their header claims.
    """
    content = sent.data
    if sent.stype != "numpy.ndarray" or content[:6] != _MAGIC or len(content) < 8 or content[6] not in _LENGTHS:
        raise ValueError("an array is not in numpy's format")
    start = 8 + _LENGTHS[content[6]]
    end = start + int.from_bytes(content[8:start], "little")
    found = _HEADER.fullmatch(content[start:end]) if end - start <= _MOST_HEADER else None
    if found is None:
        raise ValueError("the header of an array is not one that numpy writes for numbers")
    kind, shape = np.dtype(found[1].decode()), tuple(int(size) for size in found[3].split(b",") if size.strip())
    if math.prod(shape) * kind.itemsize != len(content) - end:
        raise ValueError(f"an array has {len(content) - end:,} bytes, and its header claims others")
    return np.frombuffer(content, dtype=kind, offset=end).reshape(shape, order="F" if found[2] == b"True" else "C")


def arrays_of(sent: ArrayRecord) -> Arrays:
    """All arrays of a record, by name (`array_of`).

    Raises:
        ValueError: One of them is not what its header claims.
    """
    return {name: array_of(value) for name, value in sent.items()}


def record_of_arrays(arrays: Arrays) -> ArrayRecord:
    """The record to send."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


# A question of this kind asks for the node's number, and the answer has it under the same key.
NUMBER = "dpfedmeta-client-number"
PARTITION = "partition-id"
# Flower starts a process for each question; a node that never answers must not hold up rounds for ever.
_SECONDS, _MOST_QUESTIONS = 60.0, 3


class NodeNumbers:
    """SECRET: which node is which client.

    With keys a number is the place of the node's key, and no other node can have it. Without them it is the partition
    that the node says: the first that is connected keeps it until it leaves.

    Args:
        clients: How many numbers there are.
        keys: Public keys of all nodes, as Flower compares them; empty: nodes are asked for their partition.
    """

    def __init__(self, clients: int, keys: Sequence[bytes] = ()) -> None:
        self._clients = clients
        self._place = {key: number for number, key in enumerate(keys)}
        self._said: dict[int, int | None] = {}  # by node
        self._tries: Counter[int] = Counter()
        self._held: dict[int, int] = {}  # node, by number

    def known(self, grid: Grid, kind: str) -> dict[int, int]:
        """Node of each client that is connected; nodes that were not met before are asked for their number.

        Args:
            grid: Flower's.
            kind: Type of the messages that the clients' app answers.
        """
        there = {node.node_id: node.public_key for node in grid.get_nodes()}
        new = sorted(there.keys() - self._said.keys())
        if self._place:
            self._said |= {node: self._place.get(there[node]) for node in new}
        elif new:
            self._ask(grid, kind, new)
        for node in sorted(there):
            number = self._said.get(node)
            if number is not None and self._held.get(number) not in there:
                self._held[number] = node
        return {number: node for number, node in sorted(self._held.items()) if node in there}

    def _ask(self, grid: Grid, kind: str, nodes: Iterable[int]) -> None:
        content = {node: RecordDict({"config": ConfigRecord({NUMBER: True})}) for node in nodes}
        questions = [Message(body, node, kind) for node, body in content.items()]
        for reply in grid.send_and_receive(questions, timeout=_SECONDS):
            node = reply.metadata.src_node_id
            if node in content:
                self._said[node] = self._number_in(reply)
        self._tries.update(node for node in content if node not in self._said)
        self._said |= {node: None for node, tries in self._tries.items() if tries >= _MOST_QUESTIONS}

    def _number_in(self, reply: Message) -> int | None:
        """Number that a node says; None where it says none of the plan's."""
        config = None if reply.has_error() else reply.content.config_records.get("config")
        said = None if config is None else config.get(NUMBER)
        return said if type(said) is int and 0 <= said < self._clients else None

    def number(self, node: int) -> int | None:
        """Number of a node; None for one that has none, or whose number another one holds."""
        number = self._said.get(node)
        return number if number is not None and self._held.get(number) == node else None


def said_number(message: Message, context: Context) -> Message | None:
    """Answer of a client that is asked for its number; None: it is asked something else."""
    if not any(NUMBER in config for config in message.content.config_records.values()):
        return None
    said = context.node_config.get(PARTITION)
    return Message(RecordDict({"config": ConfigRecord({NUMBER: said} if type(said) is int else {})}), reply_to=message)
