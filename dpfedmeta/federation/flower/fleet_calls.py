"""Flower's part of a SuperLink that nodes speak to, called as functions.

The web framework that Flower puts around them (FastAPI, three middlewares, a thread for each) took most of what a
request cost. Who speaks is checked by the gate; here, that nobody speaks of another's node.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.superlink.servicer.fleet import fleet_handlers
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from dpfedmeta.core.pydantic_errors import shown
from dpfedmeta.federation.flower.node_messages import NodeMessages

PULL, HEARTBEAT, PUSH, OBJECT, ACTIVATE = (
    "pull-messages",
    "send-node-heartbeat",
    "push-messages",
    "push-object",
    "activate-node",
)
_REQUESTS: dict[str, type[Message]] = {
    ACTIVATE: ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    PULL: PullMessagesRequest,
    "pull-object": PullObjectRequest,
    "confirm-message-received": ConfirmMessageReceivedRequest,
    "get-run": GetRunRequest,
    PUSH: PushMessagesRequest,
    OBJECT: PushObjectRequest,
    HEARTBEAT: SendNodeHeartbeatRequest,
}
NAMES = frozenset(_REQUESTS)
# A message, its record dictionary, its one record; Flower's own parts of a message are as many.
_MOST_OBJECTS = 8

_LOG = logging.getLogger("dpfedmeta")

# Status, and the body: protobuf where the status is 200, otherwise JSON.
Answer = tuple[int, bytes]


class FleetCalls:
    """Requests of nodes, answered from Flower's state.

    Args:
        state: Flower's.
    """

    def __init__(self, state: NodeMessages) -> None:
        self._told: set[tuple[str, type[Exception]]] = set()
        handlers = fleet_handlers
        stored: dict[str, Any] = {"state": state, "store": state.object_store}
        plain: dict[str, Any] = {"state": state}
        self._handlers: dict[str, Callable[[Any], Message]] = {
            ACTIVATE: lambda request: handlers.activate_node(request, **plain),
            "deactivate-node": lambda request: handlers.deactivate_node(request, **plain),
            PULL: lambda request: handlers.pull_messages(request, **stored),
            "pull-object": lambda request: handlers.pull_object(request, **plain),
            "confirm-message-received": lambda request: handlers.confirm_message_received(request, **stored),
            "get-run": lambda request: handlers.get_run(request, **plain),
            PUSH: lambda request: handlers.push_messages(request, **plain),
            OBJECT: lambda request: handlers.push_object(request, **plain),
            HEARTBEAT: lambda request: handlers.send_node_heartbeat(request, **plain),
        }

    def answer(self, name: str, node: int, key: bytes, body: bytes) -> Answer:
        """The answer to one request.

        Args:
            name: Of the request, one of NAMES.
            node: Number of the node that speaks.
            key: Its public key, PEM.
            body: The request.
        """
        try:
            request = _REQUESTS[name].FromString(body)
        except DecodeError:
            return refusal(400, "this is not a request of Flower")
        spoken = request.public_key == key if name == ACTIVATE else _node_of(request) == node
        if not spoken:
            return refusal(403, "the request is in another client's name")
        if name == PUSH and not _in_own_name(request, node):
            return refusal(403, "the answer is in another client's name, or in too many parts")
        try:
            return 200, self._handlers[name](request).SerializeToString()
        except FlowerError as error:
            told = API_ERROR_MAP[error.code]
            return told.http_status_code, json.dumps(error.to_json(told.public_message)).encode()
        except Exception as error:
            # Of a request that says what does not fit; its words may tell of others.
            self._tell(name, error)
            return refusal(500, "this request could not be served")

    def _tell(self, name: str, error: Exception) -> None:
        """Tell the operator once of each kind of failure: a client may ask the same again and again."""
        kind = (name, type(error))
        if kind not in self._told:
            self._told.add(kind)
            _LOG.warning(
                "a client's request %s could not be served: %s: %s", name, type(error).__name__, shown(str(error))
            )


def refusal(status: int, reason: str) -> Answer:
    """A status with a reason in words."""
    return status, json.dumps({"detail": reason}).encode()


def _node_of(request: Any) -> int:
    number: int = request.node.node_id if hasattr(request, "node") else request.node_id
    return number


def _in_own_name(request: PushMessagesRequest, node: int) -> bool:
    """Check that a push request holds one message of this node, in no more parts than a message needs."""
    trees, messages = request.message_object_trees, request.messages_list
    if len(messages) != 1 or len(trees) != 1 or messages[0].metadata.src_node_id != node:
        return False
    return all(count < _MOST_OBJECTS for count, _ in enumerate(_parts(trees[0])))


def _parts(tree: ObjectTree) -> Iterator[ObjectTree]:
    waiting = [tree]
    while waiting:
        yield (part := waiting.pop())
        waiting.extend(part.children)
