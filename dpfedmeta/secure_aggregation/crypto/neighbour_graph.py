"""Graph of the clients that share masks: the degree and threshold that a federation needs, and the graph itself.

Bell, Bonawitz, Gascon, Lepoint, Raykova (CCS 2020), https://arxiv.org/abs/2008.07545 ("CCS'20" below).
"""

import math
from hashlib import sha256

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.keyed_streams import key_stream

# Security fails with probability 2^-40 at most, half of it for each of two events; a round ends for want of shares
# with 2^-20.
SECURITY, CORRECTNESS = 2.0**-41, 2.0**-20
# Below this many clients everybody is everybody's neighbour.
COMPLETE_BELOW = 100
MOST_CLIENTS = 1_000_000
# A share of clients is a decimal fraction: .29 * 100 are 29 clients, and not 28 or 30.
_ROUNDING = 1e-9


def parameters(
    *, clients: int, adversarial: float, dropout: float, malicious: bool, complete: bool = False
) -> tuple[int, int]:
    """The smallest degree k of a random Harary graph, and the threshold t, that carry this federation.

    Below 100 clients, and where no such graph exists, the complete graph: k = clients - 1.

    Args:
        clients: n, who is invited.
        adversarial: The share of them who tell the server all they know.
        dropout: The share of them who may fall silent, in all phases together.
        malicious: Whether the server may break the protocol ("semi-malicious" in the sense of CCS'20: the graph is
            not its choice).
        complete: Whether everybody shall be everybody's neighbour in any case.

    Returns:
        (k, t).

    Guarantee:
        With probability 1 - 2^-40 over the graph, no honest client has t neighbours who collude (with a malicious
        server: 2 t exceeds the number of neighbours plus those who collude, so of a client's two secrets one stays
        hidden even if its honest neighbours are told different things), and the honest clients who stay are connected
        when all who collude or fall silent are taken out. Who colludes must not depend on the graph. Who falls silent
        must not either, unless the server may be malicious: then it may choose them once it knows the graph, as many
        as `dropout` allows. With probability 1 - 2^-20 each client keeps t neighbours who answer, where silence does
        not depend on the graph.

    Raises:
        InputError: No graph exists, or a share is none.
    """
    colluding, silent = _counts(clients, adversarial, dropout)
    server = "a malicious server" if malicious else "the server"
    crowd = f"{clients} clients, a share of {adversarial:g} colluding with {server}, {dropout:g} not answering"
    # Of whole clients the share allows so many: every party ends a round of fewer survivors (round_parameters).
    gone = math.floor(dropout * clients + _ROUNDING)
    if clients - colluding - gone < 2:
        raise InputError(
            f"{crowd}: fewer than two honest clients stay, and a sum of one hides nothing; invite more clients"
        )
    if adversarial + (2 if malicious else 1) * dropout >= 1:
        rule = "adversarial + 2 dropout" if malicious else "adversarial + dropout"
        raise InputError(f"{crowd}: no graph exists; {rule} must be less than 1")
    found = None if complete or clients < COMPLETE_BELOW else _smallest(clients, colluding, silent, malicious)
    found = found or _complete(clients, colluding, gone, malicious)
    if found is None:
        raise InputError(
            f"{crowd}: no graph exists in which enough neighbours stay; invite more clients, or lower dropout or "
            "adversarial"
        )
    return found


def counted(share: float, clients: int) -> int:
    """Number of clients in a share of them, rounded up."""
    return math.ceil(share * clients - _ROUNDING)


def _counts(clients: int, adversarial: float, dropout: float) -> tuple[int, int]:
    if not 2 <= clients <= MOST_CLIENTS:
        raise InputError(f"clients = {clients}: secure aggregation is for 2 to {MOST_CLIENTS:,} clients")
    for name, share in (("adversarial", adversarial), ("dropout", dropout)):
        if not 0 <= share < 1:
            raise InputError(f"{name} = {share}: expected a share of all clients, at least 0 and below 1")
    return counted(adversarial, clients), counted(dropout, clients)


def _smallest(clients: int, colluding: int, silent: int, malicious: bool) -> tuple[int, int] | None:
    """The smallest even degree at which both conditions hold; the first of them holds from one degree on."""
    apart = log_cut if malicious else log_disconnected
    low, high = 1, (clients - 1) // 2
    while low < high:
        middle = (low + high) // 2
        if apart(clients, 2 * middle, colluding, silent) < math.log(SECURITY):
            high = middle
        else:
            low = middle + 1
    degree, most_won = 2 * low, 1 if malicious else 2
    while degree < clients - 1:
        if apart(clients, degree, colluding, silent) >= math.log(SECURITY):
            return None
        threshold = _threshold(clients, colluding, degree, malicious)
        lacking = threshold - fewest_among(clients, clients - silent, degree, CORRECTNESS / clients)
        if lacking <= 0:
            return degree, threshold
        # Two neighbours more are at most two survivors more, and no lower threshold (a higher one, where half of the
        # degree counts): smaller degrees lack something too.
        degree += 2 * math.ceil(lacking / most_won)
    return None


def _threshold(clients: int, colluding: int, degree: int, malicious: bool) -> int:
    most = most_among(clients, colluding, degree, SECURITY / clients)
    if malicious:
        # 2 t > k + t1, as the formula of the published programs has it.
        most = math.ceil((most + degree - 1.25) / 2)
    return max(2, most + 1)


