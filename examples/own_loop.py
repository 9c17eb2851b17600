"""A training loop of one's own with a guarantee: logistic regression in numpy on a thousand synthetic clients.

The loop below knows nothing of privacy. `dpfedmeta.PrivateRounds` solves the noise from the promise, charges each round
on disk before anybody is asked, draws the cohort, clips, adds, and releases the noisy mean. It needs no PyTorch.

    python examples/own_loop.py
    dpfedmeta account --verify runs/own-loop

Stop it and start it again: it goes on, and no round is charged twice.
"""

from __future__ import annotations

from os import PathLike

import numpy as np
import numpy.typing as npt

import dpfedmeta as dp

CLIENTS, COHORT, RECORDS, FEATURES = 1_000, 100, 12, 5
Model = dict[str, npt.NDArray[np.float64]]
TRUTH = np.array([1.5, -2.0, 1.0, 0.5, -1.0])


def records_of(client: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """One client's own records: in real life a file on its disk."""
    generator = np.random.default_rng([1, client])
    features = generator.normal(size=(RECORDS, FEATURES))
    labels = (features @ TRUTH + 0.5 * generator.normal(size=RECORDS) > 0).astype(float)
    return features, labels


def local_update(model: Model, client: int) -> Model:
    """What a client sends: the gradient of its records at the released model, and of nothing else."""
    features, labels = records_of(client)
    error = labels - 1.0 / (1.0 + np.exp(-(features @ model["weights"] + model["bias"])))
    return {"weights": features.T @ error / RECORDS, "bias": error.mean(keepdims=True)}


def accuracy(model: Model) -> float:
    """On records that no client of the training holds."""
    held_out = [records_of(client) for client in range(CLIENTS, CLIENTS + 200)]
    right = [((x @ model["weights"] + model["bias"] > 0) == (y > 0.5)).mean() for x, y in held_out]
    return float(np.mean(right))


def main(run_dir: str | PathLike[str] = "runs/own-loop", rounds: int = 30) -> Model:
    """Train, and say what was promised and reached."""
    model: Model = {"weights": np.zeros(FEATURES), "bias": np.zeros(1)}
    private = dp.PrivateRounds(
        clients=CLIENTS,
        cohort=COHORT,
        rounds=rounds,
        promise=dp.Promise(unit="client", observer="public", epsilon=4.0, delta=1e-5),
        clip=dp.clip.Window(initial=0.5, window=3),
        like=model,
        run_dir=run_dir,
    )
    with private:
        print(private.guarantees)
        # A mistake in the form of an update would silently count as zero: look once, at an update of no client.
        private.check_update(local_update(model, CLIENTS))
        for round_ in private:
            round_.map(local_update, model)
            mean = round_.release()
            # The bound moves, so the step is measured in bounds.
            model = {name: model[name] + mean[name] / round_.bound for name in model}
        print(f"{private.released} rounds, {private.ended}: accuracy {accuracy(model):.1%}")
        print(private.spent)
    return model


if __name__ == "__main__":
    main()
