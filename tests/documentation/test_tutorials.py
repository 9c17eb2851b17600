"""Pages as a reader does them: every command and block of code, in order, in an empty folder; all numbers shown."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from pages import PAGES, ROOT, blocks

# Each with the pages that show outputs of the same commands.
FOLLOWED = {
    "README.md": ("docs/start/privacy-officer.md", "docs/start/researcher.md"),
    "docs/tutorials/meta-learning.md": (),
    "docs/tutorials/privacy.md": (),
    "docs/tutorials/federations.md": (),
    "docs/own-data.md": (),
}
# Tutorials, and decimal numbers of their sentences that no command prints.
OF_SENTENCES = {
    "docs/tutorials/meta-learning.md": set[str](),
    "docs/tutorials/privacy.md": {"0.5", "1.65"},  # e^0.5 = 1.65
    "docs/tutorials/federations.md": set[str](),
}
# Pages whose numbers another test asserts.
ASSERTED = {
    "docs/how-to/hospitals.md": "federation/test_hospitals_page.py",
    "docs/kernel.md": "documentation/test_kernel_page.py",
    "docs/explanation/late-answers.md": "documentation/test_late_answers.py",
}
# Pages of hours of measurements, which no test repeats; each says by which command, or links to the page that does.
MEASURED = {
    "docs/analytics.md", "docs/auditing.md", "docs/cluster.md", "docs/encoders.md", "docs/explanation/four-cells.md",
    "docs/explanation/other-libraries.md", "docs/explanation/record-noise.md",
    "docs/explanation/which-algorithm.md", "docs/failures.md", "docs/federation.md",
    "docs/guarantees.md", "docs/how-to/operate.md", "docs/moments.md", "docs/people.md", "docs/performance.md",
    "docs/policies.md", "docs/presets.md", "docs/results.md", "docs/secure-aggregation.md", "docs/sweeps.md",
    "docs/which-noise.md",
}  # fmt: skip
# Pages whose decimal numbers are settings, versions, papers and examples.
SETTINGS = {
    "docs/evaluation.md", "docs/extending.md", "docs/start/engineer.md",
    "docs/how-to/install.md", "docs/how-to/train.md",
    "docs/how-to/upgrade.md", "docs/python.md", "docs/reference/commands.md", "docs/reference/glossary.md",
    "docs/reference/settings.md",
}  # fmt: skip
# Points by which another accuracy may come out: noise and cohorts are drawn anew.
POINTS = 2.5
DECIMAL = re.compile(r"(?<![\w.])(?<!± )\d+\.\d+(?![\w.]*\d)%?")
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]\d+)?")
# Other ones each time: a digest, the round in which somebody presses Ctrl-C.
_ANY = re.compile(
    r"\b[0-9a-f]{16}\.\.\.|(?<=resuming at round )\d+|\d+(?= charges? (?:is|are) in the ledger)|(?<=^round )\d+"
)


def shape(line):
    """(A line without its numbers, these, the places of accuracies)."""
    line = " ".join(_ANY.sub("?", line.strip().replace("┃", "│")).split())
    numbers = [float(each.replace(",", "")) for each in _NUMBER.findall(line)]
    accuracies = "%" in line or "points" in line
    return _NUMBER.sub("#", line), numbers, accuracies


def comes_out(line, output):
    """Return whether a line of a page is among those of an output."""
    words, numbers, accuracies = shape(line)
    for said in output.splitlines():
        other, those, _ = shape(said)
        if other == words and all(
            abs(one - another) <= (POINTS if accuracies else 0) for one, another in zip(numbers, those, strict=True)
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("│ this run, adapted │ 75.3% ± 0.7 │", True),
        ("│ this run, adapted │ 79.0% ± 0.7 │", False),
        ("│ that run, adapted │ 75.1% ± 0.7 │", False),
        ("│ client │ public  │  0.0289 │ 1e-06 │", True),
        ("│ client │ public  │  0.0288 │ 1e-06 │", False),
        ("the last is d0235b6c18b113de...", True),
        ("resuming at round 3 of 12; 4 charges are in the ledger", True),
        ("resuming at round 3 of 13; 4 charges are in the ledger", False),
    ],
)
def test_another_number_is_seen(line, found):
    output = (
        "│ this run, adapted    │ 75.1% ± 0.6 │\n│ client │ public │ 0.0289 │ 1e-06 │\n"
        "the last is 0123456789abcdef...\n"
        "resuming at round 0 of 12; 1 charges are in the ledger"
    )
    assert comes_out(line, output) is found


def test_each_page_with_numbers_says_where_they_come_from():
    shown = {page for pages in FOLLOWED.values() for page in pages}
    placed = [{*FOLLOWED} | shown, {*ASSERTED}, MEASURED, SETTINGS]
    pages = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    numbers = {name for name, text in pages.items() if "project/" not in name and DECIMAL.search(text)}
    numbers -= {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert numbers <= set.union(*placed)
    assert sum(map(len, placed)) == len(set.union(*placed))
    for name, test in ASSERTED.items():
        assert name in (ROOT / "tests" / test).read_text(encoding="utf-8")
    for name in MEASURED:
        commands = [block for block in blocks(ROOT / name) if re.search(r"^(dpfedmeta|python|make) ", block.text, re.M)]
        linked = re.findall(r"\]\(([\w./-]+\.md)", pages[name])
        linked = {os.path.relpath(os.path.normpath(ROOT / name / ".." / each), ROOT) for each in linked}
        assert commands or re.search(r"`(?:python |dpfedmeta )", pages[name]) or linked & MEASURED, name


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_page_can_be_followed_from_top_to_bottom(name, tmp_path):
    if name == "README.md" and "DPFEDMETA_DATA" not in os.environ:
        pytest.skip("DPFEDMETA_DATA is not set")
    for folder in ("scripts", "examples", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    output = ""
    for block in blocks(ROOT / name):
        if block.language == "python":
            output += _run([sys.executable, "-c", block.text], tmp_path, block.where)
        elif block.language is None:
            for line in block.text.splitlines():
                words, _, remark = line.partition("  #")
                words = shlex.split(words)
                program = {"dpfedmeta": ["-m", "dpfedmeta"], "python": []}.get(words[0]) if words else None
                if program is not None:
                    output += _run([sys.executable, *program, *words[1:]], tmp_path, line, remark)
    shown = [block for page in (name, *FOLLOWED[name]) for block in blocks(ROOT / page) if block.language == "text"]
    lines = [(block.where, line) for block in shown for line in block.text.splitlines() if line != "..."]
    assert not [each for each in lines if not comes_out(each[1], output)], output
    assert not unprinted(name, output), output


def unprinted(name, output):
    """Decimal numbers of a tutorial's sentences and tables that are in no output: percentages within POINTS."""
    page = ROOT / name
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"\]\(\S*\)|^    .*$", "", text, flags=re.MULTILINE)
    printed = DECIMAL.findall(output)
    percentages = [float(each[:-1]) for each in printed if each.endswith("%")]
    return [
        each
        for each in DECIMAL.findall(text)
        if name in OF_SENTENCES
        and each not in OF_SENTENCES[name]
        and each not in printed
        and not (each.endswith("%") and any(abs(float(each[:-1]) - other) <= POINTS for other in percentages))
    ]


def _run(words, folder, what, remark=""):
    """All that a command says; one whose remark is "refused" fails, one with "Ctrl-C" is interrupted as it trains."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    if "Ctrl-C" in remark:
        ledger = folder / "runs" / words[-1] / "ledger.jsonl"
        process = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
            # A shell's background job, as this may be, ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        while process.poll() is None and not (ledger.exists() and ledger.read_text().count('"round"') >= 2):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, expected = process.communicate()[0], 130
    else:
        process = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
        said, expected = process.stdout + process.stderr, 2 if "refused" in remark else 0
    assert process.returncode == expected, f"{what}: {said}"
    return said
