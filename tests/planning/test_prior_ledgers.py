"""Ledgers that were spent before: of whom they are, whether real, and whether they still say what was counted."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting.ledger import ledger as ledgers
from dpfedmeta.config.load import resolve, to_yaml
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.privacy import prior_spending
from dpfedmeta.planning.privacy.prior_spending import check_still_there


def settings_of(**given):
    usual = {
        "population.clients": 900, "population.cohort": 30, "population.kind": "disjoint", "population.records": 60,
        "run.seed": 3,
    }  # fmt: skip
    dataset = given.pop("dataset", "omniglot")
    return resolve("dp-agr", dataset, None, {name: str(value) for name, value in (usual | given).items()})


def content_of(settings, noise_seed=None, clients=900):
    seed = "null" if noise_seed is None else noise_seed
    config = (
        f"analysis:\n  noise_seed: {seed}\n\n---\n{to_yaml(settings)}" if settings else "analysis:\n  noise_seed: 1\n"
    )
    return SimpleNamespace(plan=SimpleNamespace(clients=clients), identity=SimpleNamespace(config=config, run="r"))


OTHERS = {
    "dataset": ({"dataset": "strokes"}, "dataset = strokes, but this run has dataset = omniglot"),
    "kind": (
        {"population.kind": "virtual"},
        r"population\.kind = virtual, but this run has population\.kind = disjoint",
    ),
    "records": ({"population.records": 61}, r"population\.records = 61, but this run has population\.records = 60"),
    "seed": ({"run.seed": 4}, r"run\.seed = 4, but this run has run\.seed = 3"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_an_analysis_of_other_clients_is_not_counted(other):
    changes, words = OTHERS[other]
    prior_spending._check_same_population("before", content_of(settings_of()), settings_of())
    with pytest.raises(InputError, match=rf"^privacy\.spent_before = before: asked clients with {words}"):
        prior_spending._check_same_population("before", content_of(settings_of(**changes)), settings_of())
    # What does not say who clients are may differ.
    same = settings_of(**{"server.rounds": 7, "population.cohort": 31, "server.lr": 0.5})
    prior_spending._check_same_population("before", content_of(same), settings_of())


def test_clients_that_data_name_are_the_same_under_any_seed():
    natural = {"population.kind": "natural"}
    before = content_of(settings_of(**natural, **{"run.seed": 4}))
    prior_spending._check_same_population("before", before, settings_of(**natural))


def test_as_many_clients_were_asked():
    with pytest.raises(InputError, match=r"asked 901 clients, but population\.clients = 900"):
        prior_spending._check_same_population("before", content_of(settings_of(), clients=901), settings_of())
    # Of a file of names nothing else is known.
    prior_spending._check_same_population("before", content_of(None), settings_of())
    with pytest.raises(InputError, match="asked 899 clients"):
        prior_spending._check_same_population("before", content_of(None, clients=899), settings_of())


@pytest.mark.parametrize("before", [None, 0, 5])
@pytest.mark.parametrize("now", [None, 0, 5])
def test_a_simulation_counts_in_a_simulation_alone(before, now):
    settings = settings_of(**({} if now is None else {"run.noise_seed": now}))
    content = content_of(settings_of(), noise_seed=before)
    if before is not None and now is None:
        with pytest.raises(InputError, match="is a simulation"):
            prior_spending._check_real("before", content, settings)
    else:
        prior_spending._check_real("before", content, settings)
    for text in ("", "[]", "analysis: {}", "a: [", "analysis: 3"):
        with pytest.raises(InputError, match="does not say how the analysis was made"):
            prior_spending._check_real("before", SimpleNamespace(identity=SimpleNamespace(config=text)), settings)


@dataclass(frozen=True)
class Counted:
    run: str
    head: str
    phases: tuple


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Two ledgers of four lines; what is read of each, and settings that name both."""
    contents = {}

    def ledger(name):
        heads = ["h0", f"h1{name}", "h2", "h3"]
        until = lambda head: SimpleNamespace(charges=[1, 2, 3][: heads.index(head)])  # noqa: E731
        identity = SimpleNamespace(run=f"run {name}")
        return SimpleNamespace(identity=identity, heads=heads, charges=[1, 2, 3], until=until)

    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.jsonl").touch()
        contents[str(tmp_path / name / "ledger.jsonl")] = ledger(name)
    monkeypatch.setattr(ledgers, "read_content", lambda path, torn=False: contents[str(path)])
    monkeypatch.setattr(ledgers, "phases_of", tuple)
    names = tuple(str(tmp_path / name) for name in "ab")
    return names, SimpleNamespace(privacy=SimpleNamespace(spent_before=names))


A, B = Counted("run a", "h1a", (1,)), Counted("run b", "h3", (1, 2, 3))


def test_what_is_still_there_agrees_and_what_came_later_is_said(there, tmp_path):
    names, settings = there
    assert check_still_there(settings, (A, B)) == [
        f"spent before: {names[0]} agrees; its 2 later charges are not counted in this run",
        f"spent before: {names[1]} agrees",
    ]
    (tmp_path / "a" / "ledger.jsonl").unlink()
    assert check_still_there(settings, (A, B)) == [
        f"spent before: {names[0]} is not here; it is counted as the ledger's first line states",
        f"spent before: {names[1]} agrees",
    ]


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ((A,), "names 2 ledgers, but the ledger's first line counts 1"),
        ((A, B, B), "names 2 ledgers, but the ledger's first line counts 3"),
        ((B, A), "a/ledger.jsonl: is not the ledger that"),
        ((A, Counted("run a", "h3", (1, 2, 3))), "b/ledger.jsonl: is not the ledger that"),
        ((A, Counted("run b", "h1a", (1,))), "b/ledger.jsonl: is not the ledger that"),
        ((A, Counted("run b", "h2", (1, 2, 3))), "b/ledger.jsonl: has other charges"),
        ((Counted("run a", "h1a", (2,)), B), "a/ledger.jsonl: has other charges"),
    ],
)
def test_another_ledger_than_was_counted_is_found_of_several(there, counted, words):
    with pytest.raises(InputError, match=words):
        check_still_there(there[1], counted)
