"""docs/how-to/hospitals.md as three clinics follow it: every block of the page, in order, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from benchmarks.federation_demo import _free_port
from dpfedmeta.__main__ import main
from dpfedmeta.cli.commands.federate_command import parsers_of
from dpfedmeta.federation.site_plan import Sites, settings_of
from tests.documentation.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/hospitals.md"
BLOCKS = [block for block in blocks(PAGE) if block.language in (None, "python")]
COMMANDS = [line.removesuffix(" &") for block in BLOCKS if block.language is None for line in block.text.splitlines()]


def called(words):
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words)[1:])
    assert not ended.value.code


def test_the_page_has_every_step_and_its_commands_exist():
    parts = [shlex.split(line)[1:3] for line in COMMANDS if line.startswith("dpfedmeta")]
    assert [part[1] for part in parts if part[0] == "federate"] == [
        "plan",
        *3 * ["client"],
        *4 * ["keys"],
        "server",
        *3 * ["client"],
    ]
    assert [part[0] for part in parts if part[0] != "federate"] == ["report", "account", "predict", "analyse"]
    for line in COMMANDS:
        program, *words = shlex.split(line)
        if words[:1] == ["federate"]:
            parsers_of()[words[1]].parse_args(words[2:]) if words[1] != "server" else None
        assert program in ("dpfedmeta", "cat", "wait")


def test_what_needs_no_network_can_be_followed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0].text, str(PAGE), "exec"), {})
    sites = Sites(sites=3, least=300, classes=2, weights=8, rounds=4)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(settings_of(sites, 1.0, "task.yaml", images=False)))
    for line in COMMANDS:
        if " --check " in line:
            called(line)
            assert "300 records each" not in capsys.readouterr().err
        elif " keys " in line:
            called(line)
    assert {path.name for path in tmp_path.glob("*.card")} == {f"clinic-{number}.card" for number in (1, 2, 3)}
    assert (tmp_path / "operator/invitation.yaml").exists()


@pytest.mark.slow
def test_the_page_can_be_followed_from_top_to_bottom(tmp_path):
    port = str(_free_port())
    lines = [
        "set -eu",
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        f'dpfedmeta() {{ {sys.executable} -m dpfedmeta "$@"; }}',
    ]
    for number, block in enumerate(BLOCKS):
        if block.language == "python":
            (tmp_path / f"block-{number}.py").write_text(block.text)
            lines.append(f"{sys.executable} block-{number}.py")
        else:
            lines.append(block.text.replace("9443", port))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DPFEDMETA_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=1500
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/heart/report.html").exists()
    assert "verified: " in done.stdout
    # The model is standardised once: by its own constants.
    right = re.search(r"(\d+) of 300 are of the class that the table says", done.stdout)
    assert right
    assert int(right[1]) >= 225
    assert "300 records of clinic 1, the first " in done.stdout
    assert "['ill']" in done.stdout
    for number in (1, 2, 3):
        assert (tmp_path / f"clinic-{number}.home/personal.safetensors").exists()
        assert "ONLY NOISE" not in (tmp_path / f"clinic-{number}.home/log.txt").read_text()
