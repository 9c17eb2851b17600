"""Tutorials as a reader does them: every command and every block of code of a page, in order, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from pages import ROOT, blocks

TUTORIALS = ["docs/tutorials/meta-learning.md", "docs/tutorials/privacy.md", "docs/tutorials/federations.md"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TUTORIALS, "docs/own-data.md"])
def test_a_page_can_be_followed_from_top_to_bottom(name, tmp_path):
    for folder in ("scripts", "examples", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for block in blocks(ROOT / name):
        if block.language == "python":
            _run([sys.executable, "-c", block.text], tmp_path, block.where)
        elif block.language is None:
            for line in block.text.splitlines():
                words = shlex.split(re.sub(r"\s#.*", "", line))
                if words[:1] == ["dpfedmeta"]:
                    _run([sys.executable, "-m", *words], tmp_path, line)
                elif words[:1] == ["python"]:
                    _run([sys.executable, *words[1:]], tmp_path, line)


def _run(words, folder, what):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{what}: {done.stderr}"
