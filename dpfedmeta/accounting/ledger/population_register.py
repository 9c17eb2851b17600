"""Register of all runs over one population: a total promise, and a filter that no run is planned past."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from shlex import quote

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.hash_chain import HashChain, heads_of, read_chain
from dpfedmeta.accounting.ledger.ledger import Budget, phases_of
from dpfedmeta.accounting.ledger.ledger_register import Lineage, lineage_folder
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.ledger.registered_budget import (
    ROUNDING,
    RegisteredBudget,
    charged_cost,
    events_of,
    replaced_cost,
    replaced_epsilon,
)
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import asked, rounded_down, rounded_up
from dpfedmeta.core.errors import DAMAGED_JSON, InputError, RefusedPlan
from dpfedmeta.core.files.atomic_files import SECRET, whole_lines
from dpfedmeta.core.files.run_directory import ANALYSIS
from dpfedmeta.core.pydantic_errors import counted_words

_WHAT = "register"
# Orders that a register may count in. Twice an order has to be one that is computed quickly.
_ORDERS = range(2, 513)
# Share of delta that exact composition counts with; divergences have the rest.
_EXACT = 0.1
# The most by which a plan's noise is multiplied to find room for it.
_MOST_NOISE = 1e3


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A run in a register.

    Attributes:
        run: Its random name, or a name that its owner gave.
        data: Digest of the data of its clients.
        made_by: Settings that made its clients of the data, by their names.
        plan: What it was planned as; it counts in full from then on, finished or not.
        cost: Its Renyi divergence of the register's order where all data of one client are replaced.
    """

    run: str
    data: str
    made_by: Mapping[str, str]
    plan: PrivacyPlan
    cost: float


@dataclass(frozen=True, kw_only=True)
class PopulationRegister:
    """A register as it was read.

    Guarantee:
        (client, public), replace-one, over all runs that are in it: (epsilon, delta), also where settings of later runs
        were chosen by what earlier ones released. Renyi divergences of one order, which was fixed with the promise, add
        up, and a run is reserved only where the sum stays within what that order allows: such a filter holds for runs
        that are chosen adaptively (Feldman, Zrnic 2021, https://arxiv.org/abs/2008.11193). A run that removes or adds
        a client is counted for replacing it: D_a <= (a - 1/2)/(a - 1) D_2a + D_(2a-1) (Mironov 2017, proposition 11).
        A run that was never registered is not counted, and cannot be found from here. Copies of a register that went on
        on two machines are told apart only by whoever kept the hash of its last line elsewhere.

    Attributes:
        path: The file; it holds digests of data, so it is for its owner alone.
        epsilon: Promised.
        delta: Its delta.
        order: The order that counts.
        runs: Each run once, with the costliest plan that was reserved for it.
        events: What the releases of all plans cost that were ever reserved.
        head: Hash of the last line.
        lines: How many lines there are.
        name: Random name, the same in every copy.
    """

    path: Path
    epsilon: float
    delta: float
    order: int
    runs: tuple[Registered, ...]
    events: frozenset[Event]
    head: str
    lines: int
    name: str

    @cached_property
    def spent(self) -> float:
        """Epsilon that all runs together add up to, at `delta`: the less of what either count says."""
        return min(self.renyi, self.exact(self.runs))

    @property
    def renyi(self) -> float:
        """Epsilon by the divergences of one order."""
        total = math.fsum(each.cost for each in self.runs)
        return 0.0 if total == 0.0 else max(0.0, total + _beside(self.order, self.delta))

    def exact(self, runs: Sequence[Registered]) -> float:
        """Epsilon of these runs by exact composition, where all that was ever reserved is of one event; else inf."""
        if len(self.events) > 1:
            return math.inf
        return replaced_epsilon([phase for each in runs for phase in each.plan.phases], _EXACT * self.delta)

    def reserved(self, run: str) -> float:
        """Divergence that is reserved for a run.

        Raises:
            InputError: The register does not hold it.
        """
        for each in self.runs:
            if each.run == run:
                return each.cost
        raise InputError(f"{self.path}: does not hold run {run}; use the register that it was reserved in")

    def budget(self, run: str, planned: Budget) -> RegisteredBudget:
        """Return the budget of a run that is reserved here.

        Raises:
            InputError: It is not.
        """
        return RegisteredBudget(limits=planned.limits, reserved=self.reserved(run), order=self.order)

    @property
    def left(self) -> float:
        """Divergence that further runs may cost."""
        return self.epsilon - _beside(self.order, self.delta) - math.fsum(each.cost for each in self.runs)


