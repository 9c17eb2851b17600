"""What a command on ranks ends with, on ranks that are threads."""

import signal
import threading

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.simulation.distributed import launch as shell
from dpfedmeta.simulation.distributed.torchrun_env import Launch
from tests.simulation.distributed.threads import ThreadLine, Wires

WORDS = ["train", "--seed=1"]


@pytest.fixture
def launched(monkeypatch):
    """Run a command on two ranks; gives rank 0's exit code, or what it raised, and the other's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(command, others=WORDS):
        wires, codes = Wires(2, 20.0), []
        monkeypatch.setattr(shell, "joined", lambda launch: ThreadLine(wires, 0))
        monkeypatch.setattr(shell, "prepare", lambda launch: None)
        launch = Launch(rank=1, size=2)
        other = threading.Thread(target=lambda: codes.append(shell.serve_over(ThreadLine(wires, 1), launch, others)))
        other.start()
        try:
            code = shell.on_ranks(Launch(rank=0, size=2), WORDS, command)
        except (InputError, KeyboardInterrupt, OSError) as error:
            code = type(error)
        other.join(20.0)
        return code, *codes

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def failing(error):
    def command(workers):
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (lambda workers: 0, (0, 0)),
        (lambda workers: 130, (130, 130)),
        (failing(InputError("key: wrong")), (InputError, 2)),
        (failing(KeyboardInterrupt()), (KeyboardInterrupt, 130)),
        (failing(OSError(28, "No space left on device")), (OSError, 1)),
    ],
)
def test_all_ranks_end_alike_and_who_ends_last_is_deaf_to_a_launcher_that_stops_it(launched, command, codes):
    heard = []

    def listening(workers):
        heard.append(signal.getsignal(signal.SIGTERM))
        return command(workers)

    assert launched(listening) == codes
    assert heard != [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_ranks_that_were_started_otherwise_run_nothing(launched):
    ran = []
    assert launched(lambda workers: ran.append(1) or 0, ["train", "--seed=2"]) == (InputError, 2)
    assert not ran
