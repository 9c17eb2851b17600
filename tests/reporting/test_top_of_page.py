"""Top of a report: what was promised and reached, and a page that fits a phone and a screen."""

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.reporting.compare.seed_groups import Measured, group_runs
from dpfedmeta.reporting.html.page import write_comparison, write_report
from dpfedmeta.reporting.html.privacy_statement import guarantee_rows
from dpfedmeta.reporting.html.run_page import AGREES, check_report
from dpfedmeta.reporting.html.top_of_page import (
    best_words,
    clip_words,
    compared_words,
    observer_rows,
    promised_words,
    reached_words,
)
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.tracking.flatten_rows import flat_summary, guarantee_sheet
from dpfedmeta.training.verification.verify import audit
from tests.conftest import dpfedmeta
from tests.reporting.test_page import written_run

SUMMARY = {
    "dataset": "/home/me/task.yaml", "rounds": 7, "encoder": None,
    "accuracy": {"mean": 0.91, "ci95": 0.004, "episodes": 600, "protocol": "p", "ways": 5, "shots": 1, "queries": 5},
    "accuracy_untrained": {"mean": 0.62, "ci95": 0.004, "episodes": 600},
    "accuracy_pixel_prototype": {"mean": 0.55, "ci95": 0.004, "episodes": 600},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = written_run(tmp_path_factory.mktemp("top"))
    write_report(made)
    return made


CELLS = (("client", "public"), ("client", "server"), ("record", "server"), ("record", "public"))


def four_of(first):
    """Four cells of which no two have one epsilon."""
    bounds = [Bound(method="pld", epsilon=first * number, event="", formula="") for number in (1, 2, 3, 4)]
    return tuple(
        Guarantee(unit=unit, observer=observer, delta=1e-5, adjacency="zero-out", bounds=(bound,))
        for (unit, observer), bound in zip(CELLS, bounds, strict=True)
    )


def test_wherever_promise_and_spending_stand_side_by_side_each_cell_has_its_own():
    """Written and verified by one function, both would go wrong alike."""
    promised, spent = four_of(1.01), four_of(0.11)
    proven = SimpleNamespace(promised=promised, cells=spent, settings=Settings.preset("dp-agr", "strokes"))
    summary = {"planned": [cell.as_json() for cell in promised], "guarantees": [cell.as_json() for cell in spent]}
    rows, sheet, first = guarantee_rows(proven), guarantee_sheet(summary).rows, promised_words(proven)
    flat, seen = flat_summary(summary), observer_rows(spent, "messages")
    for (unit, observer), one, other, row, line in zip(CELLS, promised, spent, rows, sheet, strict=True):
        said = {"unit": unit, "towards": observer, "epsilon promised": rounded_up(one.epsilon)}
        assert row.items() >= {**said, "epsilon spent": rounded_up(other.epsilon)}.items()
        words = f"towards the {observer}: epsilon {rounded_up(one.epsilon)} at delta 1e-05 ({rounded_up(other.epsilon)}"
        assert f"one {unit}, {words} spent)" in first
        assert line[:4] == (unit, observer, one.epsilon, other.epsilon)
        assert line[-1] == f"epsilon {rounded_up(other.epsilon)} at delta 1e-05"
        for name, cell in (("planned", one), ("guarantees", other)):
            assert flat[f"{name}/{unit}_{observer}/epsilon"] == cell.epsilon
        (own,) = (each for each in seen if each["who"] == f"the {observer}")
        assert own[f"one {unit}"] == f"epsilon {rounded_up(other.epsilon)}"


def top_of(page):
    return [" ".join(found.split()) for found in re.findall(r"<dd>(.*?)</dd>", page, re.DOTALL)]


def test_what_was_promised_and_reached_come_first_and_then_the_sections(run):
    page = (run.path / "report.html").read_text(encoding="utf-8")
    promised, reached = top_of(page)
    assert page.index("<dd>") < page.index("<h2>") < page.index("<table")
    cell = next(cell for cell in audit(run).guarantees if (cell.unit, cell.observer) == ("record", "server"))
    assert f"one record, towards the server: epsilon {rounded_up(cell.epsilon)} at delta 1e-05" in promised
    assert "of 3 rounds" in reached
    assert "Without training: untrained weights" in reached
    sections = re.findall(r"<h2>(.*?)</h2>", page)
    wanted = ["Who sees what", "Accuracy of personalised adaptation", "Guarantees", "Cautions", "Clip bound and noise"]
    assert sections[: len(wanted)] == wanted
    cautions = re.search(r'<ul class="cautions">(.*?)</ul>', page, re.DOTALL).group(1)
    assert cautions.count("<li>") >= 2


def test_what_hides_nobody_is_named_not_left_out(run):
    promised, _ = top_of((run.path / "report.html").read_text(encoding="utf-8"))
    for cell in audit(run).guarantees:
        kept = f"one {cell.unit}, towards the {cell.observer}" in promised
        bare = f"a {cell.unit} towards the {cell.observer}" in promised
        assert kept != bare, cell.name
        assert kept == (cell.epsilon < 7)


def test_another_promise_in_the_first_line_is_refused(tmp_path):
    run = written_run(tmp_path)
    page = write_report(run)
    text = page.read_text(encoding="utf-8")
    first = top_of(text)[0]
    page.write_text(
        text.replace("one record, towards the server: epsilon 2", "one record, towards the server: epsilon 1")
    )
    assert top_of(page.read_text(encoding="utf-8"))[0] != first
    assert "report.html, line" in dpfedmeta("account", "--verify", str(run.path), code=2).error


@pytest.mark.parametrize("who", ["public", "server"])
def test_another_number_in_who_sees_what_is_refused(tmp_path, who):
    run = written_run(tmp_path)
    page = write_report(run)
    text = page.read_text(encoding="utf-8")
    found = audit(run)
    assert check_report(found.snapshot, found.proven) == [f"report.html {AGREES}"]
    start = text.index(f">the {who}<")
    page.write_text(text[:start] + text[start:].replace("epsilon ", "epsilon 0.", 1))
    with pytest.raises(InputError, match=r"report\.html, line \d+: states"):
        check_report(read_run(run), found.proven)


def test_who_sees_what_under_another_heading_is_refused(tmp_path):
    run = written_run(tmp_path)
    page = write_report(run)
    text = page.read_text(encoding="utf-8")
    assert ">sees<" in text
    proven = audit(run).proven
    page.write_text(text.replace(">sees<", ">learns<", 1).replace("epsilon ", "epsilon 0.", 1))
    with pytest.raises(InputError, match=r"report\.html, line \d+: states"):
        check_report(read_run(run), proven)
    page.write_text(text.replace(">sees<", ">learns<", 1))
    with pytest.raises(InputError, match=r"report\.html, line \d+: states"):
        check_report(read_run(run), proven)


def test_the_line_of_what_was_reached_has_every_baseline():
    words = reached_words(SUMMARY, 20)
    assert words == (
        "91.0% ± 0.4 on task.yaml, 5-way 1-shot, after 7 of 20 rounds. Without training: untrained weights "
        "62.0% ± 0.4, prototypes in pixels 55.0% ± 0.4."
    )
    assert "on task.yaml, 5-way 1-shot, of 1 public client in public.csv, after 7" in reached_words(
        {**SUMMARY, "judged_on": "1 public client in public.csv"}, 20
    )
    assert reached_words({**SUMMARY, "accuracy": None}, 20) == "not evaluated; 7 of 20 rounds are done."
    error = {"accuracy": None, "error": {"mean": 0.51, "ci95": 0.1}, "error_untrained": {"mean": 2.25, "ci95": 0.1}}
    assert "mean absolute error 0.51 ± 0.1 after 7 of 20 rounds; untrained weights 2.25." in reached_words(
        {**SUMMARY, **error}, 20
    )


def test_tables_hold_no_pixels():
    assert "nearest class mean of the records 55.0%" in reached_words({**SUMMARY, "records": "vectors"}, 20)
    assert "Euclidean prototype, raw features" in reached_words({**SUMMARY, "records": "vectors", "encoder": "x"}, 20)


def test_a_comparison_says_how_far_its_settings_differ(tmp_path):
    low = {"mean": 0.5, "ci95": 0.01, "episodes": 600, "protocol": "single model"}
    runs = [written_run(tmp_path, "a"), written_run(tmp_path, "b", accuracy=low)]
    for place, run in enumerate(runs):
        (run.path / "config.yaml").write_text(f"algo: a{place}\nserver: {{lr: 0.{place}, rounds: 3}}\n")
    groups = group_runs(runs)
    assert best_words(groups).startswith(
        "from 50.0% ± 1.0 (b) to 91.0% ± 0.4 (a). Without training: untrained weights "
    )
    assert "overlap" not in best_words(groups)
    assert "overlap" in best_words([groups[0], groups[0]])
    spent = groups[0].epsilons["record", "server"]
    assert f"; one record, towards the server: epsilon {rounded_up(spent)}." in compared_words(groups)


def test_the_clip_bound_in_words():
    rows = [{"clip": bound, "signal_to_noise": signal} for bound, signal in ((0.5, 0.0), (0.2, 0.1), (0.25, 0.0))]
    assert clip_words(rows) == (
        "The clip bound began at 0.5 and ended at 0.25 (lowest 0.2, highest 0.5). In 2 of 3 rounds the release was not "
        "told from noise."
    )
    assert clip_words([{"clip": None}]) is None


def test_tables_become_cards_on_a_phone_and_pictures_shrink(run):
    """What a browser is not needed for: every wide table names its columns in its cells."""
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "img { max-width: 100%; height: auto;" in page
    assert not re.search(r"width: [7-9]\d\d+px|min-width: \d{3,}", page)
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        first = table[table.index("</tr>") :].partition("</tr>")[2].partition("</tr>")[0]
        if first.count("<td") > 3:
            assert 'class="stacked"' in table.split(">")[0] + ">"
            assert first.count("<td") == first.count("data-name=")


MEASURE = """<body style="margin:0">
<iframe id=page src="{page}" style="border:0;width:{width}px;height:900px"></iframe>
<pre id=found></pre><script>page.onload = () => {{
const seen = page.contentDocument, wide = [...seen.querySelectorAll("body *")]
  .filter(each => each.getBoundingClientRect().right > {width} + 1).map(each => each.tagName);
found.textContent = seen.documentElement.scrollWidth + " " + wide.join(" ") + " end"}}</script>"""


def scrolled(browser, page, width, folder):
    """(width of the page as a browser lays it out, elements that reach over the edge)."""
    frame = folder / f"frame-{width}.html"
    frame.write_text(MEASURE.format(page=page.as_uri(), width=width))
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-sync",
        "--hide-scrollbars",
    ]
    words += ["--allow-file-access-from-files", "--disable-background-networking", "--disable-component-update"]
    words += [f"--user-data-dir={folder / 'user'}", "--virtual-time-budget=3000", "--window-size=1500,1000"]
    shown = subprocess.run([*words, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=120).stdout
    size, *wide, end = re.search(r'<pre id="found">(.*?)</pre>', shown).group(1).split()
    assert end == "end"
    return int(size), wide


@pytest.fixture(scope="module")
def both(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    runs = [run, written_run(folder, "another-name-that-is-long-enough-to-push-columns-off", algo="dp-agr")]
    return write_comparison(group_runs(runs), folder / "comparison.html")


@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_moved_sideways_in_a_browser(run, both, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    for page in (run.path / "report.html", both):
        assert scrolled(browser, page, width, tmp_path) == (width, []), page


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ((0.50, 0.02), (0.53, 0.02), True),  # and neither mean lies in the other interval
        ((0.50, 0.02), (0.53, 0.005), False),
        ((0.50, 0.04), (0.53, 0.005), True),
        ((0.50, 0.001), (0.53, 0.04), True),
        ((0.25, 0.125), (0.5, 0.125), True),  # at an end
        ((0.25, 0.125), (0.5, 0.12), False),
    ],
)
def test_intervals_overlap_where_they_have_an_accuracy_in_common(one, other, overlap):
    measured = {label: Measured(mean=mean, ci95=half) for label, (mean, half) in (("a", one), ("b", other))}
    groups = [
        SimpleNamespace(label=label, summaries=[{}], accuracy=lambda name="accuracy", found=found: found)
        for label, found in measured.items()
    ]
    assert ("their intervals overlap" in best_words(groups)) == overlap
    assert best_words(groups[::-1]) == best_words(groups)
