"""Wrong inputs are refused in one line that says what is wrong, where, and what to do (wrong_inputs.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from wrong_inputs import CASES, QUICK, REPORT, first_words, make_files, make_last, started

from dpfedmeta.core.errors import InputError

ROOT = Path(__file__).parents[2]
# One start of a process is much of a second; in one process the refusals themselves are quick.
IN_PROCESS = [case for case in CASES if case.quick and case.words]


@pytest.fixture(scope="module")
def box(tmp_path_factory, dpfedmeta):
    """A folder with all files, runs and keys that the cases name."""
    folder = tmp_path_factory.mktemp("wrong")
    make_files(folder)
    for words in first_words():
        dpfedmeta(*words, folder=folder)
    make_last(folder)
    return folder


def held(folder):
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_every_wrong_input_is_refused_in_one_line_and_leaves_nothing(box, dpfedmeta):
    before, wrong = held(box), []
    for case in IN_PROCESS:
        left = dpfedmeta(*case.words, folder=box, code=2)
        lacking = [words for words in case.says if words not in left.error]
        if lacking or not left.error.startswith("error: "):
            wrong.append((case.name, lacking, left.error))
    assert wrong == []
    assert held(box) == before


def test_python_says_the_same_kind_of_line(box, monkeypatch):
    monkeypatch.chdir(box)
    before, wrong = held(box), []
    for case in (case for case in CASES if case.python):
        with pytest.raises(InputError) as refused:
            exec(case.python, {})
        lacking = [words for words in case.says if words not in str(refused.value)]
        if lacking:
            wrong.append((case.name, lacking, str(refused.value)))
    assert wrong == []
    assert held(box) == before


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_a_process_of_its_own_it_comes_in_time(box, case):
    seconds, code, line = started(case, box)
    assert code == 2
    assert [words for words in case.says if words not in line] == []
    assert line.startswith(("error: ", "warning: ", REPORT))
    assert not case.quick or seconds < QUICK


def test_presets_of_federations_are_read_from_any_folder(tmp_path):
    """In a process of its own: the folder of the checkout must not be the reason that they are found."""
    program = (
        "from pathlib import Path\nfrom dpfedmeta.config.load import resolve\n"
        "for name in ('cross-silo', 'federations/cross-silo', 'configs/federations/cross-silo.yaml'):\n"
        "    print(resolve(None, 'strokes', Path(name)).population.clients)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8", "8", "8"]
