"""The task with Flower's simulation (Ray)."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from benchmarks.simulators import task

# Actors of Ray import this module and find the data by these names, mapped into memory: a copy in each message would
# be what is measured.
RECORDS, LABELS = (os.environ.get(f"SIMULATOR_{name}", "") for name in ("RECORDS", "LABELS"))


# -- the user's code
class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(task.PIXELS, task.HIDDEN)
        self.head = torch.nn.Linear(task.HIDDEN, task.CLASSES)

    def forward(self, records):
        return self.head(torch.relu(self.hidden(records)))


client_app = ClientApp()


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    user = int(context.node_config["partition-id"])
    records = torch.from_numpy(np.load(RECORDS, mmap_mode="r")[user].copy())
    labels = torch.from_numpy(np.load(LABELS, mmap_mode="r")[user].copy())
    network = Mlp()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=task.LR)
    for _ in range(task.STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(records), labels).backward()
        optimizer.step()
    answer = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(content=RecordDict(answer), reply_to=message)


# -- end


def main():
    """Train, and say when rounds ended."""
    asked = task.asked(__doc__)
    found = {}

    def ended(round_, arrays):
        if round_:  # it is asked before the first round too
            asked.round_ended()

    # -- the user's code
    server_app = ServerApp()

    @server_app.main()
    def server(grid, context):
        strategy = FedAvg(
            fraction_train=asked.cohort / asked.clients,
            fraction_evaluate=0.0,
            min_train_nodes=asked.cohort,
            min_available_nodes=asked.clients,
        )
        if asked.private:
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, task.NOISE, task.CLIP, asked.cohort)
        weights = {name: torch.from_numpy(value) for name, value in task.initial_weights().items()}
        result = strategy.start(grid, ArrayRecord(weights), num_rounds=asked.rounds, evaluate_fn=ended)
        found.update(result.arrays.to_torch_state_dict())

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=asked.clients, backend_config=resources)
    # -- end
    asked.answer({name: value.numpy() for name, value in found.items()})


if __name__ == "__main__":
    sys.exit(main())
