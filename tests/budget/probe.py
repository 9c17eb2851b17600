"""Tiny runs, each in a process of its own, and what of the package they load and go through.

python -m tests.budget.probe FOLDER [--workers] prints a JSON object. measure_budget.py calls it with HOOK, as
sitecustomize, on the path: so it is known in every process that a run starts, by whatever means.
"""

import json
import mmap
import os
import signal
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path

# Every process notes what of the package is executed: a module that is found and not executed is not loaded, and one
# that is imported in a function, a fork or a worker is. With a second variable it also notes the functions of the
# second round (a byte that all processes share says when), and counts the calls before the first release.
HOOK = """
import os, sys, threading, mmap

def note(kind, words):
    handle = os.open(os.environ["BUDGET_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{kind} {words}\\n".encode())
    os.close(handle)

def hook(event, given):
    if event == "exec" and "BUDGET_NOTES" in os.environ:
        file = getattr(given[0], "co_filename", "")
        if file.startswith(os.environ["BUDGET_PACKAGE"]) and given[0].co_name == "<module>":
            note("file", file)

def traced():
    package = os.environ["BUDGET_PACKAGE"]
    with open(os.environ["BUDGET_PHASE"], "r+b") as file:
        phase = mmap.mmap(file.fileno(), 0)
    seen = set()

    def profile(frame, event, _):
        if event == "call" and phase[0] < 2 and frame.f_code.co_filename.startswith(package):
            if phase[0] == 0:
                phase[8:16] = (int.from_bytes(phase[8:16], "big") + 1).to_bytes(8, "big")
            elif frame.f_code not in seen:
                seen.add(frame.f_code)
                note("function", frame.f_code.co_filename + " " + frame.f_code.co_qualname)

    sys.setprofile(profile)
    threading.setprofile(profile)

sys.addaudithook(hook)
if "BUDGET_PHASE" in os.environ:
    traced()
"""
WORKERS = {"run.workers": 2, "server.rounds": 1}
FEW = {"population.clients": "3", "population.cohort": "3", "server.rounds": "1", "run.noise_seed": "1"}
TASK = {
    "name": "tiny", "source": {"reader": "strokes", "seed": 1, "variation": 1.0}, "image_size": 28, "channels": 1,
    "split": {"train": 8, "val": 6, "test": 6}, "images_per_class": 10, "train_rotations": 4,
}  # fmt: skip
SMALL = {
    "population.clients": 60, "population.cohort": 6, "server.rounds": 3, "run.seed": 3, "run.noise_seed": 11,
    "run.device": "cpu", "run.workers": 1, "task.ways": 3, "task.shots": 2, "task.queries": 2, "evaluation.episodes": 2,
    "evaluation.validation_episodes": 2, "evaluation.queries": 2, "evaluation.every": 100, "model.width": 4,
    "privacy.client.delta": 1.0e-3, "meta.steps": 2,
}  # fmt: skip
SECURE = {
    "population.sampler": "fixed", "population.cohort": 8, "population.max_participations": None,
    "record.micro_shots": 1, "record.micro_queries": 1, "aggregation.protocol": True, "server.rounds": 1,
}  # fmt: skip


