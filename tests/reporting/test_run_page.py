"""A page is what the ledger and its own JSON give, byte for byte: whatever else stands in it is refused."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from jinja2 import UndefinedError

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.html import page as page_module
from dpfedmeta.reporting.html import run_page
from dpfedmeta.reporting.html.page import check_pictures, write_report
from dpfedmeta.reporting.html.run_page import AGREES, Shown, check_report, digest_of, rendered, shown_in
from dpfedmeta.training.results.snapshot import read_run
from dpfedmeta.training.verification.verify import audit
from tests.reporting.test_page import written_run

PAGE = r"report\.html, line \d+: states"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = written_run(tmp_path_factory.mktemp("page"), given={"server.rounds": "3", "server.noise_multiplier": "1.0"},
                      algo="dp-agr")  # fmt: skip
    path = write_report(run)
    return run, path.read_text(encoding="utf-8"), audit(run).proven


@pytest.fixture
def forged(finished):
    """Tell what verification says of a run whose page is another one."""
    run, page, proven = finished
    path = run.path / "report.html"

    def says(text):
        path.write_text(text, encoding="utf-8")
        return check_report(read_run(run), proven)

    yield says
    path.write_text(page, encoding="utf-8")


def once(old, new):
    def forge(page):
        assert old in page
        return page.replace(old, new, 1)

    return forge


FORGERIES = {
    "a sentence at the top": once("<h1>", "<p>No record can be told apart.</p><h1>"),
    "a sentence at the end": once("</body>", "<p>Certified.</p></body>"),
    "a sentence in the style": once("<style>", "<style>body::before { content: 'epsilon 0' }"),
    "a second table": once("<h2>Guarantees</h2>", "<table><tr><td>client</td></tr></table><h2>Guarantees</h2>"),
    "another unit": once('data-name="unit" class="short">client', 'data-name="unit" class="short">person'),
    "a caution less": lambda page: page.replace(page[(i := page.index("<li>")) : page.index("</li>", i) + 5], "", 1),
    "whitespace": once("<h2>Guarantees</h2>", "<h2>Guarantees</h2> "),
    "a line more": lambda page: page + "\n",
    "another language": once('lang="en"', 'lang="de"'),
    "a cell rounded down": lambda page: re.sub(r'(epsilon spent" class="number">[\d.]*)\d<', r"\g<1>0<", page, count=1),
    "a second block": once("</head>", f"{run_page.BLOCK}{{}}</script></head>"),
    "a picture beside": once("</body>", '<img src="data:image/png;base64,AAAA"></body>'),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_whatever_else_stands_in_a_page_is_refused(finished, forged, name):
    _, page, _ = finished
    other = FORGERIES[name](page)
    assert other != page
    with pytest.raises(InputError, match=PAGE) as refused:
        forged(other)
    assert "\n" not in str(refused.value)


# What no ledger proves, and the page says so: names, scores, and who drew it.
FREE = {"name"}
OTHERWISE = {
    "version": "0.9.9",
    "pictures": None,  # check_pictures
    "head": "0" * 64, "stage": "interrupted", "rounds": 2, "held": 1, "clip": "The clip bound never moved.",
    "too_long": ["All is well."], "cautions": [], "name": "another", "go_on": "rm", "drawn_by": "hand",
    "evaluations": {"columns": [], "rows": [{"measured": "all", "accuracies": [], "protocol": "p"}]},
    "audits": {"cells": [], "size": "small"}, "summary": lambda summary: {**summary, "seconds": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Shown)])
def test_what_a_page_says_beside_the_ledger_is_compared_with_the_files_or_free(finished, forged, field):
    """The forger renders the page anew from its own JSON: only what nobody proves may differ."""
    _, page, proven = finished
    shown, other = shown_in(page), OTHERWISE[field]
    if other is None:
        return
    changed = replace(shown, **{field: other(getattr(shown, field)) if callable(other) else other})
    pictures = {digest_of(picture): picture for picture in run_page._PICTURE.findall(page)}
    text = rendered(proven, changed, {name: pictures[digest] for name, digest in shown.pictures.items()})
    assert text != page
    if field in FREE:
        assert forged(text) == [f"report.html {AGREES}"]
        return
    with pytest.raises(InputError, match=r"report\.html"):
        forged(text)


def test_every_key_of_a_summary_in_a_page_is_that_of_summary_json(finished, forged):
    _, page, _ = finished
    for key in shown_in(page).summary:
        with pytest.raises(InputError, match=r"report\.html"):
            forged(with_block(page, lambda content, key=key: content["summary"].pop(key)))


def with_block(page, change):
    before, rest = page.split(run_page.BLOCK)
    block, after = rest.split("</script>", 1)
    content = json.loads(block)
    change(content)
    return before + run_page.BLOCK + run_page.embedded(content) + "</script>" + after


@pytest.mark.parametrize(
    "text", ["", "<html></html>", f"{run_page.BLOCK}{{}}</script>", f"{run_page.BLOCK}[1</script>"]
)
def test_a_page_without_its_numbers_is_refused(forged, text):
    with pytest.raises(InputError, match=r"report\.html: incomplete or of another version"):
        forged(text)


def test_a_page_of_another_version_is_refused_for_its_words_are_others(finished, forged):
    _, page, _ = finished
    with pytest.raises(InputError, match=r"report\.html: was written by dpfedmeta '0\.9\.9', .* write it again"):
        forged(with_block(page, lambda content: content.update(version="0.9.9")).replace("<h1>", "<h1>A run: "))


SAY = "Promised: (client, server) epsilon = 0.01"


@pytest.mark.parametrize(
    "change",
    [
        {"name": SAY}, {"go_on": SAY}, {"drawn_by": f"matplotlib 3.1\nverified: {SAY}"}, {"version": f"0\n{SAY}"},
        {"rounds": 4, "clip": SAY, "too_long": [SAY]}, {"rounds": -1}, {"pictures": {}},
        {"audits": {"cells": [{}], "size": SAY}},
        {"evaluations": {"columns": [SAY], "rows": [{"measured": SAY, "accuracies": ["0.01"], "protocol": ""}]}},
    ],
)  # fmt: skip
def test_no_sentence_stands_in_what_nobody_proves(finished, forged, change):
    """Also where the page is rendered anew from it."""
    _, page, proven = finished
    shown = shown_in(page)
    pictures = {digest_of(picture): picture for picture in run_page._PICTURE.findall(page)}
    found = {name: pictures[digest] for name, digest in shown.pictures.items()}
    changed = replace(shown, **change)
    with contextlib.suppress(UndefinedError):
        page = rendered(proven, changed, found)
    with pytest.raises(InputError, match=r"report\.html: ") as refused:
        forged(with_block(page, lambda content: content.update(change)))
    assert "\n" not in str(refused.value)


def test_audits_that_nobody_made_are_refused(finished, forged):
    """With a picture of theirs, so that nothing is missing."""
    _, page, proven = finished
    shown = shown_in(page)
    pictures = {digest_of(picture): picture for picture in run_page._PICTURE.findall(page)}
    digests = {**shown.pictures, "audit": shown.pictures["clip"]}
    changed = replace(shown, audits={"cells": [], "size": SAY}, pictures=digests)
    text = rendered(proven, changed, {name: pictures[digest] for name, digest in digests.items()})
    with pytest.raises(InputError, match=r"report\.html: audits: states"):
        forged(text)


def test_without_its_summary_a_page_of_a_run_that_ended_states_nothing(finished, forged):
    run, page, _ = finished
    kept = (run.path / "summary.json").read_bytes()
    (run.path / "summary.json").unlink()
    try:
        with pytest.raises(InputError, match=r"report\.html: (states scores of a run that ended|summary|status)"):
            forged(with_block(page, lambda content: content["summary"].update(status=SAY)))
    finally:
        (run.path / "summary.json").write_bytes(kept)


def test_an_exchanged_picture_is_refused_also_with_its_digest(finished, forged):
    run, page, proven = finished
    clip, accuracy = (shown_in(page).pictures[name] for name in ("clip", "accuracy"))
    drawn = {digest_of(picture): picture for picture in run_page._PICTURE.findall(page)}
    exchanged = page.replace(drawn[clip], drawn[accuracy])
    with pytest.raises(InputError, match=r"pictures that are exchanged: states \['clip'\]"):
        forged(exchanged)
    assert (
        check_pictures(replace(read_run(run), page=page), proven)
        == "the pictures in report.html and beside it are those that the run's numbers give"
    )
    with_digest = with_block(exchanged, lambda content: content["pictures"].update(clip=accuracy))
    assert forged(with_digest) == [f"report.html {AGREES}"]
    with pytest.raises(InputError, match=r"report\.html: the picture clip is not what the run's numbers give"):
        check_pictures(read_run(run), proven)


@pytest.mark.parametrize("name", ["accuracy", "clip", "guarantees"])
def test_a_picture_beside_the_page_is_the_one_in_it(finished, name):
    run, _, proven = finished
    (run.path / f"{name}.png").write_bytes(b"a white picture that says epsilon 0.1")
    with pytest.raises(InputError, match=rf"{name}\.png is not what the run's numbers give"):
        check_pictures(read_run(run), proven)
    (run.path / f"{name}.png").unlink()
    assert "beside it are those" in check_pictures(read_run(run), proven)


def test_pictures_of_another_library_are_said_not_to_be_compared(finished, monkeypatch):
    run, _, proven = finished
    monkeypatch.setattr(page_module, "DRAWN_BY", "matplotlib 1.0 on Plan 9")
    said = check_pictures(read_run(run), proven)
    assert said.startswith("the pictures were drawn by matplotlib")
    assert said.endswith("not by matplotlib 1.0 on Plan 9, so they were not compared")


def test_a_sentence_of_another_run_is_none_of_this_one(tmp_path, finished, forged):
    other = written_run(tmp_path, given={"server.rounds": "3", "server.noise_multiplier": "2.0"}, algo="dp-agr")
    with pytest.raises(InputError, match=r"report\.html"):
        forged(write_report(other).read_text(encoding="utf-8"))


def test_a_page_after_a_prefix_of_the_ledger_is_no_page_of_a_run_that_ended(tmp_path, finished, forged):
    _, page, proven = finished
    earlier = proven.as_of(proven.content.heads[2])
    shown = shown_in(page)
    summary = {**shown.summary, "guarantees": [cell.as_json() for cell in earlier.cells], "rounds": 2}
    summary["ledger"] = {"rounds": 2, "head": earlier.content.heads[-1]}
    changed = replace(shown, head=earlier.content.heads[-1], summary=summary)
    pictures = {digest_of(picture): picture for picture in run_page._PICTURE.findall(page)}
    with pytest.raises(InputError, match="was written after 2 charges, but the run has 3; write it again"):
        forged(rendered(earlier, changed, {name: pictures[digest] for name, digest in shown.pictures.items()}))


def test_a_page_verifies_wherever_it_lies_and_whenever(finished, tmp_path):
    """Renamed, in another time zone and language, without secret/, and after an evaluation was added."""
    run, page, _ = finished
    moved = RunDirectory(tmp_path / "another name")
    moved.path.mkdir()
    for file in run.path.iterdir():
        if file.is_file():
            (moved.path / file.name).write_bytes(file.read_bytes())
    (moved.path / "evaluations").mkdir()
    result = {"accuracy": {"mean": 0.5, "ci95": 0.1, "episodes": 2, "steps": 1}, "ways": 2, "shots": 1, "queries": 1}
    (moved.path / "evaluations" / "2-way 1-shot.json").write_text(
        json.dumps({"results": [result], "seeds": [0], "note": "", "protocol": "p"})
    )
    assert moved.path.name not in page
    program = (
        "import sys\nfrom dpfedmeta.core.files.run_directory import RunDirectory\n"
        "from dpfedmeta.reporting.html.run_page import check_report\n"
        "from dpfedmeta.training.verification.verify import audit\nfrom pathlib import Path\n"
        "found = audit(RunDirectory(Path(sys.argv[1])))\nprint(check_report(found.snapshot, found.proven)[0])\n"
    )
    environment = {**os.environ, "TZ": "Pacific/Apia", "LC_ALL": "tr_TR.UTF-8"}
    done = subprocess.run([sys.executable, "-c", program, moved.path], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == f"report.html {AGREES}", done.stderr


def test_all_of_shown_is_in_the_page(finished):
    _, page, _ = finished
    assert json.loads(run_page.embedded(asdict(shown_in(page)))) == json.loads(
        page.split(run_page.BLOCK)[1].split("</script>")[0]
    )
