"""The task with pfl-research (the package pfl)."""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from benchmarks.simulators import task


# -- the user's code
class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(task.PIXELS, task.HIDDEN)
        self.head = torch.nn.Linear(task.HIDDEN, task.CLASSES)
        self.load_state_dict({name: torch.from_numpy(value) for name, value in task.initial_weights().items()})

    def forward(self, records):
        return self.head(torch.relu(self.hidden(records)))

    def loss(self, records, labels, eval=False):
        return torch.nn.functional.cross_entropy(self(records), labels)

    def metrics(self, records, labels, eval=True):
        return {"loss": Weighted(self.loss(records, labels).item() * len(labels), len(labels))}


# -- end


def main():
    """Train, and say when rounds ended."""
    asked = task.asked(__doc__)

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            asked.round_ended()
            return False, Metrics()

    # -- the user's code
    def dataset(user):
        data = [torch.from_numpy(asked.records[user]), torch.from_numpy(asked.labels[user])]
        return Dataset(raw_data=data, user_id=str(user))

    users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(asked.clients))))
    network = Mlp()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(task.CLIP, task.NOISE))
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[noise] if asked.private else [])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds,
            evaluation_frequency=10_000,
            train_cohort_size=asked.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=task.STEPS, local_learning_rate=task.LR, local_batch_size=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    # -- end
    asked.answer({name: value.detach().numpy() for name, value in network.state_dict().items()})


if __name__ == "__main__":
    main()
