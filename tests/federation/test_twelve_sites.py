"""A year of twelve sites, as processes: two runs, and between them a site joins and another replaces its key.

In the second run a site is killed while it computes and comes back some rounds later, another is too late twice, and a
third has used up its guarantee. Every charge of every site is compared with its log, with what the server received and
with the accountant's number for both runs together.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.ledger.ledger import phases_of, read_content
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.identity.invitation import ROSTER
from tests.federation.live import Live, live
from tests.federation.silos import MICRO, SECURE, make_silos

SITES, FIRST, SECOND = 12, 10, 20
ROTATED, KILLED, SLOW, SPENT, JOINED = 0, 2, 5, 7, 11
KILLED_IN, AWAY, LATE_IN, ENOUGH = 4, 3, (10, 13), 27
# How long a question waits. Under it no other site may be late on a machine that others use, too.
SECONDS, LONGEST = 20, 1200
# Epsilon that a site allows, of 30 messages, and that of the one which has used it up after ENOUGH: for a deleted row.
ALGOS = {"dp-agrlr-micro": (MICRO, {None: 21.6, SPENT: 20.2}), "dp-agrlr-secure": (SECURE, {None: 14.9, SPENT: 14.0})}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as the server recorded it: its ledger, and in which rounds it received whose message."""

    content: Any
    heard: dict

    @classmethod
    def of(cls, folder, notes):
        lines = [json.loads(line) for line in (notes / "entered.jsonl").read_text().splitlines()]
        assert len({round_ for round_, _ in lines}) == len(lines)
        return cls(content=read_content(folder / "ledger.jsonl"), heard=dict(lines))

    def received(self, number):
        return [round_ for round_, numbers in sorted(self.heard.items()) if number in numbers]


@dataclass(kw_only=True)
class Year:
    """The federation, and what its sites promise."""

    federation: Live
    limits: dict
    dpfedmeta: Any

    def promise(self, number):
        return Promise(epsilon=self.limits.get(number, self.limits[None]), participations=40)

    def site(self, number, *how, **given):
        promise = self.promise(number)
        return self.federation.client(
            number, *how, participations=promise.participations, epsilon=promise.epsilon, patience=600, **given
        )

    def ledger(self, number):
        return ClientLedger(self.federation.home(number) / "ledger.jsonl", self.promise(number).budget())

    def charged(self, number):
        """Rounds of each run that a site charged, by the run's first letters as its log has them."""
        found = {}
        for run, (round_, *again), _ in self.ledger(number).charged():
            assert not again
            found.setdefault(run[:8], []).append(round_)
        return found

    def logged(self, number):
        """Rounds of each run in which a message left the site, asked again or not, as its log tells its owner."""
        found, run = {}, None
        for line in (self.federation.home(number) / "log.txt").read_text().splitlines():
            if "offered: a plan of run " in line:
                run = line.partition("offered: a plan of run ")[2][:8]
            elif " left this machine (" in line:
                found.setdefault(run, {})[int(line.partition("  round ")[2].partition(":")[0])] = line
        return {run: [*lines] for run, lines in found.items()}

    def serve(self, name, clients, **how):
        self.federation.clients = clients
        notes = self.federation.folder / f"notes of {name}"
        notes.mkdir()
        words = {"run.name": name, "server.rounds": str(FIRST if name == "first" else SECOND)}
        seconds = 60 if name == "first" else SECONDS
        return self.federation.server(f"mortal_server:{notes}", seconds=seconds, wait=900, **how, **words)

    def verified(self, name, server, rounds):
        """The run is complete, its files agree with its ledger, and no round is missing there."""
        assert server.code(LONGEST) == 0
        folder = self.federation.folder / name
        assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
        assert "verified: " in self.dpfedmeta("account", "--verify", folder).out
        run = Run.of(folder, self.federation.folder / f"notes of {name}")
        assert [charge.round for charge in run.content.charges] == sorted(run.heard) == list(range(rounds))
        return run


def until(condition, server, seconds=LONGEST):
    end = time.monotonic() + seconds
    while not condition():
        assert server.process.exitcode is None, server.text
        assert time.monotonic() < end, server.text
        time.sleep(0.05)


def last_charge(path):
    """The last whole line of a ledger that another process writes."""
    with suppress(ValueError, IndexError):
        return json.loads(path.read_text().splitlines()[-1])
    return {}


def accounted(runs, rounds, delta):
    """The accountant's epsilon of (record, server) for these rounds of these runs, together."""
    (plan, *plans) = [run.content.plan for run in runs]
    assert all(other.record == plan.record for other in plans)
    pairs = zip(runs, rounds, strict=True)
    taken = [charge for run, which in pairs for charge in run.content.charges if charge.round in which]
    terms = replace(Terms.of(plan), max_participations=len(taken), record_delta=delta)
    return record_server(phases_of(taken), terms).epsilon if taken else 0.0


