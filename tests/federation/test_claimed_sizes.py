"""Bytes of others that claim to be much: every decoder of a federation compares, before it makes room for anything."""

import ast
import json
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array

import dpfedmeta
from dpfedmeta.federation.client_rounds import ClientRounds
from dpfedmeta.federation.flower.node_replies import array_of
from dpfedmeta.federation.wire_format import Offer, ProtocolStep, RoundTask, Start, unpacked_floats
from dpfedmeta.secure_aggregation import payloads
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.round_parameters import Agreement

AGREED = Agreement(clients=5, dimension=7, bits=16, degree=4, threshold=3, colluding=1, fewest=4, malicious=True)
MANY = (2**32 - 1).to_bytes(4, "big")


def safetensors(shape, end):
    header = json.dumps({"w": {"dtype": "F64", "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(header).to_bytes(8, "little") + header


def npy(shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


# (decoder, bytes that claim a lot of a kind); each refuses, or finds what the bytes hold.
CLAIMS: dict[str, tuple[Any, tuple[bytes, ...]]] = {
    "floats": (lambda body: unpacked_floats(body, 10**13), (b"", bytes(8))),
    "task": (lambda body: RoundTask.decode(body, 10**13), (bytes(8), bytes(16))),
    "start": (lambda body: Start.decode(body, 2**32 - 1), (MANY, MANY + bytes(64))),
    "step": (ProtocolStep.decode, (b"", bytes(4))),
    "offer": (Offer.decode, (b"", bytes(68))),
    "keys": (payloads.Keys.decode, (b"", bytes(127))),
    "key list": (payloads.KeyList.decode, (MANY, MANY + bytes(196))),
    "ciphertexts": (payloads.Ciphertexts.decode, (MANY, MANY + bytes(150))),
    "share list": (lambda body: payloads.ShareList.decode(body, AGREED), (b"\x1f" + MANY,)),
    "agree": (payloads.Agree.decode, (bytes(64) + MANY, bytes(64) + MANY + bytes(4))),
    "masked": (lambda body: payloads.Masked.decode(body, AGREED), (b"", bytes(13), bytes(15))),
    "survivors": (lambda body: payloads.Survivors.decode(body, AGREED), (b"", b"\xff\xff")),
    "signatures": (payloads.Signatures.decode, (MANY, MANY + bytes(68))),
    "reveal": (payloads.Reveal.decode, (MANY, MANY + bytes(38))),
    "array of Flower": (
        lambda body: array_of(Array(dtype="float64", shape=(1,), stype="numpy.ndarray", data=body)),
        (npy((10**13,)), npy((10**13, 10**13)), npy((0, 2**70)), npy((1,) * 90)),
    ),
    "update of a loop": (
        ClientRounds.update,
        (safetensors([10**13], 8 * 10**13), safetensors([10**13], 0), safetensors([2**62, 2**62], 2**63),
         (2**63).to_bytes(8, "little")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLAIMS)
def test_nothing_is_made_room_for_before_a_claim_is_compared(kind):
    decode, contents = CLAIMS[kind]
    for content in contents:
        tracemalloc.start()
        try:
            with nullcontext() if kind == "update of a loop" else pytest.raises((Refused, ValueError)):
                assert decode(content) is None
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 2**20


def decoders_of_others():
    folder = Path(dpfedmeta.__file__).parent
    for package in ("federation", "secure_aggregation"):
        for path in sorted((folder / package).rglob("*.py")):
            yield path.relative_to(folder).as_posix(), ast.parse(path.read_text())


def test_no_byte_of_others_is_decoded_by_what_believes_its_header():
    """`numpy.load` makes room for what a header claims, and so does `Array.numpy` of Flower; pickles are programs."""
    of_flower = []
    for name, tree in decoders_of_others():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("np", "load"), ("torch", "load"), ("np", "loadtxt")}, name
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not {alias.name for alias in node.names} & {"pickle", "marshal", "dill"}, name
            if name.startswith("federation/flower/") and isinstance(node, ast.Attribute) and node.attr == "numpy":
                of_flower.append(name)
    # The server's own model, as its strategy made it.
    assert of_flower == ["federation/flower/private_strategy.py"]


def test_each_payload_has_claims_here():
    named = {name for name in vars(payloads) if hasattr(vars(payloads)[name], "decode")}
    spelled = {name.replace(" ", "") for name in CLAIMS}
    assert {name.lower() for name in named} <= spelled
