import json
import os

import pytest

from dpfedmeta.accounting.ledger.hash_chain import VERSION, HashChain, continue_or_start, heads_of, read_chain
from dpfedmeta.core.errors import InputError

FIRST = {"plan": 1, "version": VERSION}


def written(path, lines=4):
    chain = HashChain.start(path, {"plan": 1})
    for round_ in range(lines):
        chain.append({"round": round_, "value": 0.1 * round_})
    return chain


def test_what_was_appended_is_read_back_with_the_same_head(tmp_path):
    chain = written(tmp_path / "c")
    bodies, head = read_chain(tmp_path / "c", "ledger")
    assert bodies == [FIRST, *({"round": r, "value": 0.1 * r} for r in range(4))]
    assert head == chain.head


def test_a_chain_is_continued_from_its_head(tmp_path):
    chain = written(tmp_path / "c")
    HashChain(tmp_path / "c", chain.head).append({"round": 4})
    assert len(read_chain(tmp_path / "c", "ledger")[0]) == 6


def test_a_forked_process_cannot_write_the_chain_of_its_parent(tmp_path):
    """Its line would follow the same line as the next one of the parent, and the chain would break there."""
    chain = written(tmp_path / "c")
    child = os.fork()
    if not child:
        try:
            chain.append({"round": 4})
        except InputError as error:
            os._exit(0 if "only the process that opened it" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    chain.append({"round": 4})
    assert len(read_chain(tmp_path / "c", "ledger")[0]) == 6


def test_a_chain_for_its_owners_eyes_is_for_nobody_else(tmp_path):
    path = tmp_path / "c"
    for content in (None, "", '{"plan'):
        if content is not None:
            path.write_text(content)
            path.chmod(0o644)
        chain, bodies = continue_or_start(path, {"plan": 1}, "ledger")
        assert bodies == []
        chain.append({"round": 0})
        assert path.stat().st_mode & 0o777 == 0o600
    assert continue_or_start(path, {"plan": 1}, "ledger")[1] == [{"round": 0}]


def test_nothing_is_overwritten(tmp_path):
    written(tmp_path / "c")
    with pytest.raises(FileExistsError):
        HashChain.start(tmp_path / "c", {})


def proven(rounds):
    return f"only rounds up to {rounds - 1} are" if rounds > 0 else "no round is"


@pytest.mark.parametrize("line", [1, 2, 3])
def test_an_edit_says_which_line_and_since_when(tmp_path, line):
    path = tmp_path / "c"
    written(path)
    lines = path.read_text().splitlines()
    body = json.loads(lines[line])
    body["value"] = 9.0
    lines[line] = json.dumps(body, sort_keys=True)
    path.write_text("\n".join(lines) + "\n")
    # An edited line keeps its own link; the next line no longer fits it.
    with pytest.raises(InputError, match=rf"line {line + 2}: .*{proven(line - 1)} proven"):
        read_chain(path, "ledger")
    del lines[line]
    path.write_text("\n".join(lines) + "\n")
    # The line before the lost one cannot be told from an edited one.
    with pytest.raises(InputError, match=rf"line {line + 1}: .*{proven(line - 2)} proven"):
        read_chain(path, "ledger")


def test_another_spelling_of_the_same_numbers_is_an_edit(tmp_path):
    path = tmp_path / "c"
    written(path)
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace("0.0", "0.00")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 2"):
        read_chain(path, "ledger")


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"[]\n", b"x\n", b"\xff\xfe\n", b'{"previous": 3}\n'])
def test_what_is_no_chain_is_said_so(tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match="ledger"):
        read_chain(tmp_path / "c", "ledger")


def test_what_follows_the_whole_lines_is_cut_off_by_the_first_append_alone(tmp_path):
    """Every later append would cut off what the first one wrote."""
    path = tmp_path / "c"
    chain = written(path)
    size = path.stat().st_size
    with path.open("a") as file:
        file.write('{"round": 9, "torn')
    goes_on = HashChain(path, chain.head, lines=chain.lines, size=size)
    for round_ in (4, 5, 6):
        goes_on.append({"round": round_})
    bodies, head = read_chain(path, "ledger")
    assert [body.get("round") for body in bodies] == [None, *range(7)]
    assert (head, len(bodies)) == (goes_on.head, goes_on.lines)


def test_lines_that_are_written_together_are_those_that_are_written_one_by_one(tmp_path):
    one, other = HashChain.start(tmp_path / "a", {"plan": 1}), HashChain.start(tmp_path / "b", {"plan": 1})
    bodies = [{"round": round_, "value": 1.5} for round_ in range(3)]
    for body in bodies:
        one.append(body)
    other.append_all(bodies)
    other.append_all([])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (one.head, one.lines) == (other.head, other.lines) == (heads_of([FIRST, *bodies])[-1], 4)


