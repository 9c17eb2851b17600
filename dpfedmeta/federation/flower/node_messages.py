"""Flower's state in memory, in which a node finds its questions without a look at those of all others."""

from collections.abc import Iterable

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager


class NodeMessages(InMemoryLinkState):
    """Flower's own, which looks through every node's messages at each request of each node."""

    def __init__(self) -> None:
        self._parts = InMemoryObjectStore()
        super().__init__(NoOpFederationManager(), self._parts)
        # Names of the messages that no node fetched yet, by node, the oldest first.
        self._waiting: dict[int, dict[str, None]] = {}

    def store_message_ins(self, message: Message) -> str | None:
        """Keep a message for its node."""
        with self.lock:
            stored = super().store_message_ins(message)
            if stored is not None:
                self._waiting.setdefault(message.metadata.dst_node_id, {})[stored] = None
            return stored

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Keep a message and the names of its parts, if deleting the message deletes all of them.

        Flower takes other parts under the name of an answer that is here already, as often as a node sends them, and
        nothing deletes those.
        """
        # A client that has read its question deletes parts that it shares with others; not between two looks at them.
        with self.lock, self._lock_object_push_sessions, self._parts.lock_store:
            try:
                stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
                whole = not stored or self._parts.get_object_tree(message.metadata.message_id) == object_tree
            except (ValueError, NoObjectInStoreError):
                whole = False
            if not whole:
                stored, missing = False, []
                for part in reversed([*iterate_object_tree(object_tree)]):
                    self._parts.delete(part.object_id)
            if not missing:
                # Nothing will end it.
                self._cleanup_push_session(session_id, cleanup_messages=False)
            return stored, missing

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """Messages for one node that were not delivered yet, at most so many."""
        with self.lock:
            waiting = self._waiting.get(node_id, {})
            self._check_stored_messages({*waiting})
            kept = ((name, self.message_ins_store.get(name)) for name in waiting)
            there = {name: found for name, found in kept if found is not None and found.metadata.delivered_at == ""}
            wanted = [found for found in there.values() if run_id in (None, found.metadata.run_id)][:limit]
            gone = {found.metadata.message_id for found in wanted} | (waiting.keys() - there.keys())
            for name in gone:
                del waiting[name]
        delivered = now().isoformat()
        for found in wanted:
            found.metadata.delivered_at = delivered
        return wanted

    def answered(self, message_ids: Iterable[str]) -> set[str]:
        """Those of these messages to which an answer began to arrive; only a look, nothing is fetched."""
        with self.lock:
            return {name for name in message_ids if name in self.message_ins_id_to_message_res_id}
