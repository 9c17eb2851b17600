from concurrent.futures.process import BrokenProcessPool

import pytest

from dpfedmeta.errors import InputError
from dpfedmeta.workers import Processes, open_workers

CALL = "with open_workers(2) as workers:\n    done = list(workers.map(abs, [(-1,)]))\n"
INSIDE = "def main():\n    with open_workers({count}):\n        return [1]\n\n\n{call}\n"


def run(path, text):
    """As Python runs a script."""
    path.write_text(text)
    space = {"__name__": "__main__", "__file__": str(path), "open_workers": open_workers}
    exec(compile(text, str(path), "exec"), space)
    return space["done"]


@pytest.mark.parametrize(
    ("text", "line"), [(CALL, 1), (f"\n{CALL}", 2), (INSIDE.format(count=2, call="done = main()"), 6)]
)
def test_a_script_that_workers_would_start_again_is_refused_with_its_line(tmp_path, text, line):
    with pytest.raises(InputError, match=rf"script\.py, line {line}: .*__name__ == \"__main__\".*run\.workers"):
        run(tmp_path / "script.py", text)


def test_one_worker_or_a_guard_is_fine(tmp_path):
    assert run(tmp_path / "one.py", INSIDE.format(count=1, call="done = main()")) == [1]
    guarded = INSIDE.format(count=2, call='if __name__ == "__main__":\n    done = main()')
    assert run(tmp_path / "guarded.py", guarded) == [1]


def test_a_cell_of_a_notebook_is_no_script():
    space = {"__name__": "__main__", "open_workers": open_workers}
    exec(compile("with open_workers(2):\n    done = [1]\n", "<cell>", "exec"), space)
    assert space["done"] == [1]


class Broken:
    """An executor whose processes end after so many answers."""

    def __init__(self, answers):
        self.answers = answers

    def map(self, function, *arguments):
        yield from [0] * self.answers
        raise BrokenProcessPool


@pytest.mark.parametrize(("answers", "words"), [(0, "reads the script again"), (1, "was killed .out of memory")])
def test_workers_that_never_started_are_not_told_of_memory_first(answers, words):
    with pytest.raises(RuntimeError, match=words):
        list(Processes(Broken(answers)).map(abs, [(1,), (2,)]))


IN_A_THREAD = """
import threading
done = []
def ask():
    try:
        with open_workers(2):
            pass
    except Exception as error:
        done.append(str(error))
thread = threading.Thread(target=ask)
thread.start()
thread.join()
"""


def test_a_thread_of_a_script_is_no_way_around_the_guard(tmp_path):
    (said,) = run(tmp_path / "script.py", IN_A_THREAD)
    assert "script.py, line 1" in said  # start or join: where the main thread is by then
    assert "worker processes read this script again" in said
