"""The size that a plan is audited at where its own would show nothing: few clients, all of them in every round."""

from __future__ import annotations

from collections.abc import Mapping

# Weaker than what is typed, stronger than the preset. Everybody takes part, so that no round is amplified; the network is
# tiny, since an epsilon does not depend on it.
SMALL: Mapping[str, str] = {
    "population.clients": "8",
    "population.cohort": "8",
    "population.max_participations": "null",
    "server.rounds": "5",
    "server.schedule": "[]",
    "model.name": "linear",
    "model.width": "1",
    "model.norm": "none",
    "model.features": "raw",
    "model.initial": "null",
    "model.downscale": "null",
    "model.first_gain": "1.0",
    "meta.learn": "all",
    "meta.adapt": "all",
    "meta.steps": "1",
    "meta.lr": "0.01",
    "meta.divisions": "1",
    "task.ways": "2",
    "task.shots": "1",
    "task.queries": "1",
    "clip.window": "2",
    "evaluation.every": "1000000",
    "run.checkpoint_every": "1000000",
    "run.workers": "1",
    "run.device": "cpu",
    "privacy.client.delta": "1.0e-5",
}
