"""The server's questions to its clients: signed, and answered soundly and in time, or not at all."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.federation.channel import Channel
from dpfedmeta.federation.client.signed_participation import Signed
from dpfedmeta.federation.wire_format import MOST_BYTES, Attempt, Offer, Question, QuestionKind, Said, opened_answer
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

_ANSWERS = {
    QuestionKind.PLAN: Said.ACCEPTED,
    QuestionKind.VECTOR: Said.VECTOR,
    QuestionKind.PHASE: Said.PHASE,
    QuestionKind.MODEL: Said.ADAPTED,
}
TOLD = "told.json"
# Of the time for answers, after each of which those that are missing are asked again.
_SHARES = (0.5, 0.25, 0.25)


@dataclass(kw_only=True, eq=False)
class Told:
    """SECRET: of the last attempt at a sum, its number and who survived; on disk before any client is told.

    Attributes:
        path: Where it is kept, for a server that is killed; None: in this process alone.
        by_another: Whether an earlier process told clients of these survivors.
    """

    path: Path | None = None
    by_another: bool = False
    _kept: tuple[int, list[int], list[int]] | None = None

    def survivors(self, attempt: Attempt) -> frozenset[int] | None:
        """Return the survivors that clients were told of in this attempt; None: no client was told of any yet."""
        _, key, clients = self._last()
        return frozenset(clients) if key == list(attempt.key) else None

    def next_protocol(self) -> int:
        """Number an attempt at a sum: above all earlier ones, whatever any clock says; a client takes none twice."""
        protocol, key, clients = self._last()
        self._keep(protocol + 1, key, clients)
        return protocol + 1

    def note(self, attempt: Attempt, clients: Iterable[int]) -> None:
        """Before any client is told."""
        self._keep(self._last()[0], list(attempt.key), sorted(clients))
        self.by_another = False

    def _last(self) -> tuple[int, list[int], list[int]]:
        if self._kept is None and self.path is not None and self.path.exists():
            try:
                content = json.loads(self.path.read_text(encoding="utf-8"))
                self._kept = int(content["protocol"]), [*content["key"]], [*content["clients"]]
                self.by_another = True
            except (OSError, *DAMAGED_JSON) as error:
                raise InputError(
                    f"{self.path}: damaged; it says what clients were told in the last round; restore it from a backup"
                ) from error
        return self._kept or (0, [], [])

    def _keep(self, protocol: int, key: list[int], clients: list[int]) -> None:
        if self.path is not None:
            content = {"protocol": protocol, "key": key, "clients": clients}
            replace_file(self.path, json.dumps(content).encode(), SECRET)
        self._kept = protocol, key, clients


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Counts of the answers to one question that several clients were asked.

    For the operator of the server alone: who takes part is as secret as the cohort.

    Attributes:
        asked: Kind of the question.
        round: Number of the round.
        clients: Number of clients that were asked.
        answered: Number of these whose answer was accepted.
        declined: Number of these that declined.
        unsound: Number of these whose answer was not accepted.
    """

    asked: QuestionKind
    round: int
    clients: int
    answered: int
    declined: int
    unsound: int

    @property
    def absent(self) -> int:
        """Number of clients that were not heard of in time."""
        return self.clients - self.answered - self.declined - self.unsound

    def __str__(self) -> str:
        """All counts, in a line for the operator."""
        return (
            f"{self.asked.name.lower()}: {self.answered} of {self.clients} clients answered, {self.declined} "
            f"declined, {self.unsound} sent an invalid answer, {self.absent} did not answer in time"
        )


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Clients whose shares were wrong under secure aggregation.

    For the operator of the server alone: who takes part may be secret.

    Attributes:
        round: Number of the round.
        clients: Numbers of the clients: the one at fault, or two of which one is at fault.
        text: Describes the fault, given a function from a client's number to its name.
    """

    round: int
    clients: tuple[int, ...]
    text: Callable[[Callable[[int], str]], str]


@dataclass(kw_only=True, eq=False)
class ClientRequests:
    """Questions of the server to the clients of one run or analysis.

    Attributes:
        channel: The wire.
        signed: The signed plan or analysis.
        server: The server's identity.
        roster: Identities of all clients, by number.
        seconds: How long a question waits for answers.
        heard: Called with the counts of the answers to each question.
        blamed: Called with the clients whose shares were wrong.
        left_out: SECRET: clients whose shares ended an attempt at a sum, beyond doubt: they are in no further one.
        told: SECRET: the last attempt at a sum.

    Guarantee:
        None of its own: a client that declines, is late, or sends an answer that is not accepted is a client with a
        message of 0.
    """

    channel: Channel
    signed: Signed
    server: Identity
    roster: Sequence[bytes]
    seconds: float
    heard: Callable[[Heard], None] = lambda heard: None
    blamed: Callable[[Blame], None] = lambda blame: None
    left_out: set[int] = field(default_factory=set)
    told: Told = field(default_factory=Told)
    _accepted: set[int] = field(default_factory=set)
    _declining: set[int] = field(default_factory=set)
    _round: tuple[int, ...] = ()

    @property
    def declining(self) -> frozenset[int]:
        """SECRET where not all are asked: who declined the plan or the last round, or answered unsoundly."""
        return frozenset(self._declining)

    @property
    def there(self) -> frozenset[int]:
        """SECRET where not all are asked: who is connected, and not left out."""
        present = {*self.channel.present()}
        return frozenset(n for n, identity in enumerate(self.roster) if identity in present) - self.left_out

    @property
    def answering(self) -> int:
        """SECRET where not all are asked: how many accepted the plan, or declined it."""
        return len(self._accepted | self._declining)

    def offer(self, identities: Iterable[bytes]) -> None:
        """The plan, to clients who neither accepted nor declined it yet."""
        there = {*identities} - {self.roster[number] for number in self._declining}
        numbers = [number for number, identity in enumerate(self.roster) if identity in there]
        self._with_plan(numbers, Attempt(run=self.signed.run, round=0))

    def ask(self, asked: QuestionKind, attempt: Attempt, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        """Sound answers, by number of the client.

        Args:
            asked: What for.
            attempt: At which round.
            bodies: What each is asked, by number.
        """
        if attempt.key != self._round:
            self._declining.clear()
            self._round = attempt.key
        accepted = self._with_plan(bodies, attempt)
        return self._ask(asked, attempt, {number: body for number, body in bodies.items() if number in accepted})

    def _with_plan(self, numbers: Sequence[int] | Mapping[int, bytes], attempt: Attempt) -> set[int]:
        """Return the clients of these that accepted the plan; offer it first to those that have not yet."""
        new = [number for number in numbers if number not in self._accepted]
        if new:
            offers = {
                number: Offer(number=number, signature=self.signed.signature, text=self.signed.text).encode()
                for number in new
            }
            self._accepted |= self._ask(QuestionKind.PLAN, Attempt(run=attempt.run, round=attempt.round), offers).keys()
        return self._accepted & set(numbers)

    def _ask(self, asked: QuestionKind, attempt: Attempt, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        if not bodies:
            return {}
        messages = {
            number: Question(
                asked=asked, attempt=attempt, plan=self.signed.digest, recipient=self.roster[number], body=body
            ).signed(self.server)
            for number, body in bodies.items()
        }
        came = self._answers({self.roster[number]: message for number, message in messages.items()})
        sound: dict[int, bytes] = {}
        declined = unsound = 0
        for number, message in messages.items():
            answer = came.get(self.roster[number])
            if answer is None:
                continue
            try:
                if len(answer) > MOST_BYTES:
                    raise Refused("the answer is too long")
                body = opened_answer(answer, _ANSWERS[asked], message, self.roster[number])
            except Refused:
                unsound += 1
                self._declining.add(number)
                continue
            if body is None:
                declined += 1
                self._declining.add(number)
                # It may have been started again, and have lost its plan.
                self._accepted.discard(number)
            else:
                sound[number] = body
                # It was started again, or could not read its data for a moment.
                self._declining.discard(number)
        self.heard(
            Heard(
                asked=asked,
                round=attempt.round,
                clients=len(messages),
                answered=len(sound),
                declined=declined,
                unsound=unsound,
            )
        )
        return sound

    def _answers(self, questions: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return all answers that come in time; whoever is silent for long is asked again.

        A question or its answer may have been lost on the way. A client that answered already sends the same bytes.
        """
        came = dict[bytes, bytes]()
        for share in _SHARES:
            silent = {identity: question for identity, question in questions.items() if identity not in came}
            came |= self.channel.ask(silent, share * self.seconds) if silent else {}
        return came
