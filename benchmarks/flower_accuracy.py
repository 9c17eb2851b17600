"""Flower's wrappers and ours on one task, at one true epsilon: what is claimed, what holds, what an audit shows.

    python -m benchmarks.flower_accuracy --accuracy --seeds 3 --json accuracy.json      # DPFEDMETA_DATA has MNIST
    python -m benchmarks.flower_accuracy --audit --runs 240 --json audit.json

1,000 clients with 50 images of two digits each, cohorts of 100 of a fixed size, 40 rounds of FedAvg on a linear model
(7,850 weights). Neighbours: the data of one client are replaced; who takes part is secret. Flower's own loop
(`Strategy.start`) runs over a grid in memory. Needs flwr 1.42 (the extra `federation`). Nothing here gives a guarantee.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import dpfedmeta as dp
from benchmarks.algorithm_claims import claim_without_the_factor_of_two
from benchmarks.flower_cases import flower, rdp_accountant
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.auditing.trade_off_function import SampledCurve, epsilon_of_curve
from dpfedmeta.federation.flower.node_replies import NUMBER

CLIENTS, COHORT, ROUNDS, EPSILON, DELTA = 1000, 100, 40, 8.0, 1e-5
STEPS, RATE, PIXELS, CLASSES = 5, 0.1, 784, 10
# Of an audit's model; the length of what everybody but the canary sends, in clip bounds; and how many times fewer
# clients and smaller cohorts it has, with the same q and noise, so the same epsilon.
_SIZE, _LONG, _FEWER = 16, 10.0, 5
_MISS = 0.05
_KEY = "weights"
Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What a user gives as noise multiplier; what the code amounts to, in bounds, where the sum moves by 2 bounds."""

    given: float
    true: float


def plan(multiplier: float) -> PrivacyPlan:
    """Rounds of cohorts of a fixed size, where a client's data are replaced."""
    return PrivacyPlan(
        clients=CLIENTS, cohort=COHORT, rounds=ROUNDS, noise_multiplier=multiplier, sampler="fixed", client_delta=DELTA
    )


def epsilon(multiplier: float) -> float:
    """(client, public) of such rounds, by our accountant."""
    return next(found.epsilon for found in guarantees(plan(multiplier)) if found.name == "(client, public)")


def private_rounds(folder: Path, like: Any, initial: float, seed: int, fewer: int = 1) -> dp.PrivateRounds:
    """Ours."""
    return dp.PrivateRounds(
        clients=CLIENTS // fewer, cohort=COHORT // fewer, rounds=ROUNDS, clip=dp.clip.Window(initial=initial),
        promise=dp.Promise(epsilon=EPSILON, delta=DELTA), sampler="fixed", like=like, run_dir=folder, noise_seed=seed,
    )  # fmt: skip


def noises(multiplier: float) -> dict[str, Noise]:
    """What each system has to be given so that its true epsilon is that of `multiplier`.

    Adaptive clipping, where all others are clipped: the sum moves by 2 bounds C_t under the noise for C_(t+1), which is
    exp(0.1) times smaller, and the count of clipped clients by 1.
    """
    _, strategies, _ = flower()
    made = strategies.DifferentialPrivacyServerSideAdaptiveClipping(object(), multiplier, COHORT)
    count = made.clipped_count_stddev
    lost = math.exp(made.clip_norm_lr * (1.0 - made.target_clipped_quantile))
    share = 2.0 * lost / math.sqrt(4.0 / multiplier**2 - 1.0 / count**2)
    given = 1.0 / math.sqrt(1.0 / share**2 + 1.0 / (2.0 * count) ** 2)  # undoes compute_adaptive_noise_params
    fixed = Noise(given=multiplier, true=multiplier)
    return {"Flower, fixed": fixed, "Flower, adaptive": Noise(given=given, true=multiplier), "ours, window": fixed}


