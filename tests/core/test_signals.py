import os
import signal
import threading

import pytest

from dpfedmeta.cli.arguments import terminate_like_ctrl_c
from dpfedmeta.core.signals import SIGNALS, deferred


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_is_an_interrupt():
    terminate_like_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_step(number):
    terminate_like_ctrl_c()
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with deferred():
            os.kill(os.getpid(), number)
            done.append("the whole step")
    assert done
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_who_handled_a_signal_before_handles_it_again_however_the_step_ends():
    def own(number, frame):
        pytest.fail("it was deferred")

    signal.signal(signal.SIGINT, own)
    signal.signal(signal.SIGTERM, own)
    with deferred():
        assert own not in (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    with pytest.raises(ValueError, match="stop"), deferred():
        raise ValueError("stop")
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_handlers_are_put_back_leaves_none_of_ours(monkeypatch, first):
    """The handler that is back already raises before the other one is."""
    terminate_like_ctrl_c()
    due, real = [signal.getsignal(each) for each in SIGNALS], signal.signal

    def puts_back(number, handler):
        before = real(number, handler)
        if number == first and handler in due:
            os.kill(os.getpid(), number)
        return before

    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with deferred():
            monkeypatch.setattr(signal, "signal", puts_back)
    monkeypatch.undo()
    assert [signal.getsignal(each) for each in SIGNALS] == due


def test_several_signals_are_one_interrupt_after_the_step():
    terminate_like_ctrl_c()
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with deferred():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
            done.append("the whole step")
    assert done


def test_a_thread_beside_changes_no_handler():
    """Only the main one may."""
    before, found = signal.getsignal(signal.SIGINT), []

    def step():
        with deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert found == [before]
