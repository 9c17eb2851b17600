"""The server: FedAvg inside the private rounds. All ten clients take part in every round."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import dpfedmeta as dp

from .task import CLIENTS, TRUTH, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; what is printed is what was released."""
    rounds = int(context.run_config["rounds"])
    weights = {"weights": np.zeros(len(TRUTH))}
    private = dp.PrivateRounds(
        clients=CLIENTS,
        cohort=CLIENTS,
        rounds=rounds,
        promise=dp.Promise(unit="client", observer="public", epsilon=8.0, delta=1e-3),
        clip=dp.clip.Window(initial=1.0, window=3),
        sampler="fixed",
        like=weights,
        run_dir=str(context.run_config["folder"]),
    )

    def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy(arrays["weights"].numpy())})

    with private:
        print(private.guarantees)
        strategy = dp.flower.PrivateStrategy(FedAvg(min_available_nodes=CLIENTS), private)
        initial = ArrayRecord({name: Array(value) for name, value in weights.items()})
        result = strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=evaluated)
        reached = accuracy(result.arrays["weights"].numpy())
        print(f"{private.released} rounds, {private.ended}: accuracy {reached:.1%}")