def _complete(clients: int, colluding: int, gone: int, malicious: bool) -> tuple[int, int] | None:
    """Return (k, t) of the complete graph, where nothing is left to chance; None where too few neighbours stay."""
    degree = clients - 1
    threshold = max(2, ((degree + colluding) // 2 if malicious else colluding) + 1)
    return (degree, threshold) if threshold <= degree - gone else None


def holds_together(clients: int, degree: int, colluding: int, silent: int) -> bool:
    """Return whether honest survivors stay connected, except with probability 2^-41.

    This holds for any choice by a malicious server of `silent` clients to silence.
    """
    return log_cut(clients, degree, colluding, silent) < math.log(SECURITY)


def log_disconnected(clients: int, degree: int, colluding: int, silent: int) -> float:
    """Log of a bound on P[a random Harary graph falls apart when those who collude or are silent are taken out].

    It falls apart only where two runs of degree/2 nodes each in a row are taken out.
    """
    bad = colluding + silent
    if bad < degree:
        return -math.inf
    terms = gammaln([bad + 1, clients - degree + 1, clients + 1, bad - degree + 1])
    return float(_log_pairs(clients, degree) + terms[0] + terms[1] - terms[2] - terms[3])


def log_cut(clients: int, degree: int, colluding: int, silent: int) -> float:
    """Log of a bound on P[a server that knows the graph can cut it by silencing so many of its nodes].

    Two runs of degree/2 nodes each in a row have to go. Those among them who collude are gone already, and the server
    has to silence the others: it succeeds only where some two runs hold at least `degree - silent` who collude.
    """
    lacking = degree - silent
    if degree >= clients - 1 or lacking > min(colluding, degree):
        return -math.inf
    tail = np.logaddexp.reduce(log_hypergeometric(clients, colluding, degree)[max(lacking, 0) :])
    return float(_log_pairs(clients, degree) + min(tail, 0.0))


def _log_pairs(clients: int, degree: int) -> float:
    """Log of the number of pairs of runs."""
    return math.log(clients) + math.log(clients - degree - 1) - math.log(2)


def log_hypergeometric(clients: int, marked: int, drawn: int) -> npt.NDArray[np.float64]:
    """Logarithms of P[x of the drawn are marked] for x = 0 to min(marked, drawn)."""
    x = np.arange(min(marked, drawn) + 1)
    unmarked = clients - marked
    possible = drawn - x <= unmarked
    left = np.where(possible, unmarked - drawn + x, 0)
    logs = (
        gammaln(marked + 1) - gammaln(x + 1) - gammaln(marked - x + 1)
        + gammaln(unmarked + 1) - gammaln(np.where(possible, drawn - x, 0) + 1) - gammaln(left + 1)
        - gammaln(clients + 1) + gammaln(drawn + 1) + gammaln(clients - drawn + 1)
    )  # fmt: skip
    return np.where(possible, logs, -np.inf)


def most_among(clients: int, marked: int, drawn: int, probability: float) -> int:
    """The smallest x with P[more than x of the drawn are marked] <= probability."""
    logs = log_hypergeometric(clients, marked, drawn)
    # log P[X >= x] from the far end, so that small terms are added first.
    at_least = np.logaddexp.accumulate(logs[::-1])[::-1]
    few = np.flatnonzero(at_least <= math.log(probability))
    return int(few[0]) - 1 if len(few) else len(logs) - 1


def fewest_among(clients: int, marked: int, drawn: int, probability: float) -> int:
    """The smallest x with P[at most x of the drawn are marked] >= probability."""
    at_most = np.logaddexp.accumulate(log_hypergeometric(clients, marked, drawn))
    return int(np.flatnonzero(at_most >= math.log(probability))[0])


def neighbours(seed: bytes, clients: int, degree: int) -> npt.NDArray[np.int64]:
    """The graph: row u holds the neighbours of seat u, in ascending order, shape [clients, degree].

    A Harary graph on a ring in the order of random words: each is joined to the degree/2 on either side of it.

    Args:
        seed: 32 bytes; who knows them knows the graph.
        clients: How many seats.
        degree: Even, or clients - 1 for the complete graph.
    """
    ring = _order(seed, clients)
    rows = np.empty((clients, degree), dtype=np.int64)
    rows[ring] = ring[(np.arange(clients)[:, None] + _steps(clients, degree)) % clients]
    rows.sort(axis=1)
    return rows


def neighbours_of(seat: int, seed: bytes, clients: int, degree: int) -> npt.NDArray[np.int64]:
    """Return one row of `neighbours`."""
    ring = _order(seed, clients)
    place = int(np.flatnonzero(ring == seat)[0])
    return np.sort(ring[(place + _steps(clients, degree)) % clients])


def _steps(clients: int, degree: int) -> npt.NDArray[np.int64]:
    """Offsets of the neighbours along the ring."""
    if degree == clients - 1:
        return np.arange(1, clients)
    half = np.arange(1, degree // 2 + 1)
    return np.concatenate([half, -half])


def _order(seed: bytes, clients: int) -> npt.NDArray[np.int64]:
    """All seats, every order as likely as any other: by 64-bit words, all drawn again where two are equal."""
    stream = key_stream(sha256(b"dpfedmeta secure aggregation ring" + seed).digest())
    while True:
        words = np.frombuffer(stream(8 * clients), dtype="<u8")
        order = np.argsort(words, kind="stable")
        if (np.diff(words[order]) > 0).all():
            return order.astype(np.int64)
