"""dpfedmeta.train on two ranks of a process group that the caller set up without torchrun, beside a plain run."""

import hashlib
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import dpfedmeta as dp
from dpfedmeta.core.errors import InputError
from dpfedmeta.simulation.distributed.launch import workers_of_group

RANKS = 2


def settings(task, folder, name, **given):
    values = {
        "model.width": 4, "task.queries": 2, "evaluation.every": 2, "evaluation.validation_episodes": 2,
        "evaluation.episodes": 4, "run.dir": folder, "run.name": name, "run.noise_seed": 5,
        "run.device": "cpu", **given,
    }  # fmt: skip
    short = {
        "rounds": 3,
        "cohort": 16,
        "clients": 2000,
        "delta": 1e-4,
        "ways": 3,
        "shots": 1,
        "window": 2,
        "noise_multiplier": 1.0,
    }
    return dp.Settings.preset("dp-agr", task, values, **short)


def results(run):
    """What must come out the same."""
    rows = [(row["release"], row["clip"]) for row in run.rounds]
    weights = (run.path / "checkpoint/model.safetensors").read_bytes()
    return [run.status, rows, run.summary["accuracy"]["mean"], hashlib.sha256(weights).hexdigest()]


def member(rank, task, folder):
    """One process of the group, which is still of use afterwards."""
    meet, patience = f"file://{folder}/meet", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=RANKS, timeout=patience)
    found = {}
    with workers_of_group(timeout=60.0) as workers:
        if workers is not None:
            try:
                dp.train(settings(task, folder, "refused", **{"run.workers": 1}), workers=workers, quiet=True)
            except InputError as error:
                found["refused"] = str(error)
            found["ranks"] = results(dp.train(settings(task, folder, "ranks"), workers=workers, quiet=True))
    everybody = torch.ones(1)
    dist.all_reduce(everybody)
    return {**found, "afterwards": everybody.item()}


def trained(task, folder):
    """What each rank has to say, and the plain run; forks."""
    ends = []
    for rank in range(RANKS):
        read, write = os.pipe()
        if not os.fork():
            os.write(write, json.dumps(member(rank, task, folder)).encode())
            os._exit(0)
        os.close(write)
        ends.append(read)
    said = [json.loads(os.fdopen(read).read() or "null") for read in ends]
    plain = dp.train(settings(task, folder, "plain", **{"run.workers": 1}), quiet=True)
    return {"said": said, "plain": json.loads(json.dumps(results(plain)))}
