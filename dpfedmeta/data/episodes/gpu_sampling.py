"""Records made where they are computed: gathered, turned, mirrored, moved, standardised by a GPU with the pool.

Bit for bit what sampling_jit makes of the same choice: a byte becomes the number of one table in both.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.params import placed
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Choice, Episode

# Of the device's free memory, for the images of all splits.
_SHARE = 0.25
# Values that are made at once; what it takes besides is a few times as many bytes.
_MOST_VALUES = 2**27


def drawn_there(pool: ClassPool, device: torch.device) -> bool:
    """Return whether the records of a pool can be made on the device: images of uint8 that fit its memory."""
    images = pool.images
    if images.dtype != np.uint8 or images.ndim != 4:
        return False
    return device.type != "cuda" or images.nbytes <= _SHARE * torch.cuda.mem_get_info(device)[1]


def drawn(chosen: Sequence[Choice], device: torch.device) -> Iterator[Episode]:
    """SECRET: the episodes of choices of any sizes, in their order; labels stay with the host, which reads them.

    Raises:
        IndexError: A place that the pool does not have.
        ValueError: Images that are turned are no squares.
    """
    for group in _together(chosen):
        images = _records(group, device)
        for own, part in zip(group, torch.split(images, [own.places.size for own in group]), strict=True):
            yield own.of_images(part)


def _together(chosen: Sequence[Choice]) -> Iterable[Sequence[Choice]]:
    """Neighbours of one pool, as many as are made at once."""
    start = values = 0
    for end, own in enumerate(chosen):
        more = own.places.size * int(np.prod(own.pool.images.shape[1:]))
        if end > start and (values + more > _MOST_VALUES or _form(own) != _form(chosen[start])):
            yield chosen[start:end]
            start, values = end, 0
        values += more
    if chosen:
        yield chosen[start:]


def _form(chosen: Choice) -> tuple[object, ...]:
    pool = chosen.pool
    return pool.path, pool.mean, pool.deviation, chosen.shifts is None


def _records(chosen: Sequence[Choice], device: torch.device) -> Tensor:
    """[records, channels, height, width] in float32, client by client."""
    pool = chosen[0].pool
    count, channels, height, width = pool.images.shape
    places = np.concatenate([own.places.reshape(-1) for own in chosen])
    if not (0 <= places.min(initial=0) <= places.max(initial=0) < count):
        raise IndexError(f"images {places.min()} to {places.max()} of a pool of {count}")
    moves = np.concatenate([_moves(own) for own in chosen])
    if height != width and (moves > 1).any():
        raise ValueError(f"images of {height} x {width} pixels cannot be turned")
    found = _held(pool.path, device)[placed(torch.from_numpy(places), device)].flatten(2)
    shifts = _shifts(chosen)
    if moves.any() or shifts is not None:
        sources = _sources(height, width, device)[placed(torch.from_numpy(moves), device)]
        if shifts is not None:
            sources = sources.gather(1, _moved(placed(torch.from_numpy(shifts), device), height, width))
        found = found.gather(2, sources[:, None, :].expand(-1, channels, -1))
    values = placed(torch.from_numpy(pool.byte_values().copy()), device)
    records = torch.empty(found.shape, dtype=torch.float32, device=device)
    for channel in range(channels):
        records[:, channel] = values[channel][found[:, channel].int()]
    return records.view(len(records), channels, height, width)


def _moves(chosen: Choice) -> IntArray:
    """[ways * images]: twice the quarter turns of an image, and one more where it is mirrored after that."""
    turned = 2 * np.repeat(np.asarray(chosen.turns, dtype=np.int64) % 4, chosen.places.shape[1])
    return turned if chosen.flips is None else turned + chosen.flips.reshape(-1)


def _shifts(chosen: Sequence[Choice]) -> IntArray | None:
    """[ways * images, 2]: how far images are moved; None: none of a pool is."""
    found = [own.shifts.reshape(-1, 2) for own in chosen if own.shifts is not None]
    return np.concatenate(found) if found else None


def _moved(shifts: Tensor, height: int, width: int) -> Tensor:
    """[records, height * width]: which pixel of the image before its shift each drawn one is."""
    rows, columns = (
        _reflected(torch.arange(size, device=shifts.device) + shifts[:, axis, None], size)
        for axis, size in ((0, height), (1, width))
    )
    return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)


def _reflected(places: Tensor, size: int) -> Tensor:
    inside = places.abs()
    return torch.where(inside >= size, 2 * (size - 1) - inside, inside)


@lru_cache(maxsize=2)
def _held(path: Path, device: torch.device) -> Tensor:
    """All images of an array, once."""
    return torch.from_numpy(np.array(np.load(path, mmap_mode="r", allow_pickle=False))).to(device)


@lru_cache(maxsize=4)
def _sources(height: int, width: int, device: torch.device) -> Tensor:
    """[8, height * width]: which stored pixel each drawn one is, for every move."""
    stored, found = np.arange(height * width).reshape(height, width), []
    for turns in range(4):
        turned = np.rot90(stored, turns if height == width else 0)
        found += [turned.reshape(-1), turned[:, ::-1].reshape(-1)]
    return torch.from_numpy(np.stack(found).astype(np.int64)).to(device)