def _beside(order: int, delta: float) -> float:
    """Epsilon = divergence of this order + this (Canonne, Kamath, Steinke 2020, proposition 12)."""
    return math.log1p(-1 / order) - math.log((1 - _EXACT) * delta * order) / (order - 1)


def begin_register(path: Path, epsilon: float, delta: float) -> PopulationRegister:
    """Begin a register with its total promise, which never changes.

    Raises:
        InputError: The promise is none, or the file exists.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InputError(f"{path}: a promise has a finite epsilon above 0 and a delta between 0 and 1")
    # The order by which Gaussian noise is worth most.
    order = max(_ORDERS, key=lambda order: (epsilon - _beside(order, delta)) / order)
    if not epsilon > _beside(order, delta):
        raise InputError(f"{path}: epsilon = {asked(epsilon)} is too small to count in at delta = {asked(delta)}")
    first = {_WHAT: token_hex(16), "epsilon": epsilon, "delta": delta, "order": order}
    try:
        HashChain.start(path, first, mode=SECRET)
    except FileExistsError as error:
        raise InputError(f"{path}: exists; a register keeps its promise, so choose another file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    return read_register(path)


def read_register(path: Path) -> PopulationRegister:
    """Read a register, compute its costs again from the plans in it, and compare it with what this machine wrote.

    Nothing is written, whatever the file holds.

    Raises:
        InputError: It is damaged or missing, or lost a line that this machine wrote.
    """
    with _alone(path, writes=False) as lineage:
        return _read(path, lineage)


def reserve(
    path: Path, *, run: str, data: str, plan: PrivacyPlan, made_by: Mapping[str, str] | None = None, keep: bool = True
) -> PopulationRegister:
    """Reserve what a run may spend, on disk when this returns; call it before the run's first charge.

    What is reserved is never given back, so call it after all that may keep the run from beginning.

    A run that is reserved with the same plan already is not reserved again; with a longer one it counts as that.

    Args:
        path: The register.
        run: Name of the run.
        data: Digest of the data of its clients.
        plan: Its whole plan.
        made_by: Settings that make its clients of the data, by their names; None: the digest is of the clients.
        keep: Without it nothing is reserved: the register is only asked for room.

    Raises:
        InputError: The register is damaged, lost a line, or is of other data or other clients.
        RefusedPlan: The promise has not so much left, or the run has no plain Renyi divergence.
    """
    with _alone(path, writes=keep) as lineage:
        found = _read(path, lineage)
        before = next((each for each in found.runs if each.run == run), None)
        if any(each.data != data for each in found.runs):
            raise InputError(f"{path}: is of other data than this run; a register is of one population")
        made_by = dict(made_by or {})
        if found.runs:
            _check_same_clients(path, found.runs[0], plan, made_by)
        if before is not None and before.plan == plan:
            return found
        made = Registered(run=run, data=data, made_by=made_by, plan=plan, cost=replaced_cost(plan, found.order))
        if not _fits(found, made):
            raise RefusedPlan(
                f"{path}: epsilon = {rounded_up(found.spent, 4)} of {asked(found.epsilon)} is spent at "
                f"delta = {asked(found.delta)}, which leaves too little for this run; plan it with more noise or fewer "
                "rounds"
            )
        if not keep:
            return found
        # What a crash left of a line was never reserved; the first append cuts it off.
        size = whole_lines(path)[0]
        chain = HashChain(path, found.head, SECRET, lines=found.lines, size=size)
        chain.append({"run": run, "data": data, "made_by": made_by, "plan": constants(plan)})
        assert lineage is not None
        try:
            lineage.follow(chain.lines, chain.head)
        except OSError:
            # The run cannot begin, so it has reserved nothing.
            with suppress(OSError):
                os.truncate(path, size)
            raise
        return _read(path, lineage)


def _fits(found: PopulationRegister, made: Registered) -> bool:
    """Return whether divergences, or exact composition, keep this run and all others within the promise."""
    before = math.fsum(each.cost for each in found.runs if each.run == made.run)
    return made.cost <= (found.left + before) * ROUNDING or _exact_with(found, made) <= found.epsilon


def _exact_with(found: PopulationRegister, made: Registered) -> float:
    after = _with(found, made)
    return after.exact(after.runs)


def _with(found: PopulationRegister, made: Registered) -> PopulationRegister:
    """The register as it would be with this run, which counts once."""
    others = [each if each.run != made.run else max(each, made, key=_cost) for each in found.runs]
    known = any(each.run == made.run for each in found.runs)
    runs = tuple(others if known else [*others, made])
    return replace(found, runs=runs, events=found.events | events_of(made.plan))


@dataclass(frozen=True, kw_only=True)
class Room:
    """Answer of a register to a plan: what it holds, what the plan needs, and what would fit (None: the plan does)."""

    words: str
    remedy: str | None


def room_for(path: Path, plan: PrivacyPlan, *, run: str = "", made_by: Mapping[str, str] | None = None) -> Room:
    """Ask a register whether a plan has room in it; nothing is reserved, and the digest of the data is not compared.

    Args:
        path: The register.
        plan: The whole plan.
        run: Name of the run, where it is in the register already.
        made_by: As of `reserve`.

    Raises:
        InputError: The register is damaged, lost a line, or is of other clients.
        RefusedPlan: The plan has no plain Renyi divergence.
    """
    found, made_by = read_register(path), dict(made_by or {})
    if found.runs:
        _check_same_clients(path, found.runs[0], plan, made_by)
    made = Registered(run=run, data="", made_by=made_by, plan=plan, cost=replaced_cost(plan, found.order))
    after, fits = _with(found, made), _fits(found, made)
    head = (
        f"register {path.name}: {counted_words(len(found.runs), 'run')} in it spend epsilon = "
        f"{rounded_up(found.spent, 4)} of {asked(found.epsilon)} at delta = {asked(found.delta)} (client, public, "
        f"replaced); left is a divergence of {rounded_down(max(0.0, found.left))} of order {found.order}; this plan "
        f"needs {rounded_up(made.cost)}"
    )
    if fits:
        return Room(words=f"{head}: fits, and then epsilon = {rounded_up(after.spent, 4)} is spent", remedy=None)
    return Room(words=f"{head}: does not fit; {(remedy := _what_fits(found, made))}", remedy=remedy)


def _what_fits(found: PopulationRegister, made: Registered) -> str:
    """Words for the least noise with which a plan of these rounds would fit, found to 1%."""
    from dpfedmeta.accounting.observers.four_guarantees import guarantees

    def fits(noise: float) -> bool:
        plan = replace(made.plan, noise_multiplier=noise)
        return _fits(found, replace(made, plan=plan, cost=replaced_cost(plan, found.order)))

    low = made.plan.noise_multiplier or 1.0
    high = _MOST_NOISE * low
    if not fits(high):
        # Rounds that are all the same are counted exactly, and other ones beside them are not.
        same = next((each.plan.noise_multiplier for each in found.runs if each.plan.noise_multiplier), None)
        if same is not None and fits(same):
            return f"with --noise-multiplier {asked(same)} it does: only the same rounds as before still fit"
        return "no noise makes room for it: do without a further run over these clients, or with fewer rounds"
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    cell = guarantees(replace(made.plan, noise_multiplier=high))[0]
    return (
        f"with --noise-multiplier {rounded_up(high)} it does, or with --epsilon {rounded_down(cell.epsilon)} where the "
        "noise is solved for it"
    )


def _cost(each: Registered) -> float:
    return each.cost


def _check_same_clients(path: Path, first: Registered, plan: PrivacyPlan, made_by: Mapping[str, str]) -> None:
    """Refuse a run over other clients: nothing is promised of a client who is somebody else in each run.

    Raises:
        InputError: It is one; says what differs, and both values.
    """
    counts = (f"{first.plan.clients:,}", f"{plan.clients:,}")
    pairs: dict[str, tuple[str | None, str | None]] = {"population.clients": counts}
    pairs |= {name: (first.made_by.get(name), made_by.get(name)) for name in (*first.made_by, *made_by)}
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise InputError(
                f"{path}: counts clients with {name} = {theirs or 'none'}, but this run has {name} = "
                f"{ours or 'none'}: its clients are others; give {name} = {theirs}, or another register"
            )


def check_reserved(path: Path, run: str, charges: Sequence[Charge]) -> list[str]:
    """Compare what a run, or copies of one together, charged with what its register holds for it; remarks.

    Raises:
        InputError: The run cost more than is reserved, so the register's total is too small.
    """
    if not path.exists():
        return [f"register: {path} is not here, so what it reserved for this run was not compared"]
    found = read_register(path)
    if run not in {each.run for each in found.runs}:
        return [f"register: {path} does not hold this run, so its total does not count it"]
    charged, reserved = charged_cost(phases_of(charges), found.order), found.reserved(run)
    if charged > reserved * ROUNDING:
        raise InputError(
            f"{path}: holds {asked(reserved)} at order {found.order} for run {run}, whose charges cost "
            f"{rounded_up(charged, 4)} (rounds that were done again, or by copies of it): its total is too small, so "
            "reserve nothing more in it"
        )
    return [f"register: {path} holds no less for this run than it charged"]


@contextmanager
def _alone(path: Path, *, writes: bool) -> Iterator[Lineage | None]:
    """Wait for other processes at this register; what this machine wrote last of it, in whatever copy, or None."""
    if path.is_dir():
        raise InputError(
            f"{path}: is a folder, and a register is a file; what a run or an analysis in it spent says dpfedmeta "
            f"account --verify {quote(str(path))}"
        )
    try:
        with path.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            name = _name_of(path, handle.readline())
            lineage = Lineage(name) if writes or (lineage_folder() / name).exists() else None
            try:
                yield lineage
            finally:
                if lineage is not None:
                    lineage.close()
    except OSError as error:
        begin = f"; begin a register with dpfedmeta account --population {quote(str(path))} --promise EPSILON DELTA"
        remedy = begin if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{error.filename or path}: cannot be read or written ({error.strerror}){remedy}") from error


def _name_of(path: Path, first: bytes) -> str:
    """Return the random name in a register's first line; what has none is left as it is.

    Raises:
        InputError: It is no register; says what it is, if that is known.
    """
    try:
        line = json.loads(first)
        name, identity = line.get(_WHAT), line.get("identity")
    except DAMAGED_JSON:
        name = identity = None
    if name is not None:
        return str(name)
    if isinstance(identity, dict):
        of = "an analysis" if str(identity.get("config")).startswith(ANALYSIS) else "a run"
        what = f"is the ledger of {of}, and no register of a population; what it spent says"
        raise InputError(f"{path}: {what} dpfedmeta account --verify {quote(str(path.parent))}")
    raise InputError(
        f"{path}: is no register of a population; begin one in a file of its own: dpfedmeta account --population FILE "
        "--promise EPSILON DELTA"
    )


def _read(path: Path, lineage: Lineage | None) -> PopulationRegister:
    bodies, head = read_chain(path, _WHAT, torn=True)
    heads, latest = heads_of(bodies), None if lineage is None else lineage.latest
    if latest is not None and (latest.lines > len(heads) or heads[latest.lines - 1] != latest.head):
        raise InputError(
            f"{path}: has {len(heads)} lines, but on this machine the register went on to line {latest.lines}: an "
            "older copy, or lines are lost; nothing is reserved in it. Use the newest copy"
        )
    try:
        first, order = bodies[0], int(bodies[0]["order"])
        found: dict[str, Registered] = {}
        events: frozenset[Event] = frozenset()
        for line in bodies[1:]:
            plan = plan_of(line["plan"])
            cost = replaced_cost(plan, order)
            events |= events_of(plan)
            made_by = {str(key): str(value) for key, value in line["made_by"].items()}
            made = Registered(run=line["run"], data=line["data"], made_by=made_by, plan=plan, cost=cost)
            # A run that is planned again for less may have spent what it was planned for first.
            found[made.run] = max(found.get(made.run, made), made, key=_cost)
        return PopulationRegister(
            path=path,
            epsilon=float(first["epsilon"]),
            delta=float(first["delta"]),
            order=order,
            runs=tuple(found.values()),
            events=events,
            head=head,
            lines=len(heads),
            name=str(first[_WHAT]),
        )
    except DAMAGED_JSON as error:
        raise InputError(f"{path}: is no register of a population ({' '.join(str(error).split())})") from error
