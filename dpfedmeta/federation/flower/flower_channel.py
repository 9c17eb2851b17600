"""The server's view of the wire, over Flower: a Channel on a Grid, and the Grid of a SuperLink in the same process."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dpfedmeta.federation.flower.flower_environment import FIELD, KIND, MOST_BYTES, RECORD
from dpfedmeta.federation.flower.superlink import Link

# Between two looks for clients that have gone: each reads the messages to all of them.
_SCAN_SECONDS = 0.5
# For each client that is asked, between two looks for what arrived: 500 of them are looked at ten times a second.
_BATCH_SECONDS = 0.0002


class FlowerChannel:
    """A Channel (see channel.py) over a Grid of Flower.

    Args:
        grid: Flower's, of a SuperLink here (`LinkGrid`) or elsewhere (that of a ServerApp).
        nodes: Number of the node of each identity, at this moment: nodes of a SuperLink elsewhere come and go.
        most_bytes: A longer answer is dropped.
        finish: Called by `close`.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Mapping[bytes, int]],
        *,
        most_bytes: int = MOST_BYTES,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._grid, self._nodes, self._most, self._finish = grid, nodes, most_bytes, finish

    def present(self) -> tuple[bytes, ...]:
        """Identities of those whose heartbeats arrive, in the order of the roster."""
        online = set(self._grid.get_node_ids())
        return tuple(identity for identity, node in self._nodes().items() if node in online)

    def ask(self, questions: Mapping[bytes, bytes], seconds: float) -> Mapping[bytes, bytes]:
        """Send the questions and return the answers that come back in time (see channel.py)."""
        nodes = self._nodes()
        asked = {nodes[identity]: identity for identity in questions if identity in nodes}
        ttl = max(float(seconds), 1.0) + 1.0
        messages = [_question(node, questions[identity], ttl) for node, identity in asked.items()]
        if not messages:
            return {}
        answers = {}
        for reply in self._grid.send_and_receive(messages, timeout=seconds):
            identity, content = asked.get(reply.metadata.src_node_id), content_of(reply)
            if identity is not None and content is not None and len(content) <= self._most:
                answers[identity] = content
        return answers

    def close(self) -> None:
        """Give back what the wire holds."""
        self._finish()


def _question(node: int, content: bytes, ttl: float) -> Message:
    return Message(record_of(content), node, KIND, ttl=ttl)


def record_of(content: bytes) -> RecordDict:
    """A message's bytes in Flower's words."""
    return RecordDict({RECORD: ConfigRecord({FIELD: content})})


def content_of(message: Message) -> bytes | None:
    """A message's bytes; None where it holds none."""
    if not message.has_content():
        return None
    record = message.content.config_records.get(RECORD)
    content = record.get(FIELD) if record is not None else None
    return content if isinstance(content, bytes) else None


def link_channel(link: Link, *, most_bytes: int = MOST_BYTES) -> FlowerChannel:
    """A Channel over a SuperLink of this process; closing it closes both."""
    return FlowerChannel(LinkGrid(link), lambda: link.nodes, most_bytes=most_bytes, finish=link.close)


class LinkGrid(Grid):
    """Flower's Grid on the state of a SuperLink in this process; Flower's own for this sends no objects.

    Args:
        link: The SuperLink.
    """

    def __init__(self, link: Link) -> None:
        self._link, self._state, self._objects = link, link.state, link.state.object_store
        # Flower's messages name the app that this process runs; `push_messages` names the run of this link.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = link.run, link.task, SUPERLINK_NODE_ID

    @property
    def run(self) -> Run:
        """Flower's run."""
        return self._state.get_run_info(run_ids=[self._link.run])[0]

    def set_run(self, run: Run) -> None:
        """There is one."""

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the nodes whose heartbeats arrive."""
        return self._state.get_nodes(self._link.run)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Leave messages for their nodes; numbers of those that were left."""
        sent = []
        for message in messages:
            message.metadata.__dict__.update(_run_id=self._link.run, _src_node_id=SUPERLINK_NODE_ID)
            with no_object_id_recompute():
                message.metadata.__dict__["_message_id"] = message.object_id
                parts, tree = get_all_nested_objects(message), get_object_tree(message)
            session = self._state.start_session(self._link.run)
            stored, missing = self._state.store_message_and_object_tree(message, tree, session)
            for name in missing if stored else ():
                self._state.store_object(self._link.run, session, name, parts[name].deflate())
            if stored:
                sent.append(message.metadata.message_id)
                self._link.gate.wake(message.metadata.dst_node_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answers to these that are here now, whole or not (see `send_and_receive`)."""
        names = set(message_ids)
        return self._state.get_message_res(names, self._link.run) if names else []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, and wait until every answer is here whole, or the time is over."""
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        asked = set(self.push_messages(messages))
        waiting, coming, done, seen = set(asked), list[Message](), list[Message](), set[str]()
        scanned = -float("inf")
        try:
            while (waiting or coming) and (left := end - time.monotonic()) > 0:
                self._link.gate.arrived.clear()
                if scan := time.monotonic() - scanned > _SCAN_SECONDS:
                    scanned = time.monotonic()
                coming += self._fetched(waiting if scan else self._state.answered(waiting), waiting, seen)
                whole = {reply.metadata.message_id: reply for reply in coming if self._tree(reply) is not None}
                coming = [reply for reply in coming if reply.metadata.message_id not in whole]
                done += [found for reply in whole.values() if (found := self._inflated(reply)) is not None]
                if waiting or coming:
                    self._link.gate.arrived.wait(min(left, _SCAN_SECONDS))
                    time.sleep(len(asked) * _BATCH_SECONDS)
        finally:
            with self._state.lock:
                # Between the two nothing may arrive: its parts would stay. Flower does not hand out the answer of one
                # that it thinks gone.
                answers = self._state.message_ins_id_to_message_res_id
                seen |= {answers[name] for name in asked & answers.keys()}
                self._state.delete_messages(asked)
            for name in asked | seen:
                self._objects.delete(name)
        return done

    def _fetched(self, looked_at: set[str], waiting: set[str], seen: set[str]) -> list[Message]:
        """Answers that began to arrive, to the messages looked at; Flower answers for a node that is gone."""
        found = list(self.pull_messages(looked_at))
        seen.update(reply.metadata.message_id for reply in found)
        waiting.difference_update(reply.metadata.reply_to_message_id for reply in found)
        return [reply for reply in found if not reply.has_error()]

    def _tree(self, reply: Message) -> ObjectTree | None:
        """Its parts, if all of them are here."""
        try:
            tree = self._objects.get_object_tree(reply.metadata.message_id)
        except NoObjectInStoreError:
            return None
        whole = all(self._objects.get(part.object_id) for part in iterate_object_tree(tree))
        return tree if whole else None

    def _inflated(self, reply: Message) -> Message | None:
        name = reply.metadata.message_id
        try:
            # Its client may delete it meanwhile.
            tree = self._objects.get_object_tree(name)
            kept = {part.object_id: self._objects.get(part.object_id) for part in iterate_object_tree(tree)}
            self._objects.delete(name)
            found = inflate_object_from_contents(name, cast(dict[str, bytes], kept))
        except Exception:
            return None
        if not isinstance(found, Message):
            return None
        # What the body says of its sender was written by the sender; this was checked by the gate.
        found.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
        return found
