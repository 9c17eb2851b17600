"""The task with FedJAX, which has no differential privacy."""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.simulators import task


def main():
    """Train, and say when rounds ended."""
    asked = task.asked(__doc__)

    # -- the user's code
    def loss(params, batch, rng):
        hidden = jax.nn.relu(batch["x"] @ params["hidden.weight"].T + params["hidden.bias"])
        logits = hidden @ params["head.weight"].T + params["head.bias"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1))

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(task.LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=50, num_epochs=task.STEPS, skip_shuffle=True),
    )
    users = fedjax.InMemoryFederatedData(
        {str(user): {"x": asked.records[user], "y": asked.labels[user]} for user in range(asked.clients)}
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(users, num_clients=asked.cohort, seed=0)
    state = algorithm.init({name: jnp.asarray(value) for name, value in task.initial_weights().items()})
    for _ in range(asked.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        asked.round_ended()
    # -- end
    asked.answer({name: np.asarray(value) for name, value in state.params.items()})


if __name__ == "__main__":
    main()
