"""An offer of a loop's rounds as a client reads it: nothing of it is believed, whoever signed it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import default_separation
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.comparison import check, json_of
from dpfedmeta.core.params import Params
from dpfedmeta.federation.offers.kept_settings import SETTINGS, TakenSetting
from dpfedmeta.federation.offers.work_limits import fitting_problem
from dpfedmeta.federation.wire_format import LEAST_BOUND, MOST_BOUND, MOST_BYTES
from dpfedmeta.privacy.clip_policy import ATTACHED
from dpfedmeta.privacy.rounds.promise import RoundsRequest, plan_content
from dpfedmeta.privacy.rounds.round_sum import form_of

_WHERE = "ClientRounds: offer"
# Keys that the client computes again.
_COMPUTED = ("planned", "privacy", "phases")
_KEYS = {"run", "request", "form", "record", *_COMPUTED}
_RUN_BYTES = 16
# What safetensors keeps for itself.
_TAKEN = ("__metadata__", ATTACHED)
# As federation.offers.kept_settings: each number of a request, and who keeps what is proved of it.
REQUESTS: dict[str, TakenSetting] = {
    "clients": replace(SETTINGS["population.clients"], keeper="server"),
    "cohort": SETTINGS["population.cohort"],
    "rounds": SETTINGS["server.rounds"],
    "promises": SETTINGS["privacy.client.epsilon"],
    "sampler": replace(
        SETTINGS["population.sampler"],
        only=("poisson", "fixed"),
        others="a client of a loop knows no round of its own and no turn; use sampler poisson or fixed",
    ),
    "noise": SETTINGS["server.noise"],
    "separation": SETTINGS["population.separation"],
    "buffers": SETTINGS["server.buffers"],
    "max_participations": SETTINGS["population.max_participations"],
    "clip": TakenSetting(keeper="public", why="words; the bound of a round is what a client clips to"),
    "simulation": TakenSetting(keeper="public", why="the client draws noise of its own all the same"),
}
_FLOAT_BYTES = 4
_MOST_DIMENSIONS = 16
# A client tells no more of what a server wrote.
_LONGEST = 300


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundsOffer:
    """An offer whose numbers are what its request gives here.

    Attributes:
        run: Name of the run, 32 hexadecimal digits.
        request: What the rounds have to keep.
        form: Names and shapes of an update, as zeros.
        record: What is done to the gradients of records, by name, not looked at yet; None: nothing.
    """

    run: str
    request: RoundsRequest
    form: Params
    record: Mapping[str, Any] | None

    @cached_property
    def name(self) -> str:
        """Digest of the rounds without their run, under which they may be offered again."""
        shapes = {name: list(value.shape) for name, value in self.form.items()}
        content = [self.request.as_text(), shapes, self.record]
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def opened_rounds(text: bytes) -> RoundsOffer:
    """Read an offer, and solve its plan again.

    Guarantee:
        Whatever the text is, there is an offer whose numbers are those of its request, or one error of one line.

    Raises:
        InputError: It is no offer, or states other numbers than it comes to.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or set(content) != _KEYS:
            raise InputError(f"{_WHERE}: is not what a server signs; ask its operator for the version of dpfedmeta")
        run, form = _run(content["run"]), _form(content["form"])
        request = RoundsRequest.from_text(content["request"], _WHERE)
        check_rounds(request, _WHERE)
        due = json_of(plan_content(request.planned, request.guarantees))
        check(Path(_WHERE), "", {key: content[key] for key in _COMPUTED}, due)
        return RoundsOffer(run=run, request=request, form=form, record=_record(content["record"]))
    except InputError as error:
        raise InputError(shortened(error)) from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise InputError(
            shortened(f"{_WHERE}: is not what a server signs ({type(error).__name__}: {error})")
        ) from error


def check_rounds(request: RoundsRequest, where: str) -> None:
    """Refuse rounds of which a client could not keep what is proved, or whose plan is more work than it does.

    Raises:
        InputError: Names the number or the word, and what a client takes; `where` says whose it is.
    """
    for each in fields(request):
        row, value = REQUESTS.get(each.name), getattr(request, each.name)
        if row is None:
            raise InputError(f"{where}: {each.name} = {value}: nobody has said yet who keeps it; leave it out")
        problem = row.problem(each.name, value)
        if problem is not None:
            raise InputError(f"{where}: {problem}")
    problem = fitting_problem(
        request.noise,
        request.rounds,
        request.buffers,
        request.separation or default_separation(request.clients, request.cohort, request.rounds),
    )
    if problem is not None:
        raise InputError(f"{where}: {problem}")


def shortened(words: object) -> str:
    """One line, however long what it quotes is."""
    line = " ".join(str(words).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def is_bound(value: Any) -> bool:
    """Return whether a number can be computed with as a bound or a deviation, and what it bounds be sent as floats."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and bool(LEAST_BOUND <= value <= MOST_BOUND)


def _run(name: Any) -> str:
    # One name is written in one way: the folder of a run and its lines in the ledger belong together.
    if not isinstance(name, str) or bytes.fromhex(name).hex() != name or len(name) != 2 * _RUN_BYTES:
        raise InputError(f"{_WHERE}: run: expected {2 * _RUN_BYTES} hexadecimal digits, got {name!r}")
    return name


def _form(stated: Any) -> Params:
    """Zeros of the stated shapes, that a reply can hold."""
    if not isinstance(stated, dict) or not stated:
        raise InputError(f"{_WHERE}: form: expected names and shapes, got {stated!r}")
    numbers = 0
    for name, shape in stated.items():
        if not name.isprintable() or not name.strip() or name in _TAKEN:
            raise InputError(f"{_WHERE}: form: {name!r} is no name of an array")
        whole = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if not whole or len(shape) > _MOST_DIMENSIONS:
            raise InputError(f"{_WHERE}: form: {name}: expected a shape, got {shape!r}")
        numbers += math.prod(shape)
    if not 0 < numbers <= MOST_BYTES // _FLOAT_BYTES:
        raise InputError(f"{_WHERE}: form: {numbers} numbers, where a reply holds 1 to {MOST_BYTES // _FLOAT_BYTES}")
    return form_of({name: np.zeros(shape, dtype=np.float32) for name, shape in stated.items()})


def _record(stated: Any) -> Mapping[str, Any] | None:
    if stated is not None and (not isinstance(stated, dict) or not all(isinstance(name, str) for name in stated)):
        raise InputError(f"{_WHERE}: record: expected numbers by name, got {stated!r}")
    return stated
