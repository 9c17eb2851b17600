"""SECRET: the exact sum of one round's clipped updates, whatever arrays they come as."""

import math
import sys
from collections.abc import Hashable, Iterable, Mapping
from contextlib import nullcontext
from threading import Lock
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.run_directory import RunDirectory, append_lines
from dpfedmeta.core.params import Params, dimension, flatten, lost_as_array, unflatten
from dpfedmeta.core.random.random_sources import FloatArray, IntArray
from dpfedmeta.privacy.clip_policy import ATTACHED, Attachment, clipped_message, moved_by_a_client, with_attachment
from dpfedmeta.privacy.clipping import ROUNDING
from dpfedmeta.privacy.discretised.fixed_point import WholeNumbers
from dpfedmeta.privacy.discretised.fixed_point_jit import add_shortened, squared_length
from dpfedmeta.privacy.units import Bounded, ClientUnit

LEFT_OUT = "left-out.jsonl"
COUNTERS = (
    "holds whole numbers, such as a counter of batches, whose steps would take up the clip bound of the weights; leave "
    "it out of the model and of updates (dict(net.named_parameters()) has none), or make it floats"
)


class RoundSum:
    """The sum of a cohort's updates, each clipped and added as whole numbers.

    Guarantee:
        One client moves the sum by at most `sensitivity`: its update is clipped, it is added once, and whole numbers
        are added without rounding. An update that is not finite, has other names or other shapes, or does not come
        counts as zero. Whole numbers commute, so the order of the clients changes no bit. Memory does not grow with
        the updates that are added.

    Attributes:
        form: Names and shapes of an update, as zeros; None until the first update says them.
        left_out: SECRET: calls that added nothing.
    """

    def __init__(
        self,
        form: Params | None,
        bound: float,
        attachment: Attachment | None,
        cohort: Iterable[Hashable],
        *,
        per_layer: bool = False,
    ) -> None:
        """An empty sum.

        Args:
            form: Names and shapes of an update, as zeros; None: those of the first one.
            bound: The clip bound of the round.
            attachment: Numbers that the clip policy asks for, or None.
            cohort: SECRET: whose updates may be added.
            per_layer: Whether each layer is clipped on its own.
        """
        self.form = form
        self.left_out = 0
        self._bound, self._attachment, self._per_layer = bound, attachment, per_layer
        self._waiting = set(cohort)
        self._numbers = WholeNumbers.for_bounded(self.sensitivity)
        self._total: IntArray | None = None
        self._lock = Lock()

    @property
    def sensitivity(self) -> float:
        """Largest norm by which one client moves the sum."""
        return moved_by_a_client(self._bound, self._attachment)

    def add(self, client: Hashable, update: object) -> bool:
        """Clip one client's update and add it; whatever it is, there is no error and no message.

        Returns:
            True if the client was due: one of the cohort, for the first time.
        """
        with self._lock:
            # Two threads may bring one client's update, for example the same request twice.
            due = client in self._waiting
            self._waiting.discard(client)
        # The first update says the form, so it is looked at alone.
        with self._lock if self.form is None else nullcontext():
            message = self._message(update) if due else None
        length = math.inf if message is None else math.sqrt(squared_length(message))
        # In float64 a norm is finite where every scalar is of use.
        added = message if math.isfinite(length) else None
        plain = self._attachment is None and not self._per_layer
        whole = None if added is None or plain else self._whole(added)
        with self._lock:
            if added is None or not (plain or whole is not None):
                self.left_out += 1
                return due
            if self._total is None:
                self._total = self._zeros()
            if whole is not None:
                np.add(self._total, whole, out=self._total)
            else:
                factor = self._bound / length * ROUNDING if length > self._bound else 1.0
                add_shortened(added, factor, 1.0 / self._numbers.units[0], self._total[0])
        return due

    def _whole(self, message: FloatArray) -> Any:
        assert self.form is not None
        given = unflatten(cast(Any, message), self.form)
        return self._numbers.accepted(
            flatten(clipped_message(given, self._bound, self._attachment, per_layer=self._per_layer))
        )

    def _zeros(self) -> IntArray:
        assert self.form is not None
        size = dimension(with_attachment(self.form, self._attachment))
        return np.zeros((len(self._numbers.units), size), dtype=np.int64)

    def query(self, *, within: float = math.inf) -> Bounded[ClientUnit, Params]:
        """The sum with its sensitivity.

        Args:
            within: Radius of the ball that the sum is projected onto. No two sums come further apart by that, so the
                sensitivity stays; its own rounding, of floats, is like that of the noise not in the proof.

        Raises:
            InputError: No update has come yet in the whole run, so nobody knows its form.
        """
        if self.form is None:
            raise InputError(
                "PrivateRounds: no update has come yet that says the form of a release, so nothing was released: "
                f"nobody added one, or each {COUNTERS}. Then start again with the same run_dir, best with like=model: "
                "the round is not charged twice"
            )
        form = with_attachment(self.form, self._attachment)
        total: Any = self._zeros() if self._total is None else self._total
        values = self._numbers.values(total)
        if math.isfinite(within) and (length := math.sqrt(squared_length(values))) > within:
            # Exactly onto the sphere: shorter by a hair, as a message is, sums just inside and outside would part.
            values = values * (within / length)
        return Bounded(value=unflatten(values, form), sensitivity=self.sensitivity)

    def _message(self, update: object) -> FloatArray | None:
        """A copy of its own, which whoever holds the arrays cannot change between its norm and its sum.

        An update with whole numbers says no form: its counters would be counted in the norms of all that follow.
        """
        read = _read(update)
        if read is None or (self.form is None and read[1]):
            return None
        found, _ = read
        if self.form is None:
            self.form = form_of(found)
        shapes = {name: value.shape for name, value in self.form.items()}
        if {name: value.shape for name, value in found.items()} != shapes:
            return None
        return np.concatenate([found[name].reshape(-1) for name in self.form])


