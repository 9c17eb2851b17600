import hashlib
import threading
import warnings
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import digest_of
from dpfedmeta.data.storage.downloads import Archive, find, known, warn_if_unknown

CONTENT = bytes(range(256)) * 10_000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Breaking(Quiet):
    """Announces more than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000])


def serve(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def publisher(tmp_path):
    folder = tmp_path / "publisher"
    folder.mkdir()
    (folder / "images.zip").write_bytes(CONTENT)
    yield from serve(partial(Quiet, directory=str(folder)))


@pytest.fixture
def breaking_publisher():
    yield from serve(Breaking)


def archive(url, *digests):
    return Archive(file="images.zip", url=f"{url}/images.zip", digests=digests)


def sha256():
    return f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def everything_in(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_download_shows_progress_and_keeps_the_content(publisher, tmp_path, capsys):
    path = find(archive(publisher, sha256()), tmp_path / "data" / "set")
    assert path == tmp_path / "data" / "set" / "images.zip"
    assert path.read_bytes() == CONTENT
    assert everything_in(path.parent) == ["images.zip"]
    assert "images.zip" in capsys.readouterr().out


def test_any_of_several_digests_is_accepted(publisher, tmp_path):
    md5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    assert find(archive(publisher, "sha256:00", md5), tmp_path / "data").read_bytes() == CONTENT


def test_a_file_that_is_there_is_not_downloaded_again(tmp_path):
    (tmp_path / "images.zip").write_bytes(b"own")
    assert find(archive("http://127.0.0.1:9", "sha256:00"), tmp_path).read_bytes() == b"own"


def test_a_wrong_checksum_is_thrown_away(publisher, tmp_path):
    folder = tmp_path / "data"
    with pytest.raises(InputError, match="wrong checksum") as caught:
        find(archive(publisher, "sha256:" + "0" * 64), folder)
    assert str(folder) in str(caught.value)
    assert everything_in(folder) == []


def test_a_broken_connection_leaves_nothing(breaking_publisher, tmp_path):
    folder = tmp_path / "data"
    with pytest.raises(InputError, match="failed"):
        find(archive(breaking_publisher, sha256()), folder)
    assert everything_in(folder) == []


def test_a_missing_page_names_file_and_folder(publisher, tmp_path):
    folder = tmp_path / "data"
    absent = Archive(file="other.zip", url=f"{publisher}/other.zip", digests=(sha256(),))
    with pytest.raises(InputError, match=r"put other\.zip into") as caught:
        find(absent, folder)
    assert str(folder) in str(caught.value)
    assert everything_in(folder) == []


def test_an_unreachable_publisher_names_file_and_folder(tmp_path):
    folder = tmp_path / "data"
    with pytest.raises(InputError, match=r"put images\.zip into") as caught:
        find(archive("http://127.0.0.1:9", sha256()), folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "DPFEDMETA_DATA" in message
    assert "\n" not in message
    assert everything_in(folder) == []


def test_an_archive_without_an_address_says_where_to_put_it(tmp_path):
    with pytest.raises(InputError, match=r"put images\.zip into"):
        find(Archive(file="images.zip", digests=()), tmp_path)


def test_a_folder_that_cannot_be_made_is_bad_input(publisher, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write the download"):
        find(archive(publisher, sha256()), tmp_path / "file" / "omniglot")


def test_digests_by_algorithm(tmp_path):
    path = tmp_path / "images.zip"
    path.write_bytes(CONTENT)
    assert digest_of(path) == hashlib.sha256(CONTENT).hexdigest()
    assert known(path, archive("", sha256()))
    assert not known(path, archive("", "sha256:00"))
    assert not known(path, archive(""))


def test_only_an_unknown_digest_is_warned_about(tmp_path):
    path = tmp_path / "images.zip"
    path.write_bytes(CONTENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_unknown(path, archive("", sha256()))
    with pytest.warns(UserWarning, match="content is complete"):
        warn_if_unknown(path, archive("", "sha256:00"))
