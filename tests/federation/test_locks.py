"""What several threads share is touched under its lock alone: by every method, whichever way in."""

import threading
from types import SimpleNamespace

import pytest

from dpfedmeta.federation.flower.flower_environment import prepare_flower
from dpfedmeta.federation.server.client_requests import Heard
from dpfedmeta.federation.server.status_page import Progress
from dpfedmeta.federation.wire_format import QuestionKind

prepare_flower()
from flwr.proto.message_pb2 import ObjectTree  # noqa: E402
from flwr.server.superlink.linkstate import InMemoryLinkState  # noqa: E402

from dpfedmeta.federation.flower.node_messages import NodeMessages  # noqa: E402


class Lock:
    """One that says whether it is held."""

    def __init__(self, lock=None):
        self.lock, self.depth = lock or threading.RLock(), 0

    def __enter__(self):
        self.lock.acquire()
        self.depth += 1

    def __exit__(self, *error):
        self.depth -= 1
        self.lock.release()


class Shared(dict):
    """Content that is looked at, and changed, while the lock is held."""

    def __init__(self, content, lock):
        super().__init__(content)
        self.lock, self.touched = lock, 0

    def _held(name):
        def method(self, *given, **named):
            assert self.lock.depth, f"{name} without the lock"
            self.touched += 1
            return getattr(dict, name)(self, *given, **named)

        return method

    for _name in (
        "__getitem__",
        "__setitem__",
        "__iter__",
        "__contains__",
        "get",
        "update",
        "setdefault",
        "keys",
        "items",
    ):
        locals()[_name] = _held(_name)


PLANNED = SimpleNamespace(
    settings=SimpleNamespace(algo="dp-agr", population=SimpleNamespace(sampler="fixed", cohort=2, clients=2)),
    guarantees=(), rounds=3,
)  # fmt: skip
HEARD = Heard(asked=QuestionKind.VECTOR, round=1, clients=2, answered=2, declined=0, unsound=0)
CALLS = {
    "on_plan": lambda page, path: page.on_plan(PLANNED),
    "on_start": lambda page, path: page.on_start(path),
    "on_round": lambda page, path: page.on_round({"round": 1}),
    "on_rewind": lambda page, path: page.on_rewind(1),
    "on_end": lambda page, path: page.on_end({"status": "completed"}),
    "heard": lambda page, path: page.heard(HEARD),
    "snapshot": lambda page, path: page.snapshot(operator=True),
    "health": lambda page, path: page.health(),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_state_of_a_page_is_touched_under_its_lock(tmp_path, name):
    page = Progress({b"a": "north"}, lambda: [b"a"])
    page.on_plan(PLANNED)
    page._lock = lock = Lock()
    page._state = Shared(page._state, lock)
    CALLS[name](page, tmp_path)
    assert page._state.touched
    assert not lock.depth


def test_every_way_in_to_a_page_is_looked_at():
    public = {name for name in vars(Progress) if not name.startswith("_")}
    assert public == {*CALLS}


@pytest.fixture
def messages(monkeypatch):
    """Flower's own state does what it does; what is asked of it is whether the lock is held."""
    found = NodeMessages()
    lock = Lock(found.lock)
    found.lock = lock
    found._waiting = Shared({7: {"one": None}}, lock)
    found.message_ins_id_to_message_res_id = Shared({"one": "two"}, lock)
    held: list[int] = []

    def stored(self, *given):
        held.append(lock.depth)
        return "three" if len(given) == 1 else (True, ["missing"])

    monkeypatch.setattr(InMemoryLinkState, "store_message_ins", stored)
    monkeypatch.setattr(InMemoryLinkState, "store_message_and_object_tree", stored)
    monkeypatch.setattr(found, "_check_stored_messages", lambda names: held.append(lock.depth))
    monkeypatch.setattr(found._parts, "get_object_tree", lambda name: ObjectTree())
    return found, held, lock


def test_messages_of_nodes_are_touched_under_the_lock_of_flower_s_state(messages):
    messages, held, lock = messages
    message = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=7, message_id="three", run_id=1))
    assert messages.store_message_ins(message) == "three"
    assert messages.store_message_and_object_tree(message, ObjectTree(), "session") == (True, ["missing"])
    assert messages.get_message_ins(7, None) == []
    assert messages.answered(["one", "other"]) == {"one"}
    assert held == [1, 1, 1]
    assert not lock.depth
