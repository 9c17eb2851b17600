"""Features of a task's images by a public encoder: computed once in worker processes, kept beside decoded images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.core.worker_pool import available_cores, open_workers
from dpfedmeta.data.encoders.encoding import Encoding, encoder_network
from dpfedmeta.data.episodes.class_pool import ClassPool, FloatRecords, ImageArray
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents, Split, cached, source_key

if TYPE_CHECKING:
    from torch import Tensor, nn

# Images of one call of a worker process; the most of one pass through the network, and its most pixels: a larger
# encoder_size, which a server's plan may ask of a client, takes more time and not more memory.
_BLOCK, _BATCH = 256, 32
_PIXELS = _BATCH * 160**2


def encoded_pools(
    pools: Mapping[Split, ClassPool], encoding: Encoding, folder: Path, workers: int | None = None
) -> dict[Split, ClassPool]:
    """The same classes with feature vectors in place of images.

    Each image is encoded once, in each of the rotations that make classes of their own; mirrored images are not made.
    A second call with the same images and encoder reads the features.

    Args:
        pools: Images of some or all splits, in one array or several.
        encoding: Encoder and size.
        folder: Where features are kept.
        workers: Processes that encode; 1: this one, where others may not be started; None: as many as there are cores.

    Raises:
        InputError: The encoder cannot be built, or the folder cannot be written.

    Guarantee:
        None: features are a function of one image each, and as secret as the image.
    """
    key: list[object] = ["features", encoding.digest]
    for split in _held(pools):
        pool = pools[split]
        digest = source_key(pool.path, folder)[3]
        key.append([split, digest, pool.first, pool.counts, pool.rotations])
    here: list[object] = []
    if ":" in encoding.name:
        # A factory of one's own may load weights that no setting names, or keep numbers where no state is looked for.
        network = _network(encoding)
        key.append(_state_digest(network))
        here.append(hashlib.sha256(encoded_images(network, _noise(4), encoding).tobytes()).hexdigest())

    def contents() -> Contents:
        entries = tuple(
            ClassEntry(name=f"{name}@{turn}" if turn else name, split=split, images=count, client=client)
            for split in _held(pools)
            for turn in range(pools[split].rotations)
            for name, count, client in zip(pools[split].names, pools[split].counts, _owners(pools[split]), strict=True)
        )
        return Contents(classes=entries, decode=lambda: _features(pools, encoding, workers))

    name = f"features-{encoding.name.replace(':', '-').replace('/', '-')}-{encoding.size}"
    path = cached(folder, name, [*key, *here], (encoding.card.features,), contents).path
    return dict(_with_features(pools, path, key))


def _state_digest(network: nn.Module) -> str:
    """Digest of all parameters and buffers; features have other last bits on another processor, these have not."""
    import torch

    found = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _noise(count: int, seed: int = 0) -> ImageArray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32)).astype(np.uint8)


def prepare(encoding: Encoding) -> None:
    """Build an encoder's network before there are images, so that what is wrong with it is not taken for their fault.

    Raises:
        InputError: It cannot be built.
    """
    _network(encoding)


def _held(pools: Mapping[Split, ClassPool]) -> tuple[Split, ...]:
    """The splits that there are, in the order of the array."""
    return tuple(split for split in SPLITS if split in pools)


def _owners(pool: ClassPool) -> tuple[str, ...]:
    return pool.clients or ("",) * pool.classes


def _with_features(
    pools: Mapping[Split, ClassPool], path: Path, key: list[object]
) -> Iterator[tuple[Split, ClassPool]]:
    begin = 0
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    for split in _held(pools):
        pool = pools[split]
        first = (begin + np.cumsum([0, *pool.counts[:-1]])).tolist()
        turned = pool.size if pool.rotations > 1 else 0
        yield (
            split,
            replace(
                pool,
                path=path,
                first=tuple(first),
                flip=False,
                mean=(),
                deviation=(),
                turned=turned,
                made_from=digest,
                plain=(pool.path, pool.first),
            ),
        )
        begin += pool.size * pool.rotations


def _features(pools: Mapping[Split, ClassPool], encoding: Encoding, most: int | None = None) -> Iterator[FloatRecords]:
    """All feature vectors in the order of the array."""
    tasks = [
        (encoding, pool.path, block, turn)
        for pool in (pools[split] for split in _held(pools))
        for turn in range(pool.rotations)
        for block in _blocks(pool)
    ]
    _check_tells_apart(encoding)
    _check_alone(encoding, tasks[0][1], tasks[0][2])
    with open_workers(min(most or available_cores(), len(tasks))) as workers:
        yield from workers.map(_encoded, tasks)


def _check_tells_apart(encoding: Encoding) -> None:
    """Refuse an encoder that gives black, white and noise the same features: nothing could be learned from them.

    Raises:
        InputError: It does.
    """
    noise = _noise(2)
    plain = np.zeros_like(noise)
    plain[1] = 255
    features = encoded_images(_network(encoding), np.concatenate([noise, plain]), encoding)
    if (features == features[0]).all():
        raise InputError(
            f"model.encoder = {encoding.name}: gives all images the same features, so nothing can be learned from them"
        )


def _check_alone(encoding: Encoding, path: Path, places: IntArray) -> None:
    """Refuse an encoder whose features of an image depend on its company, such as batch statistics.

    Raises:
        InputError: They do.
    """
    network, most = _network(encoding), _together(encoding)
    images: ImageArray = np.load(path, mmap_mode="r", allow_pickle=False)[places[:most]]
    shape = images.shape[1:]
    strangers = [np.random.default_rng(seed).integers(0, 256, (most, *shape)).astype(np.uint8) for seed in (1, 2)]
    # A whole pass of different images: a rule may begin with the fourth or the twentieth.
    full = np.concatenate([images, strangers[0]])[:most]
    half = max(1, most // 2)
    others = np.concatenate([full[:half], strangers[1]])[:most]
    few = min(3, len(images))
    alone = [encoded_images(network, full[[number]], encoding) for number in range(few)]
    together = encoded_images(network, full, encoding)
    pairs = (
        (together[:few], np.concatenate(alone)),
        (together[:half], encoded_images(network, others, encoding)[:half]),
        # What it has seen before is company too.
        (together, encoded_images(network, full, encoding)),
    )
    size = 1e-4 * float(np.abs(together).max(initial=1e-9))
    if not all(np.allclose(one, other, rtol=1e-3, atol=size) for one, other in pairs):
        raise InputError(
            f"model.encoder = {encoding.name}: its features of an image depend on the other images of a batch, so "
            "clients would see each other's; build it without batch statistics and without dropout"
        )


def _blocks(pool: ClassPool) -> Iterator[IntArray]:
    places = np.concatenate(
        [np.arange(start, start + count) for start, count in zip(pool.first, pool.counts, strict=True)]
    )
    yield from (places[start : start + _BLOCK] for start in range(0, len(places), _BLOCK))


def _encoded(encoding: Encoding, path: Path, places: IntArray, turn: int) -> FloatRecords:
    """Features of some images, in a worker process."""
    images: ImageArray = np.load(path, mmap_mode="r", allow_pickle=False)
    return encoded_images(_network(encoding), np.rot90(images[places], turn, axes=(2, 3)), encoding)


def encoded_images(network: nn.Module, images: ImageArray, encoding: Encoding) -> FloatRecords:
    """Feature vectors of images.

    Every pass through the network has as many images (the last one repeats its last image): the last bits of features
    depend on that number, and so a real client has those that a simulation has of the same images.

    Args:
        network: That of the encoder.
        images: uint8 [n, channels, height, width], one channel or three.
        encoding: Size and constants.

    Returns:
        float32 [n, d].

    Raises:
        InputError: A feature is not finite, or there are not d of them.
    """
    import torch
    from torch.nn.functional import interpolate

    card, found = encoding.card, []
    together = _together(encoding)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (card.mean, card.deviation))
    with torch.inference_mode():
        for start in range(0, len(images), together):
            places = np.minimum(np.arange(start, start + together), len(images) - 1)
            batch = torch.from_numpy(images[places]).float() / 255
            batch = batch.expand(-1, 3, -1, -1)
            smaller = batch.shape[-1] > encoding.size
            side = (encoding.size, encoding.size)
            # On validation classes of CIFAR-FS 1.0 points above linear interpolation (docs/encoders.md).
            batch = interpolate(batch, size=side, mode="bicubic", align_corners=False, antialias=smaller).clamp(0, 1)
            batch = ((batch - mean) / deviation).contiguous(memory_format=torch.channels_last)
            features = _called(network, batch, encoding)
            if features.shape != (len(batch), card.features) or not bool(torch.isfinite(features).all()):
                raise InputError(
                    f"model.encoder = {encoding.name}: expected {card.features} finite numbers for each image, found "
                    f"{list(features.shape[1:])}{'' if features.isfinite().all() else ', some not finite'}"
                )
            found.append(features[: len(images) - start].float().numpy())
    return np.concatenate(found)


def _together(encoding: Encoding) -> int:
    """Images of one pass through the network."""
    return max(1, min(_BATCH, _PIXELS // encoding.size**2))


def _called(network: nn.Module, batch: Tensor, encoding: Encoding) -> Tensor:
    import torch

    try:
        features = network(batch)
    except Exception as error:  # perhaps the user's own code
        raise InputError(
            f"model.encoder = {encoding.name}: fails on images {list(batch.shape)} ({raised(error)})"
        ) from error
    if not isinstance(features, torch.Tensor):
        raise InputError(
            f"model.encoder = {encoding.name}: returns {type(features).__name__}, expected a tensor "
            f"[n, {encoding.card.features}]"
        )
    return features


@lru_cache(maxsize=1)
def _network(encoding: Encoding) -> nn.Module:
    return encoder_network(encoding)
