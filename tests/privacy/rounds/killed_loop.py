"""A loop in a process of its own, for tests that kill it: python killed_loop.py FOLDER OUT."""

import json
import sys
from pathlib import Path

import numpy as np

import dpfedmeta as dp
from dpfedmeta.core.params import digest

model = {"w": np.zeros(400, dtype=np.float32)}
with dp.PrivateRounds(
    clients=200, cohort=20, rounds=6, promise=dp.Promise(epsilon=6.0, delta=1e-4), like=model,
    clip=dp.clip.Constant(initial=1.0), run_dir=sys.argv[1],
) as private, Path(sys.argv[2]).open("a", encoding="utf-8") as out:  # fmt: skip
    print("begun", flush=True)
    for round_ in private:
        for client in round_.cohort:
            round_.add(client, {"w": np.full(400, client / 200, dtype=np.float32) - model["w"]})
        mean = round_.release()
        out.write(json.dumps({"round": round_.number, "release": digest(mean)}) + "\n")
        out.flush()
        model = {"w": model["w"] + mean["w"]}
