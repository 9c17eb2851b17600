"""Work that a plan may ask of a client: each limit is refused just beyond it, by the server and by clients."""

from dataclasses import replace
from functools import reduce

import pytest
import yaml

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.federation.offers import signed_analysis, signed_plan
from dpfedmeta.federation.offers.signed_analysis import MOST_OF_OPTION
from dpfedmeta.federation.offers.work_limits import (
    MOST_BANDS,
    MOST_FITTED,
    WORK_LIMITS,
    Work,
    check_work,
    fitting_problem,
)
from dpfedmeta.federation.server.federation_checks import check_federation
from dpfedmeta.federation.wire_format import Said
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from tests.federation.sessions import open_session
from tests.federation.silos import MICRO
from tests.federation.test_kept_settings import asked, signed_text

# Of each limit: settings that reach it exactly, and those that are beyond it. Strokes have 28 pixels a side.
REACHED = {
    "records of one client": (
        {"task.ways": "100", "task.shots": "500", "task.queries": "500"},
        {"task.ways": "100", "task.shots": "500", "task.queries": "501"},
    ),
    "passes of a record through the network for one message": (
        {"task.ways": "5", "task.shots": "500", "task.queries": "500", "meta.steps": "999", "meta.order": "1"},
        {"task.ways": "5", "task.shots": "500", "task.queries": "500", "meta.steps": "1000", "meta.order": "1"},
    ),
    "numbers of one layer held at once": (
        {"task.ways": "2", "task.shots": "1000", "task.queries": "1000", "meta.steps": "10", "model.width": "115"},
        {"task.ways": "2", "task.shots": "1000", "task.queries": "1000", "meta.steps": "10", "model.width": "116"},
    ),
}


def test_every_limit_is_tried():
    assert {limit.what for limit in WORK_LIMITS} == {*REACHED}


@pytest.mark.parametrize("what", REACHED)
def test_a_plan_of_more_work_than_a_client_does_is_refused_on_both_sides(silos, tmp_path, monkeypatch, what):
    inside, beyond = ({"model.downscale": "1"} | given for given in REACHED[what])
    session = open_session(silos, tmp_path, "dp-agr")
    task = load_task(str(silos.public))[0]
    check_work(silos.settings("dp-agr", **inside), task)
    with pytest.raises(InputError, match=f"{what}, and a client of a federation takes at most"):
        check_federation(silos.settings("dp-agr", **beyond), silos.roster)
    content = yaml.safe_load(session.signed.text)
    settings = yaml.safe_load(content["settings"])
    for name, value in beyond.items():
        *sections, key = name.split(".")
        place = reduce(lambda found, each: found.setdefault(each, {}), sections, settings)
        place[key] = yaml.safe_load(value)
    monkeypatch.setattr(signed_plan, "make_plan", None)
    said, log = asked(session, signed_text(session, content | {"settings": yaml.safe_dump(settings)}))
    assert said is Said.DECLINED
    assert what in log


def test_passes_count_each_way_of_dividing_the_classes(silos):
    sizes = {"task.ways": "5", "task.shots": "500", "task.queries": "500", "meta.order": "1"}
    task = load_task(str(silos.public))[0]
    settings = [silos.settings("dp-agr", **sizes, **{"meta.steps": steps}) for steps in ("499", "500")]
    divided = [replace(each, meta=replace(each.meta, divisions=2)) for each in settings]
    assert [Work(settings=each, task=task).passes for each in divided] == [5_000_000, 5_010_000]


def test_micro_episodes_hold_one_of_them_at_once_and_not_all_records(silos):
    given = {"task.ways": "2", "task.shots": "5000", "task.queries": "5000", "meta.steps": "100"}
    task = load_task(str(silos.public))[0]
    check_work(silos.settings("dp-agrlr-micro", **MICRO | given), task)
    with pytest.raises(InputError, match="held at once"):
        check_work(silos.settings("dp-agr", **given), task)


@pytest.mark.parametrize(
    ("noise", "rounds", "buffers", "separation", "fits"),
    [
        ("independent", 10**9, None, 1, True),
        ("blt", MOST_FITTED, None, 1, True), ("blt", MOST_FITTED + 1, None, 1, False),
        ("toeplitz", MOST_FITTED + 1, None, 1, False),
        ("banded", 5000, None, MOST_BANDS // 5000, True), ("banded", 5000, None, MOST_BANDS // 5000 + 1, False),
        ("banded", 5000, MOST_BANDS // 5000 - 1, 9999, True), ("banded", 5000, MOST_BANDS // 5000, 9999, False),
        ("banded", 700, None, 10**9, True),
    ],
)  # fmt: skip
def test_correlated_noise_is_fitted_to_so_many_rounds(noise, rounds, buffers, separation, fits):
    assert (fitting_problem(noise, rounds, buffers, separation) is None) == fits


def test_correlated_noise_of_too_many_rounds_is_refused_before_it_is_fitted(silos):
    task = load_task(str(silos.public))[0]
    settings = silos.settings("dp-agr-correlated", **{"server.noise": "blt", "server.rounds": str(MOST_FITTED)})
    check_work(settings, task)
    with pytest.raises(InputError, match=r"^server\.noise = blt: 5,001 rounds"):
        check_work(replace(settings, server=replace(settings.server, rounds=MOST_FITTED + 1)), task)


@pytest.mark.parametrize(("given", "named"), [({"clients": 10**8}, "clients"), ({"own": {"bins": 10**9}}, "bins")])
def test_an_analysis_of_more_work_than_a_client_does_is_refused(given, named):
    from types import SimpleNamespace

    asked = SimpleNamespace(**{"clients": 5, "own": {"bins": MOST_OF_OPTION, "lowest": 1e9, "name": "x"}} | given)
    with pytest.raises(Refused, match=rf"the analysis has {named} = .*: a client takes at most"):
        signed_analysis._check_size(asked)
    signed_analysis._check_size(SimpleNamespace(clients=5, own={"bins": MOST_OF_OPTION, "lowest": 1e9, "name": "x"}))
