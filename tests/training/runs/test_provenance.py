import subprocess

import dpfedmeta
from dpfedmeta.core import provenance


def git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *settings, *words], check=True, capture_output=True)


def commit_of(package, monkeypatch):
    monkeypatch.setattr(dpfedmeta, "__file__", str(package / "__init__.py"))
    return provenance.commit.__wrapped__()


def test_the_commit_of_a_checkout_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert commit_of(package, monkeypatch) is None
    git(tmp_path, "init", "-q")
    # A package in somebody else's repository, which does not track it.
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "other")
    assert commit_of(package, monkeypatch) is None
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-q", "-m", "own")
    clean = commit_of(package, monkeypatch)
    assert len(clean) == 40
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert commit_of(package, monkeypatch) == clean
    (package / "new.py").write_text("1")
    assert commit_of(package, monkeypatch) == f"{clean} + changes"
    monkeypatch.setenv("PATH", "")
    assert commit_of(package, monkeypatch) is None


def test_what_is_kept_names_no_person_and_no_time_of_the_day():
    found = provenance.made_by()
    assert set(found) == {"commit", "source", "day", "system", "processor", "cores"}
    assert len(found["day"]) == 10
