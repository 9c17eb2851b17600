"""Records that each client of a simulation keeps back from training, to be judged on afterwards."""

from dataclasses import replace

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import Dataset


def trains_on(count: int, share: float) -> int:
    """Number of a client's records of one class that train, the first in the data; the last ones are kept back.

    Args:
        count: Records of the class.
        share: population.own_test.
    """
    return count - min(int(share * count + 1e-9), count - 1)


def kept_back(share: float) -> str:
    """Words for a plan, to stand behind what else it says of clients."""
    return f"; it keeps back {100 * share:g}% of its records, which never train" if share else ""


def without_own_test(dataset: Dataset, share: float, *, ready_made: bool = False, by_row: bool = False) -> Dataset:
    """The same data without what its training clients keep back.

    Args:
        dataset: All of it.
        share: population.own_test; 0: nothing is kept back.
        ready_made: Whether clients are real ones, or the caller's own, rather than made of these data.
        by_row: Whether each row is kept back by its own hash, as records are promised something, rather than the last
            ones of a class: which ones are the last depends on how many there are.

    Raises:
        InputError: The data do not say whose which record is, or clients are not made of them.
    """
    if not share:
        return dataset
    if ready_made:
        raise InputError(
            f"population.own_test = {share:g}: is of simulated clients that a data set names; a population of your own "
            "keeps back what it likes, and a real client has a column split in its table; leave it out"
        )
    pool = dataset.train
    if not pool.clients:
        raise InputError(
            f"population.own_test = {share:g}: {dataset.task.name} does not name clients, so nobody has records of its "
            "own to keep back; use data with a column client, folders CLIENT/CLASS/IMAGE, or leave it out"
        )
    if by_row:
        return replace(dataset, train=replace(pool, own_test=share))
    return replace(dataset, train=replace(pool, counts=tuple(trains_on(count, share) for count in pool.counts)))