@dataclass(kw_only=True)
class Grid:
    """Clients in memory, as Flower's server sees them; `update` is that of (client, model)."""

    app: Any
    update: Callable[[int, Vector], Vector]
    clients: int
    run: None = None

    def get_node_ids(self) -> list[int]:
        """From 1."""
        return list(range(1, self.clients + 1))

    def get_nodes(self) -> list[Any]:
        """Each with a key of its own, which nobody checks here."""
        return [SimpleNamespace(node_id=node, public_key=b"") for node in self.get_node_ids()]

    def send_and_receive(self, messages: Any, **_: object) -> list[Any]:
        """Every client replies."""
        return [self._reply(message) for message in messages]

    def _reply(self, message: Any) -> Any:
        app = self.app
        if NUMBER in message.content.config_records.get("config", {}):
            said = app.ConfigRecord({NUMBER: message.metadata.dst_node_id - 1})
            return app.Message(app.RecordDict({"config": said}), reply_to=message)
        (sent,) = message.content["arrays"].to_numpy_ndarrays()
        moved = (sent + self.update(message.metadata.dst_node_id - 1, sent)).astype(np.float32)
        metrics = app.MetricRecord({"num-examples": 50})
        arrays = app.ArrayRecord({_KEY: app.Array(moved)})
        return app.Message(app.RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@dataclass(kw_only=True)
class Seen:
    """What leaves a run: models, and the clip bounds of the rounds."""

    strategy: Any = None
    private: Any = None
    models: list[Vector] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """Of the next round."""
        return float(self.strategy.clipping_norm if self.private is None else self.private._rounds.bound)

    def __call__(self, _: int, arrays: Any) -> None:
        """As `evaluate_fn`, once before the first round and after each."""
        self.models.append(arrays.to_numpy_ndarrays()[0].astype(np.float64))
        if len(self.models) <= ROUNDS or self.private is None:
            self.bounds.append(self.bound)


def run(
    system: str, noise: Noise, update: Callable[[Seen], Callable[[int, Vector], Vector]], size: int, *, initial: float,
    seed: int, accountant: Any = None, adam: float | None = None, fewer: int = 1,
) -> Seen:  # fmt: skip
    """All rounds of one system; `update` may look at what the public sees, as a canary does. `adam`: eta of ours."""
    app, strategies, _ = flower()
    np.random.seed(seed)  # noqa: NPY002  Flower's own source of noise
    random.seed(seed)
    clients, cohort = CLIENTS // fewer, COHORT // fewer
    numbers = {"min_train_nodes": cohort, "min_available_nodes": clients, "fraction_train": COHORT / CLIENTS}
    inner = strategies.FedAvg(fraction_evaluate=0.0, **numbers)
    zeros, seen = np.zeros(size, np.float32), Seen()
    grid, first = Grid(app=app, update=update(seen), clients=clients), app.ArrayRecord({_KEY: app.Array(zeros)})
    if system.startswith("ours"):
        memory = Path("/dev/shm")
        with (
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
            private_rounds(Path(folder) / "mine", {_KEY: zeros}, initial, seed, fewer) as private,
        ):
            seen.private = private
            there: Any = grid
            if adam is not None:
                inner = strategies.FedAdam(fraction_evaluate=0.0, eta=adam, tau=1e-9, **numbers)
            dp.flower.PrivateStrategy(inner, private).start(there, first, num_rounds=ROUNDS, evaluate_fn=seen)
        return seen
    if system.endswith("fixed"):
        made = strategies.DifferentialPrivacyServerSideFixedClipping
        seen.strategy = made(inner, noise.given, initial, cohort, accountant=accountant)
    else:
        made = strategies.DifferentialPrivacyServerSideAdaptiveClipping
        named = {"initial_clipping_norm": initial, "clipped_count_stddev": COHORT / 20}
        seen.strategy = made(inner, noise.given, cohort, **named)
    seen.strategy.start(grid, first, num_rounds=ROUNDS, evaluate_fn=seen)
    return seen


def log_ratio(system: str, noise: Noise, *, one: bool, seed: int) -> float:
    """Of one run of either world, by whoever sees all models and bounds but no cohort.

    All others send more than a bound along one direction. The canary does so too, or (`one`) just less than the bound
    along the opposite one, so it moves the sum by 2 bounds and the count of clipped clients by 1.
    """
    direction = np.full(_SIZE, 1.0 / math.sqrt(_SIZE))

    def updates(seen: Seen) -> Callable[[int, Vector], Vector]:
        return lambda client, _: (0.999 if one and client == 0 else -_LONG) * seen.bound * direction

    seen, total, q = run(system, noise, updates, _SIZE, initial=0.1, seed=seed, fewer=_FEWER), 0.0, COHORT / CLIENTS
    cohort = COHORT // _FEWER
    for number in range(ROUNDS):
        bound = seen.bounds[number]
        moved = cohort * float((seen.models[number + 1] - seen.models[number]) @ direction) / bound + cohort
        shift, gain, deviation = 1.999, 0.0, noise.given
        if system.endswith("adaptive"):
            following, strategy = seen.bounds[number + 1], seen.strategy
            deviation = strategy.noise_multiplier * following / bound
            step = -math.log(following / bound) / strategy.clip_norm_lr + strategy.target_clipped_quantile
            gain = (0.5 - (step * cohort - (cohort - 1))) / strategy.clipped_count_stddev**2
        gain += (moved * shift - 0.5 * shift**2) / deviation**2
        total += float(np.logaddexp(math.log1p(-q), math.log(q) + gain))
    return total


def audited(system: str, noise: Noise, runs: int, seed: int) -> dict[str, Any]:
    """A lower bound at 95%: the claimed rounds with so little noise that the best attack could be so often right."""
    generator, right = np.random.default_rng(seed), 0
    for _ in range(runs):
        one, own = bool(generator.integers(2)), int(generator.integers(2**31))
        right += (log_ratio(system, noise, one=one, seed=own) > 0.0) == one
    curve = SampledCurve(phases=plan(noise.true).phases, neighbours="replace-one", delta=DELTA)
    return {"audited": epsilon_of_curve(right, runs, curve, _MISS), "right": right, "runs": runs}


def trained(records: Vector, labels: Vector) -> Callable[[int, Vector], Vector]:
    """Updates of clients: some steps of gradient descent on all of their own records."""

    def of(client: int, model: Vector) -> Vector:
        weights, inputs = model.reshape(PIXELS + 1, CLASSES).copy(), records[client]
        for _ in range(STEPS):
            logits = inputs @ weights
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            shares[np.arange(len(inputs)), labels[client]] -= 1.0
            weights -= np.float32(RATE / len(inputs)) * (inputs.T @ shares)
        return np.asarray(weights.reshape(-1) - model)

    return of


def mnist(folder: Path) -> tuple[Vector, Vector, Vector, Vector]:
    """Records and labels of the clients, and of the test set; a 1 is behind each image."""
    from benchmarks.simulators.run import exported

    held, own = np.load(exported(folder)), Path(os.environ["DPFEDMETA_DATA"]) / "mnist"
    images = np.frombuffer(gzip.decompress((own / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    said = np.frombuffer(gzip.decompress((own / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    test = ((images.reshape(-1, PIXELS) / 255.0 - 0.1307) / 0.3081).astype(np.float32)
    return _with_ones(held["records"]), held["labels"], _with_ones(test), said


def _with_ones(records: Vector) -> Vector:
    return np.concatenate([records, np.ones((*records.shape[:-1], 1), np.float32)], axis=-1)


def main() -> None:
    """One row a system."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--accuracy", action="store_true")
    made.add_argument("--audit", action="store_true")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--initial", type=float, nargs="+", default=[0.1, 1.0], help="first clip bounds")
    made.add_argument("--adam", type=float, nargs="*", default=[0.003, 0.01], help="ours with FedAdam inside, too: eta")
    made.add_argument("--runs", type=int, default=240)
    made.add_argument("--systems", nargs="+", default=["Flower", "ours"], help="beginnings of names")
    made.add_argument("--json", type=Path, default=Path("flower-accuracy.json"))
    words = made.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DPFEDMETA_STATE", folder)
        data = mnist(Path(folder)) if words.accuracy else None
        for system, noise in noises(solved(Path(folder))).items():
            if not system.startswith(tuple(words.systems)):
                continue
            ours = system.startswith("ours")
            claimed = epsilon(noise.given) if ours else claim_without_the_factor_of_two(plan(noise.given))
            row = {"system": system, "given": noise.given, "claimed": claimed, "true": epsilon(noise.true)}
            print(row, flush=True)
            # Flower's noise comes after the step of the strategy inside, so with FedAdam nobody knows its epsilon.
            inside = [None, *words.adam] if ours else [None]
            for initial, adam in itertools.product(words.initial, inside) if data is not None else ():
                for seed in range(words.seeds):
                    rows.append(row | _accuracy(system, noise, data, initial, seed, adam))
                    print(rows[-1], flush=True)
            if words.audit:
                begun = time.perf_counter()
                rows.append(row | audited(system, noise, words.runs, 0) | {"seconds": time.perf_counter() - begun})
                print(rows[-1], flush=True)
            words.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def solved(folder: Path) -> float:
    """The noise multiplier of ours."""
    with private_rounds(folder / "solved", {_KEY: np.zeros(2, np.float32)}, 1.0, 0) as private:
        return float(private._rounds.plan.noise_multiplier or 0.0)


def _accuracy(system: str, noise: Noise, data: Any, initial: float, seed: int, adam: float | None) -> dict[str, Any]:
    records, labels, images, said = data
    accountant = rdp_accountant(CLIENTS, DELTA) if system.endswith("fixed") else None
    begun, update = time.perf_counter(), trained(records, labels)
    seen = run(system, noise, lambda _: update, (PIXELS + 1) * CLASSES, initial=initial, seed=seed,
               accountant=accountant, adam=adam)  # fmt: skip
    found = (images @ seen.models[-1].reshape(PIXELS + 1, CLASSES)).argmax(axis=1)
    return {
        "initial": initial, "adam": adam, "seed": seed, "accuracy": float((found == said).mean()),
        "last_bound": seen.bounds[ROUNDS - 1],
        "printed": None if accountant is None else float(seen.strategy.privacy_spent().epsilon),
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


if __name__ == "__main__":
    main()
