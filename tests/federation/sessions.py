"""One plan of a small federation, its clients behind a wire that can fail, and what the simulation says of its sums."""

from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dpfedmeta.config.dataset_names import encoding_of_run
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.offers.signed_plan import sign_plan
from dpfedmeta.federation.server.client_requests import ClientRequests, Told
from dpfedmeta.federation.server.remote_sums import AskedAdder, AskedSums
from dpfedmeta.federation.wire_format import Attempt, ProtocolStep, Question, QuestionKind, RoundTask
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.simulation.cohort_sums import LocalBackend, SecureSums, added_up
from dpfedmeta.training.build_data import client_side, population
from tests.federation.in_process import InProcessChannel
from tests.federation.silos import CLIENTS, NOISE

RUN = bytes(range(32))
# Of a plan that limits nothing by itself.
FREE = SimpleNamespace(
    open_rounds=lambda ledger, run, rounds: [*rounds], problem=lambda ledger, run, round_: None, name="plan"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FailingWire(InProcessChannel):
    """As the in-process one; `lost(identity, question)` says which questions never arrive, `late` which answers."""

    lost: object = lambda identity, question: False
    late: object = lambda identity, question: False
    tampered: object = lambda identity, question, answer: answer

    def ask(self, questions, seconds):
        arriving = {who: question for who, question in questions.items() if not self.lost(who, question)}
        came = super().ask(arriving, seconds)
        sent = {who: self.tampered(who, questions[who], answer) for who, answer in came.items()}
        return {
            who: answer for who, answer in sent.items() if len(answer) < 2**29 and not self.late(who, questions[who])
        }


@dataclass(kw_only=True)
class Session:
    """One plan; `heard` holds how every question went."""

    silos: Any
    plan: Any
    signed: Any
    side: Any
    model: dict
    parties: dict
    heard: list = field(default_factory=list)
    made: list = field(default_factory=list)

    def asking(self, **faults):
        wire = FailingWire(parties=self.parties, **faults)
        # One server, whose wire fails in other ways: it knows which numbers it used.
        number = max((each.told._last()[0] for each in self.made), default=0)
        asking = ClientRequests(
            told=Told(_kept=(number, [], [])),
            channel=wire,
            signed=self.signed,
            server=Identity(self.silos.server),
            roster=self.silos.roster,
            seconds=1.0,
            heard=self.heard.append,
        )
        self.made.append(asking)
        return asking

    def sums(self, asking):
        if self.plan.privacy.secure is None:
            return AskedSums(clients=self.side, asking=asking)
        added = AskedAdder(asking=asking, identity=self.silos.server)
        return SecureSums(clients=self.side, workers=InProcess(), added=added)

    def asked(self, round_=0, *, again=(), bound=0.5, asking=None, **faults):
        """The sum over the wire."""
        backend = self.sums(asking or self.asking(**faults))
        return backend.cohort_sum(self.model, bound, cohort(range(CLIENTS), round_, again))

    def simulated(self, numbers, round_=0, *, again=(), bound=0.5):
        """The sum of the simulation, where only these clients answer."""
        make = LocalBackend if self.plan.privacy.secure is None else partial(SecureSums, added=added_up)
        backend = make(clients=self.side, workers=InProcess())
        return backend.cohort_sum(self.model, bound, cohort(numbers, round_, again))

    def question(self, number, round_=0, *, bound=0.5, again=(), server=None, **other):
        """One signed question for a vector."""
        flat = np.asarray(flatten(self.model).numpy())
        asked = Question(
            asked=QuestionKind.VECTOR,
            attempt=Attempt(run=RUN, round=round_, again=again),
            plan=self.signed.digest,
            recipient=self.silos.roster[number],
            body=RoundTask(bound=bound, model=flat).encode(),
        )
        return replace(asked, **other).signed(Identity(server or self.silos.server))


def cohort(numbers, round_=0, again=()):
    return Cohort(round=round_, clients=np.asarray(list(numbers), dtype=np.int64), again=again, invited=CLIENTS)


def same(ours, expected):
    (mine,), (theirs,) = (
        ours.value.values() if len(ours.value) == 1 else [flatten(ours.value)],
        (expected.value.values() if len(expected.value) == 1 else [flatten(expected.value)]),
    )
    return torch.equal(mine, theirs) and ours.noise_variance == expected.noise_variance


def open_session(silos, home, algo, promise=None, **given):
    settings = silos.settings(algo, silos.everybody, **{"server.rounds": "6"} | given)
    dataset = open_dataset(settings.dataset, None, settings.task.ways, encoding_of_run(settings))
    plan = make_plan(settings, dataset.task)
    side = client_side(plan, population(plan, dataset), KeyedSource(NOISE), torch.device("cpu"))
    weights = plan.algorithm.initial(plan.network, settings.run.seed)
    return Session(
        silos=silos,
        plan=plan,
        signed=sign_plan(plan, dataset.task, run=RUN, server=Identity(silos.server), roster=silos.roster),
        side=side,
        model=plan.algorithm.learned(plan.network, weights),
        parties=silos.parties(home, promise=promise),
    )


def phase_of(question):
    """Of a step of secure aggregation; None: it is another question. The body begins after 119 bytes."""
    return ProtocolStep.decode(question[119:-64]).phase if question[6] == QuestionKind.PHASE else None
