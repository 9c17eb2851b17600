import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.training.terminal.progress_bar import bar
from dpfedmeta.training.tracking.callbacks import Callback, CallbackFailed, check_callbacks, tell


class Spoils(Callback):
    def on_round(self, row):
        row["epsilons"]["client_public"] = 0.0
        raise ZeroDivisionError("by\nzero")


class Keeps(Callback):
    def __init__(self):
        self.rows = []

    def on_round(self, row):
        self.rows.append(row)


def test_one_that_raises_is_named_and_the_others_are_told_what_was_said():
    keeps, row = Keeps(), {"round": 3, "epsilons": {"client_public": 1.0}}
    with pytest.raises(
        CallbackFailed, match=r"^callback Spoils\.on_round raised ZeroDivisionError: by zero$"
    ) as caught:
        tell([Spoils(), keeps], "on_round", row)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert keeps.rows == [row] == [{"round": 3, "epsilons": {"client_public": 1.0}}]


def test_ctrl_c_is_no_failure():
    class Stops(Callback):
        def on_round(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell([Stops()], "on_round", {})


@pytest.mark.parametrize(("given", "said"), [(print, "has no on_plan"), (Keeps, "Keeps is a class"), (3, "int has no")])
def test_what_cannot_be_told_anything_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        check_callbacks([Keeps(), given])


def test_a_notebook_has_a_bar_of_its_own(monkeypatch):
    shown = []

    class Display:
        HTML = str

        @classmethod
        def display(cls, text, display_id):
            shown.append(text)
            return cls

        @staticmethod
        def update(text):
            shown.append(text)

    class Notebook:
        is_jupyter = True

    monkeypatch.setattr("importlib.import_module", {"IPython.display": Display}.get)
    cell = bar(Notebook(), 7)
    cell.update(3, "clip 0.1")
    cell.stop()
    assert ["0/7" in shown[0], "3/7" in shown[1], "clip 0.1" in shown[1], shown[2]] == [True, True, True, ""]
