"""Open a signed offer by its format field, and build the matching participation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dpfedmeta.federation.joined import join
from dpfedmeta.federation.joined_analysis import join_analysis
from dpfedmeta.federation.kept import FreshOf
from dpfedmeta.federation.promise import Promise
from dpfedmeta.federation.signed_analysis import FORMAT, SignedAnalysis, opened_analysis
from dpfedmeta.federation.signed_plan import SignedPlan, opened_plan
from dpfedmeta.federation.taken import Signed, Taken
from dpfedmeta.secure_aggregation.refusals import Refused


def opened(text: bytes, signature: bytes, server: bytes) -> SignedPlan | SignedAnalysis:
    """Open an offer that this server signed, and compute its numbers again here.

    Raises:
        Refused: Another server signed it, or its numbers are not what its settings or request give here.
        InputError: It is of another version.
    """
    try:
        analysis = json.loads(text)["format"] == FORMAT
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refused(f"no plan of a federation ({type(error).__name__})") from error
    return (opened_analysis if analysis else opened_plan)(text, signature, server)


def joined_by(
    signed: Signed,
    number: int,
    *,
    images: Path,
    folder: Path,
    promise: Promise,
    noise_seed: int | None,
    fresh_of: FreshOf,
    log: Callable[[str], None],
) -> Taken:
    """Look at an offer as a client does, and get ready for it; of what it finds nothing is told to the server.

    Guarantee:
        The images decide nothing of whether it returns: a plan or an analysis is refused for what the promise and the
        client's ledger say, and for nothing else.

    Raises:
        Refused: The promise allows nothing of it.
    """
    at = {"images": images, "folder": folder}
    if isinstance(signed, SignedPlan):
        return join(signed, number, **at, promise=promise, noise_seed=noise_seed, fresh_of=fresh_of, log=log)
    assert isinstance(signed, SignedAnalysis)
    return join_analysis(signed, number, **at, promise=promise, noise_seed=noise_seed, fresh_of=fresh_of, log=log)
