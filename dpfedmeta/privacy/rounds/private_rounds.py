"""The kernel's door: private rounds for a training loop of one's own.

The loop computes updates and applies releases; everything between the two is here. `PrivateRounds` solves the noise
from the promise, charges each round on disk before anybody is asked, draws the cohort, clips and adds, releases, and
goes on after a crash. The pieces are those of `dpfedmeta train`: `Journal` charges, `clipped_message` and
`WholeNumbers` bound and add, `Journal.release` releases, `planned_policy` sets the bounds.

What the caller has to keep, since no code can check it:

- An update is a function of what was released so far and of that client's own data and state. Nothing else goes in: no
  sum before its noise, no momentum of raw updates at the server, no control variate of other clients (SCAFFOLD).
- State that a client carries from round to round is covered at client level only. It touches all of a client's
  records, so a promise for records needs clients without state.
- The cohort, its length, losses, timings and errors of clients are secret. They are in the caller's hands: do not log,
  plot or return them, and choose nothing by them (no learning rate, no early stop, no best checkpoint).
- The names and shapes of updates are public and the same for all clients. Give `like=model`, so that they come from the
  model; else the first update without whole numbers says them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dpfedmeta.accounting.events.guarantee import FourGuarantees
from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.random_sources import SEEDS
from dpfedmeta.privacy.clip_policies.policy_checks import check_answers, check_policy, own_policy_name, planned_policy
from dpfedmeta.privacy.clip_policy import ClipPolicy, Surroundings, with_attachment
from dpfedmeta.privacy.rounds.charged_rounds import ChargedRounds, begun, nobody, source_of
from dpfedmeta.privacy.rounds.private_round import PrivateRound
from dpfedmeta.privacy.rounds.promise import Promise, RoundsRequest, promises_of
from dpfedmeta.privacy.rounds.round_sum import form_of, problem_of_update, real_arrays, whole_numbers


class PrivateRounds:
    """Rounds of a loop of one's own, with a guarantee that is solved before the first and charged round by round.

    Example:
        >>> import numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> model = {"w": np.zeros(3, dtype=np.float32)}
        >>> private = PrivateRounds(
        ...     clients=1000, cohort=100, rounds=2, like=model, run_dir=folder.name + "/mine",
        ...     promise=Promise(unit="client", observer="public", epsilon=4.0, delta=1e-6),
        ...     clip=ClipSettings(policy="constant", initial=1.0),
        ... )
        >>> private.guarantees.of("client", "public").epsilon <= 4.0
        True
        >>> for round in private:
        ...     round.map(lambda client: {"w": np.ones(3)})
        ...     model = {name: model[name] + mean for name, mean in round.release().items()}
        >>> private.released, model["w"].shape
        (2, (3,))
        >>> private.close()
        >>> folder.cleanup()

    Guarantee:
        All releases together hold `guarantees`, as long as the caller keeps what the module's docstring says. Nothing
        is released that was not charged on disk before. A stored release is returned and never computed again. Where
        the key was drawn (no noise_seed), equal noise never stands on two different sums, whatever is restored from a
        backup: that costs one uncounted charge at most, of the attempt whose bytes were restored. A memory image that
        is restored and asked twice is not covered.

    Attributes:
        guarantees: The four cells that all rounds together keep, known before the first.
        run: The run directory.
    """

    def __init__(
        self,
        *,
        clients: int,
        cohort: float,
        rounds: int,
        promise: Promise | Iterable[Promise],
        clip: ClipSettings | ClipPolicy[Any],
        run_dir: str | PathLike[str],
        sampler: str = "poisson",
        noise: str = "independent",
        like: Mapping[str, Any] | None = None,
        separation: int | None = None,
        buffers: int | None = None,
        max_participations: int | None = None,
        noise_seed: int | None = None,
        secure_rng: bool = False,
        changed_code: bool = False,
    ) -> None:
        """Solve the noise and begin; or go on, where `run_dir` has these rounds already.

        Args:
            clients: N: clients that could ever take part, numbered from 0.
            cohort: L: clients of a round, in expectation; under check-ins the most that a round takes.
            rounds: T.
            promise: One promise, or one for clients and one for records.
            clip: A policy of `dpfedmeta.clip`, or an object of one's own (privacy.clip_policy.ClipPolicy).
            run_dir: Folder of the ledger, the releases and the secrets.
            sampler: poisson, fixed, check-ins or cyclic.
            noise: independent, toeplitz, blt or banded.
            like: The model: names and shapes of an update, and whether releases are tensors or numpy arrays.
            separation: Rounds that a client rests, for correlated noise.
            buffers: Vectors that correlated noise remembers.
            max_participations: Rounds that one client joins at most.
            noise_seed: A chosen seed, for simulations: no guarantee towards whoever knows it.
            secure_rng: Noise and cohorts from the operating system; a round that is done again is charged again.
            changed_code: Go on with another function given to `map` than that of the rounds so far; else that is
                refused before anything more is charged.

        Raises:
            InputError: Something does not fit, or another process is at these rounds.
            RefusedPlan: The promise cannot be kept.
        """
        if not isinstance(run_dir, str | PathLike):
            raise InputError(f"PrivateRounds: run_dir = {run_dir!r}: expected a folder for the ledger and the releases")
        if secure_rng and noise_seed is not None:
            raise InputError("PrivateRounds: noise_seed and secure_rng exclude each other; drop one")
        if noise_seed is not None and (type(noise_seed) is not int or not 0 <= noise_seed < SEEDS):
            raise InputError(f"PrivateRounds: noise_seed = {noise_seed!r}, expected a whole number from 0 to 2^128 - 1")
        if isinstance(cohort, int | float) and 0 < cohort < 1:
            share = f"; for a share of {cohort:g} give cohort={max(1, round(cohort * clients))}" if clients else ""
            raise InputError(f"PrivateRounds: cohort = {cohort:g}: is a number of clients, at least 1{share}")
        if isinstance(clip, str | int | float) or clip is None:
            raise InputError(
                f"PrivateRounds: clip = {clip!r}: expected a policy, such as dp.clip.Constant(initial=1.0) or "
                "dp.clip.Window(initial=1.0, window=5)"
            )
        request = RoundsRequest(
            clients=clients,
            cohort=cohort,
            rounds=rounds,
            promises=promises_of(promise),
            sampler=sampler,
            noise=noise,
            separation=separation,
            buffers=buffers,
            max_participations=max_participations,
            clip=repr(clip) if isinstance(clip, ClipSettings) else own_policy_name(clip),
            simulation=noise_seed is not None,
        )
        policy, form = _policy_of(clip, request), None if like is None else _form_like(like)
        if not isinstance(clip, ClipSettings):
            tried = form_of({"update": np.zeros(8)}) if form is None else form
            check_answers(policy, "PrivateRounds: clip", with_attachment(tried, policy.attachment))
        if form is None:
            request.check_form_known()
        self._like = like
        self.guarantees = request.guarantees
        self.run = begun(Path(run_dir), request, noise_seed, secure_rng=secure_rng)
        per_layer = isinstance(clip, ClipSettings) and clip.scope == "per-layer"
        source = source_of(self.run, noise_seed)
        self._rounds = ChargedRounds(
            self.run, request, policy, form, source, per_layer=per_layer, changed_code=changed_code
        )
        # The locks go when the last reference goes, however that is.
        weakref.finalize(self, self._rounds.close)

    @property
    def clients(self) -> int:
        """N."""
        return self._rounds.plan.clients

    @property
    def form(self) -> Params | None:
        """Names and shapes of an update, as zeros; None: not known yet."""
        return self._rounds.form

    @property
    def measures(self) -> bool:
        """True where the clip policy measures updates before they are clipped, so clients must not clip them."""
        return self._rounds.attachment is not None

    @property
    def released(self) -> int:
        """Number of rounds that are released."""
        return self._rounds.released

    @property
    def ended(self) -> str:
        """Reason of the end: `completed`, `budget` where further attempts used the last rounds up; else empty."""
        return self._rounds.ended

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on what was mended after a crash, a line each."""
        return self._rounds.remarks

    @property
    def spent(self) -> FourGuarantees:
        """The four cells that the charges so far add up to."""
        return self._rounds.spent

    def __iter__(self) -> Iterator[PrivateRound]:
        """All rounds from the first; those that are released already ask nobody and return what is stored."""
        return self.after(0)

    def after(self, rounds: int) -> Iterator[PrivateRound]:
        """The rounds after the first `rounds`, for a caller that keeps a model of its own that far.

        Raises:
            InputError: Not so many are released, or a round was left without its release, or another loop goes through
                them.
        """
        if not 0 <= rounds <= self.released:
            released = counted_words(self.released, "round")
            raise InputError(f"PrivateRounds: {released} of it released, so no loop goes on after {rounds}")
        with self._rounds.one_loop():
            self._rounds.looked_at = False
            for number in range(rounds, self._rounds.plan.rounds):
                if number > self.released:
                    raise InputError(
                        f"PrivateRounds: round {self.released} was not released; call round.release() before the next "
                        "one"
                    )
                stored = self._rounds.stored(number) if number < self.released else None
                # In a new process nothing is charged before the caller's function has been looked at.
                waits = stored is None and not self._rounds.began
                if waits and not self._rounds.allows():
                    return
                begins = stored is None and not waits
                cohort = self._rounds.begin(number) if begins else nobody(number)
                if cohort is None:
                    return
                yield PrivateRound(self._rounds, number, None if waits else cohort, stored, like=self._like)

    def check_update(self, update: object) -> None:
        """Check a made-up update, so that a mistake in its form is seen before it silently counts as zero.

        Args:
            update: What a client would send, computed from public or random data; never a client's.

        Raises:
            InputError: It would count as zero; says why.
        """
        why = problem_of_update(update, self._rounds.form)
        if why is not None:
            raise InputError(f"PrivateRounds: {why}; it would count as zero")

    def close(self) -> None:
        """Give the run directory back, for another process; the rounds go on from where they are."""
        self._rounds.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _policy_of(clip: ClipSettings | ClipPolicy[Any], request: RoundsRequest) -> ClipPolicy[Any]:
    plan = request.planned
    if isinstance(clip, ClipSettings) and clip.start != "given":
        raise InputError(f"PrivateRounds: clip.start = {clip.start}: is of use to a training alone; give initial")
    if not isinstance(clip, ClipSettings):
        if isinstance(clip, type):
            raise InputError(f"PrivateRounds: clip = {clip.__name__}: is a class; hand over an object of it")
        check_policy(clip, "PrivateRounds: clip", algo="PrivateRounds", exact=True)
        return clip
    around = Surroundings(
        algo="PrivateRounds",
        rounds=plan.rounds,
        cohort=plan.cohort,
        noise=max(phase.event.total_noise or 0.0 for phase in plan.phases),
        exact=True,
        independent=plan.noise == "independent",
    )
    policy = planned_policy(clip, around)
    if not getattr(policy, "bounded", True):
        raise InputError(f"PrivateRounds: clip: {clip.policy} bounds nothing, so nothing can be promised")
    return policy


def _form_like(like: Mapping[str, Any]) -> Params:
    """The form of the caller's model."""
    arrays = real_arrays(like)
    if arrays is None:
        why = problem_of_update(like, None)
        raise InputError(f"PrivateRounds: like: expected the model, a mapping from names to arrays, got {why}")
    counters = whole_numbers(like)
    if counters is not None:
        raise InputError(f"PrivateRounds: like: {counters}")
    return form_of(arrays)