def first_run(year):
    roster = year.federation.operator / ROSTER
    *eleven, twelfth = roster.read_text().splitlines()
    roster.write_text("\n".join(eleven))
    server = year.serve("first", SITES - 1)
    sites = [year.site(number) for number in range(SITES - 1)]
    run = year.verified("first", server, FIRST)
    assert [site.code() for site in sites] == [0] * (SITES - 1)
    return run, twelfth


def changes(year, twelfth):
    """A site joins at the end of the roster, and the line of another is replaced; the words for its client."""
    roster, home, new = (
        year.federation.operator / ROSTER,
        year.federation.home(ROTATED),
        year.federation.folder / "b.pem",
    )
    year.dpfedmeta("federate", "keys", "--rotate", home / "identity.pem", "--home", home, "--out", new)
    lines = [*roster.read_text().splitlines(), twelfth]
    lines[ROTATED] = new.with_suffix(".card").read_text().strip()
    roster.write_text("\n".join(lines))
    return {"identity": new}


def second_run(year, rotated):
    server = year.serve("second", SITES, fewest=SITES - 2)
    ways = {KILLED: f"late:{KILLED_IN}:{LONGEST}", SLOW: f"late:{','.join(map(str, LATE_IN))}:{SECONDS + 4}"}
    given = {ROTATED: rotated}
    sites = {n: year.site(n, *([ways[n]] if n in ways else []), **given.get(n, {})) for n in range(SITES)}
    own, theirs = (year.federation.home(KILLED), year.federation.folder / "second")
    before = len((own / "ledger.jsonl").read_text().splitlines())
    until(lambda: len((own / "ledger.jsonl").read_bytes().splitlines()) == before + KILLED_IN + 1, server)
    assert last_charge(own / "ledger.jsonl")["round"] == KILLED_IN
    sites[KILLED].kill()
    until(lambda: last_charge(theirs / "ledger.jsonl").get("round", 0) > KILLED_IN + AWAY, server)
    sites[KILLED] = year.site(KILLED)
    run = year.verified("second", server, SECOND)
    assert {number: site.code() for number, site in sites.items()} == dict.fromkeys(range(SITES), 0)
    assert "left: client-2; 11 of 12" in server.text
    assert "back: client-2; 12 of 12" in server.text
    return run, sites


def check_counts(year, runs):
    """Each ledger counts what left its site, beside the one message that a kill kept there, and no less."""
    first, second = list(range(FIRST)), list(range(SECOND))
    for number in range(SITES):
        charged, logged = year.charged(number), year.logged(number)
        *before, now = charged.values()
        assert before == ([] if number == JOINED else [first]), number
        if number == KILLED:
            assert now[: KILLED_IN + 1] == second[: KILLED_IN + 1]
            assert KILLED_IN + AWAY < now[KILLED_IN + 1] < now[-1] == second[-1]
        else:
            assert now == (second[: ENOUGH - FIRST] if number == SPENT else second), number
        lost = {*now}.difference(runs[1].received(number))
        if number == KILLED:
            # Its first message after it came back may be late as well.
            assert KILLED_IN in lost <= {KILLED_IN, now[KILLED_IN + 1]}
        else:
            assert sorted(lost) == (list(LATE_IN) if number == SLOW else []), number
        assert runs[0].received(number) == ([] if number == JOINED else first), number
        if number == KILLED:
            now.remove(KILLED_IN)
        assert logged == charged, number


def check_promises(year, runs):
    """What a site's ledger says is what the accountant says of both runs, and no more than the site allowed."""
    for number in range(SITES):
        ledger, promise, charged = year.ledger(number), year.promise(number), list(year.charged(number).values())
        rounds = [[], *charged] if number == JOINED else charged
        together = accounted(runs, rounds, promise.delta)
        alone = [accounted([run], [which], promise.delta) for run, which in zip(runs, rounds, strict=True)]
        assert max(together, *alone) <= ledger.epsilon * (1 + 1e-9), number
        assert ledger.epsilon <= promise.epsilon, number


@pytest.fixture(scope="module")
def twelve(tmp_path_factory, own_cache):
    return make_silos(tmp_path_factory.mktemp("twelve"), SITES)


@pytest.mark.pictures  # servers of their own drew them
@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGOS)
def test_a_year_of_twelve_sites_keeps_every_promise(twelve, tmp_path, dpfedmeta, algo):
    given, limits = ALGOS[algo]
    with live(tmp_path, twelve, algo=algo, given=given, clients=SITES, noise=()) as federation:
        year = Year(federation=federation, limits=limits, dpfedmeta=dpfedmeta)
        first, twelfth = first_run(year)
        kept = (federation.home(ROTATED) / "ledger.jsonl").read_bytes()
        second, sites = second_run(year, changes(year, twelfth))
        assert (federation.home(ROTATED) / "ledger.jsonl").read_bytes().startswith(kept)
        check_promises(year, [first, second])
        check_counts(year, [first, second])
        assert "more than is promised" in sites[SPENT].text
        # Of its answers to the offer one may be late as well, as everybody's on a busy machine.
        assert sites[SLOW].text.count("it came too late") >= len(LATE_IN)
