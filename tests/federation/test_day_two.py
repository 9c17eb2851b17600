"""A year of a small federation, by its commands: a site joins, leaves, rotates, moves, restores, and has spent all.

What each site sees is what docs/how-to/operate.md says; every run is verified from its ledger.
"""

import json
import shutil

import pytest

from dpfedmeta.__main__ import main
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.identity.invitation import ROSTER
from tests.documentation.pages import ROOT
from tests.federation.live import live
from tests.federation.silos import MICRO

PAGE = (ROOT / "docs/how-to/operate.md").read_text()
ROUNDS, MOST = 2, 4


def called(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code


def spent(federation, number, most=10, home=None):
    """How often a site took part, in all runs together."""
    folder = home or federation.home(number)
    return ClientLedger(folder / "ledger.jsonl", Promise(participations=most).budget()).participations


def said_on_the_page(words):
    """What a site or the operator sees stands on the page."""
    assert words in PAGE, words
    return words


def roster_of(federation):
    return (federation.operator / ROSTER).read_text().splitlines()


def ends(federation, name, clients, capsys, **given):
    """A whole run of these clients, verified from its ledger; the clients."""
    federation.clients = len(roster_of(federation))
    server = federation.server(**{"run.name": name}, **given)
    found = {number: start() for number, start in clients.items()}
    assert server.code() == 0
    folder = federation.folder / name
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    called("account", "--verify", folder)
    assert "verified: " in capsys.readouterr().out
    return found


@pytest.mark.pictures  # a server of its own drew them
@pytest.mark.slow
def test_sites_come_go_and_change_and_every_promise_is_kept(silos, tmp_path, capsys):
    with live(tmp_path, silos, given=MICRO, clients=5) as federation:
        four, (fifth,) = roster_of(federation)[:4], roster_of(federation)[4:]
        (federation.operator / ROSTER).write_text("\n".join(four))
        most = {3: MOST}

        def site(number, *how, **given):
            return lambda: federation.client(number, *how, participations=most.get(number, 10), **given)

        first = ends(federation, "first", {number: site(number) for number in range(4)}, capsys)
        assert [each.code() for each in first.values()] == [0] * 4
        assert [spent(federation, number, most.get(number, 10)) for number in range(4)] == [ROUNDS] * 4
        backup = shutil.copytree(federation.home(2), tmp_path / "backup")

        # A site joins: its card goes last, and its own records were in no earlier run.
        (federation.operator / ROSTER).write_text("\n".join([*four, fifth]))
        # Another replaces its key: the home goes along, the new line takes the old one's place.
        new = tmp_path / "rotated.pem"
        old = federation.home(0)
        called("federate", "keys", "--rotate", old / "identity.pem", "--home", old, "--out", new)
        card = new.with_suffix(".card").read_text().strip()
        assert card in capsys.readouterr().out
        (federation.operator / ROSTER).write_text("\n".join([card, *four[1:], fifth]))
        # A third moves, with its key, home and data.
        there = tmp_path / "new machine"
        moved = shutil.move(federation.home(1), there / "home")
        data = shutil.copytree(silos.folders[1], there / "images")
        elsewhere = f"machine:{there / 'state'}"

        def second_machine():
            return federation.client(1, elsewhere, home=moved, identity=moved / "identity.pem", data=data)

        sites = {0: site(0, identity=new), 1: second_machine, 2: site(2), 3: site(3), 4: site(4)}
        second = ends(federation, "second", sites, capsys)
        assert [each.code() for each in second.values()] == [0] * 5
        assert said_on_the_page("was not used on this machine before") in second[1].text
        assert f"its ledger counts {ROUNDS} answers" in second[1].text
        assert [spent(federation, number, most.get(number, 10)) for number in (0, 2, 3, 4)] == [4, 4, 4, ROUNDS]
        assert spent(federation, 1, home=moved) == 4

        # One restores a backup of its whole home, from before the second run: it is told, and answers nothing.
        newest = federation.home(2).rename(tmp_path / "newest")
        shutil.copytree(backup, federation.home(2))
        restored = site(2)()
        assert restored.code() == 2
        told = "is an older copy; on this machine its ledger went on to line 5, and this one has 3"
        assert said_on_the_page(told) in restored.error
        assert spent(federation, 2) == ROUNDS
        shutil.rmtree(federation.home(2))
        newest.rename(federation.home(2))

        # One leaves, and one has used up its budget: it declines, nothing of it is charged, and the others go on.
        (federation.operator / ROSTER).write_text("\n".join([card, *four[1:]]))
        sites = {0: site(0, identity=new), 1: second_machine, 2: site(2), 3: site(3)}
        third = ends(federation, "third", sites, capsys, fewest=3, seconds=30)
        assert [third[number].code() for number in (0, 1, 2)] == [0] * 3
        assert "the promise is used up" in third[3].text
        assert "was not used on this machine before" not in third[1].text
        assert spent(federation, 3, MOST) == MOST
        assert [spent(federation, number) for number in (0, 2)] == [6, 6]
        assert spent(federation, 1, home=moved) == 6
        assert spent(federation, 4) == ROUNDS
