"""A private round, as a caller's loop sees it: whom to ask, what to add, and what is released."""

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.accounting.events.guarantee import FourGuarantees
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, append_text
from dpfedmeta.core.params import Params, host, same_kind
from dpfedmeta.core.plugins.own_function import FEWEST_TRIED, check_rehearsed, check_some_work, code_digest, on_copies
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.rounds.charged_rounds import ChargedRounds
from dpfedmeta.privacy.rounds.round_sum import RoundSum, problem_of_update, real_arrays
from dpfedmeta.privacy.rounds.stored_release import StoredRelease
from dpfedmeta.privacy.samplers import Cohort

# SECRET: why a client's own function failed, for the owner of the server alone.
CLIENT_ERRORS = "client-errors.txt"
_MOST_ERRORS = 5


class PrivateRound:
    """A round that is charged before anybody of its cohort is asked, and whose release is computed once.

    Attributes:
        number: Number of the round, from 0.
        bound: Clip bound of the round, which clients may know.
        repeated: True if its release is stored already, so that nobody is asked.
    """

    def __init__(
        self,
        rounds: ChargedRounds,
        number: int,
        cohort: Cohort | None,
        stored: StoredRelease | None = None,
        *,
        like: Mapping[str, Any] | None = None,
    ) -> None:
        """A round as `PrivateRounds` hands it out.

        Args:
            rounds: Where it is charged and released.
            number: Number of the round.
            cohort: SECRET: whom to ask; None: the round is charged once somebody is to be asked.
            stored: Its release, where that is stored already.
            like: The caller's model, whose kind of arrays a release has; None: numpy's.
        """
        self.number = number
        self.bound = rounds.bound if stored is None else stored.bound
        self.repeated = stored is not None
        self._rounds, self._stored, self._like = rounds, stored, like
        self._calls: list[Callable[[object], object]] = []
        self._alone = True
        self._undue: set[int] = set()  # SECRET: some of those who were added and not due
        self._begun: tuple[Cohort, RoundSum] | None = None if cohort is None else (cohort, rounds.empty_sum(cohort))

    def _asked(self) -> tuple[Cohort, RoundSum]:
        """SECRET: whom to ask, charged, and the sum of their updates so far."""
        self._rounds.check_process()
        if self._begun is None:
            cohort = self._rounds.begin(self.number)
            assert cohort is not None  # `allows` said so
            self._begun = cohort, self._rounds.empty_sum(cohort)
        return self._begun

    @property
    def cohort(self) -> list[int]:
        """SECRET: the clients of the round, in ascending order; its length is secret too."""
        found: list[int] = self._asked()[0].clients.tolist()
        return found

    @property
    def spent(self) -> FourGuarantees:
        """The four cells after this round's charge and all before."""
        return self._rounds.spent

    def add(self, client: object, update: object) -> None:
        """Clip a client's update to `bound` and add it.

        Args:
            client: A client of the cohort, once; anybody else, or a second time, adds nothing, which standard error
                says of eight or more. Its number, also as a tensor, an array of one, a text.
            update: Mapping from names to arrays: numpy, PyTorch, JAX, or what has `__array__` or `__dlpack__`. One that
                is not finite, or has other names or shapes, counts as zero. Nothing is said of it outside of
                `run_dir/secret`: a message would tell of the client's data.

        Raises:
            InputError: `client` is no number of one client.
        """
        number = client_number(client)
        if self._stored is None:
            self._alone = False
            if self._asked()[1].add(number, update):
                self._rounds.added = True
            else:
                self._note_undue(number)

    def _note_undue(self, number: int) -> None:
        """Say once in a process that the loop names clients of its own choice, who add nothing.

        Its code names them, so no record is behind that. But which of them are in the cohort is secret, and standard
        error may be a log: it is said once FEWEST_TRIED different ones added nothing, and neither who nor how many did.
        One person's place in the cohort decides only where exactly seven others that the loop names are outside.
        """
        if len(self._undue) < self._fewest:
            self._undue.add(number)
            if len(self._undue) == self._fewest and not self._rounds.told_undue:
                self._rounds.told_undue = True
                print(
                    f"PrivateRounds: {self._rounds.run.path}: round {self.number}: round.add was called for clients "
                    "outside round.cohort, or twice for one; that adds nothing, and the round is charged: call it once "
                    "for each client of round.cohort",
                    file=sys.stderr,
                )

    @property
    def _fewest(self) -> int:
        """Clients by whom a loop is judged; in a simulation nobody is anybody's."""
        return 1 if self._rounds.simulation else FEWEST_TRIED

    def map(self, function: Callable[..., object], *given: object, rehearse: object = None) -> None:
        """Add `function(*given, client)` for each client of the cohort, without handing the cohort out.

        Each call has copies of the arrays in `given`, so that no client goes on from what another one left there. A
        client for which the function fails counts as zero; why is in `run_dir/secret/client-errors.txt`. In a
        simulation (`noise_seed`) its error is raised.

        Where this code was not used in this run before, eight clients, spread over all, are tried first: in the first
        round of a process before its charge. There a function is refused that is not the one of the rounds so far,
        unless `changed_code` was given.

        Args:
            function: The caller's own.
            given: What it is given before the client.
            rehearse: A public or made-up client, tried first in every round; its error is raised, since it is nobody's.

        Raises:
            InputError: The function fails for all that were tried, and its error is told where it is the same for all.
                Or it was edited, or is the second one of its round, or a model that is given is not finite.
        """
        call, code = on_copies(function, given), code_digest(function)
        model = _model_digest(given, self._rounds.form)
        if self._stored is not None:
            self._rounds.functions.tell_stored(self.number, self._rounds.released, code)
            self._rounds.functions.tell_model(self.number, model)
        # Another thread may have released this very round since.
        due = self._stored is not None or self.number >= self._rounds.released > 0
        if due and not (self._rounds.ended or self._rounds.looked_at):
            self._rounds.functions.check_same(code, self._rounds.released)
        self._rounds.looked_at = True
        if self._stored is not None:
            return
        if self._calls:
            raise InputError(
                f"PrivateRounds: round {self.number}: map was called before in this round, and each client sends one "
                "update, so a second function would add nothing; put both into one"
            )
        if not all(np.isfinite(value).all() for each in _models(given, self._rounds.form) for value in each.values()):
            raise InputError(
                f"PrivateRounds: round {self.number}: the model given to map is not finite any more, so all updates "
                "would count as zero; take smaller steps, in another run_dir or from an earlier model (private.after)"
            )
        if rehearse is not None:
            check_rehearsed(call, rehearse, self._problem)
        if not self._rounds.functions.holds(code):
            check_some_work(call, self._rounds.plan.clients, self._problem)
        if self.number >= self._rounds.released:
            self._rounds.functions.note(self.number, code, model)
        self._calls.append(call)
        self._add_all(call)

    def _problem(self, update: object) -> str | None:
        return problem_of_update(update, self._rounds.form)

    def _add_all(self, call: Callable[[object], object]) -> None:
        errors: list[str] = []
        cohort, total = self._asked()
        for client in cohort.clients.tolist():
            try:
                update = call(client)
            except MemoryError:
                raise
            except Exception:
                if self._rounds.simulation:
                    raise
                # The round goes on: a stop would tell of the client's data.
                update = None
                if len(errors) < _MOST_ERRORS:
                    errors.append(f"round {self.number}, client {client}\n{traceback.format_exc()}\n")
            total.add(client, update)
            self._rounds.added = True
        if errors:
            append_text(self._rounds.run.secret / CLIENT_ERRORS, "".join(errors), SECRET)

    def release(self) -> dict[str, Any]:
        """The noisy mean of the updates over L, and nothing else; the same again if it is asked for again.

        Returns:
            float32 arrays by name, as `like` has them: tensors or numpy arrays.

        Raises:
            InputError: The round was answered with another sum in an earlier process, whose release may be known. Run
                the program again: the round gets a new cohort and is charged again. (With `map` alone that is done at
                once.)
        """
        if self.repeated:
            left = self._rounds.plan.rounds - self._rounds.released
            self._rounds.functions.tell_stored(self.number, self._rounds.released, left=left)
        if self._stored is None and not self._rounds.added:
            self._check_somebody_added()
        while self._stored is None:
            cohort, total = self._asked()
            self._stored = self._rounds.release(total, cohort)
            if self._stored is None:
                self._again()
        # What only the clip policy asked for is left out.
        values = {name: host(value) for name, value in self._stored.values.items() if name != ATTACHED}
        return {name: self._of_kind(name, value) for name, value in values.items()}

    def _check_somebody_added(self) -> None:
        """Refuse to release before `add` or `map` was used for anybody: a loop that forgot it buys noise to the end.

        It is asked before the first release of a process alone, and looks at calls, not at updates: a client that sends
        None is added. So a loop that adds whoever it asks is refused for its code, whatever its clients hold. One that
        leaves clients out by their data is refused only where it left out all of at least FEWEST_TRIED: one client's
        data decide only where all others were left out too, as in the rehearsal of `map`. For fewer, down to a cohort
        of one person, a refusal could tell of that person, so noise is released. So it is where the loop named a few
        clients of its own choice: that none was in the cohort would be told.

        Raises:
            InputError: Nobody was added; says what to call. A round whose cohort was not asked for is not charged.
        """
        self._rounds.check_process()
        asked = self._rounds.plan.clients if self._begun is None else len(self._begun[0].clients)
        if asked < self._fewest or 0 < len(self._undue) < self._fewest:
            return
        raise InputError(
            f"PrivateRounds: round {self.number}: nobody was added, so its release would be noise alone; nothing was "
            "released. Call round.map(function, model), or, in this process, round.add(client, update) for each client "
            "of round.cohort (None for one that sent nothing); then start again with the same run_dir: the round is "
            "not charged twice"
        )

    def _of_kind(self, name: str, values: npt.NDArray[Any]) -> Any:
        like, torch = (self._like or {}).get(name), sys.modules.get("torch")
        return same_kind(values, like) if torch is not None and isinstance(like, torch.Tensor) else values

    def _again(self) -> None:
        """Ask a new cohort, charged as a further attempt.

        Raises:
            InputError: The caller's own loop asked the last one, or the budget allows no further attempt.
        """
        cohort = self._rounds.begin(self.number) if self._alone else None
        if cohort is None:
            why = "" if self._alone else ": run the program again, and it gets a new cohort and is charged again"
            raise InputError(
                f"PrivateRounds: round {self.number} was answered with another sum before, and equal noise on both "
                f"would reveal the difference{why or ', and the budget allows no further attempt'}"
            )
        self._begun = cohort, self._rounds.empty_sum(cohort)
        for call in self._calls:
            self._add_all(call)


def _models(given: tuple[object, ...], form: Params | None) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """Those of the arguments that have a model's names and shapes; anything else may be data of anybody."""
    shapes = {name: value.shape for name, value in (form or {}).items()}
    for each in given:
        found = real_arrays(each) if isinstance(each, Mapping) and each.keys() == shapes.keys() else None
        if found is not None and {name: value.shape for name, value in found.items()} == shapes:
            yield found


def _model_digest(given: tuple[object, ...], form: Params | None) -> str:
    """Digest of the models among the arguments; empty: there is none."""
    found = [*_models(given, form)]
    parts = (value.tobytes() for each in found for _, value in sorted(each.items()))
    return hashlib.sha256(b"".join(parts)).hexdigest() if found else ""


def client_number(client: Any) -> int:
    """The number of a client, in whatever form a loop has it.

    Raises:
        InputError: It is none, or of several clients.
    """
    number = client.tolist() if hasattr(client, "tolist") else client
    while isinstance(number, list) and len(number) == 1:
        (number,) = number
    try:
        whole = int(number)
        if not isinstance(number, bool) and whole == (whole if isinstance(number, str) else number):
            return whole
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"PrivateRounds: add: expected the number of one client of round.cohort, got {client!r:.80}")
