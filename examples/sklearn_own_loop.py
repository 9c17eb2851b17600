"""A scikit-learn model in a training loop of one's own, with a guarantee for whole clients.

A client fits scikit-learn's classifier on its own records, from the released parameters, and sends how far they moved.
Handwritten digits come with scikit-learn; the simulated clients draw from them.

    pip install scikit-learn
    python examples/sklearn_own_loop.py
    dpfedmeta account --verify runs/sklearn
"""

from __future__ import annotations

from functools import cache
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

import dpfedmeta as dp

CLIENTS, COHORT, RECORDS = 5_000, 200, 20
CLASSES = np.arange(10)
Array = npt.NDArray[np.float64]
Model = dict[str, Array]


@cache
def digits() -> tuple[Array, npt.NDArray[np.int64]]:
    """Images as 64 numbers in [0, 1], and their labels: 1,797 of them."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images / 16.0, labels


def records_of(client: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """One client's own records, of the first 1,297; the others are held out."""
    images, labels = digits()
    rows = np.random.default_rng([2, client]).choice(1297, RECORDS, replace=False)
    return images[rows], labels[rows]


def classifier(model: Model) -> Any:
    """A linear classifier with these parameters."""
    from sklearn.linear_model import SGDClassifier

    made = SGDClassifier(loss="log_loss", alpha=0.0, learning_rate="constant", eta0=0.05, random_state=0)
    made.classes_, made.coef_, made.intercept_ = CLASSES, model["coef"].copy(), model["intercept"].copy()
    made.t_ = 1.0  # it has begun: partial_fit goes on from these parameters
    return made


def local_update(model: Model, client: int) -> Model:
    """What a client sends: how two passes over its records move the parameters."""
    images, labels = records_of(client)
    fitted = classifier(model)
    for _ in range(2):
        fitted.partial_fit(images, labels, classes=CLASSES)
    return {"coef": fitted.coef_ - model["coef"], "intercept": fitted.intercept_ - model["intercept"]}


def main(run_dir: str | PathLike[str] = "runs/sklearn", rounds: int = 40) -> float:
    """Train, and return the accuracy on images of no client."""
    model: Model = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    images, labels = digits()
    private = dp.PrivateRounds(
        clients=CLIENTS,
        cohort=COHORT,
        rounds=rounds,
        promise=dp.Promise(unit="client", observer="public", epsilon=4.0, delta=1e-5),
        clip=dp.clip.Constant(initial=0.5),
        like=model,
        run_dir=run_dir,
    )
    with private:
        print(private.guarantees)
        for round_ in private:
            round_.map(local_update, model)
            mean = round_.release()
            model = {name: model[name] + mean[name] for name in model}
        reached = float(classifier(model).score(images[1297:], labels[1297:]))
        print(f"{private.released} rounds, {private.ended}: accuracy {reached:.1%}")
        print(private.spent)
    return reached


if __name__ == "__main__":
    main()
