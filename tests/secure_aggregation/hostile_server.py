"""A server that says what it likes to whom it likes, and what can be computed from everything that it then holds.

`HostileRound` runs one round of honest clients against it, phase by phase. Every message may be altered for every
client; whoever refuses is out, everybody else goes on. `learned` is what follows: it puts together every secret of
which t shares are there, takes off every mask that follows from them or from what colluding clients know, and solves
for the sums that are left.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
from round_tables import a_round, people, stream, vector

from dpfedmeta.secure_aggregation import Aborted, Client
from dpfedmeta.secure_aggregation.client_checks import consent
from dpfedmeta.secure_aggregation.crypto import masks, pairwise, shamir
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, Pair, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
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
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, SERVER, ProtocolPhase, header, share_of, signed

# Bytes of a header.
FRONT = 55


@contextmanager
def seen_masks():
    """Every key that a mask is expanded from, in order."""
    seen, expand = [], masks.expand

    def watched(key, dimension, bits):
        seen.append(key)
        return expand(key, dimension, bits)

    masks.expand = watched
    try:
        yield seen
    finally:
        masks.expand = expand


class HostileRound:
    """One round.

    Args:
        numbers: The agreement.
        colluding: Seats whose secrets the server knows, and who sign whatever it likes.
        alter: `alter(phase, seat, body)`: what a seat is told in place of what an honest server would tell it. Bodies
            are those of `bodies`; None: nothing is sent.
        silent: Whom the server calls silent, of those who shared.
    """

    def __init__(self, numbers, colluding=(), *, alter=lambda phase, seat, body: body, silent=(), name="hostile"):
        self.numbers, self.colluding, self.alter, self.silent = numbers, frozenset(colluding), alter, frozenset(silent)
        self.round, keys = a_round(numbers), people(numbers.clients)
        self.people = [Identity(key) for key in keys]
        self.clients = {
            seat: Client(round_=self.round, seat=seat, identity=keys[seat], randomness=stream(name, seat))
            for seat in range(numbers.clients)
        }
        self.masked, self.used, self.bounds, self.revealed = {}, {}, {}, []
        self.refused = {}
        said = {seat: client.advertise() for seat, client in self.clients.items()}
        self.keys = {seat: Keys.decode(message[FRONT:-SIGNATURE_BYTES]) for seat, message in said.items()}
        self.key_list = KeyList(
            tuple((seat, self.keys[seat].encoded, said[seat][-SIGNATURE_BYTES:]) for seat in sorted(said))
        )
        # What colluding clients hold before they forget it.
        self.known = {seat: self.clients[seat]._secrets for seat in self.colluding}
        self.mask_keys = {seat: secrets.mask_keys for seat, secrets in self.known.items()}

    def share(self):
        """KEY_LIST, and what clients share."""
        sealed = self._asked(ProtocolPhase.KEY_LIST, dict.fromkeys(self.clients, self.key_list), "share")
        self.sealed = {
            seat: {dealt.seat: dealt for dealt in Ciphertexts.decode(message[FRONT:-SIGNATURE_BYTES]).entries}
            for seat, message in sealed.items()
        }
        self.sharers = frozenset(self.sealed)
        self.channels = {seat: dict(self.clients[seat]._secrets.channels) for seat in self.colluding & self.sharers}
        return self

    def finish(self):
        """Everything after the shares."""
        agreed = self._asked(ProtocolPhase.SHARE_LIST, {seat: self._share_list(seat) for seat in self.sealed}, "agree")
        signatures = {seat: Agree.decode(message[FRONT:-SIGNATURE_BYTES]).signature for seat, message in agreed.items()}
        told = {seat: self.clients[seat]._secrets.sharers for seat in agreed}
        bodies = {seat: self._signatures(ProtocolPhase.AGREE, seat, b"", signatures, told[seat]) for seat in agreed}
        with seen_masks() as seen:
            for seat in sorted(bodies):
                before = len(seen)
                message = self._asked(ProtocolPhase.AGREED, {seat: bodies[seat]}, "mask", self.numbers).get(seat)
                if message is not None:
                    content = message[FRONT:-SIGNATURE_BYTES]
                    self.masked[seat] = Masked.decode(content, self.numbers).words
                    secrets = self.clients[seat]._secrets
                    around = sorted(secrets.shares.keys() | secrets.rejected)
                    self.used[seat] = (seen[before], dict(zip(around, seen[before + 1 :], strict=True)))
                    self.bounds[seat] = self.clients[seat]._bound
        told = Survivors(self.sharers - self.silent, self.silent & self.sharers)
        consents = self._asked(ProtocolPhase.SURVIVORS, dict.fromkeys(sorted(self.masked), told), "consent")
        self.told = {seat: self.clients[seat]._secrets.told for seat in consents}
        signatures = {seat: message[-SIGNATURE_BYTES:] for seat, message in consents.items()}
        bodies = {
            seat: self._signatures(ProtocolPhase.CONSENT, seat, consent(told, self.numbers), signatures, told.survivors)
            for seat, told in self.told.items()
        }
        for seat, message in self._asked(ProtocolPhase.CONSENTS, bodies, "unmask").items():
            for other, kind, share in Reveal.decode(message[FRONT:-SIGNATURE_BYTES]).entries:
                self.revealed.append((other, kind, seat, share))
        return self

    def _asked(self, phase, bodies, method, numbers=None):
        """The answers of those who do not refuse."""
        found = {}
        for seat, body in bodies.items():
            client = self.clients[seat]
            changed = self.alter(phase, seat, body)
            if changed is None:
                continue
            content = changed if isinstance(changed, bytes) else encoded(changed, self.numbers)
            bound = b"" if phase is ProtocolPhase.KEY_LIST else client._bound
            message = signed(self.round, phase, SERVER, seat, content, self.people[-1], bound)
            more = () if numbers is None else (vector(seat, numbers),)
            try:
                found[seat] = getattr(client, method)(message, *more)
            except Aborted as error:
                self.refused[seat] = str(error)
        return found

    def _share_list(self, seat):
        around = [other for other in sorted(self.sharers) if seat in self.sealed[other]]
        listed = tuple(self.sealed[other][seat]._replace(seat=other) for other in around)
        return ShareList(self.sharers, Ciphertexts(listed))

    def _signatures(self, phase, seat, body, signatures, among):
        """A quorum for what this seat was told, of whoever signed the same, and of those who sign anything."""
        bound = self.clients[seat]._bound
        all_signed = dict(signatures)
        for other in self.colluding:
            all_signed[other] = signed(self.round, phase, other, EVERYONE, body, self.people[other], bound)[-64:]
        same = [
            (other, signature)
            for other, signature in sorted(all_signed.items())
            if other in among and self._fits(phase, other, bound, body, signature)
        ]
        return Signatures(tuple(same[: max(self.numbers.quorum, 1)]))

    def _fits(self, phase, seat, bound, body, signature):
        content = self.round.digest + bound + header(self.round, phase, seat, EVERYONE) + body
        return signed_by(self.people[seat].public, signature, content)

    # What follows.

    def _secrets_found(self):
        """(seat, kind) to the secret, wherever t shares are there and give what was committed to."""
        shares = {}
        for seat, kind, holder, share in self.revealed:
            shares.setdefault((seat, kind), {})[holder + 1] = share
        for holder, channels in self.channels.items():
            for seat, channel in channels.items():
                try:
                    both = channel.unsealed(self.round, holder, seat, self.sealed[seat][holder].sealed)
                except (Refused, KeyError):
                    continue
                for kind in Kind:
                    part = both[kind * shamir.SHARE_BYTES : (kind + 1) * shamir.SHARE_BYTES]
                    shares.setdefault((seat, kind), {})[holder + 1] = share_of(part)
        found = {}
        for (seat, kind), held in shares.items():
            if len(held) < self.numbers.threshold:
                continue
            first = dict(sorted(held.items())[: self.numbers.threshold])
            secret = (shamir.join(first) % 2**256).to_bytes(32, "big")
            right = (
                pairwise.commitment(self.round, secret, seat) == self.keys[seat].commitment
                if kind is Kind.SEED
                else Pair(secret).public == self.keys[seat].mask_key
            )
            assert right
            found[seat, kind] = secret
        return found

    def _known_masks(self):
        """Keys of all masks that the server can expand itself."""
        found, pairs, bounds = set(), dict(self.mask_keys), set(self.bounds.values())
        for (seat, kind), secret in self._secrets_found().items():
            if kind is Kind.KEY:
                pairs[seat] = Pair(secret)
            else:
                found |= {pairwise.own_seed(bound, secret, seat) for bound in bounds}
        for seat, pair in pairs.items():
            for other, keys in self.keys.items():
                for bound in bounds if other != seat else ():
                    context = pairwise.pair_context(bound, seat, self.keys[seat], other, keys)
                    found.add(pairwise.mask_seed(pair, keys.mask_key, context))
        return found

    def learned(self):
        """Sets of honest seats whose vectors' sum the server can compute; every other combination follows from these.

        A combination may take in a vector only with its own mask known. A mask of a pair that is not known forces the
        factors of its two vectors to be equal, or that of the only vector that has it to be 0.
        """
        known = self._known_masks()
        rows = sorted(self.masked.keys() - self.colluding)
        group = {seat: seat for seat in rows}

        def root(seat):
            while group[seat] != seat:
                seat = group[seat]
            return seat

        dead, users = set(), {}
        for seat in rows:
            own, pairs = self.used[seat]
            if own not in known:
                dead.add(seat)
            for other, key in pairs.items():
                if key not in known:
                    users.setdefault(key, []).append((seat, 1 if other > seat else -1))
        for using in users.values():
            if len(using) == 1:
                dead.add(using[0][0])
            else:
                (one, plus), (two, minus) = using
                assert plus == -minus
                group[root(one)] = root(two)
        hidden = {root(seat) for seat in dead}
        sums = {}
        for seat in rows:
            if root(seat) not in hidden:
                sums.setdefault(root(seat), set()).add(seat)
        found = [frozenset(seats) for seats in sums.values()]
        for seats in found:
            self._check(seats, known)
        return found

    def _check(self, seats, known):
        """That the sum does come off, bit for bit: nothing is called learned that is not."""
        size, bits = self.numbers.dimension, self.numbers.bits
        total = np.zeros(size, dtype=masks.word(bits))
        for seat in seats:
            own, pairs = self.used[seat]
            total += self.masked[seat]
            total -= masks.expand(own, size, bits)
            for other, key in pairs.items():
                if key in known:
                    apply = np.subtract if other > seat else np.add
                    apply(total, masks.expand(key, size, bits), out=total)
        plain = sum(vector(seat, self.numbers) for seat in seats) % np.uint64(2**bits)
        assert (masks.reduced(total, bits) == plain).all()


def encoded(body, numbers):
    """Of every kind."""
    return body.encode(numbers) if isinstance(body, ShareList | Survivors) else body.encode()


def planned(round_):
    """Whether what the server learned is nothing, or the sum of all honest survivors of a list that is long enough."""
    found, numbers = round_.learned(), round_.numbers
    if not found:
        return True
    lists = {told.survivors for told in round_.told.values()}
    (seats,) = found if len(found) == 1 else (None,)
    return seats is not None and any(
        seats == listed - round_.colluding and len(listed) >= numbers.enough for listed in lists
    )
