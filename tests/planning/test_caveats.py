import pytest
from PIL import Image

from dpfedmeta.config.load import resolve
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.caveats import TaskFacts, cautions, weak_targets
from tests.conftest import dpfedmeta


def said(algo, dataset="strokes", **given):
    settings = resolve(algo, dataset, None, given)
    return cautions(settings, TaskFacts.of(settings, load_task(dataset)[0]))


@pytest.mark.parametrize(
    ("given", "records"),
    [
        ({"population.clients": "1000"}, 1000 * 50),
        ({"population.clients": "1000", "task.ways": "4", "task.shots": "1", "task.queries": "2"}, 1000 * 12),
    ],
)
@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro", "dp-agrlr"])
def test_a_delta_above_one_over_the_records_is_said(algo, given, records):
    just_above, just_below = (str(factor / records) for factor in (1.001, 0.999))
    always = set(said(algo, **given))  # a preset's own remark
    (caution,) = set(said(algo, **given, **{"privacy.record.delta": just_above})) - always
    assert f"of the {records:,} records" in caution
    assert set(said(algo, **given, **{"privacy.record.delta": just_below})) == always


def test_federated_averaging_counts_the_records_of_a_shard():
    (caution,) = said(
        "local-dp",
        "mnist-shards",
        **{"population.clients": "100", "population.records": "40", "privacy.record.delta": "0.01"},
    )
    assert "of the 4,000 records" in caution


def test_silos_that_all_take_part_hide_no_silo():
    def hides(clients, cohort):
        given = {"population.clients": str(clients), "population.cohort": str(cohort), "population.sampler": "fixed"}
        return not any(LITTLE in caution for caution in said("dp-agr", **given))

    assert not hides(8, 8)
    assert hides(8, 7)
    assert hides(300, 300)


LITTLE = "noise that hides one client of so few leaves little to learn"


@pytest.mark.parametrize(
    ("algo", "given"),
    [
        ("dp-agr", {"privacy.client.epsilon": "1.5"}),
        ("dp-agr", {"server.noise_multiplier": "2"}),
        ("dp-agrlr-micro", {}),
        ("moments-agr", {}),
    ],
)
def test_no_caution_denies_what_the_table_promises(algo, given):
    """It said that privacy of clients is out of reach, under a table with (client, public) at 1.5."""
    few = {"population.clients": "8", "population.cohort": "8", "population.sampler": "fixed"}
    (caution,) = (each for each in said(algo, **few, **given) if LITTLE in each)
    assert caution.endswith(LITTLE)


@pytest.mark.parametrize(("clients", "there"), [(10_000, 24), (20_000, 112)])
def test_clients_that_are_used_up_are_said_before_the_first_round(clients, there):
    given = {"population.cohort": "500", "server.rounds": "60", "population.max_participations": "1"}
    (caution,) = (
        each
        for each in said("dp-agrlr-micro", **given, **{"population.clients": str(clients)})
        if "cohorts become smaller" in each
    )
    # (1 - q)^59 of 500.
    assert f"about {there} of 500 clients are left in round 60" in caution
    assert not any("become smaller" in each for each in said("dp-agrlr-micro", **given))
    assert not any("become smaller" in each for each in said("dp-agr-correlated"))


def test_what_is_left_of_clients_is_found_for_any_number_of_rounds():
    """Binomial coefficients of thousands are no floats."""
    given = {"population.clients": "10000", "population.cohort": "1000", "server.rounds": "3000"}
    found = said("dp-agr", **given, **{"population.max_participations": "300"})
    (caution,) = (each for each in found if "cohorts become smaller" in each)
    # 2999 coins of 0.1: 299.9 are expected, so about half of the clients came fewer than 300 times.
    assert "about 494 of 1000 clients are left in round 3000" in caution


def test_a_share_in_place_of_a_number_of_clients_is_said():
    def words(cohort):
        given = {"population.clients": "60", "population.cohort": cohort, "server.rounds": "3"}
        return [each for each in said("dp-agr", **given) if "is a number of clients" in each]

    (caution,) = words("0.1")
    assert "so 90% of the rounds have nobody; for a share of 0.1 of the 60 clients give --cohort 6" in caution
    assert words("1") == []


def test_without_a_promise_nothing_is_said():
    assert said("maml") == ()


def test_the_public_classes_of_a_folder_are_named(tmp_path):
    for split in ("train", "val", "test"):
        for name in "abcde":
            folder = tmp_path / "mine" / split / f"{split}{name}"
            folder.mkdir(parents=True)
            for number in range(10):
                Image.new("L", (16, 16), 10 * number).save(folder / f"{number}.png")
    given = {"population.clients": "100", "privacy.record.delta": "0.0001"}
    (caution,) = said("dp-agr", str(tmp_path / "mine"), **given)
    assert "validation and test classes, or clients where the data name them, are treated as public" in caution
    assert said("maml", str(tmp_path / "mine")) == ()


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_target_that_hides_nobody_is_said(unit):
    name = f"privacy.{unit}.epsilon"
    small, large = (resolve("dp-agrlr-micro", "strokes", None, {name: value}) for value in ("1.5", "800"))
    assert list(weak_targets(small)) == []
    (caution,) = weak_targets(large)
    assert caution.startswith(f"{name} = 800 at delta = ")
    assert "protects nobody" in caution
    # What a ledger's plan is compared with stays as it was.
    assert not any("protects nobody" in words for words in said("dp-agrlr-micro", **{name: "800"}))


def test_whoever_plans_is_told_of_a_target_that_hides_nobody():
    told = dpfedmeta("account", "--algo", "dp-agr", "--epsilon", "800").out
    assert "privacy.client.epsilon = 800" in told
    assert "protects nobody" in " ".join(told.split())
