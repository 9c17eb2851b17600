"""Client of one round of secure aggregation: a state machine over bytes.

Bonawitz et al. (CCS 2017), https://eprint.iacr.org/2017/281, with the graph of Bell et al. (CCS 2020),
https://arxiv.org/abs/2008.07545.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation.client_checks import Checks, at_least, consent
from dpfedmeta.secure_aggregation.client_secrets import SPENT, ClientStep, Secrets, deal, held
from dpfedmeta.secure_aggregation.crypto import masks, pairwise, shamir
from dpfedmeta.secure_aggregation.crypto import neighbour_graph as graph
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, Pair, Randomness
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.payloads import (
    Agree,
    Ciphertexts,
    KeyList,
    Keys,
    Kind,
    Masked,
    Reveal,
    ShareList,
    Signatures,
    Survivors,
)
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, SERVER, ProtocolPhase, opened, signed
from dpfedmeta.secure_aggregation.round_parameters import Round


class Client:
    """Client of one round. Each method answers one message.

    Their order is advertise, share, (agree,) mask, (consent,) unmask; agree and consent are for a malicious server.

    It does no input or output, knows no clock, and draws from `randomness` alone. Whoever calls joins each attempt at a
    round once: it writes the attempt into a ledger of its own before `advertise` is sent, as a federation's do.

    Args:
        round_: Round that it agreed to: numbers that it computed itself, identities that it got from elsewhere.
        seat: Its own seat.
        identity: Its private Ed25519 key, 32 bytes.
        verify: Whether to check the signature of every neighbour's keys. Always done against a malicious server.
            Not needed towards one that follows the protocol (it checks them itself, and relays what it got), and a
            third of a client's time.
        randomness: Secret source of bytes: the operating system's, except in tests.

    Guarantee:
        What leaves the client says no more of its vector than the sum over all survivors modulo 2^bits, of whom there
        are at least `fewest`, to a server that acts within the agreement together with at most `colluding` of the other
        clients; except with probability 2^-40 over the graph, and as long as X25519, HKDF-SHA256, ChaCha20 and Shamir's
        sharing hold. For each neighbour it reveals a share of one of two secrets, once. Anything else that it is told
        ends its round (`Aborted`).

    Raises:
        InputError: A seat that does not exist, a key of the wrong size, or not the one that the seat has.
    """

    def __init__(
        self,
        *,
        round_: Round,
        seat: int,
        identity: bytes,
        verify: bool = True,
        randomness: Randomness = os.urandom,
    ) -> None:
        if not 0 <= seat < round_.agreement.clients:
            raise InputError(f"seat {seat}: there are only seats 0 to {round_.agreement.clients - 1}")
        self._identity = Identity(identity)
        if round_.identities.keys.get(seat, self._identity.public) != self._identity.public:
            raise InputError(f"seat {seat}: the list of identities has another key than this client's")
        self._round, self._seat, self._randomness = round_, seat, randomness
        self._agreement = round_.agreement
        self._checks = Checks(round_=round_, seat=seat, verify=verify)
        self.step = ClientStep.ADVERTISE
        self._secrets: Secrets | None = None
        self._bound = b""
        self._keys: dict[int, Keys] = {}  # of neighbours
        self._listed: Collection[int] | None = None  # whose keys were shown, where these are everybody's

    @contextmanager
    def _answering(self, step: ClientStep, following: ClientStep) -> Iterator[Secrets]:
        """Run one step, which cannot be repeated; a message that is refused, or any other error, ends the round."""
        secrets = self._secrets
        if self.step is not step or secrets is None:
            raise self._aborted(f"{step.value} was asked of a client whose next step is {self.step.value}")
        try:
            yield secrets
        except Refused as error:
            raise self._aborted(str(error)) from None
        except BaseException:
            self._forget(ClientStep.ABORTED)
            raise
        self.step = following

    def _aborted(self, why: str) -> Aborted:
        if self.step is not ClientStep.DONE:
            self._forget(ClientStep.ABORTED)
        return Aborted(f"seat {self._seat}: {why}")

    def _forget(self, step: ClientStep) -> None:
        # As far as Python allows: nothing of the round is reachable from here any more.
        self._secrets, self.step = None, step

    def _opened(self, phase: ProtocolPhase, message: bytes) -> bytes:
        return opened(self._round, phase, SERVER, self._seat, message, self._round.server, self._bound)

    def _signed(self, phase: ProtocolPhase, body: bytes, recipient: int = SERVER) -> bytes:
        return signed(self._round, phase, self._seat, recipient, body, self._identity, self._bound)

    def advertise(self) -> bytes:
        """KEYS: fresh public keys, signed."""
        if self.step is not ClientStep.ADVERTISE:
            raise self._aborted(f"advertise was asked of a client whose next step is {self.step.value}")
        drawn = [self._randomness(32) for _ in range(3)]
        secrets = Secrets(mask_keys=Pair(drawn[0]), share_keys=Pair(drawn[1]), seed=drawn[2])
        self._secrets = secrets
        self._own = Keys(
            self._identity.public,
            secrets.mask_keys.public,
            secrets.share_keys.public,
            pairwise.commitment(self._round, secrets.seed, self._seat),
        )
        self.step = ClientStep.SHARE
        return self._signed(ProtocolPhase.KEYS, self._own.encoded, EVERYONE)

    def share(self, message: bytes) -> bytes:
        """SHARES, from KEY_LIST: a share of both secrets for each neighbour, encrypted.

        Raises:
            Aborted: An identity that is its own or another than listed, a signature that fails, too few neighbours.
        """
        with self._answering(
            ClientStep.SHARE, ClientStep.AGREE if self._agreement.malicious else ClientStep.MASK
        ) as secrets:
            listed = KeyList.decode(self._opened(ProtocolPhase.KEY_LIST, message))
            everybody = self._checks.keys(self._own, listed)
            self._bound = pairwise.bound_to(self._round, listed if self._agreement.malicious else None)
            self._listed = everybody.keys() | {self._seat} if self._agreement.malicious else None
            self._keys = {seat: everybody[seat] for seat in self._neighbours(listed) if seat in everybody}
            at_least(self._agreement.threshold, len(self._keys), "neighbours")
            if not self._agreement.malicious and len(self._keys) < len(everybody):
                raise Refused(f"seat {min(everybody.keys() - self._keys.keys())} is no neighbour")
            return self._signed(ProtocolPhase.SHARES, self._ciphertexts(secrets).encode())

    def _neighbours(self, listed: KeyList) -> list[int]:
        seed = pairwise.graph_seed(self._round, listed if self._agreement.malicious else None)
        row: list[int] = graph.neighbours_of(self._seat, seed, self._agreement.clients, self._agreement.degree).tolist()
        return row

    def _ciphertexts(self, secrets: Secrets) -> Ciphertexts:
        seats = list(self._keys)
        points = [seat + 1 for seat in seats]
        both = [
            shamir.split(int.from_bytes(secret, "big"), points, self._agreement.threshold, self._randomness)
            for secret in (secrets.seed, secrets.mask_keys.private)
        ]
        entries = []
        for seat, *shares in zip(seats, *both, strict=True):
            context = pairwise.pair_context(self._bound, self._seat, self._own, seat, self._keys[seat])
            channel = pairwise.channel(secrets.share_keys, self._keys[seat].share_key, context, lower=self._seat < seat)
            secrets.channels[seat] = channel
            entries.append(deal(self._round, self._bound, channel, self._seat, seat, shares))
        return Ciphertexts(tuple(entries))

    def agree(self, message: bytes) -> bytes:
        """AGREE, from SHARE_LIST, against a malicious server: a signature on who shared, before anybody masks.

        Raises:
            Aborted: A list without the client itself, or with somebody whose keys were not shown; shares that are
                missing or of no neighbour; too few clients or neighbours.
        """
        with self._answering(ClientStep.AGREE, ClientStep.MASK) as secrets:
            self._take_shares(secrets, message)
            signature = self._signed(ProtocolPhase.AGREE, b"", EVERYONE)[-SIGNATURE_BYTES:]
            return self._signed(ProtocolPhase.AGREE, Agree(signature, tuple(sorted(secrets.rejected))).encode())

    def _take_shares(self, secrets: Secrets, message: bytes) -> None:
        told = ShareList.decode(self._opened(ProtocolPhase.SHARE_LIST, message), self._agreement)
        self._checks.sharers(told, self._keys, self._listed)
        for dealt in told.sealed.entries:
            try:
                channel = secrets.channels[dealt.seat]
                secrets.shares[dealt.seat] = held(self._round, self._bound, channel, self._seat, dealt)
            except Refused:
                # Its dealer's fault, or the server's: nothing of that neighbour is ever revealed here.
                secrets.rejected.add(dealt.seat)
        secrets.channels, secrets.share_keys, secrets.sharers = {}, SPENT, told.sharers
        self._bound = pairwise.bound_to_sharers(self._bound, told.sharers)

    @property
    def sharers(self) -> frozenset[int] | None:
        """Seats that the server said have shared; None where no secrets are held.

        Set by `agree` (by `mask`, where the server is not malicious); empty before.
        """
        return self._secrets.sharers if self._secrets is not None else None

    def mask(self, message: bytes, vector: npt.NDArray[np.integer]) -> bytes:
        """MASKED, from SHARE_LIST (from AGREED with a malicious server): the vector under all its masks.

        Args:
            message: SHARE_LIST, or AGREED.
            vector: Whole numbers, shape [dimension]; what counts is their value modulo 2^bits.

        Guarantee:
            Uniform modulo 2^bits for whoever lacks the client's own seed, or the seed of one of its pairs; see the
            class.

        Raises:
            Aborted: As `agree` on a list of who shared; with a malicious server, too few signatures on it or one that
                fails.
            InputError: Another shape, or no whole numbers.
        """
        if vector.shape != (self._agreement.dimension,) or vector.dtype.kind not in "iu":
            raise InputError(
                f"got a vector of {vector.dtype} and shape {vector.shape}, expected {self._agreement.dimension} whole "
                "numbers"
            )
        with self._answering(
            ClientStep.MASK, ClientStep.CONSENT if self._agreement.malicious else ClientStep.UNMASK
        ) as secrets:
            if self._agreement.malicious:
                shown = Signatures.decode(self._opened(ProtocolPhase.AGREED, message))
                self._checks.signatures(ProtocolPhase.AGREE, self._bound, b"", shown, secrets.sharers)
            else:
                self._take_shares(secrets, message)
            masked = self._masked(secrets, vector)
            secrets.mask_keys, secrets.seed = SPENT, b""
            return self._signed(ProtocolPhase.MASKED, Masked(masked).encode(self._agreement))

    def _masked(self, secrets: Secrets, vector: npt.NDArray[np.integer]) -> masks.Words:
        size, bits = self._agreement.dimension, self._agreement.bits
        total = vector.astype(masks.word(bits))  # a copy, modulo 2^16 or 2^32
        total += masks.expand(pairwise.own_seed(self._bound, secrets.seed, self._seat), size, bits)
        for seat in sorted(secrets.shares.keys() | secrets.rejected):
            context = pairwise.pair_context(self._bound, self._seat, self._own, seat, self._keys[seat])
            seed = pairwise.mask_seed(secrets.mask_keys, self._keys[seat].mask_key, context)
            apply: Callable[..., object] = np.add if seat > self._seat else np.subtract
            apply(total, masks.expand(seed, size, bits), out=total)
        return masks.reduced(total, bits)

    def _told(self, secrets: Secrets, message: bytes) -> Survivors:
        told = Survivors.decode(self._opened(ProtocolPhase.SURVIVORS, message), self._agreement)
        self._checks.survivors(told, secrets.sharers)
        return told

    @property
    def survivors(self) -> frozenset[int] | None:
        """Seats that the server said have survived, between `consent` and `unmask`; else None."""
        told = self._secrets.told if self._secrets is not None else None
        return None if told is None else told.survivors

    def consent(self, message: bytes) -> bytes:
        """CONSENT, from SURVIVORS, against a malicious server: a signature on the list, so that all were told one.

        Raises:
            Aborted: As `unmask` on a list of survivors.
        """
        with self._answering(ClientStep.CONSENT, ClientStep.UNMASK) as secrets:
            secrets.told = self._told(secrets, message)
            return self._signed(ProtocolPhase.CONSENT, consent(secrets.told, self._agreement), EVERYONE)

    def unmask(self, message: bytes) -> bytes:
        """REVEAL, from SURVIVORS (from CONSENTS with a malicious server): of each neighbour one share, once.

        Raises:
            Aborted: Survivors who are silent too, a neighbour who is neither, fewer than max(t, V) survivors,
                itself not among them, too few
                signatures or one that fails, a second unmasking.
        """
        with self._answering(ClientStep.UNMASK, ClientStep.DONE) as secrets:
            told = secrets.told
            if told is None:
                told = self._told(secrets, message)
            else:
                shown = Signatures.decode(self._opened(ProtocolPhase.CONSENTS, message))
                signed = consent(told, self._agreement)
                self._checks.signatures(ProtocolPhase.CONSENT, self._bound, signed, shown, told.survivors)
            entries = tuple(
                (seat, kind, secrets.shares[seat][kind])
                for seat in sorted(secrets.shares)
                for kind in (Kind.SEED if seat in told.survivors else Kind.KEY,)
            )
            answer = self._signed(ProtocolPhase.REVEAL, Reveal(entries).encode())
        self._forget(ClientStep.DONE)
        return answer
