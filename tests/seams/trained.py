"""Small runs for the tests of seams."""

from dpfedmeta import Callback
from dpfedmeta.config.load import resolve
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state.resume import settings_of_run
from tests.golden.golden_runs import SMALL


def settings_of(task_file, folder, algo, given):
    return resolve(algo, str(task_file), None, {**SMALL, **given, "run.dir": str(folder), "run.name": "run"})


def trained(task_file, folder, algo, given):
    return run_training(settings_of(task_file, folder, algo, given))[0]


class Impatient(Callback):
    """Presses Ctrl-C after some rounds."""

    def __init__(self, after):
        self._after = after

    def on_round(self, row):
        if row["round"] + 1 == self._after:
            raise KeyboardInterrupt


def interrupted(task_file, folder, algo, given, after):
    run, status = run_training(settings_of(task_file, folder, algo, given), callbacks=[Impatient(after)])
    assert status == "interrupted"
    return run


def gone_on(run):
    return run_training(settings_of_run(run, {}), RunOptions(resume=run))
