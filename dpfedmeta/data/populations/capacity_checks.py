"""Checks that a data set holds enough records for the episodes drawn from it. Needs no PyTorch."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.storage.decoded_cache import Split
from dpfedmeta.data.task import Task


def check_shape(pool: ClassPool, shape: EpisodeShape, split: str, *, asked: bool = False) -> None:
    """Refuse an episode that the pool cannot fill without using a record twice.

    Of a pool of clients one that can fill it is enough: the others take no part in an evaluation, and count as zero in
    training. With `asked`, ways and shots are those of a request for an evaluation, and not the run's settings.
    """
    if pool.clients:
        _check_clients(pool, shape, split, asked)
        return
    _check_ways(shape, pool.classes, split, asked)
    wanted = shape.shots + shape.queries
    short = [index for index, count in enumerate(pool.counts) if count < wanted]
    if short:
        held, name = min((pool.counts[index], pool.names[index]) for index in short)
        raise InputError(
            f"{shape.shots} shots + {shape.queries} queries = {wanted} images per class, but the {split} split "
            f"holds {held} of class {name} ({len(short)} of {pool.classes} classes have too few); lower {_sizes(asked)}"
            + ("" if asked else ", or take these classes out")
        )


def check_said(
    task: Task, splits: Mapping[str, Split], shape: EpisodeShape, split: Split, *, asked: bool = False
) -> None:
    """The same before the images are read, as far as the task says what it holds.

    Args:
        task: As `data.task_file.load_task` gives it.
        splits: Of its classes, likewise.
        shape: Of an episode.
        split: In which part.
        asked: Ways and shots are those of a request for an evaluation.

    Raises:
        InputError: An episode is larger than the task says that its classes are.
    """
    if task.shared_classes is not None:
        return
    held = task.split if isinstance(task.split, dict) else Counter(splits.values())
    if held:
        _check_ways(shape, held.get(split, 0), split, asked)
    wanted = shape.shots + shape.queries
    if task.images_per_class is not None and wanted > task.images_per_class:
        raise InputError(
            f"{shape.shots} shots + {shape.queries} queries = {wanted} images per class, but every class of "
            f"{task.name} holds {task.images_per_class}; lower {_sizes(asked)}"
        )


def _sizes(asked: bool) -> str:
    """Options that set how many records of a class an episode takes."""
    return "--shots (shots= in Python)" if asked else "task.shots, task.queries or evaluation.queries"


def _check_ways(shape: EpisodeShape, classes: int, split: str, asked: bool) -> None:
    if shape.ways <= classes:
        return
    if asked:
        raise InputError(f"ways = {shape.ways}, but the {split} split holds {classes} classes; lower --ways (ways=)")
    raise InputError(
        f"task.ways = {shape.ways}, but the {split} split holds {classes} classes; lower task.ways, or put "
        "more classes into it (with no split of your own: 3 times task.ways classes in all)"
    )


def _check_clients(pool: ClassPool, shape: EpisodeShape, split: str, asked: bool) -> None:
    if able_clients(pool, shape):
        return
    wanted, names = shape.shots + shape.queries, set(pool.clients)
    classes = Counter(client for client, count in zip(pool.clients, pool.counts, strict=True) if count >= wanted)
    queries = f"{'task' if split == 'train' else 'evaluation'}.queries"
    lower = f"--ways or {_sizes(asked)}" if asked else f"task.ways, task.shots, {queries}"
    if pool.targets:
        raise InputError(
            f"none of the {len(names)} client(s) of the {split} split holds {shape.shots} shots + {shape.queries} "
            f"queries = {wanted} records (the best holds {max(pool.counts, default=0)}); lower "
            + ("--shots (shots= in Python)" if asked else f"task.shots, {queries}")
            + ", or put clients with more records into it"
        )
    raise InputError(
        f"none of the {len(names)} client(s) of the {split} split holds {shape.ways} classes with {shape.shots} shots "
        f"+ {shape.queries} queries = {wanted} records each (the best holds {max(classes.values(), default=0)} such "
        f"classes); lower {lower}, or put clients with more records into it"
    )


def largest_shape(pool: ClassPool, shape: EpisodeShape) -> EpisodeShape | None:
    """Return the largest episode up to `shape` that the pool can fill; None if it fills none.

    It has as many ways as possible, then as many shots. Of a pool of clients one that can fill it is enough.
    """
    held = dict[str, list[int]]()
    for client, count in zip(pool.clients or ("",) * pool.classes, pool.counts, strict=True):
        held.setdefault(client, []).append(count)
    for ways in range(min(shape.ways, max(map(len, held.values()), default=0)), 1, -1):
        # A client chooses among its large classes; of classes that belong to nobody any may be drawn.
        each = [sorted(counts, reverse=True) for counts in held.values() if len(counts) >= ways]
        most = max(counts[ways - 1] if pool.clients else counts[-1] for counts in each)
        if most >= 2:
            shots = min(shape.shots, most - 1)
            return EpisodeShape(ways=ways, shots=shots, queries=min(shape.queries, most - shots))
    return None


@lru_cache(maxsize=8)
def able_clients(pool: ClassPool, shape: EpisodeShape) -> dict[str, list[int]]:
    """SECRET of training clients: those that hold `ways` classes with enough records, each with these classes."""
    wanted, held = shape.shots + shape.queries, dict[str, list[int]]()
    for index, (client, count) in enumerate(zip(pool.clients, pool.counts, strict=True)):
        if count >= wanted:
            held.setdefault(client, []).append(index)
    return {client: classes for client, classes in held.items() if len(classes) >= shape.ways}
