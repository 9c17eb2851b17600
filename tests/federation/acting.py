"""`dpfedmeta federate ...` as a process of its own that is not quite as it should be.

How it is wrong is the name of a function here, which changes one thing before the command begins.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

# A client imports both for its first message: four seconds of a processor each, if a dozen do it.
import numba  # noqa: F401
import numpy as np
import torch._dynamo  # noqa: F401

from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, prepare_flower

# Whoever forks from a process that holds all of it begins in milliseconds (multiprocessing's forkserver).
prepare_flower()

from dpfedmeta.__main__ import main  # noqa: E402
from dpfedmeta.cli.commands import federate_command as federate  # noqa: E402, F401
from dpfedmeta.federation import wire_format as messages  # noqa: E402
from dpfedmeta.federation.client import client  # noqa: E402
from dpfedmeta.federation.client.training_participation import Joined  # noqa: E402
from dpfedmeta.federation.offers import signed_document  # noqa: E402
from dpfedmeta.federation.server import client_requests as asking  # noqa: E402
from dpfedmeta.federation.server import remote_sums as sums_module  # noqa: E402
from dpfedmeta.federation.server import training_server as server  # noqa: E402
from dpfedmeta.reporting.html import page as report  # noqa: E402, F401
from dpfedmeta.secure_aggregation import protocol_server as secure_server  # noqa: E402
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase  # noqa: E402
from dpfedmeta.training.terminal import progress as screen  # noqa: E402, F401
from tests.federation.silos import NOISE  # noqa: E402


def known_noise():
    """A client's noise is that of the simulation; no option of the command says so, and none should."""
    client.RealClient = partial(client.RealClient, noise_seed=NOISE)


def machine(folder):
    """A client on a machine of its own: what other machines noted is not known there."""
    os.environ["DPFEDMETA_STATE"] = folder


def other_layout():
    """A release whose messages are laid out otherwise."""
    messages.VERSION = 99


def not_a_number():
    """A client whose vectors hold NaN."""
    sound = Joined.vector
    Joined.vector = lambda self, task, attempt: np.full_like(sound(self, task, attempt), np.nan)


def changed_plan():
    """A server that sends another plan than the one that it signed."""
    sign = vars(server)["sign_plan"]

    def altered(plan, task, **given):
        signed = sign(plan, task, **given)
        return replace(signed, text=signed.text + b" ")

    vars(server)["sign_plan"] = altered


def better_numbers():
    """A server that signs a plan whose numbers are better than its settings give."""
    constants = vars(signed_document)["constants"]
    vars(signed_document)["constants"] = lambda plan: constants(plan) | {"noise_multiplier": 100.0}


def long_answers():
    """A client whose last vector is longer than a message may be."""
    sound, long = Joined.vector, np.zeros(MOST_BYTES // 4 + 2500, dtype=np.float32)
    Joined.vector = lambda self, task, attempt: long if attempt.round == 2 else sound(self, task, attempt)


def late(rounds, seconds):
    """A client that has charged a message of these rounds, and then takes so long to compute it."""
    computed, named = Joined._computed, {int(each) for each in rounds.split(",")}

    def slowly(self, attempt, compute):
        time.sleep(float(seconds) if attempt.round in named else 0.0)
        return computed(self, attempt, compute)

    Joined._computed = slowly


def _dies(folder, place):
    """Where a note of this place lies, it is taken away, and the process with it."""
    note = Path(folder) / place
    if note.exists():
        note.rename(note.with_name(f"done-{place}"))
        os.kill(os.getpid(), signal.SIGKILL)


def mortal_client(folder, number):
    """A client that is killed before or after it answers, where a note says so."""
    plain = client.RealClient.answer

    def answer(self, question):
        asked = messages.Question.opened(question, self._server, self.identity)
        kind = (
            ProtocolPhase(messages.ProtocolStep.decode(asked.body).phase)
            if asked.asked is messages.QuestionKind.PHASE
            else asked.asked
        )
        place = f"client{number}-{kind.name}-{asked.attempt.round}"
        _dies(folder, f"{place}-before")
        found = plain(self, question)
        _dies(folder, f"{place}-after")
        return found

    client.RealClient.answer = answer


def mortal_server(folder):
    """A server that is killed before or after it asks, and that notes whose vectors were added up."""
    plain, sums, adds = asking.ClientRequests._ask, sums_module.AskedAdder.__call__, secure_server.Server.sum
    heard = (Path(folder) / "entered.jsonl").open("a", buffering=1)
    entered = []

    def ask(self, asked, attempt, bodies):
        body = next(iter(bodies.values()), b"")
        kind = (
            ProtocolPhase(messages.ProtocolStep.decode(body).phase)
            if asked is messages.QuestionKind.PHASE and body
            else asked
        )
        place = f"server-{kind.name}-{attempt.round}"
        _dies(folder, f"{place}-before")
        found = plain(self, asked, attempt, bodies)
        if asked is messages.QuestionKind.VECTOR:
            heard.write(json.dumps([attempt.round, sorted(found)]) + "\n")
        _dies(folder, f"{place}-after")
        return found

    def added(self, clients, workers, tasks, cohort):
        entered.clear()
        found = sums(self, clients, workers, tasks, cohort)
        heard.write(json.dumps([cohort.round, list(entered)]) + "\n")
        return found

    def summed(self):
        found = adds(self)
        entered[:] = sorted(found.survivors)
        return found

    asking.ClientRequests._ask = ask
    sums_module.AskedAdder.__call__ = added
    secure_server.Server.sum = summed


def act(how, words, output):
    """The command in a fresh process, with what it says in a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ |= {"COLUMNS": "500"}
    for each in how:
        name, *given = each.split(":")
        globals()[name](*given)
    main(["federate", *words])
