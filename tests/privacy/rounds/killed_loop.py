"""A loop for tests that kill it."""

import json

import numpy as np

import dpfedmeta as dp
from dpfedmeta.core.params import digest


def main(folder, out, begun):
    """Train in `folder`, write what was handed out to `out`, and call `begun` before the first round."""
    model = {"w": np.zeros(400, dtype=np.float32)}
    with dp.PrivateRounds(
        clients=200, cohort=20, rounds=6, promise=dp.Promise(epsilon=6.0, delta=1e-4), like=model,
        clip=dp.clip.Constant(initial=1.0), run_dir=folder,
    ) as private, out.open("a", encoding="utf-8") as handed:  # fmt: skip
        begun()
        for round_ in private:
            for client in round_.cohort:
                round_.add(client, {"w": np.full(400, client / 200, dtype=np.float32) - model["w"]})
            mean = round_.release()
            handed.write(json.dumps({"round": round_.number, "release": digest(mean)}) + "\n")
            handed.flush()
            model = {"w": model["w"] + mean["w"]}
