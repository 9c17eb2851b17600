import json

import pytest

from dpfedmeta.accounting.ledger.hash_chain import HashChain, continue_or_start, read_chain
from dpfedmeta.core.errors import InputError


def written(path, lines=4):
    chain = HashChain.start(path, {"plan": 1})
    for round_ in range(lines):
        chain.append({"round": round_, "value": 0.1 * round_})
    return chain


def test_what_was_appended_is_read_back_with_the_same_head(tmp_path):
    chain = written(tmp_path / "c")
    bodies, head = read_chain(tmp_path / "c", "ledger")
    assert bodies == [{"plan": 1}, *({"round": r, "value": 0.1 * r} for r in range(4))]
    assert head == chain.head


def test_a_chain_is_continued_from_its_head(tmp_path):
    chain = written(tmp_path / "c")
    HashChain(tmp_path / "c", chain.head).append({"round": 4})
    assert len(read_chain(tmp_path / "c", "ledger")[0]) == 6


def test_a_chain_for_its_owners_eyes_is_for_nobody_else(tmp_path):
    path = tmp_path / "c"
    for content in (None, "", '{"torn'):
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
