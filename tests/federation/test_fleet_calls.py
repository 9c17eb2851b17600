"""What a node gets for its requests: its own questions, for its own signature, as long as it is there."""

import time
from datetime import timedelta

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import verify_signature

from dpfedmeta.federation.flower import fleet_gateway, http_client
from dpfedmeta.federation.flower.fleet_calls import ACTIVATE, HEARTBEAT, OBJECT, PULL, PUSH, FleetCalls
from dpfedmeta.federation.flower.fleet_gateway import Gate
from dpfedmeta.federation.flower.flower_channel import LinkGrid, _question, record_of
from dpfedmeta.federation.flower.http_client import ConnectionRefused, Requests
from dpfedmeta.federation.flower.node_messages import NodeMessages
from tests.federation.test_flower_wire import identity, signed
from tests.federation.wires import card, loopback, until


@pytest.fixture(scope="module")
def wire(tmp_path_factory):
    found = loopback(tmp_path_factory.mktemp("wire"))
    yield found
    found.channel.close()


class TestFleetCalls:
    @pytest.fixture
    def calls(self):
        """The calls of a state with two nodes; (calls, numbers, keys)."""
        state, keys = NodeMessages(), (b"key of anna", b"key of ben")
        numbers = [state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0) for key in keys]
        return FleetCalls(state), numbers, keys

    def test_nobody_asks_in_another_s_name(self, calls):
        own, (anna, ben), (key, other) = calls
        asked = fleet_pb2.PullMessagesRequest(node=Node(node_id=ben)).SerializeToString()
        assert own.answer(PULL, anna, key, asked)[0] == 403
        assert own.answer(PULL, ben, other, asked)[0] == 200
        leaving = fleet_pb2.DeactivateNodeRequest(node_id=ben).SerializeToString()
        assert own.answer("deactivate-node", anna, key, leaving)[0] == 403
        beats = heartbeat_pb2.SendNodeHeartbeatRequest(node=Node(node_id=ben), heartbeat_interval=10)
        assert own.answer(HEARTBEAT, anna, key, beats.SerializeToString())[0] == 403
        coming = fleet_pb2.ActivateNodeRequest(public_key=other, heartbeat_interval=10).SerializeToString()
        assert own.answer(ACTIVATE, anna, key, coming)[0] == 403
        assert own.answer(ACTIVATE, ben, other, coming)[0] == 200

    def test_refusals_are_those_of_flower(self, calls, caplog):
        own, (anna, _), (key, _) = calls
        coming = fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=10).SerializeToString()
        assert [own.answer(ACTIVATE, anna, key, coming)[0] for _ in range(2)] == [200, 412]
        assert own.answer(PULL, anna, key, b"\xff")[0] == 400
        # Of a run that there is not.
        wanted = message_pb2.PullObjectRequest(node=Node(node_id=anna), run_id=7, object_id="0" * 64)
        for _ in range(2):
            status, told = own.answer("pull-object", anna, key, wanted.SerializeToString())
            assert status == 500
            assert b"7" not in told
        (said,) = (record.message for record in caplog.records if record.name == "dpfedmeta")
        assert said.startswith("a client's request pull-object could not be served: ")


class TestNodeMessages:
    def test_a_node_reads_its_own_messages_alone(self, wire, monkeypatch):
        """However many wait for others: one look at each would be 250,000 in a question to 500."""
        state, looked = wire.link.state, []
        look = state._check_stored_messages
        monkeypatch.setattr(state, "_check_stored_messages", lambda names, *run: looked.append({*names}) or look(names))
        names = ("anna", "ben", "ben", "cleo")
        for name in names:
            state.acknowledge_node_heartbeat(wire.link.nodes[identity(name)], 10)
        messages = [_question(wire.link.nodes[identity(name)], bytes([n]), 9.0) for n, name in enumerate(names)]
        sent = list(LinkGrid(wire.link).push_messages(messages))
        assert len(sent) == 4
        for limit, expected in ((1, sent[1:2]), (1, sent[2:3]), (1, [])):
            looked.clear()
            found = state.get_message_ins(wire.link.nodes[identity("ben")], limit=limit)
            assert [message.metadata.message_id for message in found] == expected
            assert looked[0] <= {*sent[1:3]}
        state.delete_messages({*sent})
        for name in sent:
            state.object_store.delete(name)
        for name in names:
            state.deactivate_node(wire.link.nodes[identity(name)])

    def test_a_message_is_delivered_once_and_an_old_one_never(self, wire):
        state, anna = wire.link.state, wire.link.nodes[identity("anna")]
        with wire.attending("anna"):
            assert wire.channel.ask({identity("anna"): b"abc"}, 20) == {identity("anna"): b"cba"}
        assert wire.channel.ask({identity("anna"): b"abc"}, 1) == {}  # nobody is there; it is deleted
        assert state.get_message_ins(anna, limit=1) == []
        assert state._waiting[anna] == {}