def form_of(arrays: Mapping[str, npt.NDArray[Any]]) -> Params:
    """Zeros of the names and shapes of an update."""
    zeros = {name: np.zeros(value.shape, dtype=np.float32) for name, value in sorted(arrays.items())}
    # Functions of core.params take numpy's arrays as well.
    return cast(Params, zeros)


def real_arrays(update: object) -> dict[str, FloatArray] | None:
    """An update as floats on the CPU, from arrays of any library; None where it is no mapping of real arrays."""
    read = _read(update)
    return None if read is None else read[0]


def _read(update: object) -> tuple[dict[str, FloatArray], list[str]] | None:
    """(what `real_arrays` gives, names of those that hold whole numbers)."""
    if not isinstance(update, Mapping):
        return None
    found, whole = dict[str, FloatArray](), list[str]()
    try:
        for name, value in update.items():
            array = None if lost_as_array(value) else _on_host(value)
            # V: bfloat16 and its like, which numpy knows by its users alone.
            real = array is not None and array.dtype.kind in "fiuV" and not array.dtype.names
            if not isinstance(name, str) or name == ATTACHED or array is None or not real:
                return None
            if array.dtype.kind in "iu":
                whole.append(name)
            with np.errstate(all="ignore"):
                plain = array.dtype in (np.float32, np.float64)
                found[name] = array if plain else array.astype(np.float64)
    except MemoryError:
        raise
    except Exception:
        # Whatever a client's arrays do, the round goes on: a stop would tell of its data.
        return None
    return (found, sorted(whole)) if sum(array.size for array in found.values()) else None


def problem_of_update(update: object, form: Params | None) -> str | None:
    """Say why an update would count as zero; None: it would not, but for its client."""
    found = real_arrays(update)
    if found is None:
        return _no_arrays(update)
    due, shapes = ({name: value.shape for name, value in (each or {}).items()} for each in (form, found))
    if form is not None and due != shapes:
        return f"an update of the form {shapes}, and the model has {due}"
    if form is None and (counters := whole_numbers(update)) is not None:
        return f"an update whose {counters}"
    with np.errstate(over="ignore"):
        length = sum(float(np.square(value, dtype=np.float64).sum()) for value in found.values())
    return None if np.isfinite(length) else "an update whose length is not finite"


def _no_arrays(update: object) -> str:
    """Say why this is no mapping from names to arrays of real numbers."""
    for name, value in update.items() if isinstance(update, Mapping) else ():
        if lost := lost_as_array(value):
            return f"{name}: {lost}; hand over a plain array (.filled(0), .to_numpy() in one order)"
        if real_arrays({"": value}) is None or not isinstance(name, str):
            kind = getattr(value, "dtype", type(value).__name__)
            return f"{name!r}: no array of real numbers under a name ({kind})"
    return f"no mapping from names to arrays of real numbers ({type(update).__name__})"


def whole_numbers(model: object) -> str | None:
    """Refuse a form with arrays of whole numbers, as counters are, in words; None: it has none, or is no form."""
    _, names = _read(model) or ({}, [])
    return f"{', '.join(names)}: {COUNTERS}" if names else None


def _on_host(value: Any) -> npt.NDArray[Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # numpy has no bfloat16, and no tensors of another device or with a history.
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() and value.element_size() < 4 else value).numpy()
    elif not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    return np.asarray(value)


def keep_left_out(run: RunDirectory, round_: int, messages: int) -> None:
    """SECRET: how many messages of a round were not of the model's form, not finite, or longer than an honest one.

    Guarantee:
        The count lies in the server's private folder and enters nothing that leaves it: it depends on the clients' data
        where their code does.
    """
    append_lines(run.secret / LEFT_OUT, [{"round": round_, "messages": messages}], SECRET)