POINT = b"\x89PNG\r\n\x1a\n" + bytes.fromhex(
    "0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)


def train(folder, algo, callbacks, given):
    import dpfedmeta as dp

    task = folder / "tiny.yaml"
    task.write_text(json.dumps(TASK))
    place = {"run.dir": str(folder / algo), "run.name": str(len(given))}
    settings = dp.Settings.preset(algo, str(task), {**SMALL, **given, **place})
    dp.train(settings, quiet=True, callbacks=callbacks)


def round_of(folder):
    """Note what goes on before the first release, and in the second round, of a run in this process alone."""
    phase = folder / "phase"
    phase.write_bytes(bytes(mmap.PAGESIZE))
    os.environ["BUDGET_PHASE"] = str(phase)
    with phase.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    import dpfedmeta as dp

    class Count(dp.Callback):
        def on_round(self, *_, **__):
            shared[0] += 1

    sys.modules["sitecustomize"].traced()
    train(folder, "dp-agr", [Count()], {})
    sys.setprofile(None)
    threading.setprofile(None)
    return int.from_bytes(shared[8:16], "big")


def in_a_fork(notes, job, *arguments):
    """What a job notes, and what it returns, in a process that shares only libraries with this one."""
    ours, theirs = Pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ["BUDGET_NOTES"] = str(notes)
            theirs.send(job(*arguments))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(code)
    theirs.close()
    return child, ours


def returned(child, pipe):
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(f"a tiny run ended with {code}")
    return pipe.recv()


def a_client(pipe):
    """A real client alone in its process, which answers the questions of a server elsewhere."""
    given = pipe.recv()
    from dpfedmeta.federation.client.client import RealClient
    from dpfedmeta.federation.client.client_budget import Promise

    client = RealClient(*given[:3], server=given[3], promise=Promise(participations=10))
    pipe.send(client.identity)
    while question := pipe.recv_bytes():
        pipe.send_bytes(client.answer(question))
    return len(list(given[2].parent.rglob("personal.safetensors")))


def a_server(folder, pipe):
    """Serve a tiny federation whose client 0 is at the other end of the pipe."""
    from dpfedmeta.secure_aggregation.crypto.keys import Identity
    from tests.federation.in_process import InProcessChannel
    from tests.federation.silos import make_silos

    class Piped:
        def answer(self, question):
            pipe.send_bytes(question)
            return pipe.recv_bytes()

    silos, home = make_silos(folder / "silos", 3), folder / "home"
    pipe.send((silos.folders[0], silos.keys[0], home / "client0" / "ledger.jsonl", Identity(silos.server).public))
    parties = {silos.roster[number]: silos.client(number, home) for number in range(1, len(silos.keys))}
    parties[pipe.recv()] = Piped()
    _, status = silos.serve(silos.settings("dp-agr", **FEW), home, InProcessChannel(parties=parties))
    pipe.send_bytes(b"")
    return status


def noted(notes):
    """Files and functions, each once."""
    lines = {*notes.read_text().splitlines()} if notes.exists() else set()
    return [sorted(line.split(" ", 1)[1] for line in lines if line.startswith(kind)) for kind in ("file ", "function ")]


def main(folder, *, workers):
    # What all of them load besides the package, once; pictures are drawn by a library too.
    import dp_accounting.rdp
    import matplotlib.figure
    import numba
    import opacus
    import PIL.Image
    import pydantic
    import scipy.stats
    import torch

    del dp_accounting, numba, opacus, PIL, pydantic, scipy
    matplotlib.figure.Figure.savefig = lambda figure, file, **_: file.write(POINT)
    matplotlib.figure.Figure.tight_layout = lambda *_, **__: None
    torch.set_num_threads(1)
    found = {"calls": returned(*in_a_fork(folder / "dp-agr.txt", round_of, folder))}
    found["dp-agr"], found["round"] = noted(folder / "dp-agr.txt")
    for name, more in {"dp-agrlr-secure": SECURE, **({"dp-agr": WORKERS} if workers else {})}.items():
        notes = folder / f"{name}-{len(more)}.txt"
        returned(*in_a_fork(notes, train, folder, name, (), more))
        found[name] = sorted({*found.get(name, ()), *noted(notes)[0]})
    here, there = Pipe()
    client = in_a_fork(folder / "client.txt", a_client, there)
    try:
        status = returned(*in_a_fork(folder / "server.txt", a_server, folder, here))
    except SystemExit:
        os.kill(client[0], signal.SIGKILL)
        raise
    if status != "completed" or returned(*client) != 1:
        sys.exit(f"the tiny federation ended with {status}")
    found["client"] = noted(folder / "client.txt")[0]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), workers="--workers" in sys.argv)
