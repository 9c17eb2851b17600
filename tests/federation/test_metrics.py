"""What Prometheus reads of a server: exactly what is public or released, and nothing that tells a secret cohort."""

import json
import math
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpfedmeta.federation.server.metrics import exposition
from dpfedmeta.federation.server.status_page import Page
from tests.federation.test_served_page import ASKED, ROW, progress

HEARD = replace(ASKED, clients=10, answered=1, declined=2, unsound=3)


def samples(told):
    found = {}
    for family in text_string_to_metric_families(exposition(told.snapshot(operator=False)).decode()):
        for sample in family.samples:
            labels = [
                sample.labels[name] for name in ("unit", "observer", "status", "outcome") if name in sample.labels
            ]
            found[sample.name, *labels] = sample.value
    return found


def running(tmp_path, cohort=3, sampler="fixed"):
    told = progress(cohort, sampler)
    told.on_start(tmp_path / "heart-study")
    told.on_round(ROW | {"round": 2, "clip": 9.0})
    told.on_round(ROW)
    told.heard(HEARD)
    return told


def test_every_number_of_the_page_is_there(tmp_path):
    found = samples(running(tmp_path))
    assert found["dpfedmeta_status", "running"] == 1
    assert sum(value for name, value in found.items() if name[0] == "dpfedmeta_status") == 1
    assert found["dpfedmeta_rounds_planned",] == 20
    assert found["dpfedmeta_rounds_released",] == ROW["round"] + 1
    assert (found["dpfedmeta_clients",], found["dpfedmeta_clients_connected",]) == (3, 2)
    assert found["dpfedmeta_clip_bound",] == ROW["clip"]
    assert found["dpfedmeta_aggregate_norm",] == ROW["aggregate_norm"]
    assert found["dpfedmeta_noise_norm",] == ROW["noise_norm_expected"]
    assert found["dpfedmeta_validation_accuracy",] == ROW["validation_accuracy"]["mean"]
    assert found["dpfedmeta_epsilon_promised", "record", "server"] == 2.5
    spent = {f"{name[1]}_{name[2]}": value for name, value in found.items() if name[0] == "dpfedmeta_epsilon_spent"}
    assert spent == ROW["epsilons"]
    assert math.isinf(spent["client_server"])
    assert {name[1]: value for name, value in found.items() if name[0] == "dpfedmeta_answers"} == {
        "answered": 1,
        "declined": 2,
        "invalid": 3,
        "absent": 4,
    }


@pytest.mark.parametrize(("cohort", "sampler"), [(2, "fixed"), (3, "poisson"), (2, "poisson")])
def test_what_tells_of_a_secret_cohort_is_left_out(cohort, sampler, tmp_path):
    names = {name[0].removeprefix("dpfedmeta_") for name in samples(running(tmp_path, cohort, sampler))}
    public = {"status", "rounds_planned", "clients", "epsilon_promised"}
    assert public <= names
    assert "answers" not in names
    assert names == public


def test_rounds_of_before_a_restart_are_told(tmp_path):
    (tmp_path / "heart-study").mkdir()
    lines = [json.dumps(ROW | {"round": number}) for number in range(3)]
    (tmp_path / "heart-study/rounds.jsonl").write_text("\n".join([*lines, '{"round": 3, "cl']))
    told = progress()
    told.on_start(tmp_path / "heart-study")
    assert samples(told)["dpfedmeta_rounds_released",] == 3


def test_before_there_is_a_plan_only_the_state_is_told():
    told = progress()
    told._state["plan"] = {}
    assert {name[0] for name in samples(told)} == {"dpfedmeta_status"}


def test_health_and_metrics_are_served_and_tell_no_round(tmp_path):
    page = Page(running(tmp_path, 3, "poisson"))
    try:
        for path, kind in (("health", "application/json"), ("metrics", "text/plain; version=0.0.4; charset=utf-8")):
            with urllib.request.urlopen(page.address + path, timeout=5) as reply:
                text = reply.read().decode()
                assert (reply.status, reply.headers["Content-Type"]) == (200, kind)
                assert "running" in text
                assert str(ROW["clip"]) not in text
    finally:
        page.close()