class TestParts:
    """One client of the roster, who sends what no client of ours does."""

    @pytest.fixture
    def asked(self, wire):
        """A question to anna, and what she then does: (its number, push(content, name), confirm(name))."""
        state, anna = wire.link.state, wire.link.nodes[identity("anna")]
        calls, node = FleetCalls(state), Node(node_id=anna)
        state.acknowledge_node_heartbeat(anna, 10)
        (number,) = LinkGrid(wire.link).push_messages([_question(anna, b"question", 60.0)])

        def called(name, request, answer):
            status, body = calls.answer(name, anna, b"", request.SerializeToString())
            assert status == 200
            return answer.FromString(body)

        def push(content, name=None):
            pulled = called(PULL, fleet_pb2.PullMessagesRequest(node=node), fleet_pb2.PullMessagesResponse)
            questions.extend(message_from_proto(each) for each in pulled.messages_list)
            if content not in replies:
                replies[content] = Message(record_of(content), reply_to=questions[-1])
                replies[content].metadata.__dict__["_src_node_id"] = anna
            reply = replies[content]
            with no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
                parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
            head = message_to_proto(Message(RecordDict(), reply_to=questions[-1]))
            head.metadata.CopyFrom(message_to_proto(reply).metadata)
            head.metadata.message_id = name or reply.object_id
            given = {"node": node, "messages_list": [head], "message_object_trees": [tree]}
            told = called(PUSH, fleet_pb2.PushMessagesRequest(**given), fleet_pb2.PushMessagesResponse)
            for part in told.objects_to_push:
                sent = {"object_id": part, "object_content": parts[part].deflate(), "session_id": told.session_id}
                sending = message_pb2.PushObjectRequest(node=node, run_id=wire.link.run, **sent)
                called(OBJECT, sending, message_pb2.PushObjectResponse)
            return reply.object_id, len(told.objects_to_push)

        def confirm(name):
            read = message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=wire.link.run, message_object_id=name)
            called("confirm-message-received", read, message_pb2.ConfirmMessageReceivedResponse)

        questions, replies = [], {}
        yield number, push, confirm
        state.delete_messages({number})
        state.object_store.clear()
        state.deactivate_node(anna)

    def test_an_answer_that_is_sent_again_brings_no_other_parts(self, wire, asked):
        """Nothing would delete them: one client could fill the server's memory."""
        (number, push, _), store = asked, wire.link.state.object_store
        name, sent = push(b"answer")
        assert sent == 3
        assert push(b"answer") == (name, 0)
        kept = len(store)
        assert [push(bytes([n]) * 100, name)[1] for n in range(3)] == [0] * 3
        assert len(store) == kept
        wire.link.state.delete_messages({number})
        for each in (number, name):
            store.delete(each)
        assert len(store) == 0
        assert not wire.link.state._object_push_sessions

    def test_parts_that_are_none_leave_nothing(self, wire, asked):
        (number, push, _), state = asked, wire.link.state
        assert push(b"answer", "0" * 64)[1] == 0
        state.delete_messages({number})
        state.object_store.delete(number)
        assert len(state.object_store) == 0

    def test_an_answer_that_its_client_deletes_is_none(self, wire, asked):
        """And does not end the server: it may be gone between two looks at it."""
        (number, push, confirm), grid = asked, LinkGrid(wire.link)
        name, _ = push(b"answer")
        (reply,) = grid.pull_messages({number})
        assert grid._tree(reply) is not None
        confirm(name)
        assert grid._inflated(reply) is None


