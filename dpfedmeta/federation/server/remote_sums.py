"""The two ways in which a federation adds up messages: those of the simulation, on answers over the wire."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from dpfedmeta.core.params import Params, dimension, flatten
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.federation.client.secagg_session import round_of
from dpfedmeta.federation.server.client_requests import Blame, ClientRequests
from dpfedmeta.federation.server.quorum import TooFew, all_are_asked, wait_for
from dpfedmeta.federation.wire_format import (
    Attempt,
    Floats,
    ProtocolStep,
    QuestionKind,
    RoundTask,
    Start,
    unpacked_floats,
)
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.crypto.share_dealing import Fault, certain
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.protocol_server import Server, Sum
from dpfedmeta.simulation.backend import AttemptUsedUp
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import SumTask as LocalTask
from dpfedmeta.simulation.cohort_sums import plain_sum

# An attempt at the protocol that failed is made again, with fresh keys on the same vectors, and of the same survivors
# where clients were told of some.
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedSums:
    """The server sees every message (a simulation.backend.Backend).

    Attributes:
        clients: What each of them runs; here for its public constants.
        asking: The clients.
    """

    clients: ClientRunner
    asking: ClientRequests

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[ClientUnit, Params]:
        """SECRET: the sum of the messages that came in time and are what an honest client may send.

        Guarantee:
            As simulation.cohort_sums.LocalBackend, whose sum of the same messages it equals bit for bit: one client
            moves the value by at most its sensitivity. A message that is not finite, not of the model's form, or longer
            than an honest one is a message of 0.
        """
        size = dimension(self.clients.form(model))
        attempt = Attempt(run=self.asking.signed.run, round=cohort.round, again=cohort.again)
        task = RoundTask(bound=bound, model=_flat(model)).encode()
        answers = self.asking.ask(QuestionKind.VECTOR, attempt, dict.fromkeys(cohort.clients.tolist(), task))
        messages = (_values(answer, size) for answer in answers.values())
        added = self.clients.whole_numbers(bound, size).total(messages, size)
        return plain_sum(self.clients, model, bound, added, len(answers))


def _values(answer: bytes, size: int) -> torch.Tensor | None:
    try:
        return torch.from_numpy(unpacked_floats(answer, size).astype(np.float64))
    except Refused:
        return None


def _flat(model: Params) -> Floats:
    return np.asarray(flatten(model).cpu().numpy())


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedAdder:
    """The server sees nothing but the sum (a simulation.cohort_sums.Adder), by the protocol of secure_aggregation.

    Attributes:
        asking: The clients.
        identity: The server's private key.

    Guarantee:
        None of its own: the server sees no more than the sum of the survivors' vectors, who took part and who fell
        silent. Below the fewest survivors nothing is unmasked: no client helps, and the sum is 0.
    """

    asking: ClientRequests
    identity: bytes

    def __call__(
        self, clients: ClientRunner, workers: Workers, tasks: Sequence[LocalTask], cohort: Cohort
    ) -> tuple[IntArray, int]:
        """SECRET: (sum modulo 2^b of the survivors' vectors, how many these are); too few: nothing, and 0.

        Raises:
            AttemptUsedUp: Only a further attempt can have a sum, or this one once clients are back.
            TooFew: There is none, and the same question may be asked again.
        """
        whole = clients.whole
        assert whole is not None
        nothing = np.zeros(whole.dimension, dtype=np.int64), 0
        if not tasks:
            return nothing
        _, arrays, (bound, _), *_ = tasks[0]
        flat: Floats = np.concatenate([value.reshape(-1) for value in arrays.values()])
        start = Start(invited=tuple(cohort.clients.tolist()), task=RoundTask(bound=bound, model=flat).encode())
        attempt = Attempt(run=self.asking.signed.run, round=cohort.round, again=cohort.again)
        try:
            found = secure_sum(self.asking, self.identity, attempt, start)
        except NoSum as error:
            if not all_are_asked(self.asking):
                # That a round was lost is as secret as the cohort.
                return nothing
            lost = f"round {cohort.round} has no sum ({error})"
            later = TooFew(
                f"{lost}; nothing is released and the round stays charged. Check that all clients are connected, and "
                "their logs; then type the same command again to continue. Clients that answered are not charged "
                "again. If a client stays away, type the command with a smaller --fewest, to go on without it"
            )
            if not used_up(self.asking, attempt, start.invited):
                raise later from None
            away = not at_fault(self.asking, attempt)
            raise AttemptUsedUp(
                f"{lost}, and the clients that it could be the sum of are no longer all there", later if away else None
            ) from None
        return found.total.astype(np.int64), len(found.survivors)


def used_up(asking: ClientRequests, attempt: Attempt, invited: Sequence[int]) -> bool:
    """SECRET: whether a further attempt is needed now, since clients agree to one set of survivors of a vector.

    Args:
        asking: The clients.
        attempt: The attempt, which had no sum.
        invited: Its cohort.

    Returns:
        True where one of the survivors that clients were told of is at fault beyond doubt, or is away and the server
        was started again since; and where those who are there are enough for a sum without it. Each client that is at
        fault costs one further attempt at most, as it is left out from then on.
    """
    told = asking.told.survivors(attempt)
    if told is None:
        return False
    agreement, there = asking.signed.agreement(attempt.round, len(invited)), asking.there & {*invited}
    gone = at_fault(asking, attempt) or (asking.told.by_another and told - there)
    return bool(gone) and len(there) >= max(agreement.enough, agreement.quorum)


def at_fault(asking: ClientRequests, attempt: Attempt) -> frozenset[int]:
    """SECRET: survivors that clients were told of in this attempt and that are left out from then on."""
    return (asking.told.survivors(attempt) or frozenset()) & asking.left_out


class NoSum(Exception):
    """Nothing was unmasked, for the reason that the text gives."""


def secure_sum(asking: ClientRequests, identity: bytes, attempt: Attempt, start: Start) -> Sum:
    """SECRET: what the protocol gives the server.

    Args:
        asking: The clients.
        identity: The server's private key.
        attempt: At which round.
        start: Who is invited, and what they compute from.

    Raises:
        NoSum: Too few clients were there to the end, or too many of their shares were wrong.
    """
    assert len(identity) == SECRET_BYTES
    why = "clients agreed to a sum with one that is left out"
    for _ in range(_ATTEMPTS):
        if at_fault(asking, attempt):
            break
        _await_survivors(asking, attempt)
        protocol = asking.told.next_protocol()
        server = Server(round_=round_of(asking.signed, attempt, protocol, start), identity=identity)
        try:
            _talk(asking, server, attempt, protocol, start)
            return server.sum()
        except Aborted as error:
            why = _reason(error, server, start)
            asking.left_out |= {start.invited[seat] for seat in certain(server.faults)}
        finally:
            for fault in server.faults:
                asking.blamed(_blame(fault, attempt.round, start.invited))
    raise NoSum(why)


def _await_survivors(asking: ClientRequests, attempt: Attempt) -> None:
    """Wait, as long as for answers, until all survivors that clients were told of are connected: no sum lacks one."""
    told = [asking.roster[number] for number in asking.told.survivors(attempt) or ()]
    with suppress(TooFew):
        wait_for(asking.channel, told, len(told), asking.seconds)


def _reason(error: Aborted, server: Server, start: Start) -> str:
    """Why, by numbers of clients in place of seats."""

    def name(seat: int) -> str:
        return f"client {start.invited[seat]}"

    said = re.sub(r"seat (\d+)", lambda found: name(int(found[1])), str(error))
    return "; ".join([said, *dict.fromkeys(fault.text(name) for fault in server.faults)])


def _blame(fault: Fault, round_: int, invited: Sequence[int]) -> Blame:
    return Blame(
        round=round_,
        clients=tuple(invited[seat] for seat in fault.seats),
        text=lambda name: fault.text(lambda seat: name(invited[seat])),
    )


def _talk(asking: ClientRequests, server: Server, attempt: Attempt, protocol: int, start: Start) -> None:
    """All phases, in order; who says nothing in one of them has fallen silent.

    Raises:
        Aborted: Too few are left.
    """
    told = asking.told.survivors(attempt)
    # Clients agree to one set of survivors of a vector, and no other one would be unmasked.
    asked = told if told is not None else {*start.invited} - asking.left_out
    there = [seat for seat, number in enumerate(start.invited) if number in asked]
    inbox: Mapping[int, bytes] = dict.fromkeys(there, start.encode())
    while inbox:
        phase = server.phase
        said = {
            start.invited[seat]: ProtocolStep(protocol=protocol, phase=phase, said=message).encode()
            for seat, message in inbox.items()
        }
        for answer in asking.ask(QuestionKind.PHASE, attempt, said).values():
            try:
                server.receive(answer)
            except Refused:
                continue
        inbox = server.close()
        if server.phase is ProtocolPhase.CONSENT and told is None:
            asking.told.note(attempt, (start.invited[seat] for seat in server.survivors))
