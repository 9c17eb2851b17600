"""Consistency against a malicious server: all sign the survivors that they were told, and look for others who did."""

from __future__ import annotations

from hashlib import sha256

from dpfedmeta.secure_aggregation.agreement import Agreement, Identities, Round
from dpfedmeta.secure_aggregation.keys import signed_by
from dpfedmeta.secure_aggregation.messages import EVERYONE, Consents, Phase, Survivors, header
from dpfedmeta.secure_aggregation.refusals import Refused


def consent(told: Survivors, agreement: Agreement) -> bytes:
    """What is signed of a list of survivors."""
    return sha256(b"survivors" + told.encode(agreement)).digest()


def check_consents(round_: Round, bound: bytes, told: Survivors, consents: Consents, identities: Identities) -> None:
    """Whether enough survivors signed this list.

    Guarantee:
        Two clients who accept two lists share an honest client who signed both, and there is none: all who go on were
        told the same.

    Raises:
        Refused: Too few signatures, one that fails, or one of somebody who is no survivor.
    """
    content = consent(told, round_.agreement)
    for seat, signature in consents.entries:
        key = identities.keys.get(seat)
        if seat not in told.survivors or key is None:
            raise Refused(f"seat {seat} signed the survivors and is none")
        if not signed_by(
            key, signature, round_.digest + bound + header(round_, Phase.CONSENT, seat, EVERYONE) + content
        ):
            raise Refused(f"the signature of seat {seat} on the survivors fails")
    if len(consents.entries) < round_.agreement.quorum:
        raise Refused(f"{len(consents.entries)} signatures on the survivors, {round_.agreement.quorum} are needed")