def test_each_line_has_a_hash_of_its_own(tmp_path):
    chain = written(tmp_path / "c")
    heads = heads_of(read_chain(tmp_path / "c", "ledger")[0])
    assert len({*heads}) == len(heads) == 5
    assert heads[-1] == chain.head
    last = [json.loads(line)["previous"] for line in (tmp_path / "c").read_text().splitlines()]
    assert last == ["0" * 64, *heads[:-1]]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_not_finished_is_an_error_or_left_out(tmp_path, cut):
    path = tmp_path / "c"
    chain = written(path)
    before = json.loads(path.read_text().splitlines()[-1])["previous"]
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=r"line 5: the ledger is truncated in the middle of this line"):
        read_chain(path, "ledger")
    bodies, head = read_chain(path, "ledger", torn=True)
    assert (len(bodies), head) == (4, before)
    assert head != chain.head


@pytest.mark.parametrize("fits", [None, lambda first: first["plan"] > 0], ids=["the same", "any that fits"])
def test_a_file_goes_on_where_its_first_line_fits(tmp_path, fits):
    path = tmp_path / "c"
    _, lines = continue_or_start(path, {"plan": 1}, "client's ledger", fits)
    assert lines == ([] if fits is None else [FIRST])
    chain, _ = continue_or_start(path, {"plan": 1}, "client's ledger", fits)
    chain.append({"round": 0})
    again, lines = continue_or_start(path, {"plan": 1}, "client's ledger", fits)
    assert lines == ([{"round": 0}] if fits is None else [FIRST, {"round": 0}])
    assert (again.head, again.lines) == (chain.head, chain.lines) == (again.head, 2)
    before = path.read_bytes()
    if fits is None:
        with pytest.raises(
            InputError, match=r"line 1: this client's ledger was started as \{'plan': 1, 'version': 6\}, not"
        ):
            continue_or_start(path, {"plan": 2}, "client's ledger", fits)
    else:
        assert continue_or_start(path, {"plan": 2}, "client's ledger", fits)[1] == lines
        with pytest.raises(InputError, match="was started as"):
            continue_or_start(path, {"plan": 2}, "client's ledger", lambda first: first["plan"] == 2)
    assert path.read_bytes() == before


OTHERS = ['{"x": 1}', "a,b\n1,2\n3,4", "a,b\n1,2\n", '{"plain": 1}\n{"more"', "word"]


@pytest.mark.parametrize("content", OTHERS)
def test_a_file_of_something_else_stays_as_it_is(tmp_path, content):
    path = tmp_path / "mine"
    path.write_text(content)
    with pytest.raises(InputError, match="mine, line 1"):
        continue_or_start(path, {"plan": 1}, "client's ledger")
    assert path.read_text() == content


@pytest.mark.parametrize("torn", [b"", b"{", b'{"plan": 1, "prev', b'{"plan"\0\0\0', b"\0\0\0\n"])
def test_a_first_line_that_a_crash_tore_is_started_again(tmp_path, torn):
    path = tmp_path / "mine"
    path.write_bytes(torn)
    chain, lines = continue_or_start(path, {"plan": 1}, "client's ledger")
    assert (lines, chain.lines) == ([], 1)
    assert read_chain(path, "client's ledger")[0] == [FIRST]


def test_a_line_that_a_crash_tore_gives_way_to_the_next_one_only_in_a_ledger_that_fits(tmp_path):
    path = tmp_path / "mine"
    continue_or_start(path, {"plan": 1}, "client's ledger")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 0')
    with pytest.raises(InputError, match="was started as"):
        continue_or_start(path, {"plan": 2}, "client's ledger")
    assert path.read_bytes() == whole + b'{"round": 0'
    chain, lines = continue_or_start(path, {"plan": 1}, "client's ledger")
    assert (lines, chain.lines) == ([], 1)
    chain.append({"round": 1})
    assert path.read_bytes().startswith(whole)
    assert read_chain(path, "client's ledger")[0] == [FIRST, {"round": 1}]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            VERSION - 1,
            f"has version {VERSION - 1}, which dpfedmeta 0.3 or before wrote, .* reads version {VERSION} alone",
        ),
        (
            VERSION + 1,
            f"has version {VERSION + 1}, which a later dpfedmeta wrote, .*the dpfedmeta that wrote it$",
        ),
        (None, "not a ledger: its first line has no whole number as version"),
        (True, "not a ledger: its first line has no whole number as version"),
        (float(VERSION), "not a ledger: its first line has no whole number as version"),
    ],
)
def test_a_chain_of_another_version_is_refused_and_stays_as_it_is(tmp_path, version, words):
    """By its version, before anything else that is wrong with it."""
    path = tmp_path / "c"
    chain = HashChain.start(path, {"plan": 1, "version": version})
    chain.append({"round": 0})
    path.write_bytes(path.read_bytes() + b'{"broken": 1}\n')
    before = path.read_bytes()
    for read in (read_chain, lambda path, what: continue_or_start(path, {"plan": 1}, what, lambda first: True)):
        with pytest.raises(InputError, match=words):
            read(path, "ledger")
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [VERSION, VERSION - 1])
def test_a_first_line_that_lacks_its_end_alone_is_never_started_again(tmp_path, version):
    """It was whole once: somebody cut one character off, and what was spent would be forgotten."""
    path = tmp_path / "c"
    HashChain.start(path, {"plan": 1, "version": version})
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    before = path.read_bytes()
    with pytest.raises(InputError, match="truncated"):
        continue_or_start(path, {"plan": 1}, "client's ledger")
    assert path.read_bytes() == before
