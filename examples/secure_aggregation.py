"""Ten clients and a server that learns the sum of their vectors and no vector, though one client falls silent half way.

Everything between them is bytes: put a network where this file hands them over.
"""

from __future__ import annotations

import os

import numpy as np

from dpfedmeta.secure_aggregation import Client, Identities, Round, Server, agreed
from dpfedmeta.secure_aggregation.crypto.keys import Identity

CLIENTS, SILENT = 10, 7


def main() -> None:
    """One round, printed phase by phase."""
    # Before the first round. Private identity keys stay where they are; the public ones reach everybody on a way that
    # the server does not control.
    private = [os.urandom(32) for _ in range(CLIENTS)]
    private_of_server = os.urandom(32)
    public = {seat: Identity(key).public for seat, key in enumerate(private)}

    # Each party computes these numbers itself, from what it is ready to tolerate.
    agreement = agreed(clients=CLIENTS, dimension=4, bits=16, adversarial=0.1, dropout=0.2, malicious=True)
    print(f"{agreement.degree} neighbours, {agreement.threshold} shares give a secret, {agreement.enough} must survive")
    round_ = Round(
        run=os.urandom(32),
        round=0,
        attempt=0,
        agreement=agreement,
        identities=Identities(keys=public),
        server=Identity(private_of_server).public,
    )
    server = Server(round_=round_, identity=private_of_server)
    clients = [Client(round_=round_, seat=seat, identity=private[seat]) for seat in range(CLIENTS)]
    vectors = [np.array([seat, 10 * seat, -seat, 1], dtype=np.int64) for seat in range(CLIENTS)]

    for client in clients:
        server.receive(client.advertise())
    key_lists = server.close()
    print(f"keys: {len(key_lists)} clients are there")

    for seat, message in key_lists.items():
        server.receive(clients[seat].share(message))
    share_lists = server.close()
    print("shares: every client holds one of each neighbour's two secrets")

    for seat, message in share_lists.items():
        server.receive(clients[seat].agree(message))
    agreed_lists = server.close()
    print(f"who shared: all were told the same, by {agreement.quorum} signatures")

    for seat, message in agreed_lists.items():
        if seat != SILENT:
            masked = clients[seat].mask(message, vectors[seat])
            server.receive(masked)
    survivors = server.close()
    print(
        f"masked vectors: {len(survivors)} arrived, client {SILENT} fell silent; the last is {masked[55:63].hex()}..."
    )

    for seat, message in survivors.items():
        server.receive(clients[seat].consent(message))
    consents = server.close()
    print(f"consistency: all were told the same survivors, by {agreement.quorum} signatures")

    for seat, message in consents.items():
        server.receive(clients[seat].unmask(message))
    server.close()
    released = server.sum()
    expected = sum(vector for seat, vector in enumerate(vectors) if seat != SILENT)
    print(f"sum of {len(released.survivors)} vectors modulo 2^16: {released.total.tolist()}")
    print(f"which is what they add up to: {np.array_equal(released.total, expected % 2**16)}")


if __name__ == "__main__":
    main()