class TestSignatures:
    def gate(self):
        return Gate(None, {card(name).wire_pem: number for number, name in enumerate(("anna", "ben"))}, lambda node: 0)

    def test_one_is_checked_once_while_it_is_repeated(self, monkeypatch):
        checked, check = [], verify_signature
        monkeypatch.setattr(fleet_gateway, "verify_signature", lambda *given: checked.append(given) or check(*given))
        gate, lower = self.gate(), {name.lower(): value for name, value in signed("anna").items()}
        for _ in range(3):
            gate._authenticated(lower)
        assert len(checked) == 1
        for _ in range(10):
            gate._authenticated({name.lower(): value for name, value in signed("anna").items()})
        assert len(gate._proofs[card("anna").wire_pem]) == fleet_gateway._MOST_PROOFS

    def test_what_was_right_once_proves_nothing_else(self, monkeypatch):
        gate = self.gate()
        names = [TIMESTAMP_HEADER, FLEET_HTTP_PUBLIC_KEY_HEADER]
        first, second, other = (
            {name.lower(): value for name, value in signed(who).items()} for who in ("anna", "anna", "ben")
        )
        gate._authenticated(first)
        for name, instead in zip(names, (second, other), strict=True):
            with pytest.raises(ValueError, match="does not fit the key"):
                gate._authenticated(first | {name.lower(): instead[name.lower()]})
        monkeypatch.setattr(fleet_gateway, "TIMESTAMP_TOLERANCE", 0.0)
        with pytest.raises(ValueError, match="clock differs"):
            gate._authenticated(first)

    def test_a_client_signs_once_a_minute(self, wire, monkeypatch):
        stamps, check = set(), wire.link.gate._authenticated
        monkeypatch.setattr(
            wire.link.gate, "_authenticated", lambda headers: stamps.add(headers["flwr-timestamp"]) or check(headers)
        )
        with Requests(wire.wire("ben")) as client:
            for _ in range(3):
                with pytest.raises(ConnectionRefused):
                    client.GetRun(GetRunRequest(node=Node(node_id=1)))
            assert len(stamps) == 1
            monkeypatch.setattr(http_client, "_SIGNATURE_SECONDS", 0.0)
            with pytest.raises(ConnectionRefused):
                client.GetRun(GetRunRequest(node=Node(node_id=1)))
            assert len(stamps) == 2


@pytest.mark.parametrize(
    ("seconds", "hears"),
    [
        (-86_400, False), (-SYSTEM_TIME_TOLERANCE, False), (-SYSTEM_TIME_TOLERANCE + 1, True), (0, True),
        (TIMESTAMP_TOLERANCE - 1, True), (TIMESTAMP_TOLERANCE, False), (86_400, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
def test_a_signature_is_heard_while_it_is_young_and_never_before_its_time(monkeypatch, seconds, hears, known):
    """One of tomorrow would let in whoever holds it for a day; also where it was right before."""
    made, gate = now(), TestSignatures().gate()
    headers = {name.lower(): value for name, value in signed("anna", made.isoformat()).items()}
    if known:
        gate._authenticated(headers)
    monkeypatch.setattr(fleet_gateway, "now", lambda: made + timedelta(seconds=seconds))
    if hears:
        assert gate._authenticated(headers) == card("anna").wire_pem
        return
    with pytest.raises(ValueError, match=rf"clock differs from the server's by {abs(seconds)} s; set the wrong one"):
        gate._authenticated(headers)


class TestPresence:
    def beats(self, wire, client):
        node = Node(node_id=wire.link.nodes[identity("cleo")])
        began = time.monotonic()
        client.SendNodeHeartbeat(heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=10))
        return time.monotonic() - began

    def test_heartbeats_of_a_patient_client_wait_longer(self, wire, monkeypatch):
        monkeypatch.setattr(fleet_gateway, "_HEARTBEAT_SECONDS", 0.0)
        monkeypatch.setattr(fleet_gateway, "_PATIENT_SECONDS", 1.5)
        with Requests(wire.wire("cleo")) as client:
            assert self.beats(wire, client) > 1.0
            monkeypatch.setattr(http_client, "PATIENT", "something-else")
            assert self.beats(wire, client) < 1.0

    def test_every_request_says_that_a_client_is_there(self, wire, monkeypatch):
        """Not its heartbeats alone: a busy server answers those late, and lost the answer of who seemed gone."""
        monkeypatch.setattr(fleet_gateway, "_PATIENT_SECONDS", 25.0)
        state, gate, anna = wire.link.state, wire.link.gate, wire.link.nodes[identity("anna")]
        with wire.attending("anna"):
            until(lambda: gate._open[anna] == 2)  # a request for questions, and a heartbeat that waits for long
            state.deactivate_node(anna)
            gate.wake(anna)  # the request is answered, and the next one comes
            until(lambda: identity("anna") in wire.channel.present(), seconds=10.0)
        until(lambda: identity("anna") not in wire.channel.present())
